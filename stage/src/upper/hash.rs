//! Hashing a content.

use std::fs::File;

use rustix::fs::{SeekFrom, seek};
use rustix::io::pread;

use crate::{ContentHash, Errno};

const STEP: usize = 256 * 1024;

/// BLAKE3 of the whole file and its length. Holes count as zeros but are not read.
pub(crate) fn hash_file(file: &File) -> Result<(ContentHash, u64), Errno> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; STEP];
    let mut at: u64 = 0;
    loop {
        let got = match pread(file, &mut buffer[..], at) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        if got == 0 {
            return Ok((*hasher.finalize().as_bytes(), at));
        }
        hasher.update(&buffer[..got]);
        at += got as u64;
        if got == STEP && buffer.iter().all(|b| *b == 0) {
            at = skip_hole(file, at, &mut hasher, &buffer);
        }
    }
}

/// Feeds zeros up to the next data; `zeros` are zeros.
fn skip_hole(file: &File, at: u64, hasher: &mut blake3::Hasher, zeros: &[u8]) -> u64 {
    let Ok(data) = seek(file, SeekFrom::Data(at)) else { return at };
    let mut left = data.saturating_sub(at);
    while left > 0 {
        let step = usize::try_from(left).unwrap_or(STEP).min(STEP);
        hasher.update(&zeros[..step]);
        left -= step as u64;
    }
    at.max(data)
}
