//! The stage's own directory, locked.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::disk::Disk;
use super::fault::{Blame, Fault};
use crate::layout::{JOURNAL, JOURNAL_ENVELOPE, LOCK, Lock, SEAL, UPPER, WORK};
use crate::stat::Stat;
use crate::{Errno, FileKind, ObjectId};

/// Why a stage's directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// It is no stage.
    #[error("{0:?} is not a stage")]
    NotAStage(PathBuf),
    /// A run, an apply or a discard is at it.
    #[error("the stage {0:?} is in use")]
    Locked(PathBuf),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] Fault),
}

/// A stage's directory, for this process alone as long as the value lives.
#[derive(Debug)]
pub(crate) struct Home {
    path: PathBuf,
    dir: OwnedFd,
    _lock: Lock,
}

impl Home {
    /// Opens and locks without waiting.
    pub fn open(path: &Path) -> Result<Self, HomeError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match openat(CWD, path, flags, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(HomeError::NotAStage(path.to_owned())),
            opened => opened.blame("open", path)?,
        };
        if !is_stage(&dir).blame("read", path)? {
            return Err(HomeError::NotAStage(path.to_owned()));
        }
        let lock = Lock::take(path).blame("lock", path.join(LOCK))?;
        let lock = lock.ok_or_else(|| HomeError::Locked(path.to_owned()))?;
        Ok(Self { path: path.to_owned(), dir, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// The directory of temporary files.
    pub fn work(&self) -> Result<OwnedFd, Errno> {
        self.subdir(WORK)
    }

    /// A directory right below, links not followed.
    pub fn subdir(&self, name: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.dir, name, flags, Mode::empty())
    }

    /// The whole content of a file right below, if it is a regular one of at most `limit` bytes; `None`: there is none.
    pub fn read(&self, name: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let Some((file, length)) = open_regular(&self.dir, name.as_bytes())? else { return Ok(None) };
        if length > limit {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "larger than any such file can be"));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
        io::Read::read_to_end(&mut io::Read::take(file, limit), &mut bytes)?;
        Ok(Some(bytes))
    }

    /// Puts a file in place of another, whole or not at all, and brings it to the disk.
    pub fn replace(&self, disk: Disk<'_>, name: &str, bytes: &[u8]) -> io::Result<()> {
        let temp = format!("{name}.new");
        match rustix::fs::unlinkat(&self.dir, &*temp, rustix::fs::AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        let file = disk.create_file(&self.dir, temp.as_bytes())?;
        disk.write_at(&file, bytes, 0)?;
        disk.sync(&file)?;
        disk.take((&self.dir, temp.as_bytes()), (&self.dir, name.as_bytes()))?;
        disk.sync(&self.dir)
    }
}

/// A content of the stage and its length in bytes.
pub(crate) fn open_object(upper: &OwnedFd, object: ObjectId) -> io::Result<(File, u64)> {
    open_regular(upper, format!("{:x}", object.0).as_bytes())?.ok_or_else(|| Errno::NOENT.into())
}

/// Opens a regular file for reading; `None`: nothing there.
pub(crate) fn open_regular(dir: &OwnedFd, name: &[u8]) -> io::Result<Option<(File, u64)>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = match openat(dir, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    let stat = Stat::of(&fd)?;
    if stat.kind != FileKind::File {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
    }
    Ok(Some((File::from(fd), stat.size)))
}

/// A directory is a stage by its journal, or where it has none, by its lock. Discarding removes these two last, so that
/// one which was cut off can be finished.
fn is_stage(dir: &OwnedFd) -> io::Result<bool> {
    if let Some((journal, length)) = regular(dir, JOURNAL)? {
        let mut magic = [0; 8];
        let read = rustix::io::pread(&journal, &mut magic, 0)?;
        return Ok(length == 0 || magic[..read] == JOURNAL_ENVELOPE.magic);
    }
    let Some((_, 0)) = regular(dir, LOCK)? else { return Ok(false) };
    // A run that broke before its first record, or a discard's last step: nothing of anybody else's is here.
    let ours = [LOCK, UPPER, WORK].map(str::as_bytes);
    let absent = regular(dir, SEAL)?.is_none();
    Ok(absent && super::removal::names(dir)?.iter().all(|(name, _)| ours.contains(&&name[..])))
}

fn regular(dir: &OwnedFd, name: &str) -> io::Result<Option<(File, u64)>> {
    match open_regular(dir, name.as_bytes()) {
        Err(e) if e.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::LOOP | Errno::NXIO)) => Ok(None),
        other => other,
    }
}
