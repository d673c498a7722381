//! The directory that an apply writes to: everything is reached beneath one pinned descriptor, never through a
//! symbolic link.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, OFlags, StatxAttributes, StatxFlags};

use super::ledger::TargetId;
use super::print::{Sight, fingerprint};
use crate::lower::Lower;
use crate::{Errno, FileKind, RelPath, stat::Stat};

/// Within one of these a name can be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Mount {
    id: u64,
    device: (u32, u32),
}

/// What of a directory or file decides whether names can be moved to or from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Footing {
    pub mount: Mount,
    /// Immutable or append-only.
    pub fixed: bool,
}

impl Footing {
    /// Whether it is on that mount. An overlay filesystem shows files, other than directories, with the devices of its
    /// layers.
    pub fn is_on(&self, mount: Mount, is_dir: bool) -> bool {
        if is_dir || mount.id == 0 { self.mount == mount } else { self.mount.id == mount.id }
    }
}

/// An open target.
#[derive(Debug)]
pub(crate) struct Target {
    tree: Lower,
    id: TargetId,
}

impl Target {
    pub fn open(path: &Path) -> Result<Self, Errno> {
        let tree = Lower::open(path)?;
        let stat = Stat::of(tree.open_at(b"", OFlags::PATH)?)?;
        Ok(Self { tree, id: TargetId { ino: stat.ino, born: stat.btime } })
    }

    /// Absolute path as it was opened.
    pub fn path(&self) -> &Path {
        self.tree.path()
    }

    /// Which directory it is.
    pub fn id(&self) -> TargetId {
        self.id
    }

    /// For messages.
    pub fn whole(&self, path: &RelPath) -> PathBuf {
        if path.as_bytes().is_empty() {
            return self.path().to_owned();
        }
        self.path().join(OsStr::from_bytes(path.as_bytes()))
    }

    /// What stands at the path, as an `O_PATH` descriptor; `None`: nothing, or no way there.
    pub fn locate(&self, path: &RelPath) -> Result<Option<OwnedFd>, Errno> {
        match self.tree.open_at(path.as_bytes(), OFlags::PATH | OFlags::NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            other => other.map(Some),
        }
    }

    /// The directory that holds the path's last component, and that component. `None`: there is no such directory.
    pub fn parent<'p>(&self, path: &'p RelPath) -> Result<Option<(OwnedFd, &'p [u8])>, Errno> {
        let Some((parent, name)) = path.split() else { return Ok(None) };
        Ok(self.directory(&parent)?.map(|fd| (fd, name)))
    }

    /// The directory at the path, as an `O_PATH` descriptor; `None`: there is none.
    pub fn directory(&self, path: &RelPath) -> Result<Option<OwnedFd>, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY;
        match self.tree.open_at(path.as_bytes(), flags) {
            Err(Errno::NOENT) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Fingerprint of what stands at the path, and where it stands.
    pub fn look_closely(&self, path: &RelPath) -> Result<Option<(Sight, Footing)>, Errno> {
        let Some(fd) = self.locate(path)? else { return Ok(None) };
        Ok(Some((fingerprint(&fd)?, footing(&fd)?)))
    }

    /// Fingerprint of what stands at the path.
    pub fn look(&self, path: &RelPath) -> Result<Option<Sight>, Errno> {
        self.locate(path)?.map(|fd| fingerprint(&fd)).transpose()
    }

    /// Names in a directory.
    pub fn names(&self, path: &RelPath) -> Result<Vec<Box<[u8]>>, Errno> {
        Ok(self.tree.list(path.as_bytes())?.0.into_iter().map(|e| e.name).collect())
    }

    /// The regular file at the path, open for reading.
    pub fn open_file(&self, path: &RelPath) -> Result<std::fs::File, Errno> {
        Ok(self.tree.open_file(path.as_bytes())?.0)
    }
}

/// Mount and attributes of an open file or directory.
pub(crate) fn footing(fd: impl rustix::fd::AsFd) -> Result<Footing, Errno> {
    let mask = StatxFlags::INO | StatxFlags::MNT_ID;
    let x = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, mask)?;
    // Before Linux 5.8 there is no mount id: then the device has to do.
    let id = if x.stx_mask & StatxFlags::MNT_ID.bits() != 0 { x.stx_mnt_id } else { 0 };
    let fixed = x.stx_attributes.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND);
    Ok(Footing { mount: Mount { id, device: (x.stx_dev_major, x.stx_dev_minor) }, fixed })
}

/// Whether the descriptor is of a directory that has no entries. Not `O_PATH`.
pub(crate) fn is_empty(dir: &OwnedFd) -> Result<bool, Errno> {
    let mut buffer = [std::mem::MaybeUninit::uninit(); 1024];
    let mut names = rustix::fs::RawDir::new(dir, &mut buffer);
    while let Some(entry) = names.next() {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The kind, as a stage names it.
pub(crate) fn is_dir(kind: &crate::Kind) -> bool {
    matches!(kind, crate::Kind::Directory)
}

impl Sight {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.stat.kind == FileKind::Directory
    }
}
