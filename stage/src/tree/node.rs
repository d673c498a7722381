//! One node.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::journal::{FreshKind, Pin};
use crate::live::NodeId;
use crate::lower::Xattrs;
use crate::stat::{Stat, Time};
use crate::{FileKind, stat::InodeKey};

/// Where a regular file's content is, shared with its open handles.
#[derive(Debug, Default)]
pub(crate) struct Body {
    /// Held while the content moves from lower to upper, or there to a file of its own, and by nothing else.
    pub copying: Mutex<()>,
    upper: AtomicBool,
    /// A savepoint or another stage has the very same file, so it must not be written.
    shared: AtomicBool,
    /// How often the content moved to another file in upper.
    moves: AtomicU32,
}

impl Body {
    pub fn in_upper(&self) -> bool {
        self.upper.load(Ordering::Acquire)
    }

    pub fn set_upper(&self) {
        self.upper.store(true, Ordering::Release);
    }

    pub fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Acquire)
    }

    pub fn set_shared(&self, shared: bool) {
        self.shared.store(shared, Ordering::Release);
    }

    pub fn moves(&self) -> u32 {
        self.moves.load(Ordering::Acquire)
    }

    pub fn count_move(&self) {
        self.moves.fetch_add(1, Ordering::Release);
    }
}

/// A name in a lower directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub dir: NodeId,
    pub name: Box<[u8]>,
}

/// Metadata that was set and now hides the lower's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MetaChange {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
    pub ctime: Option<Time>,
}

/// What a name stands for where the stage says something of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The node; `None` is a whiteout.
    pub node: Option<NodeId>,
    /// The lower has an adopted entry of this name underneath: removing must leave a whiteout.
    pub covers: bool,
}

/// A lower entry that has a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub node: NodeId,
    /// The journal has it.
    pub adopted: bool,
}

/// What only directories have.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// The directory it is in; the root's is itself.
    pub parent: NodeId,
    /// The stage's own entries, over those of the lower.
    pub slots: BTreeMap<Box<[u8]>, Slot>,
    /// Entries of its lower that have nodes, wherever these are now.
    pub known: HashMap<Box<[u8]>, Known>,
    /// Subdirectories more (or less) than the lower has.
    pub subdirs: i64,
    /// It was removed.
    pub dead: bool,
}

/// A file, directory or anything else with a node id.
#[derive(Debug)]
pub(crate) struct Node {
    pub kind: FileKind,
    /// Inode number as it is shown.
    pub ino: u64,
    /// Path in the lower that content and untouched metadata come from. A directory's never changes; a file's is one of
    /// its places.
    pub origin: Option<Arc<[u8]>>,
    /// Where the lower has it; several for its hard links. The first is the origin.
    pub places: Vec<Place>,
    /// Identity when it was first seen, for a lower node.
    pub key: Option<InodeKey>,
    /// The journal has it.
    pub adopted: bool,
    /// The lower's metadata at adoption.
    pub base: Option<Stat>,
    /// Its preimage.
    pub pin: Option<Box<Pin>>,
    /// What it was made as, for a new node.
    pub fresh: Option<FreshKind>,
    pub meta: MetaChange,
    /// All kept attributes, once one was changed.
    pub xattrs: Option<Xattrs>,
    /// Names, for anything but directories; counts once it is adopted or new.
    pub nlink: u32,
    /// For a regular file.
    pub body: Option<Arc<Body>>,
    /// For a directory.
    pub dir: Option<Box<Directory>>,
    /// References that callers hold.
    pub refs: u64,
    /// Open files, and nodes that keep this one by being in its `known`.
    pub holds: u64,
}

impl Node {
    pub fn new(kind: FileKind, ino: u64, parent: NodeId) -> Self {
        let dir = || Box::new(Directory { parent, ..Directory::default() });
        Self {
            kind,
            ino,
            origin: None,
            places: Vec::new(),
            key: None,
            adopted: false,
            base: None,
            pin: None,
            fresh: None,
            meta: MetaChange::default(),
            xattrs: None,
            nlink: 0,
            body: (kind == FileKind::File).then(Arc::default),
            dir: (kind == FileKind::Directory).then(dir),
            refs: 0,
            holds: 0,
        }
    }

    /// It has no name any more.
    pub fn is_dead(&self) -> bool {
        match &self.dir {
            Some(dir) => dir.dead,
            None => (self.adopted || self.fresh.is_some()) && self.nlink == 0,
        }
    }

    /// Its content is a file in upper.
    pub fn in_upper(&self) -> bool {
        self.body.as_ref().is_some_and(|b| b.in_upper())
    }

    /// Nothing but this process knows it.
    pub fn is_passing(&self) -> bool {
        !self.adopted && self.fresh.is_none()
    }
}
