//! The engine's in-process filesystem: each callback is one call of [`StageFs`].
//!
//! Node ids are those of the stage, so a guest's numbers stay valid when another process restores the state.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use msb_krun::backends::fs::{
    AddDirEntry, AddDirEntryPlus, Context, DirEntry, DynFileSystem, Entry, Extensions, FsOptions, GetxattrReply,
    ListxattrReply, OpenOptions, SetattrValid, ZeroCopyReader, ZeroCopyWriter, stat64, statvfs64,
};
use pvisor_virtiofs::stage::{Attr, FileKind, NodeId, SetAttr, SetTime};
use pvisor_virtiofs::{Caller, Errno, Handle, MAX_IO, StageFs, StateError, WriteKind};
use rustix::fs::OFlags;

use super::bounce::Bounce;

/// A filesystem for one virtio-fs device.
pub struct GuestFilesystem {
    fs: Arc<StageFs>,
    bounce: Mutex<Option<Bounce>>,
}

impl GuestFilesystem {
    /// Serves this filesystem.
    pub fn new(fs: Arc<StageFs>) -> Self {
        Self { fs, bounce: Mutex::new(None) }
    }

    fn entry(&self, result: Result<pvisor_virtiofs::Entry, Errno>) -> io::Result<Entry> {
        Ok(entry(&result?))
    }
}

fn entry(entry: &pvisor_virtiofs::Entry) -> Entry {
    Entry {
        inode: entry.attr.node.0,
        generation: 0,
        attr: stat(&entry.attr),
        attr_flags: 0,
        attr_timeout: entry.attr_ttl,
        entry_timeout: entry.entry_ttl,
    }
}

/// What says only that a name leads nowhere, or nothing but what stands in a directory entry.
fn no_entry(ttl: Duration) -> Entry {
    Entry {
        inode: 0,
        generation: 0,
        attr: blank_stat(),
        attr_flags: 0,
        attr_timeout: Duration::ZERO,
        entry_timeout: ttl,
    }
}

fn blank_stat() -> stat64 {
    // SAFETY: a plain C structure of integers, for which all zeros is valid.
    unsafe { std::mem::zeroed() }
}

/// Attributes as the protocol has them. Values that do not fit a field can't come from a real filesystem.
fn stat(attr: &Attr) -> stat64 {
    let mut stat = blank_stat();
    stat.st_ino = attr.ino;
    stat.st_mode = file_type(attr.kind) | attr.mode & 0o7777;
    stat.st_nlink = attr.nlink.into();
    stat.st_uid = attr.uid;
    stat.st_gid = attr.gid;
    stat.st_rdev = attr.rdev;
    stat.st_size = i64::try_from(attr.size).unwrap_or(i64::MAX);
    stat.st_blksize = 4096;
    stat.st_blocks = i64::try_from(attr.blocks).unwrap_or(i64::MAX);
    (stat.st_atime, stat.st_atime_nsec) = (attr.atime.0, attr.atime.1.into());
    (stat.st_mtime, stat.st_mtime_nsec) = (attr.mtime.0, attr.mtime.1.into());
    (stat.st_ctime, stat.st_ctime_nsec) = (attr.ctime.0, attr.ctime.1.into());
    stat
}

fn file_type(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    }
}

fn caller(context: Context) -> Caller {
    Caller { uid: context.uid, gid: context.gid }
}

fn set_attr(attr: &stat64, valid: SetattrValid) -> SetAttr {
    let time = |set, now, seconds, nanos: i64| {
        if valid.contains(now) {
            Some(SetTime::Now)
        } else {
            let nanos = u32::try_from(nanos).unwrap_or(0).min(999_999_999);
            valid.contains(set).then_some(SetTime::At(seconds, nanos))
        }
    };
    SetAttr {
        mode: valid.contains(SetattrValid::MODE).then_some(attr.st_mode & 0o7777),
        uid: valid.contains(SetattrValid::UID).then_some(attr.st_uid),
        gid: valid.contains(SetattrValid::GID).then_some(attr.st_gid),
        size: valid.contains(SetattrValid::SIZE).then_some(attr.st_size.cast_unsigned()),
        atime: time(SetattrValid::ATIME, SetattrValid::ATIME_NOW, attr.st_atime, attr.st_atime_nsec),
        mtime: time(SetattrValid::MTIME, SetattrValid::MTIME_NOW, attr.st_mtime, attr.st_mtime_nsec),
    }
}

