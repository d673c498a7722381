//! Open files.

use std::fs::File;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, fdatasync, fsync, seek};
use rustix::io::{pread, pwrite};

use super::attr::{Facts, Source};
use super::{Access, Keep, NodeId, Shared, Stage};
use crate::Errno;
use crate::journal::Record;
use crate::stat::Stat;
use crate::tree::Body;

/// An open regular file. It goes on working after the file is unlinked, and one that was opened for reading before
/// the content was copied up sees what is written afterwards.
#[derive(Debug)]
pub struct OpenFile {
    shared: Arc<Shared>,
    node: NodeId,
    body: Arc<Body>,
    access: Access,
    /// The lower's content, for a file opened before copy-up.
    lower: Option<File>,
    /// The staged content as it was opened last, and how often it had moved before.
    upper: Mutex<Option<(u32, Arc<File>)>>,
}

/// The file that has a content.
enum Content<'a> {
    Lower(&'a File),
    Upper(Arc<File>),
}

impl Deref for Content<'_> {
    type Target = File;

    fn deref(&self) -> &File {
        match self {
            Self::Lower(file) => file,
            Self::Upper(file) => file,
        }
    }
}

impl Stage {
    /// Opens a regular file. Opening for writing copies the content up, with `truncate` without reading it.
    ///
    /// # Errors
    /// `ISDIR`, `LOOP` for a symbolic link, `NXIO` for pipes, sockets and devices, `STALE` for a file that is not there
    /// any more, `NOSPC`; what the lower says.
    pub fn open(&self, node: NodeId, access: Access, truncate: bool) -> Result<OpenFile, Errno> {
        let shared = &self.shared;
        let body = shared.body(node)?;
        if access.writes() || truncate {
            shared.copy_up(node, if truncate { 0 } else { u64::MAX })?;
        }
        shared.hold(node)?;
        let mut file =
            OpenFile { shared: Arc::clone(shared), node, body, access, lower: None, upper: Mutex::new(None) };
        file.begin(truncate)?;
        Ok(file)
    }

    /// The open file of a staged content that was just made.
    pub(super) fn adopt_open(&self, node: NodeId, content: File) -> Result<OpenFile, Errno> {
        let shared = Arc::clone(&self.shared);
        let body = shared.body(node)?;
        shared.hold(node)?;
        let upper = Mutex::new(Some((body.moves(), Arc::new(content))));
        Ok(OpenFile { shared, node, body, access: Access::ReadWrite, lower: None, upper })
    }
}

impl Shared {
    fn hold(&self, id: NodeId) -> Result<(), Errno> {
        self.state().tree.get_mut(id).ok_or(Errno::STALE)?.holds += 1;
        Ok(())
    }

    fn unhold(&self, id: NodeId) {
        let orphans = {
            let mut state = self.state();
            let Some(node) = state.tree.get_mut(id) else { return };
            node.holds = node.holds.saturating_sub(1);
            state.tree.collect(id)
        };
        self.sweep(orphans);
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.shared.unhold(self.node);
    }
}

impl OpenFile {
    fn begin(&mut self, truncate: bool) -> Result<(), Errno> {
        if self.body.in_upper() {
            if truncate {
                self.shared.unshare(self.node, &self.body, 0)?;
                let file = self.shared.upper.content(self.node, true)?;
                self.shared.truncate(self.node, &file, 0)?;
            }
            return self.content().map(drop);
        }
        let facts = Facts::of(&self.shared.state().tree, self.node)?;
        let Source::Lower(path) = &facts.source else { return self.content().map(drop) };
        let (file, stat) = self.shared.lower.open_file(path).map_err(|e| match e {
            Errno::NOENT => Errno::STALE,
            e => e,
        })?;
        if !facts.accepts(&stat) {
            return Err(Errno::STALE);
        }
        self.lower = Some(file);
        Ok(())
    }

