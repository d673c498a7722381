//! Directory streams.

use std::sync::{Arc, Mutex, PoisonError};

use pvisor_stage::{FileKind, NodeId, Stage};
use rustix::io::Errno;

use crate::filesystem::{Entry, StageFs};
use crate::handle::Handle;

/// An open directory.
pub(crate) struct Directory {
    pub(crate) node: NodeId,
    /// What the stream shows, from its first read on.
    pub(crate) listing: Mutex<Option<Arc<[Listed]>>>,
}

/// One name of a listing.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Listed {
    pub(crate) name: Vec<u8>,
    pub(crate) ino: u64,
    /// File type as it stands in a directory entry.
    pub(crate) kind: u8,
}

impl Listed {
    /// As it goes into a reply.
    pub(crate) fn item(&self, next_offset: u64) -> DirItem<'_> {
        DirItem { ino: self.ino, next_offset, kind: self.kind, name: &self.name }
    }

    /// Whether it is `.` or `..`.
    pub(crate) fn is_dot(&self) -> bool {
        self.name == b"." || self.name == b".."
    }
}

/// One entry as it goes into a reply.
#[derive(Clone, Copy, Debug)]
pub struct DirItem<'a> {
    /// Inode number.
    pub ino: u64,
    /// Where the stream goes on after this entry.
    pub next_offset: u64,
    /// File type as it stands in a directory entry: `DT_REG` and so on.
    pub kind: u8,
    /// The name.
    pub name: &'a [u8],
}

impl StageFs {
    /// Opens a directory stream.
    ///
    /// # Errors
    /// ENOTDIR, ENOENT.
    pub fn open_dir(&self, node: NodeId) -> Result<Handle, Errno> {
        let stage = self.enter()?;
        if stage.attr(node)?.kind != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        self.directories.insert(Directory { node, listing: Mutex::new(None) })
    }

    /// Closes a directory stream.
    ///
    /// # Errors
    /// EBADF: no such handle.
    pub fn release_dir(&self, handle: Handle) -> Result<(), Errno> {
        self.directories.remove(handle).map(drop)
    }

    /// Puts what the stage knows of a directory on disk.
    ///
    /// # Errors
    /// EBADF: no such handle; EIO and others from the host.
    pub fn sync_dir(&self, handle: Handle) -> Result<(), Errno> {
        let stage = self.enter()?;
        self.directories.get(handle)?;
        stage.sync()
    }

    /// Gives the entries from `offset` on to `add`, until it says that it took one no more.
    ///
    /// # Errors
    /// EBADF: no such handle; or what the lower answers.
    pub fn read_dir(&self, handle: Handle, offset: u64, mut add: impl FnMut(DirItem<'_>) -> bool) -> Result<(), Errno> {
        let stage = self.enter()?;
        let directory = self.directories.get(handle)?;
        let listing = directory.listing(&stage, offset)?;
        for (item, _) in items(&listing, offset) {
            if !add(item) {
                break;
            }
        }
        Ok(())
    }

    /// As [`StageFs::read_dir`], with a looked up entry for each name but `.` and `..`. Taking an item takes over its
    /// entry's reference. Names that vanished since the listing have no entry.
    ///
    /// # Errors
    /// EBADF: no such handle; or what the lower answers.
    pub fn read_dir_plus(
        &self,
        handle: Handle,
        offset: u64,
        mut add: impl FnMut(DirItem<'_>, Option<Entry>) -> bool,
    ) -> Result<(), Errno> {
        let stage = self.enter()?;
        let directory = self.directories.get(handle)?;
        let listing = directory.listing(&stage, offset)?;
        for (item, is_dot) in items(&listing, offset) {
            let entry = if is_dot { None } else { self.look(&stage, directory.node, item.name) };
            let node = entry.as_ref().map(|entry| entry.attr.node);
            if !add(item, entry) {
                if let Some(node) = node {
                    stage.forget(node, 1);
                }
                break;
            }
        }
        Ok(())
    }

    /// An entry of a listing. One that can't be looked up now tells why when it is asked for by name.
    pub(crate) fn look(&self, stage: &Stage, directory: NodeId, name: &[u8]) -> Option<Entry> {
        stage.lookup(directory, name).ok().map(|attr| self.entry(attr))
    }
}

impl Directory {
    /// The listing of the stream: a new one at offset 0.
    fn listing(&self, stage: &Stage, offset: u64) -> Result<Arc<[Listed]>, Errno> {
        let mut current = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
        if offset > 0
            && let Some(listing) = current.as_ref()
        {
            return Ok(Arc::clone(listing));
        }
        let fresh: Arc<[Listed]> = list(stage, self.node)?.into();
        *current = Some(Arc::clone(&fresh));
        Ok(fresh)
    }
}

pub(crate) fn list(stage: &Stage, node: NodeId) -> Result<Vec<Listed>, Errno> {
    let own = stage.attr(node)?.ino;
    // A removed directory has no parent any more.
    let parent = stage.parent(node).and_then(|parent| stage.attr(parent)).map_or(own, |attr| attr.ino);
    let directory = type_of(FileKind::Directory);
    let mut listed = vec![
        Listed { name: b".".to_vec(), ino: own, kind: directory },
        Listed { name: b"..".to_vec(), ino: parent, kind: directory },
    ];
    let entries = stage.read_dir(node)?;
    listed.extend(entries.into_iter().map(|e| Listed { name: e.name, ino: e.ino, kind: type_of(e.kind) }));
    Ok(listed)
}

/// Entries from an offset on, each with whether it is `.` or `..`.
fn items(listing: &[Listed], offset: u64) -> impl Iterator<Item = (DirItem<'_>, bool)> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(listing.len());
    (start..listing.len()).zip(&listing[start..]).map(|(at, listed)| (listed.item(at as u64 + 1), at < 2))
}

/// File type as it stands in a directory entry.
pub(crate) fn type_of(kind: FileKind) -> u8 {
    match kind {
        FileKind::Fifo => 1,
        FileKind::CharDevice => 2,
        FileKind::Directory => 4,
        FileKind::BlockDevice => 6,
        FileKind::File => 8,
        FileKind::Symlink => 10,
        FileKind::Socket => 12,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_indices_and_any_offset_is_safe() {
        let listing: Vec<Listed> =
            [&b"."[..], b"..", b"a", b"b"].map(|n| Listed { name: n.to_vec(), ino: 7, kind: 8 }).into();
        let names = |offset| items(&listing, offset).map(|(i, dot)| (i.name.to_vec(), dot)).collect::<Vec<_>>();
        assert_eq!(names(0).len(), 4);
        assert_eq!(names(1)[0], (b"..".to_vec(), true));
        assert_eq!(names(3), [(b"b".to_vec(), false)]);
        assert!(names(4).is_empty() && names(u64::MAX).is_empty());
        let last = items(&listing, 3).next().unwrap().0.next_offset;
        assert!(names(last).is_empty());
    }
}
