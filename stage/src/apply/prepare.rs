//! Making every new content complete beside the target, and the list of steps that move them in.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, openat};

use super::content::{self, CopyError};
use super::disk::Disk;
use super::fault::{Blame, Fault};
use super::home::{Home, open_object};
use super::judgement::{Item, Judgement, Verdict};
use super::ledger::{Act, Step};
use super::metadata::wear;
use super::print::Sight;
use super::staging::{Staging, slot_name};
use super::target::{Mount, Target, is_dir};
use crate::layout::UPPER;
use crate::stat::Stat;
use crate::{Before, Errno, Fingerprint, Kind, RelPath};

/// Why the new contents could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrepareError {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] Fault),
    /// A content is not what the seal says.
    #[error("damaged")]
    Damaged(RelPath),
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    /// In the order of execution.
    pub steps: Vec<Step>,
    /// Parts of changes that turned out to be impossible.
    pub left_out: Vec<(RelPath, String)>,
}

/// Where another name of a file is to be had from.
#[derive(Clone)]
enum Source {
    /// A name in the target that stays.
    Anchor { path: RelPath, ino: u64 },
    /// One made before in a staging directory.
    Slot { staging: usize, slot: u64 },
}

/// Makes the contents.
pub(crate) struct Preparer<'a> {
    disk: Disk<'a>,
    target: &'a Target,
    upper: OwnedFd,
    stagings: &'a [Staging],
    mounts: &'a [(Mount, RelPath)],
    sources: HashMap<u64, Source>,
    /// Files with names outside of the plan, by device and inode number.
    shared: HashSet<(u64, u64)>,
    out: Prepared,
}

impl<'a> Preparer<'a> {
    /// `stagings` are those of the judgement's mounts, in that order.
    pub fn new(
        disk: Disk<'a>,
        home: &Home,
        target: &'a Target,
        (mounts, stagings): (&'a [(Mount, RelPath)], &'a [Staging]),
    ) -> Result<Self, Fault> {
        let upper = home.subdir(UPPER).blame("open", home.path().join(UPPER))?;
        Ok(Self {
            disk,
            target,
            upper,
            stagings,
            mounts,
            sources: HashMap::new(),
            shared: HashSet::new(),
            out: Prepared::default(),
        })
    }

    /// Makes everything that the judgement calls for.
    pub fn run(mut self, judgement: &Judgement<'_>) -> Result<Prepared, PrepareError> {
        self.find_shared(judgement);
        self.find_anchors(judgement);
        let written = || judgement.items.iter().enumerate().filter(|(_, i)| i.verdict == Verdict::Write);
        let (mut puts, mut removals, mut adjusts, mut settles) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (at, item) in written() {
            let slot = at as u64;
            let staging = self.staging_of(item);
            let step = |list: &mut Vec<Step>, act| {
                let staging = u32::try_from(staging).unwrap_or(u32::MAX);
                list.push(Step { path: item.change.path.clone(), staging, act });
            };
            match (&item.now, &item.after) {
                (Some(now), None) if now.is_dir() => {
                    step(&mut removals, Act::RemoveDir { before: now.print.clone() });
                }
                (Some(now), None) => step(&mut removals, Act::Remove { slot, before: now.print.clone() }),
                (Some(now), Some(after)) if now.is_dir() && is_dir(&after.kind) => {
                    let (before, after) = (now.print.clone(), after.clone());
                    // What happens in it changes its time, so that it always has to be set.
                    let mtime = Some(after.meta.mtime);
                    step(&mut settles, Act::Settle { before, after, mtime, ino: None });
                }
                (Some(now), Some(after)) if item.adjusts() && self.keeps_inode(item) => {
                    let (before, after) = (now.print.clone(), after.clone());
                    step(&mut adjusts, Act::Adjust { before, after, mtime: new_mtime(item) });
                }
                (now, Some(after)) => {
                    let before = now.as_ref().map(|n| n.print.clone());
                    let Some((after, ino)) = self.make(item, after.clone(), (staging, slot))? else { continue };
                    step(&mut puts, Act::Put { slot, ino, before, after: after.clone() });
                    if is_dir(&after.kind) {
                        let mtime = Some(after.meta.mtime);
                        step(&mut settles, Act::Settle { before: after.clone(), after, mtime, ino: Some(ino) });
                    }
                }
                (None, None) => {}
            }
        }
        self.loosen(judgement, &mut settles)?;
        settles.sort_by(|a, b| b.path.cmp(&a.path));
        self.out.steps.extend(removals.into_iter().rev().chain(puts).chain(adjusts).chain(settles));
        Ok(self.out)
    }

