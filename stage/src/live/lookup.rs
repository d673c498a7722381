//! Walking the merged view.

use super::attr::{Facts, Source};
use super::work::check_name;
use super::{Attr, NodeId, Shared, Stage};
use crate::journal::FreshKind;
use crate::tree::{Child, Tree, join};
use crate::{Errno, FileKind};

impl Shared {
    /// Path in the lower of a name in a directory; `None` where the lower shows nothing of that name.
    pub(super) fn lower_path(&self, tree: &Tree, parent: NodeId, name: &[u8]) -> Option<Vec<u8>> {
        let origin = tree.get(parent)?.origin.as_deref()?;
        if self.mask.bounds(origin) {
            return None;
        }
        let path = join(origin, name);
        (!self.mask.hides(&path)).then_some(path)
    }

    fn refer(&self, id: NodeId) -> Result<Facts, Errno> {
        let mut state = self.state();
        let node = state.tree.get_mut(id).ok_or(Errno::STALE)?;
        node.refs = node.refs.saturating_add(1);
        Facts::of(&state.tree, id)
    }

    pub(super) fn release(&self, id: NodeId, references: u64) {
        let orphans = {
            let mut state = self.state();
            let Some(node) = state.tree.get_mut(id) else { return };
            node.refs = node.refs.saturating_sub(references);
            state.tree.collect(id)
        };
        self.sweep(orphans);
    }
}

impl Stage {
    /// The node of a name, with one more reference on it.
    ///
    /// # Errors
    /// `NOENT`, `NOTDIR`, `NAMETOOLONG`; `STALE` for an unknown parent; what the lower says.
    pub fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attr, Errno> {
        check_name(name)?;
        let shared = &*self.shared;
        let path = {
            let mut state = shared.state();
            let dir = state.tree.get(parent).ok_or(Errno::STALE)?.dir.as_ref().ok_or(Errno::NOTDIR)?;
            if dir.dead {
                return Err(Errno::NOENT);
            }
            match state.tree.child(parent, name) {
                Child::Gone => return Err(Errno::NOENT),
                Child::Node(id) => {
                    let node = state.tree.get_mut(id).ok_or(Errno::STALE)?;
                    node.refs = node.refs.saturating_add(1);
                    drop(state);
                    return self.answer(id);
                }
                Child::Unsaid => shared.lower_path(&state.tree, parent, name).ok_or(Errno::NOENT)?,
            }
        };
        let stat = shared.lower.stat(&path)?;
        let facts = {
            let mut state = shared.state();
            // The stage may have come to say something of the name meanwhile.
            let id = match state.tree.child(parent, name) {
                Child::Gone => return Err(Errno::NOENT),
                Child::Node(id) => id,
                Child::Unsaid => state.tree.intern(parent, name, &stat).ok_or(Errno::NOENT)?,
            };
            let node = state.tree.get_mut(id).ok_or(Errno::STALE)?;
            node.refs = node.refs.saturating_add(1);
            Facts::of(&state.tree, id)?
        };
        // A hard link of the lower may be known by an origin at another name.
        match shared.attr(&facts, Some(&stat).filter(|s| facts.accepts(s))) {
            Ok(attr) => Ok(attr),
            Err(_) => self.answer(facts.id),
        }
    }

    /// Metadata for a node that has got its reference already; without an answer the reference goes back.
    pub(super) fn answer(&self, id: NodeId) -> Result<Attr, Errno> {
        self.shared.attr_of(id).map_err(|e| {
            self.shared.release(id, 1);
            // For somebody who asks by name it is not there.
            if e == Errno::STALE { Errno::NOENT } else { e }
        })
    }

    /// One more reference on a known node.
    ///
    /// # Errors
    /// `STALE` for an unknown node.
    pub fn reference(&self, node: NodeId) -> Result<(), Errno> {
        self.shared.refer(node).map(drop)
    }

    /// Gives references back. What nobody refers to and the stage has no record of is forgotten.
    pub fn forget(&self, node: NodeId, references: u64) {
        self.shared.release(node, references);
    }

    /// The directory that a directory is in; the root's is the root.
    ///
    /// # Errors
    /// `NOTDIR`; `STALE` for an unknown node.
    pub fn parent(&self, node: NodeId) -> Result<NodeId, Errno> {
        let state = self.shared.state();
        Ok(state.tree.get(node).ok_or(Errno::STALE)?.dir.as_ref().ok_or(Errno::NOTDIR)?.parent)
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// `INVAL` for anything else; `STALE` for an unknown node.
    pub fn read_link(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        let (facts, target) = {
            let state = self.shared.state();
            let facts = Facts::of(&state.tree, node)?;
            let node = state.tree.get(node).ok_or(Errno::STALE)?;
            let pinned = node.pin.as_ref().and_then(|p| p.target.clone());
            let fresh = match &node.fresh {
                Some(FreshKind::Symlink(target)) => Some(target.clone()),
                _ => None,
            };
            (facts, pinned.or(fresh))
        };
        match (facts.kind, target, &facts.source) {
            (FileKind::Symlink, Some(target), _) => Ok(target),
            (FileKind::Symlink, None, Source::Lower(path)) => self.shared.lower.read_link(path),
            _ => Err(Errno::INVAL),
        }
    }
}
