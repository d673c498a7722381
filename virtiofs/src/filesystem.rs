//! The filesystem: names and metadata. Files are in `file`, directory streams in `directory`.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

use pvisor_stage::{Attr, FileKind, NewNode, NodeId, RenameFlags, SetAttr, Stage, StatFs};
use rustix::io::Errno;

use crate::directory::Directory;
use crate::file::{File, Seen};
use crate::handle::{Handle, HandleTable};
use crate::nodes::Nodes;

/// Longest symbolic link target, in bytes: the kernel takes no longer path.
const MAX_TARGET: usize = 4095;

/// How long a kernel may use what it was told without asking again.
#[derive(Clone, Copy, Debug)]
pub struct FsOptions {
    /// Attributes of a node.
    pub attr_ttl: Duration,
    /// That a name leads to a node.
    pub entry_ttl: Duration,
    /// That a name leads nowhere; zero: not remembered at all.
    pub negative_ttl: Duration,
}

impl Default for FsOptions {
    /// One second each: an edit that the person makes to an untouched file shows no later than that.
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self { attr_ttl: second, entry_ttl: second, negative_ttl: second }
    }
}

/// Whose request it is: owner of what the request makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// A name that leads to a node. Whoever gets one holds one reference on the node, to be given back with
/// [`StageFs::forget`].
#[derive(Clone, Debug)]
pub struct Entry {
    /// The node and its attributes.
    pub attr: Attr,
    /// How long the attributes may be used.
    pub attr_ttl: Duration,
    /// How long the name may be taken to lead here.
    pub entry_ttl: Duration,
}

/// One filesystem over one stage. All methods can be called from any thread at the same time.
pub struct StageFs {
    stage: Arc<Stage>,
    options: FsOptions,
    pub(crate) files: HandleTable<File>,
    pub(crate) directories: HandleTable<Directory>,
    pub(crate) nodes: Nodes,
    /// Held, by node, from the look at the end of a file to the write there. Kernels let one append to a file through
    /// at a time; these are for those that do not.
    pub(crate) appends: [Mutex<()>; 16],
    /// What files of the lower were when they were last opened for reading.
    pub(crate) seen: Mutex<HashMap<NodeId, Seen>>,
    /// Told of nodes that lost set-user-id or set-group-id by a request whose reply does not show the mode.
    privilege_lost: OnceLock<Box<dyn Fn(NodeId) + Send + Sync>>,
    /// Whether the filesystem is fenced; each request holds it for reading.
    fenced: RwLock<bool>,
}

/// The stage, for as long as one request lasts.
pub(crate) struct Pass<'a> {
    stage: &'a Stage,
    _gate: RwLockReadGuard<'a, bool>,
}

/// The stage while no request is at work on it. Requests that come wait until this is dropped.
pub struct Paused<'a> {
    stage: &'a Stage,
    _gate: RwLockWriteGuard<'a, bool>,
}

impl Deref for Paused<'_> {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        self.stage
    }
}

impl Deref for Pass<'_> {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        self.stage
    }
}

impl StageFs {
    /// The filesystem of a stage.
    pub fn new(stage: Arc<Stage>, options: FsOptions) -> Self {
        Self {
            stage,
            options,
            files: HandleTable::new(),
            directories: HandleTable::new(),
            nodes: Nodes::new(),
            appends: std::array::from_fn(|_| Mutex::new(())),
            seen: Mutex::new(HashMap::new()),
            privilege_lost: OnceLock::new(),
            fenced: RwLock::new(false),
        }
    }

    /// What it was made with.
    pub fn options(&self) -> FsOptions {
        self.options
    }

    /// The stage below.
    pub fn stage(&self) -> &Arc<Stage> {
        &self.stage
    }

    /// Has `tell` called for each node that loses set-user-id or set-group-id by a write or a truncating open, whose
    /// replies do not show it: for a transport that can tell the kernel to look again. Only the first call counts.
    pub fn on_privilege_lost(&self, tell: impl Fn(NodeId) + Send + Sync + 'static) {
        let _ = self.privilege_lost.set(Box::new(tell));
    }

    pub(crate) fn privilege_lost(&self, node: NodeId) {
        if let Some(tell) = self.privilege_lost.get() {
            tell(node);
        }
    }