/// A value or its length, as the two-step calls for attributes want it.
fn sized<T>(value: Vec<u8>, size: u32, bytes: fn(Vec<u8>) -> T, count: fn(u32) -> T) -> io::Result<T> {
    match size {
        0 => Ok(count(u32::try_from(value.len()).unwrap_or(u32::MAX))),
        size if value.len() > size as usize => Err(Errno::RANGE.into()),
        _ => Ok(bytes(value)),
    }
}

fn state_error(error: StateError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl DynFileSystem for GuestFilesystem {
    fn capture_state(&self) -> io::Result<Vec<u8>> {
        self.fs.capture_state().map_err(state_error)
    }

    fn validate_state(&self, state: &[u8]) -> io::Result<()> {
        self.fs.validate_state(state).map_err(state_error)
    }

    fn restore_state(&self, state: &[u8]) -> io::Result<()> {
        self.fs.restore_state(state).map_err(state_error)
    }

    fn init(&self, _capable: FsOptions) -> io::Result<FsOptions> {
        // On top of what the engine asks for by itself. No writeback cache: it would hide edits by the person.
        Ok(FsOptions::DO_READDIRPLUS | FsOptions::READDIRPLUS_AUTO | FsOptions::HANDLE_KILLPRIV_V2)
    }

    fn lookup(&self, _: Context, parent: u64, name: &CStr) -> io::Result<Entry> {
        let found = self.fs.lookup(NodeId(parent), name.to_bytes());
        let ttl = self.fs.options().negative_ttl;
        match found {
            Err(Errno::NOENT) if !ttl.is_zero() => Ok(no_entry(ttl)),
            other => self.entry(other),
        }
    }

    fn forget(&self, _: Context, node: u64, count: u64) {
        self.fs.forget(NodeId(node), count);
    }

    fn getattr(&self, _: Context, node: u64, _handle: Option<u64>) -> io::Result<(stat64, Duration)> {
        let (attr, ttl) = self.fs.attr(NodeId(node))?;
        Ok((stat(&attr), ttl))
    }

    fn setattr(
        &self,
        _: Context,
        node: u64,
        attr: stat64,
        handle: Option<u64>,
        valid: SetattrValid,
    ) -> io::Result<(stat64, Duration)> {
        let kill_priv = valid.contains(SetattrValid::KILL_SUIDGID);
        let change = set_attr(&attr, valid);
        let (attr, ttl) = self.fs.set_attr(NodeId(node), handle.map(Handle), &change, kill_priv)?;
        Ok((stat(&attr), ttl))
    }

    fn readlink(&self, _: Context, node: u64) -> io::Result<Vec<u8>> {
        Ok(self.fs.read_link(NodeId(node))?)
    }

    fn symlink(&self, c: Context, target: &CStr, parent: u64, name: &CStr, _: Extensions) -> io::Result<Entry> {
        self.entry(self.fs.make_symlink(caller(c), NodeId(parent), name.to_bytes(), target.to_bytes()))
    }

    // The mask of the caller is applied by the guest's kernel already, here and in the next ones.
    fn mknod(
        &self,
        c: Context,
        parent: u64,
        name: &CStr,
        mode: u32,
        rdev: u32,
        _umask: u32,
        _: Extensions,
    ) -> io::Result<Entry> {
        self.entry(self.fs.make_node(caller(c), NodeId(parent), name.to_bytes(), mode, rdev))
    }

    fn mkdir(&self, c: Context, parent: u64, name: &CStr, mode: u32, _umask: u32, _: Extensions) -> io::Result<Entry> {
        self.entry(self.fs.make_dir(caller(c), NodeId(parent), name.to_bytes(), mode))
    }

    fn unlink(&self, _: Context, parent: u64, name: &CStr) -> io::Result<()> {
        Ok(self.fs.unlink(NodeId(parent), name.to_bytes())?)
    }

    fn rmdir(&self, _: Context, parent: u64, name: &CStr) -> io::Result<()> {
        Ok(self.fs.rmdir(NodeId(parent), name.to_bytes())?)
    }

    fn rename(&self, _: Context, from: u64, name: &CStr, to: u64, new: &CStr, flags: u32) -> io::Result<()> {
        Ok(self.fs.rename(NodeId(from), name.to_bytes(), NodeId(to), new.to_bytes(), flags)?)
    }

    fn link(&self, _: Context, node: u64, parent: u64, name: &CStr) -> io::Result<Entry> {
        self.entry(self.fs.link(NodeId(node), NodeId(parent), name.to_bytes()))
    }

    fn open(&self, _: Context, node: u64, kill_priv: bool, flags: u32) -> io::Result<(Option<u64>, OpenOptions)> {
        let opened = self.fs.open(NodeId(node), flags, kill_priv)?;
        Ok((Some(opened.handle.0), OpenOptions::empty()))
    }

    fn create(
        &self,
        c: Context,
        parent: u64,
        name: &CStr,
        mode: u32,
        kill_priv: bool,
        flags: u32,
        _umask: u32,
        _: Extensions,
    ) -> io::Result<(Entry, Option<u64>, OpenOptions)> {
        let (made, opened) = self.fs.create(caller(c), NodeId(parent), name.to_bytes(), mode, flags, kill_priv)?;
        Ok((entry(&made), Some(opened.handle.0), OpenOptions::empty()))
    }

    fn read(
        &self,
        _: Context,
        _node: u64,
        handle: u64,
        w: &mut dyn ZeroCopyWriter,
        size: u32,
        offset: u64,
        _owner: Option<u64>,
        _flags: u32,
    ) -> io::Result<usize> {
        // Straight from the host's file into guest memory.
        self.fs.with_fd(Handle(handle), |fd| {
            // SAFETY: the descriptor is open for the whole call, and `ManuallyDrop` leaves it open afterwards.
            let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) });
            Ok(read_fully(&file, w, size as usize, offset))
        })?
    }

    fn write(
        &self,
        _: Context,
        _node: u64,
        handle: u64,
        r: &mut dyn ZeroCopyReader,
        size: u32,
        offset: u64,
        _owner: Option<u64>,
        delayed_write: bool,
        kill_priv: bool,
        flags: u32,
    ) -> io::Result<usize> {
        let kind = WriteKind {
            append: OFlags::from_bits_retain(flags).contains(OFlags::APPEND),
            from_cache: delayed_write,
            kill_priv,
        };
        let size = size as usize;
        if size > MAX_IO {
            return Err(Errno::INVAL.into());
        }
        let mut bounce = self.bounce.lock().unwrap_or_else(PoisonError::into_inner);
        let bounce = match bounce.as_mut() {
            Some(bounce) => bounce,
            None => bounce.insert(Bounce::new(MAX_IO)?),
        };
        let data = bounce.fill(r, size)?;
        Ok(self.fs.write(Handle(handle), data, offset, kind)?)
    }

    fn fsync(&self, _: Context, _node: u64, data_only: bool, handle: u64) -> io::Result<()> {
        Ok(self.fs.sync_file(Handle(handle), data_only)?)
    }

    fn fallocate(&self, _: Context, _node: u64, handle: u64, mode: u32, offset: u64, length: u64) -> io::Result<()> {
        Ok(self.fs.allocate(Handle(handle), mode, offset, length)?)
    }

    fn release(
        &self,
        _: Context,
        _node: u64,
        _flags: u32,
        handle: u64,
        _flush: bool,
        _flock_release: bool,
        _owner: Option<u64>,
    ) -> io::Result<()> {
        Ok(self.fs.release(Handle(handle))?)
    }

    fn statfs(&self, _: Context, _node: u64) -> io::Result<statvfs64> {
        let s = self.fs.statfs()?;
        // SAFETY: a plain C structure of integers, for which all zeros is valid.
        let mut out: statvfs64 = unsafe { std::mem::zeroed() };
        (out.f_bsize, out.f_frsize, out.f_namemax) = (s.block_size, s.fragment_size, s.name_max);
        (out.f_blocks, out.f_bfree, out.f_bavail) = (s.blocks, s.blocks_free, s.blocks_available);
        (out.f_files, out.f_ffree, out.f_favail) = (s.files, s.files_free, s.files_free);
        Ok(out)
    }

    fn setxattr(&self, _: Context, node: u64, name: &CStr, value: &[u8], flags: u32) -> io::Result<()> {
        Ok(self.fs.set_xattr(NodeId(node), name.to_bytes(), value, flags)?)
    }

    fn getxattr(&self, _: Context, node: u64, name: &CStr, size: u32) -> io::Result<GetxattrReply> {
        let value = self.fs.get_xattr(NodeId(node), name.to_bytes())?;
        sized(value, size, GetxattrReply::Value, GetxattrReply::Count)
    }

    fn listxattr(&self, _: Context, node: u64, size: u32) -> io::Result<ListxattrReply> {
        sized(self.fs.list_xattr(NodeId(node))?, size, ListxattrReply::Names, ListxattrReply::Count)
    }

    fn removexattr(&self, _: Context, node: u64, name: &CStr) -> io::Result<()> {
        Ok(self.fs.remove_xattr(NodeId(node), name.to_bytes())?)
    }

    fn opendir(&self, _: Context, node: u64, _flags: u32) -> io::Result<(Option<u64>, OpenOptions)> {
        Ok((Some(self.fs.open_dir(NodeId(node))?.0), OpenOptions::empty()))
    }

    fn readdir_for_each(
        &self,
        _: Context,
        _node: u64,
        handle: u64,
        _size: u32,
        offset: u64,
        add: &mut AddDirEntry<'_>,
    ) -> io::Result<()> {
        let mut failed = None;
        self.fs.read_dir(Handle(handle), offset, |item| {
            let entry = DirEntry { ino: item.ino, offset: item.next_offset, type_: item.kind.into(), name: item.name };
            taken(add(entry), &mut failed)
        })?;
        failed.map_or(Ok(()), Err)
    }

    fn readdirplus_for_each(
        &self,
        _: Context,
        _node: u64,
        handle: u64,
        _size: u32,
        offset: u64,
        add: &mut AddDirEntryPlus<'_>,
    ) -> io::Result<()> {
        let mut failed = None;
        self.fs.read_dir_plus(Handle(handle), offset, |item, found| {
            let directory_entry =
                DirEntry { ino: item.ino, offset: item.next_offset, type_: item.kind.into(), name: item.name };
            // Without an entry (`.`, `..` and names that vanished) the kernel takes no reference: node 0.
            let full = found.as_ref().map_or_else(|| no_entry(Duration::ZERO), entry);
            taken(add(directory_entry, full), &mut failed)
        })?;
        failed.map_or(Ok(()), Err)
    }

    fn fsyncdir(&self, _: Context, _node: u64, _data_only: bool, handle: u64) -> io::Result<()> {
        Ok(self.fs.sync_dir(Handle(handle))?)
    }

    fn releasedir(&self, _: Context, _node: u64, _flags: u32, handle: u64) -> io::Result<()> {
        Ok(self.fs.release_dir(Handle(handle))?)
    }

    fn lseek(&self, _: Context, _node: u64, handle: u64, offset: u64, whence: u32) -> io::Result<u64> {
        Ok(self.fs.seek(Handle(handle), offset, whence)?)
    }

    fn copyfilerange(
        &self,
        _: Context,
        _from: u64,
        from_handle: u64,
        from_offset: u64,
        _to: u64,
        to_handle: u64,
        to_offset: u64,
        length: u64,
        flags: u64,
    ) -> io::Result<usize> {
        if flags != 0 {
            return Err(Errno::INVAL.into());
        }
        Ok(self.fs.copy_range(Handle(from_handle), from_offset, Handle(to_handle), to_offset, length)?)
    }
}

