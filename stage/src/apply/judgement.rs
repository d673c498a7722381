//! Three-way judgement: what the command found, what it left, what the target has now.

use std::collections::HashMap;

use super::conflict::{Conflict, ConflictKind};
use super::fault::{Blame, Fault};
use super::ground::Grounds;
use super::parallel;
use super::powers::Powers;
use super::print::Sight;
use super::selection::below;
use super::target::{Footing, Mount, Target, is_dir};
use crate::{Before, Change, Errno, Fingerprint, RelPath};

/// What is to be done with one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The target has what the command found.
    Write,
    /// The target has what the command left.
    Same,
    /// Nothing of it can be done by this caller.
    Unable,
    /// The target has something else.
    Conflict,
}

/// A judged change.
#[derive(Debug)]
pub(crate) struct Item<'c> {
    pub change: &'c Change,
    /// What stands there now.
    pub now: Option<Sight>,
    /// Where it stands.
    pub footing: Option<Footing>,
    /// What will stand there, cut down to what this caller can do.
    pub after: Option<Fingerprint>,
    pub verdict: Verdict,
    /// What is cut off.
    pub left_out: Vec<String>,
    /// The mount that the name is on, where it is to be written.
    pub mount: Option<Mount>,
}

/// All of them, sorted by path.
#[derive(Debug)]
pub(crate) struct Judgement<'c> {
    pub items: Vec<Item<'c>>,
    pub conflicts: Vec<Conflict>,
    /// Directories whose owner has to be let in first.
    pub loosen: Vec<RelPath>,
    /// The mounts that are written, each with the topmost directory of the target on it.
    pub mounts: Vec<(Mount, RelPath)>,
}

impl Item<'_> {
    /// The path is a directory now and will not be one.
    pub fn empties(&self) -> bool {
        self.now.as_ref().is_some_and(Sight::is_dir) && !self.after.as_ref().is_some_and(|a| is_dir(&a.kind))
    }

    /// A directory appears where there is none now.
    pub fn opens(&self) -> bool {
        !self.now.as_ref().is_some_and(Sight::is_dir) && self.after.as_ref().is_some_and(|a| is_dir(&a.kind))
    }

    /// What stands there stays, only its metadata changes.
    pub fn adjusts(&self) -> bool {
        matches!((&self.now, &self.after), (Some(now), Some(after)) if now.print.kind == after.kind)
    }
}

/// Looks at every path and judges it. Nothing is written.
///
/// # Errors
/// A system call fails in a way that says nothing about the path.
pub(crate) fn judge<'c>(target: &Target, changes: &[&'c Change], powers: &Powers) -> Result<Judgement<'c>, Fault> {
    let mut items = Vec::with_capacity(changes.len());
    let mut conflicts = Vec::new();
    let seen = parallel::map(changes, |change| target.look_closely(&change.path));
    for (change, seen) in changes.iter().zip(seen) {
        let (item, conflict) = judge_one(target, change, seen, powers)?;
        conflicts.extend(conflict.map(|what| Conflict { path: change.path.clone(), what }));
        items.push(item);
    }
    let mut judgement = Judgement { items, conflicts, loosen: Vec::new(), mounts: Vec::new() };
    judgement.check_surroundings(target, powers)?;
    judgement.conflicts.sort_by(|a, b| a.path.cmp(&b.path));
    judgement.conflicts.dedup_by(|a, b| a.path == b.path);
    Ok(judgement)
}

fn judge_one<'c>(
    target: &Target,
    change: &'c Change,
    seen: Result<Option<(Sight, Footing)>, Errno>,
    powers: &Powers,
) -> Result<(Item<'c>, Option<ConflictKind>), Fault> {
    let mut item = Item {
        change,
        now: None,
        footing: None,
        after: None,
        verdict: Verdict::Conflict,
        left_out: Vec::new(),
        mount: None,
    };
    let seen = match seen {
        Err(Errno::ACCESS | Errno::PERM) => return Ok((item, Some(ConflictKind::Unreadable))),
        Err(Errno::AGAIN) => return Ok((item, Some(ConflictKind::Unsteady))),
        seen => seen.blame("read", target.whole(&change.path))?,
    };
    if let Some((now, footing)) = seen {
        (item.now, item.footing) = (Some(now), Some(footing));
    }
    match change.after.as_ref().map(|after| powers.fit(&after.print, item.now.as_ref())).transpose() {
        Ok(fitted) => {
            item.left_out = fitted.as_ref().map(|f| f.left_out.clone()).unwrap_or_default();
            item.after = fitted.map(|f| f.print);
        }
        Err(reason) => {
            item.verdict = Verdict::Unable;
            item.left_out.push(reason);
            return Ok((item, None));
        }
    }
    let conflict = compare(&mut item);
    Ok((item, conflict))
}

