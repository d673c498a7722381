//! Bytes of a guest's write as a slice.
//!
//! The engine gives the bytes of a write only to a file. That file is memory, mapped here.

use std::fs::File;
use std::io;

use msb_krun::backends::fs::ZeroCopyReader;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// A buffer of fixed length that is also a file.
pub(super) struct Bounce {
    file: File,
    start: *mut u8,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone and is not bound to a thread.
unsafe impl Send for Bounce {}

impl Bounce {
    pub(super) fn new(length: usize) -> io::Result<Self> {
        let fd = memfd_create(c"pvisor-write", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, length as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a new mapping touches no memory that anything else uses.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                rustix::mm::ProtFlags::READ,
                rustix::mm::MapFlags::SHARED,
                &fd,
                0,
            )?
        };
        Ok(Self { file: File::from(fd), start: start.cast(), length })
    }

    /// Takes `size` bytes from the request.
    ///
    /// # Errors
    /// EINVAL: the request holds fewer, or the buffer is shorter.
    pub(super) fn fill(&mut self, request: &mut dyn ZeroCopyReader, size: usize) -> io::Result<&[u8]> {
        if size > self.length {
            return Err(rustix::io::Errno::INVAL.into());
        }
        let mut filled = 0;
        while filled < size {
            match request.read_to(&self.file, size - filled, filled as u64) {
                Ok(0) => return Err(rustix::io::Errno::INVAL.into()),
                Ok(length) => filled += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // SAFETY: inside the mapping (checked above), which can't shrink (sealed), lives as long as `self`, and whose
        // file nobody writes while the slice exists: it is written here only, through `&mut self`.
        Ok(unsafe { std::slice::from_raw_parts(self.start, size) })
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this length, and no slice of it outlives `self`. It fails only for arguments
        // that are no mapping.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    struct Request<'a>(&'a [u8]);

    impl ZeroCopyReader for Request<'_> {
        fn read_to(&mut self, f: &File, count: usize, off: u64) -> io::Result<usize> {
            let length = f.write_at(&self.0[..self.0.len().min(count).min(3)], off)?;
            self.0 = &self.0[length..];
            Ok(length)
        }
    }

    #[test]
    fn the_bytes_of_the_request_come_out_and_too_few_or_too_many_are_refused() {
        let mut bounce = Bounce::new(4096).unwrap();
        assert_eq!(bounce.fill(&mut Request(b"0123456789"), 8).unwrap(), b"01234567");
        assert_eq!(bounce.fill(&mut Request(b"abc"), 2).unwrap(), b"ab");
        assert!(bounce.fill(&mut Request(b"abc"), 4).is_err());
        assert!(bounce.fill(&mut Request(&[0; 5000]), 4097).is_err());
    }
}
