//! Carrying out the steps of a plan, each only where the target still has what the plan expects. Every step can be
//! carried out again after it was cut off anywhere.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, openat};

use super::conflict::{Conflict, ConflictKind};
use super::disk::{Disk, reopen};
use super::fault::{Blame, Fault};
use super::ledger::{Act, Step};
use super::metadata::{is_between, wear};
use super::print::{Sight, fingerprint};
use super::staging::{Staging, aside_name, slot_name};
use super::target::{Target, is_dir, is_empty};
use crate::stat::Stat;
use crate::{Errno, FileKind, Fingerprint, Kind, RelPath};

/// What to do where the target has something that the plan does not expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Stop there. For the first execution of a plan.
    Stop,
    /// Leave that path as it is and do the rest. For a plan that was cut off.
    LeaveAlone,
}

/// How far it came.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Steps carried out or found done.
    pub steps: usize,
    /// The target differs from what it was.
    pub touched: bool,
    /// Paths that were left alone.
    pub contested: Vec<Conflict>,
    /// Files of the person's that could not be put back: index of the staging directory, and name.
    pub kept: Vec<(u32, Vec<u8>)>,
    /// Metadata that the kernel would not set.
    pub left_out: Vec<(RelPath, String)>,
}

/// Why a step was not carried out.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The target has something else there, or won't have it.
    Contested(ConflictKind),
    /// A system call failed.
    Io(Fault),
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        let what = match Errno::from_io_error(&fault.source) {
            Some(Errno::NOENT) => ConflictKind::Removed,
            Some(Errno::EXIST) => ConflictKind::Exists,
            Some(Errno::NOTDIR | Errno::LOOP) => ConflictKind::ParentMissing,
            Some(Errno::ISDIR | Errno::AGAIN | Errno::NOTEMPTY) => ConflictKind::Changed,
            Some(Errno::PERM) => ConflictKind::Fixed,
            Some(Errno::ACCESS) => ConflictKind::NotWritable,
            Some(Errno::BUSY | Errno::XDEV) => ConflictKind::MountPoint,
            _ => return Self::Io(fault),
        };
        Self::Contested(what)
    }
}

/// Carries out steps.
pub(crate) struct Executor<'a> {
    pub disk: Disk<'a>,
    pub target: &'a Target,
    /// By the index that steps use; `None`: it is not there any more.
    pub stagings: &'a [Option<Staging>],
    pub policy: Policy,
    /// The whole plan.
    pub steps: &'a [Step],
}

