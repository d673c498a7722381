//! What one frame says.

use serde::{Deserialize, Serialize};

use crate::lower::Xattrs;
use crate::stat::{Stat, Time};
use crate::{ContentHash, FileKind};

/// First thing in a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// Absolute path of the lower.
    pub lower: Vec<u8>,
    /// The lower's root when it was pinned.
    pub root: Stat,
    /// The boot in which the stage was written, empty where that is unknown: without a seal nothing is known to be on
    /// disk after the next one.
    pub boot: Vec<u8>,
    /// Patterns of hidden paths.
    pub hidden: Vec<String>,
    /// Boundaries: absolute paths.
    pub boundaries: Vec<Vec<u8>>,
}

/// A kind of new node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FreshKind {
    /// A regular file, content in upper.
    File,
    /// A directory without a lower.
    Directory,
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice(u64),
    /// A block device.
    BlockDevice(u64),
}

impl FreshKind {
    pub fn kind(&self) -> FileKind {
        match self {
            Self::File => FileKind::File,
            Self::Directory => FileKind::Directory,
            Self::Symlink(_) => FileKind::Symlink,
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
            Self::CharDevice(_) => FileKind::CharDevice,
            Self::BlockDevice(_) => FileKind::BlockDevice,
        }
    }
}

/// Where the content hash of a pinned file stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HashState {
    /// Not a regular file.
    None,
    /// To be taken while the file's identity is as pinned.
    Pending,
    /// Taken.
    Known(ContentHash),
    /// The file changed before it could be taken.
    Lost,
}

/// The preimage of a lower node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pin {
    /// Identity and metadata.
    pub stat: Stat,
    /// Kept extended attributes.
    pub xattrs: Xattrs,
    /// Target, for a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Content.
    pub hash: HashState,
}

/// One change. Nodes are named by their id, places by directory node and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record {
    /// The lower entry `name` of the lower directory `parent` is known as `node` from here on. A second place of a
    /// known node is a hard link of the lower.
    Adopt { node: u64, parent: u64, name: Vec<u8>, stat: Stat },
    /// Preimage of an adopted node, before its first mutation.
    Pin { node: u64, pin: Box<Pin> },
    /// The content hash of a pinned node, taken later.
    Hash { node: u64, hash: HashState },
    /// A new node.
    Create { node: u64, parent: u64, name: Vec<u8>, kind: FreshKind, mode: u32, uid: u32, gid: u32, at: Time },
    /// Another name.
    Link { node: u64, parent: u64, name: Vec<u8>, at: Time },
    /// A name is gone: a file's or an empty directory's.
    Remove { parent: u64, name: Vec<u8>, at: Time },
    /// A node moved, or two changed places.
    Rename { from: u64, name: Vec<u8>, to: u64, new_name: Vec<u8>, exchange: bool, at: Time },
    /// Metadata set; what is absent stays.
    SetMeta {
        node: u64,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        atime: Option<Time>,
        mtime: Option<Time>,
        at: Time,
    },
    /// An extended attribute set.
    SetXattr { node: u64, name: Vec<u8>, value: Vec<u8>, at: Time },
    /// An extended attribute removed.
    RemoveXattr { node: u64, name: Vec<u8>, at: Time },
    /// The content of a lower file is in upper from here on.
    Content { node: u64 },
}
