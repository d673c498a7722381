//! Every change that an apply makes to a disk, one function each.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags,
};

use super::fault::{Effect, Interrupt};
use crate::Errno;

/// The disk, as an apply changes it.
#[derive(Clone, Copy)]
pub(crate) struct Disk<'a> {
    interrupt: &'a dyn Interrupt,
}

impl<'a> Disk<'a> {
    pub fn new(interrupt: &'a dyn Interrupt) -> Self {
        Self { interrupt }
    }

    /// A new empty file, open for reading and writing.
    pub fn create_file(self, dir: impl AsFd, name: &[u8]) -> io::Result<File> {
        self.interrupt.before(Effect::Create)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o600))?))
    }

    /// A new directory of mode 0700.
    pub fn create_dir(self, dir: impl AsFd, name: &[u8]) -> io::Result<()> {
        self.interrupt.before(Effect::Create)?;
        Ok(rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o700))?)
    }

    pub fn create_symlink(self, dir: impl AsFd, name: &[u8], target: &[u8]) -> io::Result<()> {
        self.interrupt.before(Effect::Create)?;
        Ok(rustix::fs::symlinkat(target, dir, name)?)
    }

    pub fn create_node(self, dir: impl AsFd, name: &[u8], kind: FileType, device: u64) -> io::Result<()> {
        self.interrupt.before(Effect::Create)?;
        Ok(rustix::fs::mknodat(dir, name, kind, Mode::from_raw_mode(0o600), device)?)
    }

    pub fn write_at(self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.interrupt.before(Effect::Write)?;
        file.write_all_at(bytes, offset)
    }

    pub fn set_len(self, file: &File, length: u64) -> io::Result<()> {
        self.interrupt.before(Effect::Write)?;
        file.set_len(length)
    }

    /// Shares the blocks of `from`, where the filesystem can.
    pub fn clone_content(self, from: &File, to: &File) -> io::Result<()> {
        self.interrupt.before(Effect::Write)?;
        Ok(rustix::fs::ioctl_ficlone(to, from)?)
    }

    /// A second name for `from`.
    pub fn link(self, from: (impl AsFd, &[u8]), to: (impl AsFd, &[u8])) -> io::Result<()> {
        self.interrupt.before(Effect::Link)?;
        Ok(rustix::fs::linkat(from.0, from.1, to.0, to.1, AtFlags::empty())?)
    }

    /// Moves to a name in a directory of our own, where nobody else makes names.
    pub fn take(self, from: (impl AsFd, &[u8]), to: (impl AsFd, &[u8])) -> io::Result<()> {
        self.interrupt.before(Effect::Rename)?;
        Ok(rustix::fs::renameat(from.0, from.1, to.0, to.1)?)
    }

    /// Moves to a name that must be free: `EEXIST` if it is not.
    pub fn place(self, from: (impl AsFd, &[u8]), to: (impl AsFd, &[u8])) -> io::Result<()> {
        self.interrupt.before(Effect::Rename)?;
        let (from_dir, to_dir) = (from.0.as_fd(), to.0.as_fd());
        match rustix::fs::renameat_with(from_dir, from.1, to_dir, to.1, RenameFlags::NOREPLACE) {
            Err(e) if lacks_flag(e) => place_by_link(from_dir, from.1, to_dir, to.1),
            done => Ok(done?),
        }
    }

    /// Swaps two names; `Ok(false)`: the filesystem can't.
    pub fn exchange(self, a: (impl AsFd, &[u8]), b: (impl AsFd, &[u8])) -> io::Result<bool> {
        let done = self
            .interrupt
            .before(Effect::Exchange)
            .and_then(|()| Ok(rustix::fs::renameat_with(a.0.as_fd(), a.1, b.0.as_fd(), b.1, RenameFlags::EXCHANGE)?));
        match done {
            Err(e) if Errno::from_io_error(&e).is_some_and(lacks_flag) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Removes a name that stands for something else than a directory.
    pub fn unlink(self, dir: impl AsFd, name: &[u8]) -> io::Result<()> {
        self.interrupt.before(Effect::Remove)?;
        Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    pub fn remove_dir(self, dir: impl AsFd, name: &[u8]) -> io::Result<()> {
        self.interrupt.before(Effect::Remove)?;
        Ok(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?)
    }

    /// `fd` may be of any kind, `O_PATH` too.
    pub fn set_owner(self, fd: impl AsFd, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        self.interrupt.before(Effect::Metadata)?;
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        Ok(rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH)?)
    }

    /// `fd` may be of any kind but a symbolic link.
    pub fn set_mode(self, fd: impl AsFd, mode: u32) -> io::Result<()> {
        self.interrupt.before(Effect::Metadata)?;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        match rustix::fs::fchmod(&fd, mode) {
            // `O_PATH`.
            Err(Errno::BADF) => Ok(rustix::fs::chmodat(CWD, magic_link(&fd), mode, AtFlags::empty())?),
            done => Ok(done?),
        }
    }

    /// `fd` may be of any kind, `O_PATH` too. The time of access stays.
    pub fn set_mtime(self, fd: impl AsFd, (seconds, nanos): (i64, u32)) -> io::Result<()> {
        self.interrupt.before(Effect::Metadata)?;
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: nanos.min(999_999_999).into() },
        };
        Ok(rustix::fs::utimensat(fd, c"", &times, AtFlags::EMPTY_PATH)?)
    }

    /// `fd` may be of any kind but a symbolic link.
    pub fn set_xattr(self, fd: impl AsFd, name: &[u8], value: &[u8]) -> io::Result<()> {
        self.interrupt.before(Effect::Metadata)?;
        Ok(rustix::fs::setxattr(magic_link(&fd), name, value, XattrFlags::empty())?)
    }

    /// `fd` may be of any kind but a symbolic link.
    pub fn remove_xattr(self, fd: impl AsFd, name: &[u8]) -> io::Result<()> {
        self.interrupt.before(Effect::Metadata)?;
        Ok(rustix::fs::removexattr(magic_link(&fd), name)?)
    }

    /// Brings one file or directory to the disk.
    pub fn sync(self, fd: impl AsFd) -> io::Result<()> {
        self.interrupt.before(Effect::Sync)?;
        Ok(rustix::fs::fsync(fd)?)
    }

    /// Brings the whole filesystem of `fd` to the disk.
    pub fn sync_filesystem(self, fd: impl AsFd) -> io::Result<()> {
        self.interrupt.before(Effect::Sync)?;
        Ok(rustix::fs::syncfs(fd)?)
    }
}

