//! Fingerprints of what stands in a target now.

use std::fs::File;

use rustix::fd::OwnedFd;

use super::disk::reopen;
use crate::lower::read_xattrs;
use crate::stat::Stat;
use crate::{ContentHash, Errno, FileKind, Fingerprint, Kind, Meta};

/// Bytes read at a time.
const CHUNK: u64 = 128 * 1024;
/// How often a file that changes while it is read is read again.
const TRIES: u32 = 3;

/// What was seen at a path.
#[derive(Clone, Debug)]
pub(crate) struct Sight {
    pub print: Fingerprint,
    pub stat: Stat,
    /// It is a regular file without any extended attributes.
    pub bare: bool,
}

/// Takes the fingerprint of what an `O_PATH` descriptor stands for. Nothing but regular files and directories is
/// opened.
///
/// # Errors
/// `EACCES`: it can't be read; `EAGAIN`: it keeps changing.
pub(crate) fn fingerprint(fd: &OwnedFd) -> Result<Sight, Errno> {
    let mut stat = Stat::of(fd)?;
    let mut xattrs = Default::default();
    let mut bare = false;
    let kind = match stat.kind {
        FileKind::File => {
            let file = File::from(reopen(fd)?);
            let (hash, read) = steady_hash(&file, stat)?;
            stat = read;
            // Asking for their size first is cheaper where there are none, and that is the rule.
            bare = matches!(rustix::fs::flistxattr_query(&file), Ok(0) | Err(Errno::NOTSUP));
            if !bare {
                xattrs = read_xattrs(&file)?;
            }
            Kind::File { size: stat.size, hash }
        }
        FileKind::Directory => {
            xattrs = match reopen(fd) {
                // A stage records no attributes of what it can't open either.
                Err(Errno::ACCESS | Errno::PERM) => Default::default(),
                opened => read_xattrs(opened?)?,
            };
            Kind::Directory
        }
        FileKind::Symlink => Kind::Symlink(rustix::fs::readlinkat(fd, c"", Vec::new())?.into_bytes()),
        FileKind::Fifo => Kind::Fifo,
        FileKind::Socket => Kind::Socket,
        FileKind::CharDevice => Kind::CharDevice(stat.rdev),
        FileKind::BlockDevice => Kind::BlockDevice(stat.rdev),
    };
    let meta = Meta { mode: stat.mode, uid: stat.uid, gid: stat.gid, mtime: stat.mtime, xattrs };
    Ok(Sight { print: Fingerprint { kind, meta }, stat, bare })
}

/// Hash of a file's content, and its metadata, which did not change meanwhile.
fn steady_hash(file: &File, mut before: Stat) -> Result<(ContentHash, Stat), Errno> {
    for _ in 0..TRIES {
        let hash = hash(file, before.size)?;
        let after = Stat::of(file)?;
        if let Some(hash) = hash.filter(|_| before.same_identity(&after)) {
            return Ok((hash, after));
        }
        before = after;
    }
    Err(Errno::AGAIN)
}

/// BLAKE3 of a file's first `size` bytes; `None`: it has less.
fn hash(file: &File, size: u64) -> Result<Option<ContentHash>, Errno> {
    let mut buffer = vec![0; usize::try_from(size.min(CHUNK)).unwrap_or(0)];
    let mut hasher = blake3::Hasher::new();
    let mut at = 0;
    while at < size {
        let room = usize::try_from(size - at).map_or(buffer.len(), |left| left.min(buffer.len()));
        match rustix::io::pread(file, &mut buffer[..room], at) {
            Ok(0) => return Ok(None),
            Ok(length) => {
                hasher.update(&buffer[..length]);
                at += length as u64;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(Some(*hasher.finalize().as_bytes()))
}
