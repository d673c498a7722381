//! The library's callbacks, each one call of the filesystem.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, Version, WriteFlags,
};
use pvisor_stage::{Attr, FileKind, NodeId, SetAttr};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::convert::{absent, attributes, entry_type, errno, listed, set_time};
use super::numbers::Numbers;
use super::watch::{Cover, Watch};
use crate::{Caller, DirItem, Entry, MAX_IO, StageFs, WriteKind};

const GENERATION: Generation = Generation(0);

/// What the kernel is asked to do where it can.
const WANTED: [InitFlags; 9] = [
    InitFlags::FUSE_NO_OPEN_SUPPORT,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_NO_EXPORT_SUPPORT,
];

/// Requests that the kernel may send ahead: readahead, and releases of files.
const MAX_BACKGROUND: u16 = 64;

thread_local! {
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The kernel can be told to forget all names at once.
const FORGETS_NAMES: Version = Version(7, 44);

/// How long the kernel may use what it will be told the end of.
const COVERED: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) struct Adapter {
    fs: Arc<StageFs>,
    numbers: Arc<Numbers>,
    watch: Arc<Watch>,
    /// How long the kernel may remember that a name leads nowhere, where it will be told of new ones.
    negative_ttl: Duration,
    asks_no_opens: bool,
    asks_no_opendirs: bool,
}

impl Adapter {
    pub(super) fn new(fs: Arc<StageFs>, numbers: Arc<Numbers>, watch: Arc<Watch>) -> Self {
        let negative_ttl = fs.options().negative_ttl;
        Self { fs, numbers, watch, negative_ttl, asks_no_opens: false, asks_no_opendirs: false }
    }

    /// Attributes, and how long they may be used.
    fn timed(&self, attr: Attr) -> (Attr, Duration) {
        if !attr.in_lower {
            return (attr, COVERED);
        }
        // A name outside of what is watched can lead to a file with several.
        let cover = match attr.kind {
            // The root has no name to be looked up by. A command that only stands in it need not have it watched.
            FileKind::Directory if attr.node == NodeId::ROOT => self.watch.covered_dir(attr.node),
            FileKind::Directory => self.watch.cover_dir(attr.node),
            _ if attr.nlink > 1 => Cover::No,
            _ => self.watch.cover_other(attr.node),
        };
        match cover {
            Cover::Before => (attr, COVERED),
            Cover::JustNow => self.fs.attr(attr.node).map_or((attr, Duration::ZERO), |(attr, _)| (attr, COVERED)),
            Cover::No => {
                // Not for directories: the kernel checks a listing that it kept by the directory's time. And a change
                // that is told while it asks for the root's attributes makes it ignore the answer; without them it
                // lets nobody write there.
                if attr.kind != FileKind::Directory && !self.fs.is_as_seen(&attr) {
                    self.watch.found_changed(attr.node);
                }
                (attr, self.fs.options().attr_ttl)
            }
        }
    }

    /// A name that leads to a node, as the kernel gets it. `covered`: changes of the names in its directory are told.
    fn known(&self, entry: Entry, covered: bool) -> (FileAttr, Duration, Duration) {
        let (attr, attr_ttl) = self.timed(entry.attr);
        let number = self.numbers.refer(attr.node, attr.ino);
        (attributes(&attr, number), attr_ttl, if covered { COVERED } else { entry.entry_ttl })
    }

    fn covers_names(&self, directory: NodeId) -> bool {
        self.watch.cover_dir(directory) != Cover::No
    }

    fn node(&self, number: INodeNo) -> Result<NodeId, Errno> {
        self.numbers.node(number.0)
    }