    fn staging_of(&self, item: &Item<'_>) -> usize {
        self.mounts.iter().position(|(mount, _)| Some(*mount) == item.mount).unwrap_or(usize::MAX)
    }

    /// Files that would change under names that nobody asked to change, were their metadata set in place.
    fn find_shared(&mut self, judgement: &Judgement<'_>) {
        let mut names: HashMap<(u64, u64), u32> = HashMap::new();
        let linked = || judgement.items.iter().filter_map(|i| Some((i, i.now.as_ref()?))).filter(|(_, n)| !n.is_dir());
        for (item, now) in linked() {
            let planned = matches!(item.verdict, Verdict::Write | Verdict::Same);
            *names.entry((now.stat.dev, now.stat.ino)).or_default() += u32::from(planned);
        }
        let more = linked().map(|(_, n)| &n.stat).filter(|s| names.get(&(s.dev, s.ino)).is_some_and(|n| s.nlink > *n));
        self.shared = more.map(|s| (s.dev, s.ino)).collect();
    }

    fn is_shared(&self, now: &Sight) -> bool {
        self.shared.contains(&(now.stat.dev, now.stat.ino))
    }

    /// Names whose file already has the right content: the other names of their groups become links to them.
    fn find_anchors(&mut self, judgement: &Judgement<'_>) {
        let mut originals: HashMap<u64, bool> = HashMap::new();
        for item in &judgement.items {
            let Some(after) = &item.change.after else { continue };
            let (Some(group), Some(now)) = (after.link_group, &item.now) else { continue };
            let stays = item.verdict == Verdict::Same || (item.verdict == Verdict::Write && !self.is_shared(now));
            let fits = stays && item.adjusts();
            let better = !originals.contains_key(&group) || (after.object.is_none() && !originals[&group]);
            if fits && !now.is_dir() && better {
                originals.insert(group, after.object.is_none());
                let anchor = Source::Anchor { path: item.change.path.clone(), ino: now.stat.ino };
                self.sources.insert(group, anchor);
            }
        }
    }

    /// Whether a change of metadata is made on the file that is there, rather than by a link to another or a copy.
    fn keeps_inode(&self, item: &Item<'_>) -> bool {
        if item.now.as_ref().is_some_and(|now| self.is_shared(now)) {
            return false;
        }
        let group = item.change.after.as_ref().and_then(|a| a.link_group);
        match group.and_then(|g| self.sources.get(&g)) {
            Some(Source::Anchor { ino, .. }) => item.now.as_ref().is_some_and(|now| now.stat.ino == *ino),
            _ => true,
        }
    }

    /// Steps that let the owner write to directories, and those that take it back.
    fn loosen(&mut self, judgement: &Judgement<'_>, settles: &mut Vec<Step>) -> Result<(), Fault> {
        for path in &judgement.loosen {
            let Some(sight) = self.target.look(path).blame("read", self.target.whole(path))? else { continue };
            self.out.steps.push(Step { path: path.clone(), staging: 0, act: Act::Loosen });
            let at = judgement.items.binary_search_by(|i| i.change.path.cmp(path));
            let gone =
                at.is_ok_and(|at| judgement.items[at].verdict == Verdict::Write && judgement.items[at].empties());
            if !gone && !settles.iter().any(|s| s.path == *path) {
                let (before, after) = (sight.print.clone(), sight.print);
                settles.push(Step {
                    path: path.clone(),
                    staging: 0,
                    act: Act::Settle { before, after, mtime: None, ino: None },
                });
            }
        }
        Ok(())
    }

