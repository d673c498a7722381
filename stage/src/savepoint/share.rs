//! Putting a stage's files into another directory without copying them, where the file system can.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, ioctl_ficlone, linkat, openat};

use crate::Errno;
use crate::apply::{Blame, Fault};
use crate::layout::{JOURNAL, UPPER, nofollow};
use crate::load::SealedContent;
use crate::seal::each;
use crate::upper::{Upper, content_name, copy_content};

/// The files to share: contents by what is said of them, and the first bytes of the journal.
pub(super) struct Files<'a> {
    pub contents: &'a [SealedContent],
    pub journal_length: u64,
}

impl Files<'_> {
    /// Puts them from one directory into another, which is there and has none of them.
    pub fn share(&self, from: &Path, to: &Path) -> Result<(), Fault> {
        let upper = to.join(UPPER);
        DirBuilder::new().mode(0o700).create(&upper).blame("create", &upper)?;
        let source = Upper::open(from).blame("open", from.join(UPPER))?;
        let target = Upper::open(to).blame("open", &upper)?;
        let one = |content: &SealedContent| {
            share_content(&source, &target, content).blame("share", upper.join(content_name(content.id())))
        };
        each(self.contents, one).into_iter().collect::<Result<(), Fault>>()?;
        self.copy_journal(from, to)
    }

    fn copy_journal(&self, from: &Path, to: &Path) -> Result<(), Fault> {
        let (from, to) = (from.join(JOURNAL), to.join(JOURNAL));
        let source = OpenOptions::new().read(true).custom_flags(nofollow()).open(&from).blame("open", &from)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600).custom_flags(nofollow());
        let target = options.open(&to).blame("create", &to)?;
        copy_content(&source, &target, self.journal_length).blame("write", &to)
    }
}

/// Shared blocks, else the same file, else a copy.
fn share_content(from: &Upper, to: &Upper, content: &SealedContent) -> Result<(), Errno> {
    let id = content.id();
    let source = from.content(id, false)?;
    let target = to.create(id)?;
    if ioctl_ficlone(&target, &source).is_err() {
        to.remove(id);
        match linkat(from.dir(), content_name(id), to.dir(), content_name(id), AtFlags::empty()) {
            Ok(()) => return Ok(()),
            // Another file system, or too many names.
            Err(Errno::XDEV | Errno::MLINK | Errno::PERM | Errno::OPNOTSUPP) => {}
            Err(e) => return Err(e),
        }
        copy_content(&source, &to.create(id)?, u64::MAX)?;
    }
    // The time is a part of what was staged.
    let modified = Timespec { tv_sec: content.mtime.0, tv_nsec: content.mtime.1.into() };
    let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    to.set_times(id, &Timestamps { last_access: omit, last_modification: modified })
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
