//! The existing directories around the paths of an apply: mounts and permissions.

use std::collections::{BTreeSet, HashMap};

use super::conflict::ConflictKind;
use super::fault::{Blame, Fault};
use super::judgement::Item;
use super::powers::Powers;
use super::print::Sight;
use super::staging::writable;
use super::target::{Footing, Mount, Target, footing};
use crate::RelPath;
use crate::stat::Stat;

/// A directory of the target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground {
    pub mount: Mount,
    fixed: bool,
    access: Access,
    /// Only owners remove names here; the directory's own owner.
    sticky: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Open,
    /// Its owner, who we are, has to allow it first.
    Loosen,
    Closed,
}

/// All that were looked at.
pub(crate) struct Grounds<'t> {
    target: &'t Target,
    powers: &'t Powers,
    known: HashMap<RelPath, Option<Ground>>,
    loosen: BTreeSet<RelPath>,
    mounts: HashMap<Mount, RelPath>,
}

impl<'t> Grounds<'t> {
    pub fn new(target: &'t Target, powers: &'t Powers) -> Self {
        Self { target, powers, known: HashMap::new(), loosen: BTreeSet::new(), mounts: HashMap::new() }
    }

    /// The directory at the path; `None`: there is none.
    pub fn at(&mut self, path: &RelPath) -> Result<Option<Ground>, Fault> {
        if let Some(known) = self.known.get(path) {
            return Ok(*known);
        }
        let ground = self.look(path)?;
        self.known.insert(path.clone(), ground);
        Ok(ground)
    }

    fn look(&self, path: &RelPath) -> Result<Option<Ground>, Fault> {
        let whole = || self.target.whole(path);
        let Some(dir) = self.target.directory(path).blame("open", whole())? else { return Ok(None) };
        let stat = Stat::of(&dir).blame("read", whole())?;
        let Footing { mount, fixed } = footing(&dir).blame("read", whole())?;
        let access = match writable(&dir) {
            true => Access::Open,
            false if stat.uid == self.powers.uid && stat.mode & 0o300 != 0o300 => Access::Loosen,
            false => Access::Closed,
        };
        let sticky = (stat.mode & 0o1000 != 0 && !self.powers.any_owner).then_some(stat.uid);
        Ok(Some(Ground { mount, fixed, access, sticky }))
    }

    /// Whether the path of a change can be written, whose name is on `mount`. Notes what has to be done for it.
    pub fn check(&mut self, item: &Item<'_>, mount: Mount) -> Result<Option<ConflictKind>, Fault> {
        self.note_mount(&item.change.path, mount)?;
        if let Some(footing) = &item.footing {
            if footing.fixed {
                return Ok(Some(ConflictKind::Fixed));
            }
            if !footing.is_on(mount, item.now.as_ref().is_some_and(Sight::is_dir)) && !item.adjusts() {
                return Ok(Some(ConflictKind::MountPoint));
            }
        }
        let Some((parent, _)) = item.change.path.split() else { return Ok(None) };
        if item.adjusts() {
            return Ok(None);
        }
        // A directory that the plan makes itself is as it has to be.
        let Some(ground) = self.at(&parent)? else { return Ok(None) };
        if ground.fixed {
            return Ok(Some(ConflictKind::Fixed));
        }
        let foreign = |dir_owner| {
            item.now.as_ref().is_some_and(|n| n.stat.uid != self.powers.uid) && dir_owner != self.powers.uid
        };
        match ground.access {
            Access::Closed => return Ok(Some(ConflictKind::NotWritable)),
            Access::Loosen => {
                self.loosen.insert(parent);
            }
            Access::Open if ground.sticky.is_some_and(foreign) => return Ok(Some(ConflictKind::NotWritable)),
            Access::Open => {}
        }
        Ok(None)
    }

    /// Remembers the topmost directory of the target on the mount.
    fn note_mount(&mut self, path: &RelPath, mount: Mount) -> Result<(), Fault> {
        if self.mounts.contains_key(&mount) {
            return Ok(());
        }
        let mut top = RelPath::default();
        let mut at = path.clone();
        while let Some((parent, _)) = at.split() {
            match self.at(&parent)? {
                Some(ground) if ground.mount == mount => top = parent.clone(),
                // Not made yet.
                None => {}
                Some(_) => break,
            }
            at = parent;
        }
        self.mounts.insert(mount, top);
        Ok(())
    }

    /// Directories to loosen, parents first, and the mounts that are written.
    pub fn finish(self) -> (Vec<RelPath>, Vec<(Mount, RelPath)>) {
        let mut mounts: Vec<_> = self.mounts.into_iter().collect();
        mounts.sort_by(|a, b| a.1.cmp(&b.1));
        (self.loosen.into_iter().collect(), mounts)
    }
}
