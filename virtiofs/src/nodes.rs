//! Requests that name a node and no open file: for a kernel that was told not to ask for opens.
//!
//! What a request needs is opened at the first one and kept while it is used; that it is kept is never needed, so there
//! are as few descriptors as there are allowed to be.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use pvisor_stage::{Access, NodeId, Stage};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::directory::{DirItem, Listed, list};
use crate::file::{File, WriteKind};
use crate::filesystem::{Caller, Entry, StageFs, check_name, is_regular, new_node};

/// Most names in listings that are kept; the one that is being read is kept whatever its length.
const MAX_LISTED: usize = 1 << 18;

/// What is kept of nodes.
pub(crate) struct Nodes {
    files: RwLock<HashMap<NodeId, Arc<Kept>>>,
    most_files: usize,
    /// Counts uses.
    clock: AtomicU64,
    listings: RwLock<Listings>,
}

struct Kept {
    file: File,
    used: AtomicU64,
}

#[derive(Default)]
struct Listings {
    by_node: HashMap<NodeId, Arc<Listing>>,
    names: usize,
}

/// The names of a directory by their place in its stream. A name keeps its place as long as it is there, so that
/// readers who are half through see each name that stays exactly once, whatever else comes and goes.
struct Listing {
    /// In order of their places.
    names: Vec<(u64, Listed)>,
    /// Never used, by this listing and those before.
    next: u64,
}

impl Nodes {
    pub(crate) fn new() -> Self {
        // Each can hold two descriptors, and others need some too.
        let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX) / 4;
        Self {
            files: RwLock::new(HashMap::new()),
            most_files: usize::try_from(limit).unwrap_or(usize::MAX).clamp(16, 2048),
            clock: AtomicU64::new(0),
            listings: RwLock::new(Listings::default()),
        }
    }

    /// Drops what is kept of a node.
    fn forget(&self, node: NodeId) {
        // Most nodes were never opened or listed: a look before the lock for writing.
        if self.files.read().unwrap_or_else(PoisonError::into_inner).contains_key(&node) {
            let kept = self.files.write().unwrap_or_else(PoisonError::into_inner).remove(&node);
            drop(kept);
        }
        if self.listings.read().unwrap_or_else(PoisonError::into_inner).by_node.contains_key(&node) {
            self.listings.write().unwrap_or_else(PoisonError::into_inner).remove(node);
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&self) {
        self.files.write().unwrap_or_else(PoisonError::into_inner).clear();
        *self.listings.write().unwrap_or_else(PoisonError::into_inner) = Listings::default();
    }

    fn kept(&self, node: NodeId) -> Option<Arc<Kept>> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        let kept = files.get(&node)?;
        kept.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(Arc::clone(kept))
    }

    fn keep(&self, node: NodeId, file: File) -> Arc<Kept> {
        let kept = Arc::new(Kept { file, used: AtomicU64::new(self.clock.fetch_add(1, Ordering::Relaxed)) });
        let mut dropped = Vec::new();
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        if files.len() >= self.most_files {
            // The older half, so that this is rare.
            let mut uses: Vec<u64> = files.values().map(|k| k.used.load(Ordering::Relaxed)).collect();
            uses.sort_unstable();
            let from = uses[uses.len() / 2];
            files.retain(|_, k| {
                k.used.load(Ordering::Relaxed) >= from || {
                    dropped.push(Arc::clone(k));
                    false
                }
            });
        }
        dropped.extend(files.insert(node, Arc::clone(&kept)));
        drop(files);
        // Closing can take its time, and needs the stage's lock.
        drop(dropped);
        kept
    }
}

impl Listings {
    fn remove(&mut self, node: NodeId) {
        if let Some(listing) = self.by_node.remove(&node) {
            self.names -= listing.names.len();
        }
    }

    fn insert(&mut self, node: NodeId, listing: Arc<Listing>) {
        self.remove(node);
        if self.names + listing.names.len() > MAX_LISTED {
            *self = Self::default();
        }
        self.names += listing.names.len();
        self.by_node.insert(node, listing);
    }
}