/// The name under which the kernel gives access to just the file that `fd` is open on.
pub(crate) fn magic_link(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Opens for reading what an `O_PATH` descriptor stands for; the caller knows that it is a file or directory.
pub(crate) fn reopen(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, magic_link(fd), flags, Mode::empty())
}

fn lacks_flag(e: Errno) -> bool {
    matches!(e, Errno::INVAL | Errno::NOSYS | Errno::NOTSUP)
}

/// `RENAME_NOREPLACE` for filesystems without it. Directories can't be linked, but a plain rename replaces at the most
/// an empty one.
fn place_by_link(from_dir: impl AsFd, from: &[u8], to_dir: impl AsFd, to: &[u8]) -> io::Result<()> {
    let is_dir = crate::stat::Stat::at(&from_dir, from)?.kind == crate::FileKind::Directory;
    if !is_dir {
        rustix::fs::linkat(&from_dir, from, &to_dir, to, AtFlags::empty())?;
        return Ok(rustix::fs::unlinkat(from_dir, from, AtFlags::empty())?);
    }
    match crate::stat::Stat::at(&to_dir, to) {
        Err(Errno::NOENT) => Ok(rustix::fs::renameat(from_dir, from, to_dir, to)?),
        Ok(_) => Err(Errno::EXIST.into()),
        Err(e) => Err(e.into()),
    }
}