    /// Closes all files and answers every later request with ENOTCONN. When it returns, no request is at work on the
    /// stage and none will be.
    pub fn fence(&self) {
        *self.fenced.write().unwrap_or_else(PoisonError::into_inner) = true;
        self.files.clear();
        self.directories.clear();
        self.nodes.clear();
    }

    /// Waits until no request is at work, and lets none through as long as the result lives.
    ///
    /// # Errors
    /// ETIMEDOUT: one was still at work at `deadline`; ENOTCONN: the filesystem is fenced.
    pub fn pause(&self, deadline: Instant) -> Result<Paused<'_>, Errno> {
        const STEP: Duration = Duration::from_micros(200);
        loop {
            let gate = match self.fenced.try_write() {
                Ok(gate) => gate,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return Err(Errno::TIMEDOUT),
                Err(TryLockError::WouldBlock) => {
                    std::thread::sleep(STEP);
                    continue;
                }
            };
            if *gate {
                return Err(Errno::NOTCONN);
            }
            return Ok(Paused { stage: &self.stage, _gate: gate });
        }
    }

    /// Lets a request through to the stage. Never taken twice by one request: a fence that waits in between would
    /// stop both for good.
    ///
    /// # Errors
    /// ENOTCONN: the filesystem is fenced.
    pub(crate) fn enter(&self) -> Result<Pass<'_>, Errno> {
        let gate = self.fenced.read().unwrap_or_else(PoisonError::into_inner);
        if *gate {
            return Err(Errno::NOTCONN);
        }
        Ok(Pass { stage: &self.stage, _gate: gate })
    }

    pub(crate) fn entry(&self, attr: Attr) -> Entry {
        Entry { attr, attr_ttl: self.options.attr_ttl, entry_ttl: self.options.entry_ttl }
    }

    /// Finds a name; takes a reference.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENAMETOOLONG, or what the lower answers.
    pub fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let stage = self.enter()?;
        check_name(name)?;
        stage.lookup(parent, name).map(|attr| self.entry(attr))
    }

    /// Gives references back. Unknown nodes and too high counts are ignored.
    pub fn forget(&self, node: NodeId, references: u64) {
        if let Ok(stage) = self.enter() {
            stage.forget(node, references);
        }
    }

    /// Attributes, and how long they may be used.
    ///
    /// # Errors
    /// ENOENT, or what the lower answers.
    pub fn attr(&self, node: NodeId) -> Result<(Attr, Duration), Errno> {
        let stage = self.enter()?;
        Ok((stage.attr(node)?, self.options.attr_ttl))
    }

    /// Changes attributes. `kill_priv`: a change of size also clears set-user-id and set-group-id; a change of owner
    /// always does.
    ///
    /// # Errors
    /// As `chmod`, `chown`, `truncate` and `utimensat`; EBADF for a handle that is not open for writing.
    pub fn set_attr(
        &self,
        node: NodeId,
        handle: Option<Handle>,
        change: &SetAttr,
        kill_priv: bool,
    ) -> Result<(Attr, Duration), Errno> {
        let stage = self.enter()?;
        if change.size.is_some()
            && let Some(handle) = handle
        {
            self.file_for_writing(handle)?;
        }
        let mut change = *change;
        let owner_changes = change.uid.is_some() || change.gid.is_some();
        if change.mode.is_none() && (owner_changes || (change.size.is_some() && kill_priv)) {
            change.mode = mode_without_privilege(&stage.attr(node)?);
        }
        Ok((stage.set_attr(node, &change)?, self.options.attr_ttl))
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// EINVAL: not a symbolic link.
    pub fn read_link(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        self.enter()?.read_link(node)
    }

    /// Makes a directory; takes a reference. `mode`: permission bits, the caller's mask already applied.
    ///
    /// # Errors
    /// As `mkdir`.
    pub fn make_dir(&self, caller: Caller, parent: NodeId, name: &[u8], mode: u32) -> Result<Entry, Errno> {
        let stage = self.enter()?;
        check_name(name)?;
        stage.make_dir(parent, name, &new_node(caller, mode)).map(|attr| self.entry(attr))
    }

    /// Makes a symbolic link; takes a reference.
    ///
    /// # Errors
    /// As `symlink`.
    pub fn make_symlink(&self, caller: Caller, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        let stage = self.enter()?;
        check_name(name)?;
        if target.is_empty() {
            return Err(Errno::NOENT);
        }
        if target.len() > MAX_TARGET {
            return Err(Errno::NAMETOOLONG);
        }
        if target.contains(&0) {
            return Err(Errno::INVAL);
        }
        stage.make_symlink(parent, name, target, &new_node(caller, 0o777)).map(|attr| self.entry(attr))
    }

    /// Makes a file, named pipe, socket or device; takes a reference. `mode`: file type and permission bits, the
    /// caller's mask already applied; `rdev`: encoded device number.
    ///
    /// # Errors
    /// As `mknod`; EINVAL for another type.
    pub fn make_node(&self, caller: Caller, parent: NodeId, name: &[u8], mode: u32, rdev: u32) -> Result<Entry, Errno> {
        let stage = self.enter()?;
        check_name(name)?;
        let new = new_node(caller, mode);
        let made = match mode & TYPE {
            _ if is_regular(mode) => stage.create_file(parent, name, &new),
            0o010_000 => stage.make_node(parent, name, FileKind::Fifo, 0, &new),
            0o140_000 => stage.make_node(parent, name, FileKind::Socket, 0, &new),
            0o020_000 => stage.make_node(parent, name, FileKind::CharDevice, u64::from(rdev), &new),
            0o060_000 => stage.make_node(parent, name, FileKind::BlockDevice, u64::from(rdev), &new),
            _ => Err(Errno::INVAL),
        };
        made.map(|attr| self.entry(attr))
    }

    /// Gives a node one more name; takes a reference.
    ///
    /// # Errors
    /// As `link`.
    pub fn link(&self, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let stage = self.enter()?;
        check_name(name)?;
        stage.link(node, parent, name).map(|attr| self.entry(attr))
    }

    /// Removes a name that leads to no directory.
    ///
    /// # Errors
    /// As `unlink`.
    pub fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        let stage = self.enter()?;
        check_name(name)?;
        stage.unlink(parent, name)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As `rmdir`.
    pub fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        let stage = self.enter()?;
        check_name(name)?;
        stage.rmdir(parent, name)
    }

    /// Moves a name. `flags`: bits of `renameat2`.
    ///
    /// # Errors
    /// As `renameat2`; EINVAL for flags other than `RENAME_NOREPLACE` and `RENAME_EXCHANGE`, or both of them.
    pub fn rename(&self, from: NodeId, name: &[u8], to: NodeId, new_name: &[u8], flags: u32) -> Result<(), Errno> {
        let stage = self.enter()?;
        check_name(name)?;
        check_name(new_name)?;
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        if flags.contains(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE) {
            return Err(Errno::INVAL);
        }
        stage.rename(from, name, to, new_name, flags)
    }

    /// Sizes of the file system that holds the stage.
    ///
    /// # Errors
    /// What the host answers.
    pub fn statfs(&self) -> Result<StatFs, Errno> {
        self.enter()?.statfs()
    }
}

