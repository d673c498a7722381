//! What the person changes in the staged directory while the kernel goes by what it was told: each directory of the
//! lower that the kernel knows is watched, and the kernel is told to forget what changed there.
//!
//! A watch is in place before the answer that relies on it is looked up, so no change falls in between.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::thread::JoinHandle;

use fuser::{INodeNo, Notifier};
use pvisor_stage::{NodeId, Stage};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::numbers::Numbers;

/// File systems whose every change goes through this kernel, by the numbers that `statfs` gives: ext, xfs, btrfs,
/// tmpfs, overlayfs, f2fs, bcachefs, zfs, ramfs.
const LOCAL: [u64; 9] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0xf2f5_2010, 0xca45_1a4e, 0x2fc1_2fc1, 0x8584_58f6];

/// Changes in a directory and of it.
fn wanted() -> WatchFlags {
    let names = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
    let content = WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE | WatchFlags::ATTRIB;
    let itself = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR | WatchFlags::EXCL_UNLINK;
    names | content | itself
}

/// The watches of a mount.
pub(super) struct Watch {
    stage: Arc<Stage>,
    numbers: Arc<Numbers>,
    device: OwnedFd,
    /// None where the system gives none.
    inotify: Option<OwnedFd>,
    table: RwLock<Table>,
    /// Held for reading from before something is looked up until the kernel has the answer. Held for writing for a
    /// moment between an event and what the kernel is told of it: so that is never overtaken by what it makes wrong.
    answering: RwLock<()>,
    notifier: OnceLock<Notifier>,
    /// Nodes that were found changed by a request.
    found: Mutex<Vec<NodeId>>,
    /// Wakes the thread.
    wake: Option<OwnedFd>,
}

#[derive(Default)]
struct Table {
    /// Directories by node; `None`: nothing of the lower shows in it, so there is nothing to watch.
    nodes: HashMap<NodeId, Option<i32>>,
    /// Nodes by watch: a directory that is mounted twice has two.
    watches: HashMap<i32, Vec<NodeId>>,
    /// The system has no more, or an event was lost.
    closed: bool,
    ended: bool,
}

/// Whether every change of something, made by others, is told to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cover {
    /// It has been for a while.
    Before,
    /// From now on: what was looked up before has to be looked up again.
    JustNow,
    /// It is not.
    No,
}

/// The thread that listens; ends when it is dropped.
pub(super) struct Listener {
    watch: Arc<Watch>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn new(stage: Arc<Stage>, numbers: Arc<Numbers>, device: OwnedFd) -> Self {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
        // Without a thread to wake there is nobody to listen.
        let inotify = if wake.is_some() { inotify } else { None };
        if inotify.is_none() {
            tracing::warn!("no inotify: edits in the project are looked for each second");
        }
        Self {
            stage,
            numbers,
            device,
            inotify,
            table: RwLock::default(),
            answering: RwLock::default(),
            notifier: OnceLock::new(),
            found: Mutex::default(),
            wake,
        }
    }

    /// Starts listening.
    ///
    /// # Errors
    /// No thread.
    pub(super) fn listen(self: &Arc<Self>, notifier: Notifier) -> std::io::Result<Listener> {
        let _ = self.notifier.set(notifier);
        let watch = Arc::clone(self);
        let thread = std::thread::Builder::new().name("stage-watch".to_owned()).spawn(move || watch.run())?;
        Ok(Listener { watch: Arc::clone(self), thread: Some(thread) })
    }

    /// To be held while an answer is looked up and given.
    pub(super) fn answering(&self) -> RwLockReadGuard<'_, ()> {
        self.answering.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// How a directory is covered already.
    pub(super) fn covered_dir(&self, node: NodeId) -> Cover {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        if table.nodes.contains_key(&node) { Cover::Before } else { Cover::No }
    }

    /// How the names in a directory, and what it says of itself, are covered.
    pub(super) fn cover_dir(&self, node: NodeId) -> Cover {
        if self.covered_dir(node) == Cover::Before {
            return Cover::Before;
        }
        if self.table.read().unwrap_or_else(PoisonError::into_inner).closed {
            return Cover::No;
        }
        match self.stage.lower_dir(node) {
            Ok(None) => {
                self.table.write().unwrap_or_else(PoisonError::into_inner).nodes.insert(node, None);
                Cover::JustNow
            }
            Ok(Some(directory)) => self.add(node, &directory),
            Err(_) => Cover::No,
        }
    }

    /// How what a node of the lower, not a directory, says of itself is covered.
    pub(super) fn cover_other(&self, node: NodeId) -> Cover {
        self.stage.lower_place(node).map_or(Cover::No, |directory| self.cover_dir(directory))
    }

    fn add(&self, node: NodeId, directory: &OwnedFd) -> Cover {
        let Some(inotify) = &self.inotify else { return Cover::No };
        let local = rustix::fs::fstatfs(directory).is_ok_and(|s| LOCAL.contains(&(s.f_type.cast_unsigned())));
        if !local {
            return Cover::No;
        }
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        match inotify::add_watch(inotify, path, wanted()) {
            Ok(number) => {
                table.nodes.insert(node, Some(number));
                let nodes = table.watches.entry(number).or_default();
                if !nodes.contains(&node) {
                    nodes.push(node);
                }
                Cover::JustNow
            }
            Err(error) => {
                if matches!(error, Errno::NOSPC | Errno::NOMEM) {
                    tracing::warn!(
                        "no more inotify watches: edits in the rest of the project are looked for each second"
                    );
                    table.closed = true;
                }
                Cover::No
            }
        }
    }

