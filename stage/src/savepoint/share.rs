//! Putting a stage's files into another directory without copying them, where the file system can.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, ioctl_ficlone, linkat, openat};

use crate::apply::{Blame, Fault};
use crate::layout::{JOURNAL, UPPER, nofollow};
use crate::load::SealedContent;
use crate::seal::each;
use crate::stat::Time;
use crate::upper::{Upper, content_name, copy_content};
use crate::{Errno, NodeId};

/// The files to share: contents by what is said of them, and the first bytes of the journal.
pub(super) struct Files<'a> {
    pub contents: &'a [SealedContent],
    pub journal_length: u64,
}

impl Files<'_> {
    /// Puts them from one directory into another, which is there and has none of them.
    pub fn share(&self, from: &Path, to: &Path) -> Result<(), Fault> {
        let pair = Pair::open(from, to)?;
        let one = |content: &SealedContent| pair.share(content.id(), content.mtime).map(drop);
        each(self.contents, one).into_iter().collect::<Result<(), Fault>>()?;
        copy_journal(from, to, self.journal_length)
    }
}

/// Puts the first `length` bytes of a journal into another directory.
pub(super) fn copy_journal(from: &Path, to: &Path, length: u64) -> Result<(), Fault> {
    let (from, to) = (from.join(JOURNAL), to.join(JOURNAL));
    let source = OpenOptions::new().read(true).custom_flags(nofollow()).open(&from).blame("open", &from)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600).custom_flags(nofollow());
    let target = options.open(&to).blame("create", &to)?;
    copy_content(&source, &target, length).blame("write", &to)
}

/// How a content came to be in another directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shared {
    /// As a file of its own, of the same blocks where the file system can.
    Apart,
    /// As one more name of the file.
    SameFile,
}

/// Two directories of contents, the second a new one.
pub(super) struct Pair<'a> {
    from: Upper,
    to: Upper,
    to_path: &'a Path,
    /// Cleared at the first refusal: the file system does not share blocks.
    shares_blocks: AtomicBool,
}

impl<'a> Pair<'a> {
    /// Makes the second one.
    pub fn open(from: &Path, to: &'a Path) -> Result<Self, Fault> {
        let upper = to.join(UPPER);
        DirBuilder::new().mode(0o700).create(&upper).blame("create", &upper)?;
        Ok(Self {
            from: Upper::open(from).blame("open", from.join(UPPER))?,
            to: Upper::open(to).blame("open", &upper)?,
            to_path: to,
            shares_blocks: AtomicBool::new(true),
        })
    }

    /// Shared blocks, else the same file, else a copy.
    pub fn share(&self, id: NodeId, mtime: Time) -> Result<Shared, Fault> {
        self.try_share(id, mtime).blame("share", self.to_path.join(UPPER).join(content_name(id)))
    }

    /// [`share`](Self::share) of a content as it is now.
    pub fn share_now(&self, id: NodeId) -> Result<Shared, Fault> {
        let stat = self.from.stat(id).blame("read", content_name(id))?;
        self.share(id, stat.mtime)
    }

    fn try_share(&self, id: NodeId, mtime: Time) -> Result<Shared, Errno> {
        let cloned = self.shares_blocks.load(Ordering::Relaxed) && self.clone_blocks(id)?;
        if !cloned {
            match linkat(self.from.dir(), content_name(id), self.to.dir(), content_name(id), AtFlags::empty()) {
                Ok(()) => return Ok(Shared::SameFile),
                // Another file system, or too many names.
                Err(Errno::XDEV | Errno::MLINK | Errno::PERM | Errno::OPNOTSUPP) => {}
                Err(e) => return Err(e),
            }
            copy_content(&self.from.content(id, false)?, &self.to.create(id)?, u64::MAX)?;
        }
        // The time is a part of what was staged.
        let modified = Timespec { tv_sec: mtime.0, tv_nsec: mtime.1.into() };
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        self.to.set_times(id, &Timestamps { last_access: omit, last_modification: modified })?;
        Ok(Shared::Apart)
    }

    fn clone_blocks(&self, id: NodeId) -> Result<bool, Errno> {
        let source = self.from.content(id, false)?;
        let target = self.to.create(id)?;
        if ioctl_ficlone(&target, &source).is_ok() {
            return Ok(true);
        }
        self.shares_blocks.store(false, Ordering::Relaxed);
        self.to.remove(id);
        Ok(false)
    }
}

/// Writes a new file.
pub(super) fn write_new(path: &Path, bytes: &[u8]) -> Result<(), Fault> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).custom_flags(nofollow());
    let written = options.open(path).and_then(|mut file| file.write_all(bytes));
    written.blame("write", path)
}

/// Brings the whole file system of a directory to disk.
pub(super) fn sync_filesystem(dir: &Path) -> Result<(), Fault> {
    let synced = File::open(dir).and_then(|dir| rustix::fs::syncfs(dir).map_err(io::Error::from));
    synced.blame("sync", dir)
}

/// Swaps two directories; where the file system can't, one after the other.
pub(super) fn swap(a: &Path, b: &Path, spare: &Path) -> Result<(), Fault> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE) {
        Ok(()) => return Ok(()),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOENT) => {}
        Err(e) => return Err(e).blame("replace", b),
    }
    match std::fs::rename(b, spare) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        moved => moved.blame("move", b)?,
    }
    std::fs::rename(a, b).blame("replace", b)
}

/// A new directory of ours.
pub(super) fn make_dir(path: &Path) -> Result<(), Fault> {
    DirBuilder::new().mode(0o700).create(path).blame("create", path)
}

/// Whether the path is a directory of ours to work in, not a link.
pub(super) fn is_dir(path: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(rustix::fs::CWD, path, flags, Mode::empty()).is_ok()
}