    fn attr_reply(&self, result: Result<Attr, Errno>, reply: ReplyAttr) {
        match result {
            Ok(attr) => {
                let (attr, ttl) = self.timed(attr);
                reply.attr(&ttl, &attributes(&attr, self.numbers.number(attr.node, attr.ino)));
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn entry_reply(&self, result: Result<Entry, Errno>, covered: bool, reply: ReplyEntry) {
        match result {
            Ok(entry) => {
                let (attr, attr_ttl, entry_ttl) = self.known(entry, covered);
                reply.entry_with_ttls(&attr_ttl, &entry_ttl, &attr, GENERATION);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    /// A change can have taken its time: what of the lower it saw is looked up anew.
    fn looked_up(&self, entry: Entry) -> Entry {
        Entry { attr: self.looked_at(entry.attr), ..entry }
    }

    fn looked_at(&self, attr: Attr) -> Attr {
        if !attr.in_lower {
            return attr;
        }
        self.fs.attr(attr.node).map_or(attr, |(attr, _)| attr)
    }

    /// Makes something in a directory.
    fn make(&self, parent: INodeNo, reply: ReplyEntry, make: impl FnOnce(NodeId) -> Result<Entry, Errno>) {
        match self.node(parent) {
            Ok(parent) => {
                let covered = self.covers_names(parent);
                let made = make(parent);
                let _answering = self.watch.answering();
                self.entry_reply(made.map(|entry| self.looked_up(entry)), covered, reply);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    /// Adds an entry to a listing; false: it did not fit.
    fn add(&self, reply: &mut ReplyDirectoryPlus, item: DirItem<'_>, entry: Option<Entry>, covered: bool) -> bool {
        let name = OsStr::from_bytes(item.name);
        let Some(entry) = entry else {
            // `.` and `..`: the kernel takes no reference on them whatever is sent. A name that vanished: the same reply
            // would be taken for a reference, so it is left out.
            let dot = item.name == b"." || item.name == b"..";
            let attr = listed(item.ino, item.kind);
            return !(dot && reply.add(attr.ino, item.next_offset, name, &Duration::ZERO, &attr, GENERATION));
        };
        let (attr, attr_ttl, entry_ttl) = self.known(entry, covered);
        // The library has one time for both.
        let full = reply.add(attr.ino, item.next_offset, name, &attr_ttl.min(entry_ttl), &attr, GENERATION);
        if full {
            self.numbers.release(attr.ino.0, 1);
        }
        !full
    }
}

fn empty_reply(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

/// A value or its size, as the two-step calls for attributes want it.
fn xattr_reply(result: Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match result {
        Err(error) => reply.error(errno(error)),
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > size as usize => reply.error(fuser::Errno::ERANGE),
        Ok(value) => reply.data(&value),
    }
}

fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid() }
}

/// Whether set-user-id and set-group-id have to go. The library hides the kernel's own answer for opens and changes
/// of size; it is no only for those who may keep the bits.
fn kill_priv(request: &Request) -> bool {
    request.uid() != 0
}

/// Flags as bits; the kernel sends no negative ones.
fn bits(flags: i32) -> u32 {
    flags.cast_unsigned()
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!(?flag, "the kernel's fuse has no such capability");
            }
        }
        // Both take the nearest value where this one is too much.
        if let Err(nearest) = config.set_max_write(MAX_IO as u32) {
            let _ = config.set_max_write(nearest);
        }
        if let Err(nearest) = config.set_max_readahead(MAX_IO as u32) {
            let _ = config.set_max_readahead(nearest);
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        if config.kernel_abi() >= FORGETS_NAMES {
            self.negative_ttl = COVERED;
        }
        self.asks_no_opens = config.capabilities().contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        self.asks_no_opendirs = config.capabilities().contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let parent = match self.node(parent) {
            Ok(parent) => parent,
            Err(error) => return reply.error(errno(error)),
        };
        let _answering = self.watch.answering();
        let covered = self.covers_names(parent);
        let found = self.fs.lookup(parent, name.as_bytes());
        let negative_ttl = if covered { self.negative_ttl } else { self.fs.options().negative_ttl };
        if matches!(found, Err(Errno::NOENT)) && !negative_ttl.is_zero() {
            reply.entry(&negative_ttl, &absent(), GENERATION);
        } else {
            self.entry_reply(found, covered, reply);
        }
    }

    fn forget(&self, _request: &Request, number: INodeNo, references: u64) {
        if let Some((node, gone)) = self.numbers.release(number.0, references) {
            if gone {
                self.watch.forget(node);
                self.fs.drop_kept(node);
            }
            self.fs.forget(node, references);
        }
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let _answering = self.watch.answering();
        self.attr_reply(self.node(number).and_then(|node| self.fs.attr(node)).map(|(attr, _)| attr), reply);
    }

    #[allow(clippy::too_many_arguments, reason = "the library's signature")]
    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = SetAttr {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
        };
        let changed = self.node(number).and_then(|node| self.fs.set_attr(node, None, &change, kill_priv(request)));
        let _answering = self.watch.answering();
        self.attr_reply(changed.map(|(attr, _)| self.looked_at(attr)), reply);
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        match self.node(number).and_then(|node| self.fs.read_link(node)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.make(parent, reply, |parent| self.fs.make_kept_node(caller(request), parent, name.as_bytes(), mode, rdev));
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        self.make(parent, reply, |parent| self.fs.make_dir(caller(request), parent, name.as_bytes(), mode));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty_reply(self.node(parent).and_then(|parent| self.fs.unlink(parent, name.as_bytes())), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty_reply(self.node(parent).and_then(|parent| self.fs.rmdir(parent, name.as_bytes())), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        self.make(parent, reply, |parent| self.fs.make_symlink(caller(request), parent, name.as_bytes(), target));
    }

    fn rename(
        &self,
        _request: &Request,
        from: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let moved = self
            .node(from)
            .and_then(|from| self.fs.rename(from, name.as_bytes(), self.node(to)?, new_name.as_bytes(), flags.bits()));
        empty_reply(moved, reply);
    }

    fn link(&self, _request: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.make(parent, reply, |parent| self.fs.link(self.node(number)?, parent, name.as_bytes()));
    }

    fn open(&self, _request: &Request, _number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.asks_no_opens {
            // The kernel never asks again: requests name nodes, and whoever has one may read and write it.
            reply.error(fuser::Errno::ENOSYS);
        } else {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
        }
    }

    fn create(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        // Making a node and an open that is not asked for are one request as well.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn read(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        READ_BUFFER.with_borrow_mut(|buffer| {
            let size = (size as usize).min(MAX_IO);
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match self.node(number).and_then(|node| self.fs.read_node(node, &mut buffer[..size], offset)) {
                Ok(read) => reply.data(&buffer[..read]),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kind = WriteKind {
            append: OFlags::from_bits_retain(bits(flags.0)).contains(OFlags::APPEND),
            from_cache: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
            kill_priv: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        match self.node(number).and_then(|node| self.fs.write_node(node, data, offset, kind)) {
            Ok(written) => reply.written(u32::try_from(written).unwrap_or(u32::MAX)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Nothing is held back here; after this answer the kernel asks no more at each close.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(&self, _request: &Request, number: INodeNo, _handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        empty_reply(self.node(number).and_then(|node| self.fs.sync_node(node, data_only)), reply);
    }

    fn opendir(&self, _request: &Request, _number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.asks_no_opendirs {
            reply.error(fuser::Errno::ENOSYS);
        } else {
            reply.opened(FileHandle(0), FopenFlags::empty());
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let _answering = self.watch.answering();
        let read = self.node(number).and_then(|node| {
            // The kernel keeps the listing.
            self.covers_names(node);
            self.fs.read_node_dir(node, offset, |item| {
                let name = OsStr::from_bytes(item.name);
                !reply.add(INodeNo(item.ino), item.next_offset, entry_type(item.kind), name)
            })
        });
        match read {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _answering = self.watch.answering();
        let read = self.node(number).and_then(|node| {
            let covered = self.covers_names(node);
            self.fs.read_node_dir_plus(node, offset, |item, entry| self.add(&mut reply, item, entry, covered))
        });
        match read {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsyncdir(&self, _request: &Request, _number: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        empty_reply(self.fs.sync_journal(), reply);
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        match self.fs.statfs() {
            Ok(s) => {
                let size = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
                let (block, fragment, name) = (size(s.block_size), size(s.fragment_size), size(s.name_max));
                let (free, available) = (s.blocks_free, s.blocks_available);
                reply.statfs(s.blocks, free, available, s.files, s.files_free, block, name, fragment);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setxattr(
        &self,
        _request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let set = self.node(number).and_then(|node| self.fs.set_xattr(node, name.as_bytes(), value, bits(flags)));
        empty_reply(set, reply);
    }

    fn getxattr(&self, _request: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        xattr_reply(self.node(number).and_then(|node| self.fs.get_xattr(node, name.as_bytes())), size, reply);
    }

    fn listxattr(&self, _request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        xattr_reply(self.node(number).and_then(|node| self.fs.list_xattr(node)), size, reply);
    }

    fn removexattr(&self, _request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty_reply(self.node(number).and_then(|node| self.fs.remove_xattr(node, name.as_bytes())), reply);
    }

    fn fallocate(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        empty_reply(self.node(number).and_then(|node| self.fs.allocate_node(node, bits(mode), offset, length)), reply);
    }

    fn lseek(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let found = u64::try_from(offset)
            .map_err(|_| Errno::NXIO)
            .and_then(|offset| self.fs.seek_node(self.node(number)?, offset, bits(whence)))
            .and_then(|found| i64::try_from(found).map_err(|_| Errno::OVERFLOW));
        match found {
            Ok(found) => reply.offset(found),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        from: INodeNo,
        _from_handle: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _to_handle: FileHandle,
        to_offset: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let copied = self
            .node(from)
            .and_then(|from| self.fs.copy_node_range(from, from_offset, self.node(to)?, to_offset, length));
        match copied {
            Ok(copied) => reply.written(u32::try_from(copied).unwrap_or(u32::MAX)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn ioctl(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _input: &[u8],
        _output_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(fuser::Errno::ENOTTY);
    }
}