    /// Makes what will stand at the item's path. Returns what it really is, and its inode number; `None`: it can't be
    /// made, which is noted.
    fn make(
        &mut self,
        item: &Item<'_>,
        mut after: Fingerprint,
        (staging, slot): (usize, u64),
    ) -> Result<Option<(Fingerprint, u64)>, PrepareError> {
        let path = &item.change.path;
        let name = slot_name(slot);
        let place = &self.stagings[staging];
        let label = place.label.join(String::from_utf8_lossy(&name).into_owned());
        let group = item.change.after.as_ref().and_then(|a| a.link_group);
        if let Some(ino) = self.link(group, (staging, &name), &label)? {
            return Ok(Some((after, ino)));
        }
        match self.create(item, &after, (staging, &name), &label) {
            Err(PrepareError::Io(fault)) if is_refused_node(&after.kind, &fault) => {
                self.out.left_out.push((path.clone(), fault.source.to_string()));
                return Ok(None);
            }
            made => made?,
        }
        let fd = openat(&place.dir, &name[..], OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let fd = fd.blame("open", &label)?;
        let refused = self.dress(item, &fd, &after).blame("set up", &label)?;
        self.out.left_out.extend(refused.into_iter().map(|what| (path.clone(), what)));
        let stat = Stat::of(&fd).blame("read", &label)?;
        // What the path will be compared with is what was really made.
        (after.meta.uid, after.meta.gid) = (stat.uid, stat.gid);
        if !is_dir(&after.kind) {
            after.meta.mode = stat.mode;
        }
        if let Some(group) = group {
            self.sources.insert(group, Source::Slot { staging, slot });
        }
        Ok(Some((after, stat.ino)))
    }

    /// Another name of a file that exists already; `None`: there is none to be had.
    fn link(&self, group: Option<u64>, (staging, name): (usize, &[u8]), label: &PathBuf) -> Result<Option<u64>, Fault> {
        let place = &self.stagings[staging];
        let linked = match group.and_then(|g| self.sources.get(&g)) {
            None => return Ok(None),
            Some(Source::Anchor { path, ino }) => {
                let Some((parent, from)) = self.target.parent(path).blame("open", label)? else { return Ok(None) };
                self.disk.link((&parent, from), (&place.dir, name)).map(|()| Some(*ino))
            }
            Some(Source::Slot { staging, slot }) => {
                self.disk.link((&self.stagings[*staging].dir, &slot_name(*slot)), (&place.dir, name)).map(|()| None)
            }
        };
        let expected = match linked {
            // Not on this filesystem, too many names, or not ours to link to: then it becomes a file of its own.
            Err(e)
                if matches!(
                    Errno::from_io_error(&e),
                    Some(Errno::XDEV | Errno::MLINK | Errno::PERM | Errno::NOENT)
                ) =>
            {
                return Ok(None);
            }
            linked => linked.blame("link", label)?,
        };
        let ino = Stat::at(&place.dir, name).blame("read", label)?.ino;
        if expected.is_some_and(|expected| expected != ino) {
            self.disk.unlink(&place.dir, name).blame("remove", label)?;
            return Ok(None);
        }
        Ok(Some(ino))
    }

    fn create(
        &self,
        item: &Item<'_>,
        after: &Fingerprint,
        (staging, name): (usize, &[u8]),
        label: &PathBuf,
    ) -> Result<(), PrepareError> {
        let (disk, dir) = (self.disk, &self.stagings[staging].dir);
        let node = |kind, device| disk.create_node(dir, name, kind, device);
        let made = match &after.kind {
            Kind::File { size, hash } => return self.create_file(item, (*size, hash), (dir, name), label),
            Kind::Directory => disk.create_dir(dir, name),
            Kind::Symlink(target) => disk.create_symlink(dir, name, target),
            Kind::Fifo => node(FileType::Fifo, 0),
            Kind::Socket => node(FileType::Socket, 0),
            Kind::CharDevice(device) => node(FileType::CharacterDevice, *device),
            Kind::BlockDevice(device) => node(FileType::BlockDevice, *device),
        };
        Ok(made.blame("create", label)?)
    }

    fn create_file(
        &self,
        item: &Item<'_>,
        content: (u64, &crate::ContentHash),
        (dir, name): (&OwnedFd, &[u8]),
        label: &PathBuf,
    ) -> Result<(), PrepareError> {
        let path = &item.change.path;
        let damaged = || PrepareError::Damaged(path.clone());
        let object = item.change.after.as_ref().and_then(|a| a.object);
        // Metadata of a hard link whose file could not be linked to: its content is still in the target.
        let from = match object {
            Some(object) => match open_object(&self.upper, object) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(damaged()),
                opened => opened.blame("open the content of", self.target.whole(path))?.0,
            },
            None if item.adjusts() => self.target.open_file(path).blame("open", self.target.whole(path))?,
            None => return Err(damaged()),
        };
        let to = self.disk.create_file(dir, name).blame("create", label)?;
        match content::copy(self.disk, &from, &to, content) {
            Err(CopyError::Damaged) => Err(damaged()),
            Err(CopyError::Io(e)) => Err(PrepareError::Io(Fault { action: "write", path: label.clone(), source: e })),
            Ok(()) => Ok(()),
        }
    }

