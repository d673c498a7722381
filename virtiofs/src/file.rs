//! Open files.

use std::os::fd::BorrowedFd;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pvisor_stage::{Access, Attr, FallocateFlags, NodeId, OpenFile, SeekFrom, Stage, Time};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::filesystem::{Caller, Entry, StageFs, check_name, new_node};
use crate::handle::Handle;

/// Most bytes of one read or write.
pub const MAX_IO: usize = 1 << 20;

/// An open file and how it was opened.
pub(crate) struct File {
    pub(crate) open: OpenFile,
    pub(crate) access: Access,
}

/// What a file of the lower was when it was last opened for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    size: u64,
    mtime: Time,
    ctime: Time,
}

/// Most files that are remembered.
const MAX_SEEN: usize = 1 << 16;

impl Seen {
    /// A later change would show in the time of the last change.
    fn is_settled(&self) -> bool {
        const STEP: Duration = Duration::from_millis(100);
        let changed = u64::try_from(self.ctime.0).ok().map(|s| Duration::new(s, self.ctime.1));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        now.zip(changed).and_then(|(now, changed)| now.checked_sub(changed)).is_some_and(|age| age > STEP)
    }
}

/// What opening gave.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// The open file.
    pub handle: Handle,
    /// The kernel may keep the pages that it has of the file: nothing changed since it read them.
    pub keep_cache: bool,
}

/// What kind of write it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteKind {
    /// The program wrote with `O_APPEND`: at the end, wherever the kernel thinks that is.
    pub append: bool,
    /// Pages that a mapping made dirty, sent later: always at the offset given.
    pub from_cache: bool,
    /// Clear set-user-id and set-group-id.
    pub kill_priv: bool,
}

impl File {
    pub(crate) fn new(open: OpenFile, access: Access) -> Self {
        Self { open, access }
    }

    fn readable(&self) -> Result<&OpenFile, Errno> {
        if self.access == Access::Write { Err(Errno::BADF) } else { Ok(&self.open) }
    }

    fn writable(&self) -> Result<&OpenFile, Errno> {
        if self.access == Access::Read { Err(Errno::BADF) } else { Ok(&self.open) }
    }

    /// As [`StageFs::read`].
    pub(crate) fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        check_range(buf.len(), offset)?;
        let open = self.readable()?;
        let mut done = 0;
        while done < buf.len() {
            match open.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// As [`StageFs::allocate`].
    pub(crate) fn allocate(&self, mode: u32, offset: u64, length: u64) -> Result<(), Errno> {
        offset.checked_add(length).filter(|end| i64::try_from(*end).is_ok()).ok_or(Errno::FBIG)?;
        let mode = FallocateFlags::from_bits(mode).ok_or(Errno::OPNOTSUPP)?;
        self.writable()?.allocate(mode, offset, length)
    }

    /// As [`StageFs::seek`].
    pub(crate) fn seek(&self, offset: u64, whence: u32) -> Result<u64, Errno> {
        let from = match whence {
            3 => SeekFrom::Data(offset),
            4 => SeekFrom::Hole(offset),
            _ => return Err(Errno::INVAL),
        };
        self.open.seek_data_or_hole(from)
    }

    /// As [`StageFs::copy_range`].
    pub(crate) fn copy_range(&self, offset: u64, to: &Self, to_offset: u64, length: u64) -> Result<usize, Errno> {
        let (source, target) = (self.readable()?, to.writable()?);
        // The answer has 32 bits.
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(1 << 30);
        for offset in [offset, to_offset] {
            offset.checked_add(length as u64).filter(|end| i64::try_from(*end).is_ok()).ok_or(Errno::FBIG)?;
        }
        source.copy_range(offset, target, to_offset, length)
    }
}

/// What the flags of `open` ask for.
///
/// # Errors
/// EINVAL: the access mode that means neither.
pub(crate) fn access_of(flags: u32) -> Result<Access, Errno> {
    match OFlags::from_bits_retain(flags) & OFlags::RWMODE {
        f if f == OFlags::RDONLY => Ok(Access::Read),
        f if f == OFlags::WRONLY => Ok(Access::Write),
        f if f == OFlags::RDWR => Ok(Access::ReadWrite),
        _ => Err(Errno::INVAL),
    }
}

impl StageFs {
    /// Opens a file. `flags`: bits of `open`; `O_TRUNC` is done here, `kill_priv` then clears set-user-id and
    /// set-group-id.
    ///
    /// # Errors
    /// As `open`.
    pub fn open(&self, node: NodeId, flags: u32, kill_priv: bool) -> Result<Opened, Errno> {
        let stage = self.enter()?;
        self.open_node(&stage, node, flags, kill_priv)
    }