impl Executor<'_> {
    /// Carries out all steps, or those up to the first trouble.
    pub fn run(&self) -> (Progress, Option<Trouble>) {
        let mut progress = Progress::default();
        for step in self.steps {
            match self.step(step, &mut progress) {
                Ok(()) => {}
                Err(Trouble::Contested(what)) if self.policy == Policy::LeaveAlone => {
                    progress.contested.push(Conflict { path: step.path.clone(), what });
                }
                Err(trouble) => return (progress, Some(trouble)),
            }
            progress.steps += 1;
        }
        progress.contested.dedup_by(|a, b| a.path == b.path);
        (progress, None)
    }

    fn step(&self, step: &Step, progress: &mut Progress) -> Result<(), Trouble> {
        let staging = usize::try_from(step.staging).ok().and_then(|at| self.stagings.get(at)).and_then(Option::as_ref);
        match &step.act {
            Act::Loosen => self.loosen(&step.path, progress),
            Act::RemoveDir { before } => self.remove_dir(&step.path, before, progress),
            Act::Adjust { before, after, mtime } => {
                let fd = self.target.locate(&step.path).blame("open", self.target.whole(&step.path))?;
                let fd = fd.ok_or(Trouble::Contested(ConflictKind::Removed))?;
                self.change_metadata(&step.path, &fd, (before, after, *mtime), progress)
            }
            Act::Settle { before, after, mtime, ino } => {
                let fd = self.target.directory(&step.path).blame("open", self.target.whole(&step.path))?;
                let fd = fd.ok_or(Trouble::Contested(ConflictKind::Removed))?;
                if ino.is_some_and(|ino| Stat::of(&fd).is_ok_and(|stat| stat.ino != ino)) {
                    // Made by this plan, replaced by the person since: theirs.
                    return Ok(());
                }
                self.change_metadata(&step.path, &fd, (before, after, *mtime), progress)
            }
            Act::Remove { slot, before } => match staging {
                Some(staging) => Move { exec: self, step, staging, slot: *slot }.remove(before, progress),
                None => self.judge_without_staging(step),
            },
            Act::Put { slot, ino, before, .. } => match staging {
                Some(staging) => Move { exec: self, step, staging, slot: *slot }.put(*ino, before.as_ref(), progress),
                None => self.judge_without_staging(step),
            },
        }
    }

    /// Somebody removed the staging directory: what is not done can't be done any more.
    fn judge_without_staging(&self, step: &Step) -> Result<(), Trouble> {
        let now = self.target.look(&step.path).blame("read", self.target.whole(&step.path))?;
        let done = match (&step.act, now) {
            (Act::Put { after, .. }, Some(now)) => now.print.same(after) || (now.is_dir() && is_dir(&after.kind)),
            (Act::Remove { .. }, None) => true,
            _ => false,
        };
        if done { Ok(()) } else { Err(Trouble::Contested(ConflictKind::Changed)) }
    }

    fn loosen(&self, path: &RelPath, progress: &mut Progress) -> Result<(), Trouble> {
        let whole = self.target.whole(path);
        let Some(fd) = self.target.directory(path).blame("open", &whole)? else { return Ok(()) };
        let mode = Stat::of(&fd).blame("read", &whole)?.mode;
        if mode & 0o700 != 0o700 {
            self.disk.set_mode(&fd, mode | 0o700).blame("change the mode of", &whole)?;
            progress.touched = true;
        }
        Ok(())
    }

    fn remove_dir(&self, path: &RelPath, before: &Fingerprint, progress: &mut Progress) -> Result<(), Trouble> {
        let whole = self.target.whole(path);
        let Some(now) = self.target.look(path).blame("read", &whole)? else { return Ok(()) };
        if !was(&now.print, before) {
            return Err(Trouble::Contested(ConflictKind::Changed));
        }
        let Some((parent, name)) = self.target.parent(path).blame("open", &whole)? else { return Ok(()) };
        match self.disk.remove_dir(&parent, name) {
            Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::NOTEMPTY | Errno::EXIST)) => {
                let inside = self.target.names(path).ok().and_then(|names| names.into_iter().next());
                Err(Trouble::Contested(ConflictKind::NewInside(inside.unwrap_or_default().into())))
            }
            done => {
                done.blame("remove", &whole)?;
                progress.touched = true;
                Ok(())
            }
        }
    }

    fn change_metadata(
        &self,
        path: &RelPath,
        fd: &OwnedFd,
        (before, after, mtime): (&Fingerprint, &Fingerprint, Option<(i64, u32)>),
        progress: &mut Progress,
    ) -> Result<(), Trouble> {
        let whole = self.target.whole(path);
        let now = fingerprint(fd).blame("read", &whole)?.print;
        let cut_off = self.policy == Policy::LeaveAlone && is_between(&now, before, after);
        if !(now.same(after) || was(&now, before) || cut_off) {
            return Err(Trouble::Contested(ConflictKind::Changed));
        }
        let mtime = mtime.filter(|mtime| *mtime != now.meta.mtime);
        progress.touched |= mtime.is_some() || !now.same(after);
        let refused = wear(self.disk, fd, (&now.kind, &now.meta, &after.meta), mtime).blame("change", &whole)?;
        progress.left_out.extend(refused.into_iter().map(|what| (path.clone(), what)));
        Ok(())
    }
}

/// A step that moves a name to or from a staging directory.
struct Move<'a> {
    exec: &'a Executor<'a>,
    step: &'a Step,
    staging: &'a Staging,
    slot: u64,
}