impl Listing {
    /// Names as they are now, in the places that they had before.
    fn new(fresh: Vec<Listed>, before: Option<&Self>) -> Self {
        let mut next = before.map_or(1, |b| b.next);
        let old: HashMap<&[u8], u64> =
            before.map(|b| b.names.iter().map(|(at, l)| (&l.name[..], *at)).collect()).unwrap_or_default();
        let mut names: Vec<(u64, Listed)> = Vec::with_capacity(fresh.len());
        for listed in fresh {
            let at = old.get(&listed.name[..]).copied().unwrap_or_else(|| {
                next += 1;
                next - 1
            });
            names.push((at, listed));
        }
        names.sort_unstable_by_key(|(at, _)| *at);
        Self { names, next }
    }

    fn after(&self, offset: u64) -> &[(u64, Listed)] {
        &self.names[self.names.partition_point(|(at, _)| *at <= offset)..]
    }
}

impl StageFs {
    /// Drops what is kept of a node that the kernel has forgotten.
    pub(crate) fn drop_kept(&self, node: NodeId) {
        self.nodes.forget(node);
    }

    fn for_reading(&self, stage: &Stage, node: NodeId) -> Result<Arc<Kept>, Errno> {
        match self.nodes.kept(node) {
            Some(kept) => Ok(kept),
            None => Ok(self.nodes.keep(node, File::new(stage.open(node, Access::Read, false)?, Access::Read))),
        }
    }

    fn for_writing(&self, stage: &Stage, node: NodeId) -> Result<Arc<Kept>, Errno> {
        match self.nodes.kept(node) {
            Some(kept) if kept.file.access == Access::ReadWrite => Ok(kept),
            _ => {
                let open = stage.open(node, Access::ReadWrite, false)?;
                Ok(self.nodes.keep(node, File::new(open, Access::ReadWrite)))
            }
        }
    }

