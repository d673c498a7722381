//! Removing trees of ours: without following links, without recursion, whatever their depth.

use std::collections::HashSet;
use std::io;
use std::mem::MaybeUninit;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, RawDir, openat};

use super::disk::Disk;
use crate::stat::Stat;
use crate::{Errno, FileKind};

/// Prefix of the names that directories get on their way out.
const LEAVING: &str = ".leaving-";

/// A name, and whether it is a directory's.
type Named = (Vec<u8>, bool);

/// Names in an open directory (not `O_PATH`), read from its start, without `.` and `..`.
pub(crate) fn names(dir: &OwnedFd) -> Result<Vec<Named>, Errno> {
    rustix::fs::seek(dir, rustix::fs::SeekFrom::Start(0))?;
    let mut buffer = vec![MaybeUninit::uninit(); 32 * 1024];
    let mut entries = RawDir::new(dir, &mut buffer);
    let mut out = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        match entry.file_name().to_bytes() {
            b"." | b".." => {}
            name => {
                let is_dir = match entry.file_type() {
                    FileType::Unknown => Stat::at(dir, name)?.kind == FileKind::Directory,
                    known => known == FileType::Directory,
                };
                out.push((name.to_vec(), is_dir));
            }
        }
    }
    Ok(out)
}

/// Removes everything in a directory of ours but the names in `keep`; returns how many files that were. Directories
/// in it are first moved up into it, so that depth costs nothing.
pub(crate) fn empty_dir(disk: Disk<'_>, dir: &OwnedFd, keep: &[Vec<u8>]) -> io::Result<u64> {
    let mut files = 0;
    let keep: HashSet<&Vec<u8>> = keep.iter().collect();
    let mut queue: Vec<Named> = names(dir)?.into_iter().filter(|(name, _)| !keep.contains(name)).collect();
    let mut serial = queue.len() as u64;
    while let Some((name, is_dir)) = queue.pop() {
        if !is_dir {
            disk.unlink(dir, &name)?;
            files += 1;
            continue;
        }
        let inner = open_dir(disk, dir, &name)?;
        for (child, is_dir) in names(&inner)? {
            if !is_dir {
                disk.unlink(&inner, &child)?;
                files += 1;
                continue;
            }
            // Moving a directory needs write permission on itself too.
            open_dir(disk, &inner, &child)?;
            let leaving = free_name(dir, &mut serial)?;
            disk.place((&inner, &child), (dir, &leaving))?;
            queue.push((leaving, true));
        }
        disk.remove_dir(dir, &name)?;
    }
    Ok(files)
}

/// Removes a directory of ours right below `dir` with all that is in it; a link or file of that name goes as it is.
/// Nothing there is fine.
pub(crate) fn remove_tree(disk: Disk<'_>, dir: impl AsFd, name: &[u8]) -> io::Result<u64> {
    let kind = match Stat::at(&dir, name) {
        Err(Errno::NOENT) => return Ok(0),
        stat => stat?.kind,
    };
    if kind != FileKind::Directory {
        disk.unlink(dir, name)?;
        return Ok(1);
    }
    let files = empty_dir(disk, &open_dir(disk, &dir, name)?, &[])?;
    disk.remove_dir(dir, name)?;
    Ok(files)
}

/// Opens a directory so that its entries can be removed.
fn open_dir(disk: Disk<'_>, dir: impl AsFd, name: &[u8]) -> io::Result<OwnedFd> {
    let path =
        openat(&dir, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = Stat::of(&path)?;
    if stat.mode & 0o700 != 0o700 && stat.uid == rustix::process::geteuid().as_raw() {
        disk.set_mode(&path, stat.mode | 0o700)?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(path, ".", flags, Mode::empty())?)
}

fn free_name(dir: &OwnedFd, serial: &mut u64) -> Result<Vec<u8>, Errno> {
    loop {
        let name = format!("{LEAVING}{serial:x}").into_bytes();
        *serial += 1;
        match Stat::at(dir, &name) {
            Err(Errno::NOENT) => return Ok(name),
            Ok(_) => {}
            Err(e) => return Err(e),
        }
    }
}
