//! What was moved without being touched gets preimages and contents of its own, so that nothing of the lower is needed
//! any more.

use super::{SealError, Sealer};
use crate::journal::{HashState, Pin, Record};
use crate::layout::UPPER;
use crate::live::{NodeId, timestamps};
use crate::load::children;
use crate::stat::{Stat, now};
use crate::tree::join;
use crate::upper::{content_name, copy_content};
use crate::{Errno, FileKind};

impl Sealer<'_> {
    /// Walks the view; below each lower directory that was moved everything is adopted, pinned and copied.
    pub(super) fn materialise(&mut self) -> Result<(), SealError> {
        let mut stack = vec![(Vec::new(), NodeId::ROOT)];
        while let Some((path, dir)) = stack.pop() {
            if !self.is_in_place(dir, &path) {
                self.adopt_children(dir)?;
            }
            for (name, id) in children(&self.tree, dir) {
                let path = join(&path, &name);
                if !self.is_in_place(id, &path) && !self.complete(id)? {
                    let (parent, name) = (dir.0, name.to_vec());
                    self.record(&Record::Remove { parent, name, at: now() })?;
                    continue;
                }
                if self.tree.dir(id).is_some() {
                    stack.push((path, id));
                }
            }
        }
        Ok(())
    }

    /// The lower has the node at this path of the view.
    pub(super) fn is_in_place(&self, id: NodeId, path: &[u8]) -> bool {
        let Some(node) = self.tree.get(id) else { return false };
        if id == NodeId::ROOT {
            return true;
        }
        self.tree.lower_paths(node).any(|p| p == path)
    }

    /// Everything that the lower shows in the directory.
    fn adopt_children(&mut self, dir: NodeId) -> Result<(), SealError> {
        let Some(origin) = self.tree.get(dir).and_then(|n| n.origin.clone()) else { return Ok(()) };
        if self.mask.bounds(&origin) {
            return Ok(());
        }
        let entries = match self.lower.list(&origin) {
            Ok((entries, _)) => entries,
            // What can't be listed can't be moved along; its old place will not go away at an apply, and that is said.
            Err(Errno::NOENT | Errno::ACCESS | Errno::PERM) => return Ok(()),
            Err(e) => return Err(self.lower_error(&origin)(e)),
        };
        for entry in entries {
            let path = join(&origin, &entry.name);
            let said = self.tree.dir(dir).is_some_and(|d| {
                d.slots.contains_key(&entry.name) || d.known.get(&entry.name).is_some_and(|k| k.adopted)
            });
            if said || self.mask.hides(&path) {
                continue;
            }
            match self.lower.stat(&path) {
                Ok(stat) => self.adopt(dir, &entry.name, stat)?,
                Err(Errno::NOENT) => {}
                Err(e) => return Err(self.lower_error(&path)(e)),
            }
        }
        Ok(())
    }

    /// Notes a lower entry: as another place of a node with the same inode, else as a new node.
    pub(super) fn adopt(&mut self, parent: NodeId, name: &[u8], stat: Stat) -> Result<(), SealError> {
        let node = self.tree.linked(&stat).unwrap_or_else(|| self.tree.fresh_id());
        self.record(&Record::Adopt { node: node.0, parent: parent.0, name: name.to_vec(), stat })
    }

    /// Preimage and content of a moved node; false: it vanished from the lower.
    fn complete(&mut self, id: NodeId) -> Result<bool, SealError> {
        let Some(node) = self.tree.get(id) else { return Ok(false) };
        let Some(origin) = node.origin.clone() else { return Ok(true) };
        if node.in_upper() && node.pin.is_some() {
            return Ok(true);
        }
        let (kind, base) = (node.kind, node.base);
        let unpinned = node.pin.is_none();
        // One name of a hard link may be gone, another not.
        let found = self.tree.lower_paths(node).find(|p| self.lower.stat(p).is_ok_and(|s| Some(s.key()) == node.key));
        let origin = found.unwrap_or_else(|| origin.to_vec());
        let stat = match (self.lower.stat(&origin), base) {
            (Ok(stat), _) if stat.kind == kind => stat,
            (Ok(_) | Err(Errno::NOENT), Some(base)) if kind != FileKind::File => base,
            (Ok(_) | Err(Errno::NOENT), _) => return self.vanish(id, unpinned),
            (Err(e), _) => return Err(self.lower_error(&origin)(e)),
        };
        if unpinned {
            self.pin(id, &origin, stat)?;
        }
        if kind == FileKind::File {
            return self.copy(id, &origin, &stat);
        }
        Ok(true)
    }

    /// A file that was moved along and is gone: what it was is lost.
    fn vanish(&mut self, id: NodeId, unpinned: bool) -> Result<bool, SealError> {
        if let Some(stat) = self.tree.get(id).and_then(|n| n.base).filter(|_| unpinned) {
            let pin = Pin { stat, xattrs: Default::default(), target: None, hash: HashState::Lost };
            self.record(&Record::Pin { node: id.0, pin: Box::new(pin) })?;
        }
        Ok(false)
    }

    fn pin(&mut self, id: NodeId, origin: &[u8], stat: Stat) -> Result<(), SealError> {
        let xattrs = match self.lower.xattrs(origin, stat.kind) {
            Err(Errno::NOENT | Errno::STALE) => Default::default(),
            other => other.map_err(self.lower_error(origin))?,
        };
        let target = match stat.kind {
            FileKind::Symlink => Some(self.lower.read_link(origin).map_err(self.lower_error(origin))?),
            _ => None,
        };
        let hash = if stat.kind == FileKind::File { HashState::Pending } else { HashState::None };
        self.record(&Record::Pin { node: id.0, pin: Box::new(Pin { stat, xattrs, target, hash }) })
    }

    /// Copies a lower content to upper; false: it vanished.
    fn copy(&mut self, id: NodeId, origin: &[u8], stat: &Stat) -> Result<bool, SealError> {
        let from = match self.lower.open_file(origin) {
            Ok((file, _)) => file,
            Err(Errno::NOENT | Errno::STALE) => return Ok(false),
            // The stage has no right to read it: the view could not either. Its hash will be lost, which says so.
            Err(Errno::ACCESS | Errno::PERM) => return Ok(true),
            Err(e) => return Err(self.lower_error(origin)(e)),
        };
        let path = self.dir.join(UPPER).join(content_name(id));
        let meta = self.tree.get(id).map(|n| n.meta).unwrap_or_default();
        let times = timestamps(Some(meta.atime.unwrap_or(stat.atime)), Some(meta.mtime.unwrap_or(stat.mtime)));
        let to = self.upper.create(id).map_err(SealError::io(&path))?;
        let copied = copy_content(&from, &to, u64::MAX).and_then(|()| self.upper.set_times(id, &times));
        if let Err(e) = copied {
            self.upper.remove(id);
            return Err(SealError::io(path)(e));
        }
        self.record(&Record::Content { node: id.0 })?;
        Ok(true)
    }
}