impl Move<'_> {
    fn disk(&self) -> Disk<'_> {
        self.exec.disk
    }

    fn parent(&self) -> Result<(OwnedFd, &[u8]), Trouble> {
        let path = &self.step.path;
        let parent = self.exec.target.parent(path).blame("open the directory of", self.exec.target.whole(path))?;
        parent.ok_or(Trouble::Contested(ConflictKind::ParentMissing))
    }

    fn blamed<T>(&self, action: &'static str, done: std::io::Result<T>) -> Result<T, Fault> {
        done.blame(action, self.exec.target.whole(&self.step.path))
    }

    /// Nobody has tried the step before.
    fn is_first(&self) -> bool {
        self.exec.policy == Policy::Stop
    }

    fn held(&self, name: &[u8]) -> Result<Option<u64>, Fault> {
        self.staging.held(name).blame("read", &self.staging.label)
    }

    fn remove(&self, before: &Fingerprint, progress: &mut Progress) -> Result<(), Trouble> {
        let slot = slot_name(self.slot);
        if self.is_first() || self.held(&slot)?.is_none() {
            let (parent, name) = match self.parent() {
                // The directory around it is gone, and the name with it.
                Err(Trouble::Contested(ConflictKind::ParentMissing)) => return Ok(()),
                parent => parent?,
            };
            match Stat::at(&parent, name) {
                Err(Errno::NOENT) => return Ok(()),
                stat => expect(&stat.blame("read", self.exec.target.whole(&self.step.path))?, before)?,
            }
            self.blamed("remove", self.disk().take((&parent, name), (&self.staging.dir, &slot)))?;
        }
        let untouched = !std::mem::replace(&mut progress.touched, true);
        if self.is_preimage(&slot, before)? {
            return Ok(());
        }
        self.put_back(&slot, untouched, progress)
    }

    fn put(&self, ino: u64, before: Option<&Fingerprint>, progress: &mut Progress) -> Result<(), Trouble> {
        let slot = slot_name(self.slot);
        let held = if self.is_first() { Some(ino) } else { self.held(&slot)? };
        match (held, before) {
            // Moved in before, or swapped and confirmed by way of an aside.
            (None, _) => Ok(()),
            (Some(held), None) if held == ino => self.move_in(&slot, ino, progress),
            (Some(held), Some(before)) if held == ino => self.replace(&slot, ino, before, progress),
            (Some(_), Some(before)) => self.confirm_swap(&slot, ino, before, progress),
            (Some(_), None) => Err(Trouble::Contested(ConflictKind::Changed)),
        }
    }

    fn move_in(&self, slot: &[u8], ino: u64, progress: &mut Progress) -> Result<(), Trouble> {
        let (parent, name) = self.parent()?;
        if !self.is_first() && Stat::at(&parent, name).is_ok_and(|stat| stat.ino == ino) {
            // Linked in, and cut off before the temporary name went.
            return Ok(self.blamed("put", self.disk().unlink(&self.staging.dir, slot))?);
        }
        self.blamed("put", self.disk().place((&self.staging.dir, slot), (&parent, name)))?;
        progress.touched = true;
        Ok(())
    }

    fn replace(&self, slot: &[u8], ino: u64, before: &Fingerprint, progress: &mut Progress) -> Result<(), Trouble> {
        let (parent, name) = self.parent()?;
        let aside = aside_name(self.slot);
        if !self.is_first() && self.held(&aside)?.is_some() {
            return self.replace_aside((slot, ino), before, progress);
        }
        expect(&Stat::at(&parent, name).blame("read", self.exec.target.whole(&self.step.path))?, before)?;
        if self.blamed("replace", self.disk().exchange((&self.staging.dir, slot), (&parent, name)))? {
            return self.confirm_swap(slot, ino, before, progress);
        }
        self.blamed("move", self.disk().take((&parent, name), (&self.staging.dir, &aside)))?;
        self.replace_aside((slot, ino), before, progress)
    }

    /// The second half of a replacement where two names can't be swapped: the old content is in the staging directory,
    /// the name is free.
    fn replace_aside(
        &self,
        (slot, ino): (&[u8], u64),
        before: &Fingerprint,
        progress: &mut Progress,
    ) -> Result<(), Trouble> {
        let aside = aside_name(self.slot);
        let untouched = !std::mem::replace(&mut progress.touched, true);
        if !self.is_preimage(&aside, before)? {
            return self.put_back(&aside, untouched, progress);
        }
        let moved = self.move_in(slot, ino, progress);
        if matches!(moved, Err(Trouble::Contested(_))) {
            // Somebody took the free name: the old content is theirs to throw away.
            progress.kept.push((self.step.staging, aside));
        }
        moved
    }

    /// The names are swapped: keeps it so if what came out is what the plan expects, else swaps them back.
    fn confirm_swap(
        &self,
        slot: &[u8],
        ino: u64,
        before: &Fingerprint,
        progress: &mut Progress,
    ) -> Result<(), Trouble> {
        let untouched = !std::mem::replace(&mut progress.touched, true);
        if self.is_preimage(slot, before)? {
            return Ok(());
        }
        let back = self.parent().map(|(parent, name)| self.disk().exchange((&self.staging.dir, slot), (&parent, name)));
        if matches!(back, Ok(Ok(true))) && self.held(slot)? == Some(ino) {
            progress.touched = !untouched;
        } else {
            // Either way the slot holds something that is in no plan.
            progress.kept.push((self.step.staging, slot.to_vec()));
        }
        Err(Trouble::Contested(ConflictKind::Changed))
    }

    /// Gives the person's own file its name back, if that is still free. `untouched`: the target then is as it was before
    /// the whole plan.
    fn put_back(&self, from: &[u8], untouched: bool, progress: &mut Progress) -> Result<(), Trouble> {
        let back = self.parent().map(|(parent, name)| self.disk().place((&self.staging.dir, from), (&parent, name)));
        if matches!(back, Ok(Ok(()))) {
            progress.touched = !untouched;
        } else {
            progress.kept.push((self.step.staging, from.to_vec()));
        }
        Err(Trouble::Contested(ConflictKind::Changed))
    }

    /// Whether it is a file that a later step, which was carried out before the plan was cut off, gave other metadata
    /// under another of its names.
    fn is_adjusted(&self, now: &Fingerprint, before: &Fingerprint) -> bool {
        let other_name = |step: &Step| match &step.act {
            Act::Adjust { before: was, after, .. } => was.same(before) && is_between(now, was, after),
            _ => false,
        };
        !self.is_first() && self.exec.steps.iter().any(other_name)
    }

    /// Whether something in the staging directory is what the plan took it for.
    fn is_preimage(&self, name: &[u8], before: &Fingerprint) -> Result<bool, Fault> {
        let seen = look_in(&self.staging.dir, name);
        match seen {
            Ok((sight, true)) => Ok(was(&sight.print, before) || self.is_adjusted(&sight.print, before)),
            Ok((_, false)) | Err(Errno::ACCESS | Errno::PERM | Errno::AGAIN) => Ok(false),
            Err(e) => Err(e).blame("read", &self.staging.label),
        }
    }
}

