//! Appending to a journal.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use pvisor_spec::Envelope;
use rustix::fs::{FallocateFlags, fallocate};

use super::{Header, MAX_RECORD, Record};
use crate::Errno;
use crate::layout::{JOURNAL, JOURNAL_ENVELOPE, nofollow};

/// Disk space taken ahead of the end, in bytes, so that removing files works on a full disk.
const AHEAD: u64 = 256 * 1024;

/// The end of a journal. Without a file (a stage that is thrown away) everything is accepted and forgotten.
#[derive(Debug)]
pub(crate) struct Journal {
    file: Option<Arc<File>>,
    /// Bytes that count; what lies beyond is no part of the journal.
    end: u64,
    reserved: u64,
    /// A torn frame could not be cut off: nothing may follow it.
    broken: bool,
    buffer: Vec<u8>,
}

impl Journal {
    /// A journal that keeps nothing.
    pub fn void() -> Self {
        Self { file: None, end: 0, reserved: 0, broken: false, buffer: Vec::new() }
    }

    /// Makes the file with its header.
    pub fn create(dir: &Path, header: &Header) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600).custom_flags(nofollow());
        let file = options.open(dir.join(JOURNAL))?;
        let payload = postcard::to_stdvec(header).map_err(io::Error::other)?;
        let bytes = JOURNAL_ENVELOPE.wrap(&payload);
        file.write_all_at(&bytes, 0)?;
        Ok(Self::at(file, bytes.len() as u64))
    }

    /// Makes the file with its header and the frames of another journal, those between the two offsets.
    pub fn create_from(dir: &Path, header: &Header, from: &Path, (start, end): (u64, u64)) -> io::Result<Self> {
        let mut journal = Self::create(dir, header)?;
        let Some(file) = journal.file() else { return Ok(journal) };
        let mut options = OpenOptions::new();
        let mut source = options.read(true).custom_flags(nofollow()).open(from.join(JOURNAL))?;
        source.seek(SeekFrom::Start(start))?;
        let mut target = &*file;
        target.seek(SeekFrom::Start(journal.end))?;
        let length = end.saturating_sub(start);
        if io::copy(&mut source.take(length), &mut target)? != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        journal.end += length;
        journal.reserved = journal.end;
        Ok(journal)
    }

    /// Continues a journal whose first `end` bytes are whole; a torn tail is cut off.
    pub fn resume(dir: &Path, end: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(nofollow()).open(dir.join(JOURNAL))?;
        file.set_len(end)?;
        Ok(Self::at(file, end))
    }

    fn at(file: File, end: u64) -> Self {
        Self { file: Some(Arc::new(file)), end, reserved: end, broken: false, buffer: Vec::new() }
    }

    /// Bytes that count.
    pub fn length(&self) -> u64 {
        self.end
    }

    #[cfg(test)]
    pub fn over(file: File, end: u64) -> Self {
        Self::at(file, end)
    }

    #[cfg(test)]
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// The file, to sync it without holding what protects this.
    pub fn file(&self) -> Option<Arc<File>> {
        self.file.clone()
    }

    /// Appends a record whole or not at all.
    ///
    /// # Errors
    /// What the file system said; `IO` once the journal is broken.
    pub fn append(&mut self, record: &Record) -> Result<(), Errno> {
        let Some(file) = self.file.clone() else { return Ok(()) };
        if self.broken {
            return Err(Errno::IO);
        }
        self.encode(record)?;
        self.reserve(&file);
        let Err(cause) = file.write_all_at(&self.buffer, self.end) else {
            self.end += self.buffer.len() as u64;
            return Ok(());
        };
        // Space that was reserved is given back with it; it is taken again by the next append.
        self.reserved = self.end;
        if let Err(e) = file.set_len(self.end) {
            self.broken = true;
            tracing::error!(error = %e, "a torn frame stays at the end of the journal; the stage takes no more changes");
            return Err(Errno::IO);
        }
        Err(Errno::from_io_error(&cause).unwrap_or(Errno::IO))
    }

    fn encode(&mut self, record: &Record) -> Result<(), Errno> {
        self.buffer.clear();
        self.buffer.extend_from_slice(&[0; 8]);
        let buffer = std::mem::take(&mut self.buffer);
        self.buffer = postcard::to_extend(record, buffer).map_err(|_| Errno::IO)?;
        let body = self.buffer.len() - 8;
        if body > MAX_RECORD {
            return Err(Errno::TOOBIG);
        }
        let length = u32::try_from(body).map_err(|_| Errno::TOOBIG)?;
        let sum = crc32fast::hash(&self.buffer[8..]);
        self.buffer[..4].copy_from_slice(&length.to_le_bytes());
        self.buffer[4..8].copy_from_slice(&sum.to_le_bytes());
        Ok(())
    }

    /// Keeps space ahead. Where it can't be had, the write itself decides.
    fn reserve(&mut self, file: &File) {
        let want = self.end + self.buffer.len() as u64;
        if want + AHEAD / 4 <= self.reserved {
            return;
        }
        if fallocate(file, FallocateFlags::KEEP_SIZE, self.reserved, want + AHEAD - self.reserved).is_ok() {
            self.reserved = want + AHEAD;
        }
    }

    /// Gives reserved space back: nothing will be appended.
    pub fn trim(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| file.set_len(self.end))
    }

    /// The whole journal's hash.
    pub fn hash(dir: &Path) -> io::Result<([u8; 32], u64)> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).custom_flags(nofollow()).open(dir.join(JOURNAL))?;
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; 128 * 1024];
        let mut length = 0;
        loop {
            let n = file.read(&mut buffer)?;
            if n == 0 {
                return Ok((*hasher.finalize().as_bytes(), length));
            }
            length += n as u64;
            hasher.update(&buffer[..n]);
        }
    }
}

/// Length of an envelope's header in front of a journal.
pub(super) const HEADER: usize = Envelope::HEADER;