    /// The file that has the content now.
    fn content(&self) -> Result<Content<'_>, Errno> {
        if !self.body.in_upper() {
            return self.lower.as_ref().map(Content::Lower).ok_or(Errno::STALE);
        }
        // Before the file is opened: one that moves meanwhile is opened once more the next time.
        let moves = self.body.moves();
        let mut opened = self.upper.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((before, file)) = &*opened
            && *before == moves
        {
            return Ok(Content::Upper(Arc::clone(file)));
        }
        let file = Arc::new(self.shared.upper.content(self.node, self.access.writes())?);
        *opened = Some((moves, Arc::clone(&file)));
        Ok(Content::Upper(file))
    }

    fn readable(&self) -> Result<Content<'_>, Errno> {
        if self.access.reads() { self.content() } else { Err(Errno::BADF) }
    }

    fn writable(&self) -> Result<Content<'_>, Errno> {
        if !self.access.writes() {
            return Err(Errno::BADF);
        }
        self.shared.unshare(self.node, &self.body, u64::MAX)?;
        self.content()
    }

    /// Which node it is.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Reads up to `buf.len()` bytes at `offset`; 0 at the end of the file.
    ///
    /// # Errors
    /// `BADF` if it is not open for reading; what the file system says.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        pread(&*self.readable()?, buf, offset)
    }

    /// Writes at `offset`; may write less than all.
    ///
    /// # Errors
    /// `BADF` if it is not open for writing, `NOSPC`, `FBIG`, `DQUOT`; what the file system says.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize, Errno> {
        let file = self.writable()?;
        self.within_quota((offset, buf.len() as u64), || pwrite(&*file, buf, offset))
    }

    /// Does what takes space in a range of the content, if the stage may still take that.
    fn within_quota<T>(
        &self,
        (offset, length): (u64, u64),
        change: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let Some(quota) = &self.shared.quota else { return change() };
        let file = self.content()?;
        let _grant = quota.grant_range(self.node, &file, offset, length)?;
        let done = change();
        quota.count(self.node, &file);
        done
    }

    /// Clears set-user-id and set-group-id, for a write by somebody without the right to keep them; whether there was one.
    /// The file must be open for writing.
    ///
    /// # Errors
    /// `BADF` if it is not; what a change of the mode says.
    pub fn clear_privileges(&self) -> Result<bool, Errno> {
        self.writable()?;
        self.shared.change(|work| {
            let node = work.node(self.node)?;
            let mode = node.meta.mode.or(node.base.map(|s| s.mode)).unwrap_or(0);
            // Setgid without group execution is no privilege.
            let setgid = if mode & 0o010 != 0 { 0o2000 } else { 0 };
            let left = mode & !(0o4000 | setgid);
            if left != mode {
                let (node, mode, at) = (self.node.0, Some(left), work.now);
                let (uid, gid, atime, mtime) = (None, None, None, None);
                work.record(&Record::SetMeta { node, mode, uid, gid, atime, mtime, at })?;
            }
            Ok(left != mode)
        })
    }

    /// `fallocate`: space ahead, holes, zeros.
    ///
    /// # Errors
    /// `BADF` if it is not open for writing; `OPNOTSUPP` for modes that move content; `NOSPC`; what the file system
    /// says.
    pub fn allocate(&self, mode: FallocateFlags, offset: u64, len: u64) -> Result<(), Errno> {
        let known = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
        if !known.contains(mode) {
            return Err(Errno::OPNOTSUPP);
        }
        let file = self.writable()?;
        let Some(quota) = &self.shared.quota else { return fallocate(&*file, mode, offset, len) };
        let punches = mode.contains(FallocateFlags::PUNCH_HOLE);
        let takes = if punches { 0 } else { len };
        match self.within_quota((offset, takes), || fallocate(&*file, mode, offset, len)) {
            // What fallocate is known to say.
            Err(Errno::DQUOT) => return Err(Errno::NOSPC),
            other => other?,
        }
        if punches {
            quota.give_back(self.node)
        } else {
            quota.take_ahead(self.node, offset, len)
        }
        Ok(())
    }

    /// `lseek` to the next data or hole from `offset` on: `SeekFrom::Data` or `SeekFrom::Hole`.
    ///
    /// # Errors
    /// `NXIO` at or past the end, `INVAL` for another kind of seek.
    pub fn seek_data_or_hole(&self, whence: SeekFrom) -> Result<u64, Errno> {
        match whence {
            SeekFrom::Data(_) | SeekFrom::Hole(_) => seek(&*self.content()?, whence),
            _ => Err(Errno::INVAL),
        }
    }

    /// Brings the content to disk, and before it the journal, so that no staged data is on disk without its preimage.
    /// A stage that is thrown away has nothing to bring anywhere.
    ///
    /// # Errors
    /// What the file system says.
    pub fn sync(&self, data_only: bool) -> Result<(), Errno> {
        if self.shared.keep == Keep::ThrowAway || !self.body.in_upper() {
            return Ok(());
        }
        self.shared.sync_journal()?;
        let file = self.content()?;
        if data_only { fdatasync(&*file) } else { fsync(&*file).and_then(|()| self.shared.upper.sync()) }
    }

    /// Copies up to `len` bytes to another open file, in the kernel where it can; the number of bytes copied.
    ///
    /// # Errors
    /// `BADF` for a wrong direction, `NOSPC`; what the file system says.
    pub fn copy_range(&self, offset: u64, to: &Self, to_offset: u64, len: usize) -> Result<usize, Errno> {
        let target = to.writable()?;
        let from = self.readable()?;
        let (from, target) = (&*from, &*target);
        let copy = |len| match copy_file_range(from, Some(&mut { offset }), target, Some(&mut { to_offset }), len) {
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS) => {
                let mut buffer = vec![0; len.min(1024 * 1024)];
                let got = pread(from, &mut buffer[..], offset)?;
                pwrite(target, &buffer[..got], to_offset)
            }
            other => other,
        };
        if to.shared.quota.is_none() {
            return copy(len);
        }
        // No more is asked for than there is to copy.
        let there = Stat::of(from)?.size.saturating_sub(offset);
        let len = len.min(usize::try_from(there).unwrap_or(usize::MAX));
        match to.within_quota((to_offset, len as u64), || copy(len)) {
            // What copy_file_range is known to say.
            Err(Errno::DQUOT) => Err(Errno::NOSPC),
            other => other,
        }
    }

    /// Runs `f` with the descriptor that has the content now, open at least for what this file is open for. It must
    /// not be used otherwise, and not be kept: copy-up replaces it, and so does the first write after a savepoint.
    ///
    /// # Errors
    /// What `f` returns.
    pub fn with_fd<T>(&self, f: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
        f(self.content()?.as_fd())
    }

    /// Whether the content is staged: from then on it changes only through the stage.
    pub fn is_staged(&self) -> bool {
        self.body.in_upper()
    }
}