/// # Errors
/// ENAMETOOLONG, or EINVAL for what no directory entry can be called.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > 255 {
        return Err(Errno::NAMETOOLONG);
    }
    if pvisor_stage::is_name(name) { Ok(()) } else { Err(Errno::INVAL) }
}

/// The bits of a mode that say what kind of node it is.
const TYPE: u32 = 0o170_000;

/// Whether `mknod` with this mode makes a regular file.
pub(crate) fn is_regular(mode: u32) -> bool {
    matches!(mode & TYPE, 0 | 0o100_000)
}

pub(crate) fn new_node(caller: Caller, mode: u32) -> NewNode {
    NewNode { mode: mode & 0o7777, uid: caller.uid, gid: caller.gid }
}

/// Mode of a node without set-user-id, and without set-group-id where that means a privilege; `None`: as it is.
fn mode_without_privilege(attr: &Attr) -> Option<u32> {
    const SET_UID: u32 = 0o4000;
    const SET_GID: u32 = 0o2000;
    const GROUP_EXEC: u32 = 0o010;
    if attr.kind == FileKind::Directory {
        return None;
    }
    let mut mode = attr.mode & !SET_UID;
    if mode & GROUP_EXEC != 0 {
        mode &= !SET_GID;
    }
    (mode != attr.mode).then_some(mode)
}