    /// The kernel has forgotten the node.
    pub(super) fn forget(&self, node: NodeId) {
        if !self.table.read().unwrap_or_else(PoisonError::into_inner).nodes.contains_key(&node) {
            return;
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let Some(Some(number)) = table.nodes.remove(&node) else { return };
        let Some(nodes) = table.watches.get_mut(&number) else { return };
        nodes.retain(|n| *n != node);
        if nodes.is_empty() {
            table.watches.remove(&number);
            if let Some(inotify) = &self.inotify {
                // It is gone already where the directory is.
                let _ = inotify::remove_watch(inotify, number);
            }
        }
    }

    /// A request found a node changed that is not watched: the kernel has to drop its pages. Not at once, for the
    /// kernel may hold them for this very request.
    pub(super) fn found_changed(&self, node: NodeId) {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).push(node);
        self.wake();
    }

    fn wake(&self) {
        if let Some(wake) = &self.wake {
            // A counter that is full wakes as well.
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }

    fn run(&self) {
        let Some(wake) = &self.wake else { return };
        let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
        loop {
            let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
            fds.extend(self.inotify.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
            if poll(&mut fds, None).is_err_and(|e| e != Errno::INTR) {
                return;
            }
            let mut count = [0; 8];
            let _ = rustix::io::read(wake, &mut count);
            if self.table.read().unwrap_or_else(PoisonError::into_inner).ended {
                return;
            }
            let found = std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner));
            for node in found {
                self.invalidate(node);
            }
            if let Some(inotify) = &self.inotify {
                self.take_events(inotify, &mut buffer);
            }
        }
    }

    fn take_events(&self, inotify: &OwnedFd, buffer: &mut [MaybeUninit<u8>]) {
        let mut events = Reader::new(inotify, buffer);
        loop {
            let reads = events.is_buffer_empty();
            let Ok(event) = events.next() else { return };
            if reads {
                drop(self.answering.write().unwrap_or_else(PoisonError::into_inner));
            }
            let flags = event.events();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.lose_track();
                continue;
            }
            let nodes = {
                let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
                if flags.contains(ReadFlags::IGNORED) { table.drop_watch(event.wd()) } else { table.of(event.wd()) }
            };
            for node in nodes {
                match event.file_name() {
                    Some(name) => self.tell(node, name.to_bytes(), flags),
                    None => self.invalidate(node),
                }
            }
        }
    }

    /// Something happened to a name in a directory.
    fn tell(&self, directory: NodeId, name: &[u8], flags: ReadFlags) {
        let names = ReadFlags::CREATE | ReadFlags::DELETE | ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO;
        let child = self.stage.lower_child(directory, name);
        if flags.intersects(names) {
            self.invalidate(directory);
            if let (Some(notifier), Some(number)) = (self.notifier.get(), self.numbers.known(directory)) {
                // A kernel that does not know the name has nothing to forget.
                let _ = notifier.inval_entry(INodeNo(number), OsStr::from_bytes(name));
            }
        }
        if let Some(child) = child {
            self.invalidate(child);
        }
    }

    /// Has the kernel look up every name anew; false: it does not know how to (before 6.16).
    pub(super) fn forget_names(&self) -> bool {
        const INC_EPOCH: u32 = 8;
        // A notification is a reply to no request: length, code, 0.
        let mut message = [0; 16];
        message[..4].copy_from_slice(&16u32.to_ne_bytes());
        message[4..8].copy_from_slice(&INC_EPOCH.to_ne_bytes());
        rustix::io::write(&self.device, &message) == Ok(message.len())
    }

    fn invalidate(&self, node: NodeId) {
        if let (Some(notifier), Some(number)) = (self.notifier.get(), self.numbers.known(node)) {
            let _ = notifier.inval_inode(INodeNo(number), 0, 0);
        }
    }

    /// Events were lost: nothing counts as watched any more, and the kernel drops all it can be told to drop.
    fn lose_track(&self) {
        tracing::warn!("more edits in the project than can be followed: they are looked for each second from now on");
        let directories: Vec<NodeId> = {
            let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
            table.closed = true;
            std::mem::take(&mut table.nodes).into_keys().collect()
        };
        if !self.forget_names() {
            for directory in directories {
                for entry in self.stage.read_dir(directory).unwrap_or_default() {
                    self.tell(directory, &entry.name, ReadFlags::CREATE);
                }
            }
        }
        for node in self.numbers.all() {
            self.invalidate(node);
        }
    }
}

impl Table {
    fn of(&self, number: i32) -> Vec<NodeId> {
        self.watches.get(&number).cloned().unwrap_or_default()
    }

    fn drop_watch(&mut self, number: i32) -> Vec<NodeId> {
        let nodes = self.watches.remove(&number).unwrap_or_default();
        for node in &nodes {
            if self.nodes.get(node) == Some(&Some(number)) {
                self.nodes.remove(node);
            }
        }
        nodes
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.watch.table.write().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.watch.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
