//! What goes in and out of a live stage.

use crate::FileKind;
use crate::stat::Time;

/// Names a node for the life of a stage. Callers that remember one hold a reference on it.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The directory that is staged.
    pub const ROOT: Self = Self(1);
}

impl Default for NodeId {
    fn default() -> Self {
        Self::ROOT
    }
}

/// Metadata of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Which node.
    pub node: NodeId,
    /// Inode number: a lower file's own, before and after it is changed.
    pub ino: u64,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky: `0o7777` at the most.
    pub mode: u32,
    /// Names; for a directory 2 plus its subdirectories; 0 once it is removed.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Encoded device number, for a device.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Last access: seconds and nanoseconds since the Unix epoch.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Some of this is as the lower has it, where others can change it.
    pub in_lower: bool,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time.
    Now,
    /// Seconds and nanoseconds since the Unix epoch.
    At(i64, u32),
}

/// Metadata to set; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits; others are ignored.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes, for a regular file.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of content.
    pub mtime: Option<SetTime>,
}

/// Metadata of a new node. The caller has applied its umask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Permission bits; others are ignored.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory has its setgid bit.
    pub gid: u32,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name: any bytes but `/` and NUL.
    pub name: Vec<u8>,
    /// Inode number, the same as in [`Attr`].
    pub ino: u64,
    /// What it is.
    pub kind: FileKind,
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Both.
    ReadWrite,
}

impl Access {
    pub(crate) fn reads(self) -> bool {
        self != Self::Write
    }

    pub(crate) fn writes(self) -> bool {
        self != Self::Read
    }
}

/// Space and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Preferred size of a transfer, in bytes.
    pub block_size: u64,
    /// Bytes in one of the blocks below.
    pub fragment_size: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks not used.
    pub blocks_free: u64,
    /// Blocks not used that an unprivileged user may have.
    pub blocks_available: u64,
    /// Inodes in all.
    pub files: u64,
    /// Inodes not used.
    pub files_free: u64,
    /// Longest name, in bytes.
    pub name_max: u64,
}
