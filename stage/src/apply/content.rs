//! Copying a content of the stage into a new file, checked against the seal on the way.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;

use super::disk::Disk;
use crate::{ContentHash, Errno};

/// Bytes copied at a time.
const CHUNK: usize = 256 * 1024;

/// Why a content could not be copied.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// It is not what the seal says.
    Damaged,
    /// A system call failed.
    Io(io::Error),
}

impl<E: Into<io::Error>> From<E> for CopyError {
    fn from(e: E) -> Self {
        Self::Io(e.into())
    }
}

/// Fills the empty file `to` with all of `from`, holes kept. Without `to` the content is only checked: what shares its
/// blocks has to be read once all the same, so that what is applied is what was reviewed. `length`: bytes of `from`.
pub(crate) fn copy(
    disk: Disk<'_>,
    (from, length): (&File, u64),
    to: Option<&File>,
    (size, hash): (u64, &ContentHash),
) -> Result<(), CopyError> {
    if length != size {
        return Err(CopyError::Damaged);
    }
    if size == 0 {
        return if *blake3::hash(b"").as_bytes() == *hash { Ok(()) } else { Err(CopyError::Damaged) };
    }
    let mut copier = Copier { disk, from, hasher: blake3::Hasher::new(), buffer: vec![0; buffer_size(size)] };
    let mut at = 0;
    let mut written = 0;
    while at < size {
        let (start, end) = next_data(from, at, size)?;
        copier.skip(start - at);
        copier.take(start, end, to)?;
        written = if end > start { end } else { written };
        at = end;
    }
    if copier.hasher.finalize().as_bytes() != hash {
        return Err(CopyError::Damaged);
    }
    if let Some(to) = to.filter(|_| written < size) {
        // A hole at the end.
        disk.set_len(to, size)?;
    }
    Ok(())
}

fn buffer_size(size: u64) -> usize {
    usize::try_from(size).map_or(CHUNK, |size| size.clamp(1, CHUNK))
}

/// Where the next data at or after `at` starts and ends; both `size` if only a hole is left.
fn next_data(file: &File, at: u64, size: u64) -> Result<(u64, u64), Errno> {
    if size <= CHUNK as u64 && at == 0 {
        // Too small for holes to matter.
        return Ok((0, size));
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start.min(size),
        Err(Errno::NXIO) => return Ok((size, size)),
        // The filesystem knows no holes.
        Err(Errno::INVAL | Errno::NOTSUP) => return Ok((at, size)),
        Err(e) => return Err(e),
    };
    let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
        Ok(end) => end.min(size),
        Err(Errno::NXIO) => size,
        Err(e) => return Err(e),
    };
    // Nobody else has the file open, but a filesystem may be wrong.
    Ok((start.max(at), if end > start { end } else { size }))
}

struct Copier<'a> {
    disk: Disk<'a>,
    from: &'a File,
    hasher: blake3::Hasher,
    buffer: Vec<u8>,
}

impl Copier<'_> {
    /// Reads a range, and writes it where there is a file to write it to.
    fn take(&mut self, mut at: u64, end: u64, to: Option<&File>) -> Result<(), CopyError> {
        while at < end {
            let want = usize::try_from(end - at).map_or(self.buffer.len(), |left| left.min(self.buffer.len()));
            let part = &mut self.buffer[..want];
            self.from.read_exact_at(part, at).map_err(|e| match e.kind() {
                io::ErrorKind::UnexpectedEof => CopyError::Damaged,
                _ => CopyError::Io(e),
            })?;
            self.hasher.update(part);
            if let Some(to) = to {
                self.disk.write_at(to, part, at)?;
            }
            at += want as u64;
        }
        Ok(())
    }

    /// A hole: zeros that are not written.
    fn skip(&mut self, length: u64) {
        static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
        let mut left = length;
        while left > 0 {
            let part = usize::try_from(left).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
            self.hasher.update(&ZEROS[..part]);
            left -= part as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fault::Uninterrupted;
    use std::os::unix::fs::MetadataExt;

    fn files(content: &[(u64, &[u8])], size: u64) -> (tempfile::TempDir, File, File, ContentHash) {
        let dir = tempfile::tempdir().unwrap();
        let open =
            |name: &str| File::options().read(true).write(true).create_new(true).open(dir.path().join(name)).unwrap();
        let (from, to) = (open("from"), open("to"));
        from.set_len(size).unwrap();
        for (at, bytes) in content {
            from.write_all_at(bytes, *at).unwrap();
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(&from).unwrap();
        let hash = *hasher.finalize().as_bytes();
        (dir, from, to, hash)
    }

    fn hash_of(file: &File) -> ContentHash {
        let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        *blake3::hash(&bytes).as_bytes()
    }

    #[test]
    fn holes_stay_holes() {
        let size = 64 << 20;
        let (_dir, from, to, hash) = files(&[(1 << 20, b"middle"), (33 << 20, &[7; 5000])], size);
        copy(Disk::new(&Uninterrupted), (&from, size), Some(&to), (size, &hash)).unwrap();
        assert_eq!(hash_of(&to), hash);
        assert!(to.metadata().unwrap().blocks() * 512 < 1 << 20);
    }

    #[test]
    fn other_content_than_the_sealed_one_is_refused() {
        let (_dir, from, to, hash) = files(&[(0, b"content")], 7);
        let disk = Disk::new(&Uninterrupted);
        assert!(matches!(copy(disk, (&from, 7), Some(&to), (8, &hash)), Err(CopyError::Damaged)));
        from.write_all_at(b"C", 0).unwrap();
        assert!(matches!(copy(disk, (&from, 7), None, (7, &hash)), Err(CopyError::Damaged)));
    }
}