    /// Gives a new file its metadata. A directory stays open to its owner until everything in it is done.
    fn dress(&self, item: &Item<'_>, fd: &OwnedFd, after: &Fingerprint) -> std::io::Result<Vec<String>> {
        let stat = Stat::of(fd)?;
        let have = crate::Meta { mode: stat.mode, uid: stat.uid, gid: stat.gid, ..Default::default() };
        let mut want = after.meta.clone();
        if is_dir(&after.kind) {
            want.mode |= 0o700;
        }
        let was = item.now.as_ref().map(|now| &now.print.kind);
        if let (Some(Kind::File { .. }), Kind::File { .. }) = (was, &after.kind) {
            self.inherit(&item.change.path, fd);
        }
        wear(self.disk, fd, (&after.kind, &have, &want), Some(want.mtime))
    }

    /// Takes over what a stage knows nothing of from the file that is replaced: access control lists, labels. What
    /// can't be had is no loss that a new content would not also be.
    fn inherit(&self, path: &RelPath, fd: &OwnedFd) {
        let Ok(file) = self.target.open_file(path) else { return };
        let mut names = vec![0; 64 * 1024];
        let Ok(length) = rustix::fs::flistxattr(&file, &mut names[..]) else { return };
        if length == 0 {
            return;
        }
        let mut value = vec![0; 64 * 1024];
        let inherited = |name: &[u8]| {
            !crate::lower::is_kept_xattr(name)
                && !matches!(name, b"" | b"security.capability" | b"security.ima" | b"security.evm")
        };
        for name in names[..length].split(|b| *b == 0).filter(|name| inherited(name)) {
            if let Ok(length) = rustix::fs::fgetxattr(&file, name, &mut value[..]) {
                let _ = self.disk.set_xattr(fd, name, &value[..length]);
            }
        }
    }
}

/// The time that a change of metadata sets, if the command set it.
fn new_mtime(item: &Item<'_>) -> Option<(i64, u32)> {
    let after = item.change.after.as_ref()?.print.meta.mtime;
    match &item.change.before {
        Before::Present(before) if before.meta.mtime == after => None,
        _ => Some(after),
    }
}

fn is_refused_node(kind: &Kind, fault: &Fault) -> bool {
    matches!(kind, Kind::CharDevice(_) | Kind::BlockDevice(_) | Kind::Fifo | Kind::Socket)
        && matches!(Errno::from_io_error(&fault.source), Some(Errno::PERM | Errno::NOTSUP | Errno::INVAL))
}
