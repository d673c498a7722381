//! The read-only side: files of the lower, reached from one pinned directory.

mod mask;
mod xattr;

pub(crate) use mask::Mask;
pub use mask::PatternError;
pub(crate) use xattr::{MAX_XATTR_TOTAL, Xattrs, is_kept_xattr, read_xattrs};

use std::fs::File;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, openat, openat2};

use crate::{Errno, FileKind, stat::Stat};

/// Longest path handed to one `openat2`; the kernel's limit is 4096 with the terminating zero.
const MAX_HOP: usize = 4000;

/// A directory tree that is only read.
#[derive(Debug)]
pub(crate) struct Lower {
    root: OwnedFd,
    path: PathBuf,
    stat: Stat,
}

/// One name in a lower directory.
#[derive(Clone, Debug)]
pub(crate) struct LowerEntry {
    pub name: Box<[u8]>,
    pub ino: u64,
    pub kind: FileKind,
}

impl Lower {
    /// Pins the directory at `path`, which must be absolute and without symbolic links for the masks to fit.
    pub fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty())?;
        let stat = Stat::of(&root)?;
        Ok(Self { root, path: path.to_owned(), stat })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn root_stat(&self) -> &Stat {
        &self.stat
    }

    /// Opens a relative path below the root; the empty path is the root.
    pub fn open_at(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut hop: Option<OwnedFd> = None;
        let mut rest = path;
        while rest.len() > MAX_HOP {
            let cut = rest[..MAX_HOP].iter().rposition(|b| *b == b'/').ok_or(Errno::NAMETOOLONG)?;
            let dir = OFlags::PATH | OFlags::DIRECTORY;
            let next = resolve(hop.as_ref().unwrap_or(&self.root), &rest[..cut], dir)?;
            hop = Some(next);
            rest = &rest[cut + 1..];
        }
        let last = if rest.is_empty() { b"." } else { rest };
        resolve(hop.as_ref().unwrap_or(&self.root), last, flags)
    }

    /// Metadata of a path.
    pub fn stat(&self, path: &[u8]) -> Result<Stat, Errno> {
        let fd = self.open_at(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        Stat::of(&fd)
    }

    /// Opens a regular file for reading; anything else there is looked at but never opened.
    pub fn open_file(&self, path: &[u8]) -> Result<(File, Stat), Errno> {
        let seen = self.open_at(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        let stat = Stat::of(&seen)?;
        if stat.kind != FileKind::File {
            return Err(Errno::STALE);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        // Just the file that was looked at, whatever its path stands for by now.
        let link = format!("/proc/self/fd/{}", seen.as_raw_fd());
        match openat(CWD, link, flags | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => return Ok((File::from(fd), stat)),
            // There is no proc file system here, or another process's.
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(e) => return Err(e),
        }
        let fd = self.open_at(path, flags | OFlags::NOFOLLOW)?;
        if Stat::of(&fd)?.key() != stat.key() {
            return Err(Errno::STALE);
        }
        Ok((File::from(fd), stat))
    }

    /// Target of a symbolic link.
    pub fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, Errno> {
        let fd = self.open_at(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        Ok(rustix::fs::readlinkat(&fd, c"", Vec::new())?.into_bytes())
    }

    /// Names in a directory without `.` and `..`, and the device they are on.
    pub fn list(&self, path: &[u8]) -> Result<(Vec<LowerEntry>, u64), Errno> {
        let dir = self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)?;
        let dev = Stat::of(&dir)?.dev;
        let mut entries = Vec::new();
        let mut buffer = vec![MaybeUninit::uninit(); 32 * 1024];
        let mut names = RawDir::new(&dir, &mut buffer);
        while let Some(entry) = names.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match Stat::at(&dir, name) {
                    Ok(stat) => stat.kind,
                    Err(_) => continue,
                },
                known => FileKind::from_type(known).ok_or(Errno::IO)?,
            };
            entries.push(LowerEntry { name: name.into(), ino: entry.ino(), kind });
        }
        Ok((entries, dev))
    }

    /// The extended attributes that a stage keeps.
    pub fn xattrs(&self, path: &[u8], kind: FileKind) -> Result<Xattrs, Errno> {
        let flags = match kind {
            FileKind::Directory => OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW,
            FileKind::File => {
                let (file, _) = match self.open_file(path) {
                    // What can't be read shows no attributes either.
                    Err(Errno::ACCESS | Errno::PERM) => return Ok(Xattrs::new()),
                    other => other?,
                };
                return read_xattrs(&file);
            }
            // `user.*` does not exist on the others.
            _ => return Ok(Xattrs::new()),
        };
        match self.open_at(path, flags) {
            Err(Errno::ACCESS | Errno::PERM) => Ok(Xattrs::new()),
            Err(e) => Err(e),
            Ok(fd) => read_xattrs(&fd),
        }
    }
}

fn resolve(dir: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let bounds = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..32 {
        match openat2(dir, path, flags | OFlags::CLOEXEC, Mode::empty(), bounds) {
            // A rename elsewhere raced with the walk.
            Err(Errno::AGAIN | Errno::INTR) => {}
            // With O_NOFOLLOW the last component may be a link; one in the middle replaced a directory.
            Err(Errno::LOOP | Errno::XDEV | Errno::NOTDIR) => return Err(Errno::NOENT),
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}