fn compare(item: &mut Item<'_>) -> Option<ConflictKind> {
    let now = item.now.as_ref().map(|n| &n.print);
    let same = match (now, &item.after) {
        (None, None) => true,
        (Some(now), Some(after)) => now.same(after),
        _ => false,
    };
    if same {
        // Where all that is missing can't be done, the change is not applied.
        item.verdict = if item.left_out.is_empty() { Verdict::Same } else { Verdict::Unable };
        return None;
    }
    let conflict = match (&item.change.before, now) {
        (Before::Lost, _) => Some(ConflictKind::Lost),
        (Before::Absent, None) => None,
        (Before::Absent, Some(_)) => Some(ConflictKind::Exists),
        (Before::Present(_), None) => Some(ConflictKind::Removed),
        (Before::Present(before), Some(now)) if now.same(before) => None,
        (Before::Present(_), Some(_)) => Some(ConflictKind::Changed),
    };
    if conflict.is_none() {
        item.verdict = Verdict::Write;
    }
    conflict
}

impl Judgement<'_> {
    /// Judges what is around the paths: parents, other entries of directories that go, mounts, permissions.
    fn check_surroundings(&mut self, target: &Target, powers: &Powers) -> Result<(), Fault> {
        let index: HashMap<&RelPath, usize> =
            self.items.iter().enumerate().map(|(at, i)| (&i.change.path, at)).collect();
        let mut grounds = Grounds::new(target, powers);
        let mut found = Vec::new();
        let mut mounts = Vec::with_capacity(self.items.len());
        for item in &self.items {
            mounts.push(None);
            if item.verdict != Verdict::Write {
                continue;
            }
            let path = &item.change.path;
            let conflict = match self.mount_of(path, &index, &mut grounds)? {
                None => Some(ConflictKind::ParentMissing),
                Some(mount) => {
                    *mounts.last_mut().unwrap_or(&mut None) = Some(mount);
                    grounds.check(item, mount)?
                }
            };
            let conflict = match conflict {
                None if item.empties() => self.other_entry(target, item)?.map(ConflictKind::NewInside),
                other => other,
            };
            found.extend(conflict.map(|what| Conflict { path: path.clone(), what }));
        }
        (self.loosen, self.mounts) = grounds.finish();
        self.conflicts.extend(found);
        for (item, mount) in self.items.iter_mut().zip(mounts) {
            item.mount = mount;
        }
        Ok(())
    }

    /// The mount that a path's name is on; `None`: it has no directory and will have none.
    fn mount_of(
        &self,
        path: &RelPath,
        index: &HashMap<&RelPath, usize>,
        grounds: &mut Grounds<'_>,
    ) -> Result<Option<Mount>, Fault> {
        let mut at = path.clone();
        while let Some((parent, _)) = at.split() {
            let made = index.get(&parent).map(|i| &self.items[*i]).filter(|i| i.verdict == Verdict::Write && i.opens());
            if made.is_none() {
                return Ok(grounds.at(&parent)?.map(|ground| ground.mount));
            }
            at = parent;
        }
        Ok(grounds.at(&at)?.map(|ground| ground.mount))
    }

    /// An entry of a directory that goes which is not going itself.
    fn other_entry(&self, target: &Target, item: &Item<'_>) -> Result<Option<Vec<u8>>, Fault> {
        let path = &item.change.path;
        let going = &self.items[below(&self.items, path, |i| &i.change.path)];
        let names = match target.names(path) {
            Err(Errno::NOENT) => return Ok(None),
            names => names.blame("list", target.whole(path))?,
        };
        Ok(names
            .into_iter()
            .find(|name| {
                let Ok(child) = path.join(name) else { return true };
                let at = going.binary_search_by(|i| i.change.path.cmp(&child));
                // A conflict of the entry's own says more.
                !at.is_ok_and(|at| going[at].change.after.is_none())
            })
            .map(Into::into))
    }
}
