//! Names of changed lower files that the run never came across: hard links elsewhere in the lower.

use std::collections::HashSet;

use super::{SealError, Sealer};
use crate::live::NodeId;
use crate::tree::{Child, Node, join};
use crate::{Errno, FileKind};

impl Sealer<'_> {
    /// Adopts every lower name of each hard-linked file that was changed or got a new name. Walks the lower only if
    /// there is such a file with names that are not known.
    pub(super) fn find_links(&mut self) -> Result<(), SealError> {
        let named: HashSet<NodeId> = self
            .tree
            .nodes
            .values()
            .filter_map(|n| n.dir.as_ref())
            .flat_map(|d| &d.slots)
            .filter_map(|(_, s)| s.node)
            .collect();
        let open = |id: &NodeId, node: &Node| {
            let changed = node.in_upper() || node.xattrs.is_some() || named.contains(id);
            let meta = &node.meta;
            let changed = changed || meta.mode.is_some() || meta.uid.is_some() || meta.gid.is_some();
            let more = node.base.is_some_and(|b| b.nlink as usize > node.places.len());
            node.kind != FileKind::Directory && node.adopted && changed && more
        };
        // By inode number: the device is compared when one is found.
        let wanted: HashSet<u64> = self
            .tree
            .nodes
            .iter()
            .filter(|(id, node)| open(id, node))
            .filter_map(|(_, node)| Some(node.base?.ino))
            .collect();
        if wanted.is_empty() { Ok(()) } else { self.walk(&wanted) }
    }

    fn walk(&mut self, wanted: &HashSet<u64>) -> Result<(), SealError> {
        let mut stack = vec![Vec::new()];
        let mut found: Vec<(Vec<u8>, Box<[u8]>)> = Vec::new();
        while let Some(dir) = stack.pop() {
            let entries = match self.lower.list(&dir) {
                Ok((entries, _)) => entries,
                // Names in there could not be seen by the run either.
                Err(Errno::NOENT | Errno::ACCESS | Errno::PERM) => continue,
                Err(e) => return Err(self.lower_error(&dir)(e)),
            };
            for entry in entries {
                let path = join(&dir, &entry.name);
                if self.mask.hides(&path) {
                    continue;
                }
                if entry.kind == FileKind::Directory {
                    if !self.mask.bounds(&path) {
                        stack.push(path);
                    }
                } else if wanted.contains(&entry.ino) {
                    found.push((dir.clone(), entry.name));
                }
            }
        }
        for (dir, name) in found {
            self.adopt_link(&dir, &name)?;
        }
        Ok(())
    }

    /// Adopts the name if it is one of a known file's.
    fn adopt_link(&mut self, dir: &[u8], name: &[u8]) -> Result<(), SealError> {
        let Ok(stat) = self.lower.stat(&join(dir, name)) else { return Ok(()) };
        if self.tree.linked(&stat).is_none() {
            return Ok(());
        }
        let Some(parent) = self.adopt_dir(dir)? else { return Ok(()) };
        if self.tree.child(parent, name) != Child::Unsaid {
            return Ok(());
        }
        self.adopt(parent, name, stat)
    }

    /// The node of a lower directory, adopted with all above it; `None` if it is not there any more.
    fn adopt_dir(&mut self, path: &[u8]) -> Result<Option<NodeId>, SealError> {
        let mut at = NodeId::ROOT;
        let mut done = Vec::new();
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            done = join(&done, name);
            at = match self.tree.child(at, name) {
                // Another directory took its place, so the view has none of what is in it.
                Child::Node(node) if !self.is_in_place(node, &done) => return Ok(None),
                Child::Gone => return Ok(None),
                Child::Node(node) => node,
                Child::Unsaid => {
                    let Ok(stat) = self.lower.stat(&done) else { return Ok(None) };
                    if stat.kind != FileKind::Directory {
                        return Ok(None);
                    }
                    self.adopt(at, name, stat)?;
                    let known = self.tree.dir(at).and_then(|d| d.known.get(name));
                    let Some(known) = known else { return Ok(None) };
                    known.node
                }
            };
        }
        Ok(self.tree.dir(at).is_some().then_some(at))
    }
}
