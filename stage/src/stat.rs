//! What the kernel says about a file, in one type for lower and upper.

use rustix::fd::AsFd;
use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, makedev};
use serde::{Deserialize, Serialize};

use crate::Errno;

/// Seconds and nanoseconds since the Unix epoch.
pub type Time = (i64, u32);

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileKind {
    /// The file type bits of `st_mode`.
    pub const fn type_bits(self) -> u32 {
        match self {
            Self::File => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
        }
    }

    pub(crate) fn from_type(kind: FileType) -> Option<Self> {
        Some(match kind {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::CharacterDevice => Self::CharDevice,
            FileType::BlockDevice => Self::BlockDevice,
            FileType::Unknown => return None,
        })
    }
}

/// The result of one `statx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stat {
    pub kind: FileKind,
    pub dev: u64,
    pub ino: u64,
    pub nlink: u32,
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// Time of birth; zero where the file system has none.
    pub btime: Time,
}

/// What makes two looks at a lower path looks at one inode. The time of birth tells a reused inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InodeKey {
    dev: u64,
    ino: u64,
    btime: Time,
}

impl Stat {
    /// Of an open descriptor, `O_PATH` ones too.
    pub fn of(fd: impl AsFd) -> Result<Self, Errno> {
        Self::at(fd, b"")
    }

    /// Of a single name in a directory, symbolic links not followed.
    pub fn at(dir: impl AsFd, name: &[u8]) -> Result<Self, Errno> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let found = rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        Self::from_statx(&found)
    }

    fn from_statx(x: &Statx) -> Result<Self, Errno> {
        let raw = u32::from(x.stx_mode);
        let kind = FileKind::from_type(FileType::from_raw_mode(raw)).ok_or(Errno::IO)?;
        let time = |t: rustix::fs::StatxTimestamp| (t.tv_sec, t.tv_nsec);
        let born = x.stx_mask & StatxFlags::BTIME.bits() != 0;
        Ok(Self {
            kind,
            dev: makedev(x.stx_dev_major, x.stx_dev_minor),
            ino: x.stx_ino,
            nlink: x.stx_nlink,
            mode: raw & 0o7777,
            uid: x.stx_uid,
            gid: x.stx_gid,
            rdev: makedev(x.stx_rdev_major, x.stx_rdev_minor),
            size: x.stx_size,
            blocks: x.stx_blocks,
            atime: time(x.stx_atime),
            mtime: time(x.stx_mtime),
            ctime: time(x.stx_ctime),
            btime: if born { time(x.stx_btime) } else { (0, 0) },
        })
    }

    pub fn key(&self) -> InodeKey {
        InodeKey { dev: self.dev, ino: self.ino, btime: self.btime }
    }

    /// Nobody touched the file between the two looks, as far as its metadata can tell.
    pub fn same_identity(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.key() == other.key()
            && self.size == other.size
            && self.mtime == other.mtime
            && self.ctime == other.ctime
    }
}

/// The time that the kernel stamps on files now.
pub(crate) fn now() -> Time {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    (t.tv_sec, u32::try_from(t.tv_nsec).unwrap_or(0))
}