/// Whether the reply took an entry; an error other than a full reply is kept.
fn taken(added: io::Result<usize>, failed: &mut Option<io::Error>) -> bool {
    match added {
        Ok(length) => length > 0,
        Err(error) => {
            *failed = Some(error);
            false
        }
    }
}

/// Fills the reply; fewer bytes only at the end of the file.
fn read_fully(file: &File, w: &mut dyn ZeroCopyWriter, size: usize, offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < size {
        let at = offset.checked_add(done as u64).ok_or(Errno::FBIG)?;
        match w.write_from(file, size - done, at) {
            Ok(0) => break,
            Ok(length) => done += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_and_changes_keep_their_values() {
        let attr = Attr {
            node: NodeId(7),
            ino: 70,
            kind: FileKind::Directory,
            mode: 0o1755,
            nlink: 3,
            uid: 1,
            gid: 2,
            rdev: 0,
            size: 4096,
            blocks: 8,
            atime: (-1, 5),
            mtime: (2, 999_999_999),
            ctime: (3, 0),
            in_lower: false,
        };
        let out = stat(&attr);
        assert_eq!((out.st_ino, out.st_mode, out.st_nlink), (70, 0o41755, 3));
        assert_eq!((out.st_atime, out.st_atime_nsec, out.st_mtime_nsec), (-1, 5, 999_999_999));
        let all = SetattrValid::MODE | SetattrValid::SIZE | SetattrValid::ATIME | SetattrValid::MTIME_NOW;
        let change = set_attr(&out, all);
        assert_eq!((change.mode, change.uid, change.size), (Some(0o1755), None, Some(4096)));
        assert!(matches!(change.atime, Some(SetTime::At(-1, 5))));
        assert!(matches!(change.mtime, Some(SetTime::Now)));
        assert!(set_attr(&out, SetattrValid::empty()).mode.is_none());
    }

    #[test]
    fn an_attribute_larger_than_the_callers_buffer_is_an_error() {
        assert!(matches!(
            sized(vec![1; 5], 0, GetxattrReply::Value, GetxattrReply::Count),
            Ok(GetxattrReply::Count(5))
        ));
        assert!(matches!(
            sized(vec![1; 5], 5, GetxattrReply::Value, GetxattrReply::Count),
            Ok(GetxattrReply::Value(_))
        ));
        let refused = sized(vec![1; 5], 4, GetxattrReply::Value, GetxattrReply::Count);
        assert_eq!(refused.err().and_then(|e| e.raw_os_error()), Some(libc::ERANGE));
    }

    const GUEST: Context = Context { uid: 1000, gid: 100, pid: 1 };

    struct Bytes(Vec<u8>);

    impl ZeroCopyWriter for Bytes {
        fn write_from(&mut self, f: &File, count: usize, off: u64) -> io::Result<usize> {
            use std::os::unix::fs::FileExt;
            // Short on purpose.
            let mut part = vec![0; count.min(3)];
            let length = f.read_at(&mut part, off)?;
            self.0.extend_from_slice(&part[..length]);
            Ok(length)
        }
    }

    impl ZeroCopyReader for Bytes {
        fn read_to(&mut self, f: &File, count: usize, off: u64) -> io::Result<usize> {
            use std::os::unix::fs::FileExt;
            let length = f.write_at(&self.0[..count.min(self.0.len())], off)?;
            self.0.drain(..length);
            Ok(length)
        }
    }

    fn guest() -> (tempfile::TempDir, GuestFilesystem) {
        use pvisor_virtiofs::stage::{Stage, StageOptions};
        let dir = tempfile::tempdir().unwrap();
        let lower = dir.path().join("lower");
        std::fs::create_dir(&lower).unwrap();
        std::fs::write(lower.join("old"), "from the host").unwrap();
        let stage = Stage::create(&dir.path().join("stage"), &lower, StageOptions::default()).unwrap();
        let fs = StageFs::new(Arc::new(stage), pvisor_virtiofs::FsOptions::default());
        (dir, GuestFilesystem::new(Arc::new(fs)))
    }

    fn content(fs: &GuestFilesystem, node: u64, offset: u64) -> Vec<u8> {
        let (handle, _) = fs.open(GUEST, node, false, libc::O_RDONLY.cast_unsigned()).unwrap();
        let mut bytes = Bytes(Vec::new());
        let length = fs.read(GUEST, node, handle.unwrap(), &mut bytes, 4096, offset, None, 0).unwrap();
        assert_eq!(length, bytes.0.len());
        fs.release(GUEST, node, 0, handle.unwrap(), false, false, None).unwrap();
        bytes.0
    }

    #[test]
    fn a_guest_reads_writes_and_lists_and_the_lower_stays() {
        let (dir, fs) = guest();
        let old = fs.lookup(GUEST, 1, c"old").unwrap();
        assert_eq!(content(&fs, old.inode, 5), b"the host");
        assert_eq!(content(&fs, old.inode, 100), b"");

        let flags = libc::O_RDWR.cast_unsigned();
        let made = fs.create(GUEST, 1, c"new", 0o100_640, false, flags, 0o022, Extensions::default()).unwrap();
        let (entry, handle) = (made.0, made.1.unwrap());
        assert_eq!((entry.attr.st_uid, entry.attr.st_gid, entry.attr.st_mode), (1000, 100, 0o100_640));
        let mut data = Bytes(b"from the guest".to_vec());
        assert_eq!(fs.write(GUEST, entry.inode, handle, &mut data, 14, 0, None, false, false, flags).unwrap(), 14);
        let too_much = MAX_IO as u32 + 1;
        assert!(fs.write(GUEST, entry.inode, handle, &mut data, too_much, 0, None, false, false, flags).is_err());
        assert_eq!(content(&fs, entry.inode, 0), b"from the guest");

        let absent = fs.lookup(GUEST, 1, c"absent").unwrap();
        assert_eq!((absent.inode, absent.entry_timeout), (0, Duration::from_secs(1)));
        assert_eq!(fs.rmdir(GUEST, 1, c"new").unwrap_err().raw_os_error(), Some(libc::ENOTDIR));

        let directory = fs.opendir(GUEST, 1, 0).unwrap().0.unwrap();
        let mut names = Vec::new();
        let mut add = |d: DirEntry<'_>, e: Entry| {
            names.push((d.name.to_vec(), e.inode));
            Ok(usize::from(names.len() < 4))
        };
        fs.readdirplus_for_each(GUEST, 1, directory, 4096, 0, &mut add).unwrap();
        names.sort();
        let expected = [(&b"."[..], 0), (b"..", 0), (b"new", entry.inode), (b"old", old.inode)];
        assert_eq!(names, expected.map(|(name, node)| (name.to_vec(), node)));
        assert_eq!(std::fs::read_dir(dir.path().join("lower")).unwrap().count(), 1);
    }

    #[test]
    fn the_numbers_a_guest_holds_survive_a_capture() {
        let (_dir, fs) = guest();
        let node = fs.lookup(GUEST, 1, c"old").unwrap().inode;
        let handle = fs.open(GUEST, node, false, 0).unwrap().0.unwrap();
        let state = fs.capture_state().unwrap();
        fs.validate_state(&state).unwrap();
        // As in a new process: nothing is open and nothing referred to.
        fs.release(GUEST, node, 0, handle, false, false, None).unwrap();
        fs.forget(GUEST, node, 1);
        fs.restore_state(&state).unwrap();
        let mut bytes = Bytes(Vec::new());
        fs.read(GUEST, node, handle, &mut bytes, 4, 0, None, 0).unwrap();
        assert_eq!(bytes.0, b"from");
        let half = fs.validate_state(&state[..state.len() / 2]).unwrap_err();
        assert_eq!(half.kind(), io::ErrorKind::InvalidData);
    }
}