    fn open_node(&self, stage: &Stage, node: NodeId, flags: u32, kill_priv: bool) -> Result<Opened, Errno> {
        let access = access_of(flags)?;
        let truncate = access != Access::Read && OFlags::from_bits_retain(flags).contains(OFlags::TRUNC);
        let open = stage.open(node, access, truncate)?;
        if truncate && kill_priv {
            self.clear_privilege(&open)?;
        }
        let keep_cache = access == Access::Read && self.is_unchanged(stage, &open);
        Ok(Opened { handle: self.files.insert(File::new(open, access))?, keep_cache })
    }

    /// Whether the content is what it was at the last open for reading. Staged content changes only through the
    /// kernel that asks. For the lower's, the time of the last change tells, which nobody can set back; it counts from
    /// when it is so old that the clock has moved on since.
    fn is_unchanged(&self, stage: &Stage, open: &OpenFile) -> bool {
        if open.is_staged() {
            return true;
        }
        stage.attr(open.node()).is_ok_and(|attr| self.is_as_seen(&attr))
    }

    /// Whether a file of the lower is what it was at the last look.
    pub(crate) fn is_as_seen(&self, attr: &Attr) -> bool {
        let seen = Seen { size: attr.size, mtime: attr.mtime, ctime: attr.ctime };
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.remove(&attr.node) == Some(seen);
        if all.len() >= MAX_SEEN {
            all.clear();
        }
        if seen.is_settled() {
            all.insert(attr.node, seen);
        }
        known
    }

    /// Makes a file and opens it; takes a reference. Where the name exists by now and the flags do not say `O_EXCL`,
    /// opens what is there.
    ///
    /// # Errors
    /// As `open` with `O_CREAT`.
    pub fn create(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        flags: u32,
        kill_priv: bool,
    ) -> Result<(Entry, Opened), Errno> {
        let stage = self.enter()?;
        check_name(name)?;
        let exclusive = OFlags::from_bits_retain(flags).contains(OFlags::EXCL);
        let made = match stage.create_file(parent, name, &new_node(caller, mode)) {
            Err(Errno::EXIST) if !exclusive => stage.lookup(parent, name),
            other => other,
        }?;
        match self.open_node(&stage, made.node, flags, kill_priv) {
            Ok(opened) => Ok((self.entry(made), opened)),
            Err(error) => {
                stage.forget(made.node, 1);
                Err(error)
            }
        }
    }

    /// Fills `buf` from `offset`; fewer bytes only at the end of the file.
    ///
    /// # Errors
    /// EBADF: not open for reading; EINVAL: more than [`MAX_IO`]; or what the host answers.
    pub fn read(&self, handle: Handle, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let _stage = self.enter()?;
        self.files.get(handle)?.read(buf, offset)
    }

    /// Runs `f` with the host descriptor that holds the content of a file open for reading, for a transfer without a
    /// copy. The descriptor is good for the call only, and only for positioned reads.
    ///
    /// # Errors
    /// EBADF: not open for reading; what the host or `f` answers.
    pub fn with_fd<T>(&self, handle: Handle, f: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
        let _stage = self.enter()?;
        self.files.get(handle)?.readable()?.with_fd(f)
    }

    /// Writes `data`; returns how much of it was written.
    ///
    /// # Errors
    /// EBADF: not open for writing; EINVAL: more than [`MAX_IO`]; ENOSPC and others from the host.
    pub fn write(&self, handle: Handle, data: &[u8], offset: u64, kind: WriteKind) -> Result<usize, Errno> {
        let stage = self.enter()?;
        let file = self.files.get(handle)?;
        self.write_file(&stage, &file, data, offset, kind)
    }

