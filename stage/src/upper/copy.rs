//! Copying a content: a reflink where the file system can, else data by data and hole by hole.

use std::fs::File;

use rustix::fs::{SeekFrom, copy_file_range, ftruncate, ioctl_ficlone, seek};
use rustix::io::{pread, pwrite};

use crate::Errno;
use crate::stat::Stat;

/// Most bytes in one step of a copy.
const STEP: usize = 8 * 1024 * 1024;

/// Makes the empty `to` equal to the first `limit` bytes of `from`. A source that is changed meanwhile is copied
/// again, three times at the most.
pub(crate) fn copy_content(from: &File, to: &File, limit: u64) -> Result<(), Errno> {
    for _ in 0..3 {
        let before = Stat::of(from)?;
        let size = before.size.min(limit);
        if size < before.size || ioctl_ficlone(to, from).is_err() {
            ftruncate(to, 0)?;
            copy_data(from, to, size)?;
            ftruncate(to, size)?;
        }
        if Stat::of(from)?.same_identity(&before) {
            break;
        }
    }
    Ok(())
}

fn copy_data(from: &File, to: &File, size: u64) -> Result<(), Errno> {
    let mut at = 0;
    while at < size {
        let data = match seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Only a hole is left.
            Err(Errno::NXIO) => return Ok(()),
            // No notion of holes here.
            Err(_) => at,
        };
        if data >= size {
            return Ok(());
        }
        let end = seek(from, SeekFrom::Hole(data)).unwrap_or(size).clamp(data, size);
        if !copy_stretch(from, to, data, end)? {
            return Ok(());
        }
        at = end.max(data + 1);
    }
    Ok(())
}

/// Copies one stretch of data; false: the source has become shorter.
fn copy_stretch(from: &File, to: &File, mut at: u64, end: u64) -> Result<bool, Errno> {
    let mut in_kernel = true;
    let mut buffer = Vec::new();
    while at < end {
        let want = usize::try_from(end - at).unwrap_or(STEP).min(STEP);
        let done = if in_kernel {
            match copy_file_range(from, Some(&mut { at }), to, Some(&mut { at }), want) {
                Ok(done) => done,
                // The plain way below gets by, or meets the same error and reports it.
                Err(_) => {
                    in_kernel = false;
                    continue;
                }
            }
        } else {
            buffer.resize(want.min(256 * 1024), 0);
            let got = pread(from, &mut buffer[..], at)?;
            write_all_at(to, &buffer[..got], at)?;
            got
        };
        if done == 0 {
            if in_kernel {
                // Some file systems say 0 for what they can't copy in the kernel.
                in_kernel = false;
                continue;
            }
            return Ok(false);
        }
        at += done as u64;
    }
    Ok(true)
}

fn write_all_at(to: &File, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let done = match pwrite(to, bytes, at) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        if done == 0 {
            return Err(Errno::IO);
        }
        bytes = &bytes[done..];
        at += done as u64;
    }
    Ok(())
}