/// Fingerprint of something in a staging directory, and whether it can be thrown away as far as that goes: no
/// directory with entries.
fn look_in(dir: &OwnedFd, name: &[u8]) -> Result<(Sight, bool), Errno> {
    let fd = openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let sight = fingerprint(&fd)?;
    let bare = !sight.is_dir() || is_empty(&reopen(&fd)?)?;
    Ok((sight, bare))
}

/// Equal to what the plan expects; a directory may have been opened to its owner meanwhile.
fn was(now: &Fingerprint, before: &Fingerprint) -> bool {
    if now.same(before) {
        return true;
    }
    let mut loosened = before.clone();
    loosened.meta.mode |= 0o700;
    is_dir(&before.kind) && now.same(&loosened)
}

/// A cheap look right before a step; the content is compared afterwards, when nobody else has a name for it.
fn expect(stat: &Stat, before: &Fingerprint) -> Result<(), Trouble> {
    let kind = match &before.kind {
        Kind::File { size, .. } => stat.kind == FileKind::File && stat.size == *size,
        Kind::Directory => stat.kind == FileKind::Directory,
        Kind::Symlink(_) => stat.kind == FileKind::Symlink,
        Kind::Fifo => stat.kind == FileKind::Fifo,
        Kind::Socket => stat.kind == FileKind::Socket,
        Kind::CharDevice(_) => stat.kind == FileKind::CharDevice,
        Kind::BlockDevice(_) => stat.kind == FileKind::BlockDevice,
    };
    if kind && stat.uid == before.meta.uid && stat.gid == before.meta.gid {
        return Ok(());
    }
    Err(Trouble::Contested(ConflictKind::Changed))
}