    pub(crate) fn write_file(
        &self,
        stage: &Stage,
        file: &File,
        data: &[u8],
        offset: u64,
        kind: WriteKind,
    ) -> Result<usize, Errno> {
        let open = file.writable()?;
        if kind.kill_priv {
            self.clear_privilege(open)?;
        }
        if !kind.append || kind.from_cache {
            check_range(data.len(), offset)?;
            return write_all(open, data, offset);
        }
        let lock = &self.appends[open.node().0 as usize % self.appends.len()];
        let _end = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let end = stage.attr(open.node())?.size;
        check_range(data.len(), end)?;
        write_all(open, data, end)
    }

    fn clear_privilege(&self, open: &OpenFile) -> Result<(), Errno> {
        if open.clear_privileges()? {
            self.privilege_lost(open.node());
        }
        Ok(())
    }

    /// Closes a file.
    ///
    /// # Errors
    /// EBADF: no such handle.
    pub fn release(&self, handle: Handle) -> Result<(), Errno> {
        self.files.remove(handle).map(drop)
    }

    /// Puts the content of a file on disk, and what the stage knows of it. `data_only`: times may stay behind.
    ///
    /// # Errors
    /// EBADF: no such handle; EIO and others from the host.
    pub fn sync_file(&self, handle: Handle, data_only: bool) -> Result<(), Errno> {
        let _stage = self.enter()?;
        self.files.get(handle)?.open.sync(data_only)
    }

    /// As `fallocate`. `mode`: its flag bits.
    ///
    /// # Errors
    /// EBADF: not open for writing; EOPNOTSUPP: a mode that the stage does not do; ENOSPC and others from the host.
    pub fn allocate(&self, handle: Handle, mode: u32, offset: u64, length: u64) -> Result<(), Errno> {
        let _stage = self.enter()?;
        self.files.get(handle)?.allocate(mode, offset, length)
    }

    /// The next data or hole at or after `offset`. `whence`: 3 for data, 4 for a hole.
    ///
    /// # Errors
    /// ENXIO: none; EINVAL: another `whence`.
    pub fn seek(&self, handle: Handle, offset: u64, whence: u32) -> Result<u64, Errno> {
        let _stage = self.enter()?;
        self.files.get(handle)?.seek(offset, whence)
    }

    /// Copies within the stage; returns how many bytes were copied, which can be fewer than asked for.
    ///
    /// # Errors
    /// EBADF: the source is not open for reading or the target not for writing; or what the host answers.
    pub fn copy_range(
        &self,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        length: u64,
    ) -> Result<usize, Errno> {
        let _stage = self.enter()?;
        let (source, target) = (self.files.get(from)?, self.files.get(to)?);
        source.copy_range(from_offset, &target, to_offset, length)
    }