    /// As [`StageFs::make_node`]. A regular file is kept open: programs make files to write to them.
    ///
    /// # Errors
    /// As [`StageFs::make_node`].
    pub fn make_kept_node(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Entry, Errno> {
        if !is_regular(mode) {
            return self.make_node(caller, parent, name, mode, rdev);
        }
        let stage = self.enter()?;
        check_name(name)?;
        let (attr, open) = stage.create_open(parent, name, &new_node(caller, mode))?;
        self.nodes.keep(attr.node, File::new(open, Access::ReadWrite));
        Ok(self.entry(attr))
    }

    /// As [`StageFs::read`].
    ///
    /// # Errors
    /// ESTALE: the lower's file is gone; what `open` and [`StageFs::read`] say.
    pub fn read_node(&self, node: NodeId, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let stage = self.enter()?;
        self.for_reading(&stage, node)?.file.read(buf, offset)
    }

    /// As [`StageFs::write`]. The first write of a node copies it up.
    ///
    /// # Errors
    /// What `open` and [`StageFs::write`] say.
    pub fn write_node(&self, node: NodeId, data: &[u8], offset: u64, kind: WriteKind) -> Result<usize, Errno> {
        let stage = self.enter()?;
        let kept = self.for_writing(&stage, node)?;
        self.write_file(&stage, &kept.file, data, offset, kind)
    }

    /// As [`StageFs::sync_file`].
    ///
    /// # Errors
    /// What the host answers.
    pub fn sync_node(&self, node: NodeId, data_only: bool) -> Result<(), Errno> {
        let stage = self.enter()?;
        self.for_reading(&stage, node)?.file.open.sync(data_only)
    }

    /// As [`StageFs::sync_dir`].
    ///
    /// # Errors
    /// What the host answers.
    pub fn sync_journal(&self) -> Result<(), Errno> {
        self.enter()?.sync()
    }

    /// As [`StageFs::allocate`].
    ///
    /// # Errors
    /// What `open` and [`StageFs::allocate`] say.
    pub fn allocate_node(&self, node: NodeId, mode: u32, offset: u64, length: u64) -> Result<(), Errno> {
        let stage = self.enter()?;
        self.for_writing(&stage, node)?.file.allocate(mode, offset, length)
    }

    /// As [`StageFs::seek`].
    ///
    /// # Errors
    /// What `open` and [`StageFs::seek`] say.
    pub fn seek_node(&self, node: NodeId, offset: u64, whence: u32) -> Result<u64, Errno> {
        let stage = self.enter()?;
        self.for_reading(&stage, node)?.file.seek(offset, whence)
    }

    /// As [`StageFs::copy_range`].
    ///
    /// # Errors
    /// What `open` and [`StageFs::copy_range`] say.
    pub fn copy_node_range(
        &self,
        from: NodeId,
        from_offset: u64,
        to: NodeId,
        to_offset: u64,
        length: u64,
    ) -> Result<usize, Errno> {
        let stage = self.enter()?;
        // First the target: where both are one, the source is then the same open file.
        let target = self.for_writing(&stage, to)?;
        let source = self.for_reading(&stage, from)?;
        source.file.copy_range(from_offset, &target.file, to_offset, length)
    }

    fn listing(&self, stage: &Stage, node: NodeId, offset: u64) -> Result<Arc<Listing>, Errno> {
        let known =
            self.nodes.listings.read().unwrap_or_else(PoisonError::into_inner).by_node.get(&node).map(Arc::clone);
        if offset > 0
            && let Some(listing) = known
        {
            return Ok(listing);
        }
        let fresh = list(stage, node)?;
        let mut listings = self.nodes.listings.write().unwrap_or_else(PoisonError::into_inner);
        let listing = Arc::new(Listing::new(fresh, listings.by_node.get(&node).map(|l| &**l)));
        listings.insert(node, Arc::clone(&listing));
        Ok(listing)
    }

    /// As [`StageFs::read_dir`]. An entry's offset stays the same while the entry is there.
    ///
    /// # Errors
    /// ENOTDIR; what the lower answers.
    pub fn read_node_dir(
        &self,
        node: NodeId,
        offset: u64,
        mut add: impl FnMut(DirItem<'_>) -> bool,
    ) -> Result<(), Errno> {
        let stage = self.enter()?;
        let listing = self.listing(&stage, node, offset)?;
        for (at, listed) in listing.after(offset) {
            if !add(listed.item(*at)) {
                break;
            }
        }
        Ok(())
    }

    /// As [`StageFs::read_dir_plus`].
    ///
    /// # Errors
    /// ENOTDIR; what the lower answers.
    pub fn read_node_dir_plus(
        &self,
        node: NodeId,
        offset: u64,
        mut add: impl FnMut(DirItem<'_>, Option<Entry>) -> bool,
    ) -> Result<(), Errno> {
        let stage = self.enter()?;
        let listing = self.listing(&stage, node, offset)?;
        for (at, listed) in listing.after(offset) {
            let entry = if listed.is_dot() { None } else { self.look(&stage, node, &listed.name) };
            let found = entry.as_ref().map(|entry| entry.attr.node);
            if !add(listed.item(*at), entry) {
                if let Some(found) = found {
                    stage.forget(found, 1);
                }
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(names: &[&str]) -> Vec<Listed> {
        names.iter().map(|n| Listed { name: n.as_bytes().to_vec(), ino: 7, kind: 8 }).collect()
    }

    fn names(listing: &Listing, offset: u64) -> Vec<String> {
        listing.after(offset).iter().map(|(_, l)| String::from_utf8_lossy(&l.name).into_owned()).collect()
    }

    #[test]
    fn a_name_keeps_its_place_while_others_come_and_go() {
        let first = Listing::new(listed(&["b", "d", "f"]), None);
        let half = first.after(0)[1].0;
        let second = Listing::new(listed(&["a", "d", "e", "f"]), Some(&first));
        assert_eq!(names(&second, half), ["f", "a", "e"]);
        assert_eq!(names(&second, 0), ["d", "f", "a", "e"]);
        let third = Listing::new(listed(&["b", "f"]), Some(&second));
        assert_eq!(names(&third, half), ["f", "b"], "a name that came back is a new one");
        assert!(names(&third, u64::MAX).is_empty());
    }

    #[test]
    fn listings_that_are_kept_are_bounded() {
        let mut all = Listings::default();
        let long: Vec<Listed> = listed(&["x"; 1000]);
        for node in 0..1000 {
            all.insert(NodeId(node), Arc::new(Listing::new(long.clone(), None)));
            assert!(all.names <= MAX_LISTED && all.by_node.contains_key(&NodeId(node)));
        }
        all.remove(NodeId(999));
        assert_eq!(all.names, all.by_node.values().map(|l| l.names.len()).sum::<usize>());
    }
}