    /// # Errors
    /// EBADF: no such handle, or not for writing.
    pub(crate) fn file_for_writing(&self, handle: Handle) -> Result<(), Errno> {
        self.files.get(handle)?.writable().map(drop)
    }
}

/// # Errors
/// EINVAL: too long; EFBIG: past the largest offset.
fn check_range(length: usize, offset: u64) -> Result<(), Errno> {
    if length > MAX_IO {
        return Err(Errno::INVAL);
    }
    let end = offset.checked_add(length as u64).ok_or(Errno::FBIG)?;
    i64::try_from(end).map(drop).map_err(|_| Errno::FBIG)
}

fn write_all(open: &OpenFile, data: &[u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < data.len() {
        match open.write_at(&data[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FsOptions;
    use pvisor_stage::{Keep, StageOptions};
    use std::sync::Arc;

    fn filesystem() -> (tempfile::TempDir, StageFs) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("lower")).unwrap();
        std::fs::write(dir.path().join("lower/f"), "0123456789").unwrap();
        let options = StageOptions { keep: Keep::ThrowAway, ..StageOptions::default() };
        let stage = Stage::create(&dir.path().join("stage"), &dir.path().join("lower"), options).unwrap();
        (dir, StageFs::new(Arc::new(stage), FsOptions::default()))
    }

    #[test]
    fn ranges_and_directions_are_checked() {
        let (_dir, fs) = filesystem();
        let node = fs.lookup(NodeId::ROOT, b"f").unwrap().attr.node;
        let (read, write) = (fs.open(node, 0, false).unwrap().handle, fs.open(node, 1, false).unwrap().handle);
        let mut buffer = [0; 4];
        assert_eq!(fs.read(write, &mut buffer, 0), Err(Errno::BADF));
        assert_eq!(fs.read(read, &mut buffer, u64::MAX), Err(Errno::FBIG));
        assert_eq!(fs.read(read, &mut buffer, 1 << 40), Ok(0));
        assert_eq!(fs.read(read, &mut buffer, 8), Ok(2));
        assert_eq!(fs.read(read, &mut vec![0; MAX_IO + 1], 0), Err(Errno::INVAL));
        let kind = WriteKind::default();
        assert_eq!(fs.write(read, b"x", 0, kind), Err(Errno::BADF));
        assert_eq!(fs.write(write, b"x", i64::MAX as u64, kind), Err(Errno::FBIG));
        assert_eq!(fs.write(write, &vec![0; MAX_IO + 1], 0, kind), Err(Errno::INVAL));
        assert_eq!(fs.allocate(write, 0, u64::MAX, 1), Err(Errno::FBIG));
        assert_eq!(fs.allocate(write, 1 << 30, 0, 1), Err(Errno::OPNOTSUPP));
        assert_eq!(fs.seek(read, 0, 2), Err(Errno::INVAL));
        assert_eq!(fs.copy_range(write, 0, read, 0, 1), Err(Errno::BADF));
        assert_eq!(fs.open(node, 3, false).err(), Some(Errno::INVAL));
        assert_eq!(fs.with_fd(write, |_| Ok(())), Err(Errno::BADF));
        assert_eq!(fs.read(Handle(99), &mut buffer, 0), Err(Errno::BADF));
    }

    #[test]
    fn an_append_goes_to_the_end_whatever_offset_is_asked_for_but_not_one_from_the_cache() {
        let (_dir, fs) = filesystem();
        let node = fs.lookup(NodeId::ROOT, b"f").unwrap().attr.node;
        let handle = fs.open(node, 2, false).unwrap().handle;
        let append = WriteKind { append: true, ..WriteKind::default() };
        assert_eq!(fs.write(handle, b"ab", 0, append), Ok(2));
        assert_eq!(fs.write(handle, b"X", 0, WriteKind { from_cache: true, ..append }), Ok(1));
        let mut buffer = [0; 16];
        let read = fs.read(handle, &mut buffer, 0).unwrap();
        assert_eq!(&buffer[..read], b"X123456789ab");
    }

    #[test]
    fn pages_are_kept_only_while_nobody_changed_the_file() {
        let (dir, fs) = filesystem();
        let lower = dir.path().join("lower/f");
        let node = fs.lookup(NodeId::ROOT, b"f").unwrap().attr.node;
        let kept = |flags| fs.open(node, flags, false).unwrap().keep_cache;
        let settle = || std::thread::sleep(std::time::Duration::from_millis(150));
        assert!(!kept(0), "just made: a change in this very moment would not show");
        assert!(!kept(0));
        settle();
        assert!(!kept(0));
        assert!(kept(0) && kept(0));
        let before = std::fs::metadata(&lower).unwrap().modified().unwrap();
        std::fs::write(&lower, "9876543210").unwrap();
        std::fs::File::options().write(true).open(&lower).unwrap().set_modified(before).unwrap();
        assert!(!kept(0), "same size, same time of modification, other content");
        settle();
        assert!(!kept(0));
        assert!(kept(0));
        assert!(!kept(2), "an open that copies up drops what was read from the lower");
        assert!(kept(0));
    }

    #[test]
    fn creating_what_exists_by_now_opens_it_unless_it_must_be_new() {
        let (_dir, fs) = filesystem();
        let me = Caller { uid: 0, gid: 0 };
        let (creat, excl, trunc) = (0o100, 0o200, 0o1000);
        let create = |flags| fs.create(me, NodeId::ROOT, b"f", 0o600, flags, false);
        assert_eq!(create(2 | creat | excl).err(), Some(Errno::EXIST));
        assert_eq!(create(2 | creat).unwrap().0.attr.size, 10);
        let (_, opened) = create(2 | creat | trunc).unwrap();
        assert_eq!(fs.read(opened.handle, &mut [0; 4], 0), Ok(0));
        assert_eq!(fs.create(me, NodeId::ROOT, b"a/b", 0o600, 2, false).err(), Some(Errno::INVAL));
        assert_eq!(fs.create(me, NodeId::ROOT, &[b'x'; 256], 0o600, 2, false).err(), Some(Errno::NAMETOOLONG));
    }
}
