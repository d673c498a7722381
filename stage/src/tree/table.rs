//! The table of nodes: finding, remembering and forgetting them.

use std::collections::HashMap;
use std::sync::Arc;

use super::node::{Directory, Known, Node, Place};
use crate::FileKind;
use crate::live::NodeId;
use crate::stat::{InodeKey, Stat};

/// Numbers of new nodes start here, above what lower file systems use.
const FRESH_INO: u64 = 1 << 48;

/// What the tree says of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Child {
    /// It is this node.
    Node(NodeId),
    /// It is absent, whatever the lower has.
    Gone,
    /// Nothing: as the lower has it.
    Unsaid,
}

/// A path with one more component.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

/// All nodes.
#[derive(Debug)]
pub(crate) struct Tree {
    pub nodes: HashMap<NodeId, Node>,
    by_inode: HashMap<InodeKey, NodeId>,
    next: u64,
    /// Device of the lower's root, whose inode numbers are shown as they are.
    dev: u64,
    /// Nodes that nobody can reach any more stay: a replay needs their preimages.
    keep_all: bool,
}

impl Tree {
    /// A tree with just the root.
    pub fn new(root: &Stat, keep_all: bool) -> Self {
        let mut node = Node::new(FileKind::Directory, root.ino, NodeId::ROOT);
        node.origin = Some(Arc::from(&b""[..]));
        node.key = Some(root.key());
        node.base = Some(*root);
        node.adopted = true;
        node.refs = 1;
        let nodes = HashMap::from([(NodeId::ROOT, node)]);
        Self { nodes, by_inode: HashMap::new(), next: 2, dev: root.dev, keep_all }
    }

    pub fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    pub fn get_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(&id)
    }

    pub fn dir(&self, id: NodeId) -> Option<&Directory> {
        self.get(id)?.dir.as_deref()
    }

    pub fn dir_mut(&mut self, id: NodeId) -> Option<&mut Directory> {
        self.get_mut(id)?.dir.as_deref_mut()
    }

    /// A node id that was never used.
    pub fn fresh_id(&mut self) -> NodeId {
        let id = NodeId(self.next);
        self.next += 1;
        id
    }

    /// Ids from `id` on are unused after this.
    pub fn skip_ids(&mut self, id: u64) {
        self.next = self.next.max(id.saturating_add(1));
    }

    pub fn next_id(&self) -> u64 {
        self.next
    }

    /// Inode number shown for a new node.
    pub fn fresh_ino(id: NodeId) -> u64 {
        FRESH_INO + id.0
    }

    /// Inode number shown for a lower file: its own on the root's device, moved out of the way on another one.
    pub fn lower_ino(&self, dev: u64, ino: u64) -> u64 {
        if dev == self.dev {
            return ino;
        }
        let mixed = dev.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let high = (mixed >> 50) | 1;
        (high << 49) | (ino & (FRESH_INO - 1))
    }

    /// Where the lower has, or had, the node.
    pub fn lower_paths(&self, node: &Node) -> impl Iterator<Item = Vec<u8>> {
        node.places.iter().filter_map(|p| Some(join(self.get(p.dir)?.origin.as_deref()?, &p.name)))
    }

    /// What the stage says of a name.
    pub fn child(&self, parent: NodeId, name: &[u8]) -> Child {
        let Some(dir) = self.dir(parent) else { return Child::Gone };
        if let Some(slot) = dir.slots.get(name) {
            return slot.node.map_or(Child::Gone, Child::Node);
        }
        match dir.known.get(name) {
            Some(known) if known.adopted => Child::Node(known.node),
            _ => Child::Unsaid,
        }
    }

    /// The node of a lower entry that was just looked at; makes one where there is none.
    pub fn intern(&mut self, parent: NodeId, name: &[u8], stat: &Stat) -> Option<NodeId> {
        let known = self.dir(parent)?.known.get(name).copied();
        if let Some(known) = known {
            let node = self.get(known.node)?;
            if known.adopted {
                return Some(known.node);
            }
            if node.kind == stat.kind && node.key == Some(stat.key()) {
                if node.places.len() > 1 {
                    self.go_by(known.node, parent, name);
                }
                return Some(known.node);
            }
            // Somebody put another file there.
            self.forget_place(known.node, &Place { dir: parent, name: name.into() });
            self.collect(known.node);
        }
        let id = match self.linked(stat) {
            Some(id) => id,
            None => {
                let id = self.fresh_id();
                self.insert_lower(id, parent, name, stat)?;
                id
            }
        };
        self.add_place(id, parent, name, false)?;
        self.go_by(id, parent, name);
        Some(id)
    }

    /// A file is read at the place where it was seen last: other names of it may be gone.
    fn go_by(&mut self, id: NodeId, parent: NodeId, name: &[u8]) {
        let Some(dir) = self.get(parent).and_then(|n| n.origin.clone()) else { return };
        if let Some(node) = self.get_mut(id).filter(|n| n.dir.is_none()) {
            node.origin = Some(join(&dir, name).into());
        }
    }

    /// The node that a hard-linked lower file has already.
    pub fn linked(&self, stat: &Stat) -> Option<NodeId> {
        let many = stat.nlink > 1 && stat.kind != FileKind::Directory;
        many.then(|| self.by_inode.get(&stat.key()).copied()).flatten()
    }

    /// A node for a lower entry, with no place yet.
    pub fn insert_lower(&mut self, id: NodeId, parent: NodeId, name: &[u8], stat: &Stat) -> Option<()> {
        let path = join(self.get(parent)?.origin.as_deref()?, name);
        let mut node = Node::new(stat.kind, self.lower_ino(stat.dev, stat.ino), parent);
        node.origin = Some(path.into());
        node.key = Some(stat.key());
        if stat.nlink > 1 && stat.kind != FileKind::Directory {
            self.by_inode.insert(stat.key(), id);
        }
        self.nodes.insert(id, node);
        Some(())
    }

    /// Notes that the lower has the node at this place.
    pub fn add_place(&mut self, id: NodeId, parent: NodeId, name: &[u8], adopted: bool) -> Option<()> {
        let known = &mut self.dir_mut(parent)?.known;
        if known.insert(name.into(), Known { node: id, adopted }).is_none() {
            self.get_mut(parent)?.holds += 1;
            self.get_mut(id)?.places.push(Place { dir: parent, name: name.into() });
        }
        Some(())
    }

    fn forget_place(&mut self, id: NodeId, place: &Place) {
        if let Some(node) = self.get_mut(id) {
            node.places.retain(|p| p != place);
        }
        let other = self.get(id).filter(|n| n.dir.is_none()).and_then(|n| self.lower_paths(n).next());
        if let (Some(path), Some(node)) = (other, self.get_mut(id)) {
            node.origin = Some(path.into());
        }
        let Some(parent) = self.get_mut(place.dir) else { return };
        if let Some(dir) = parent.dir.as_deref_mut() {
            dir.known.remove(&place.name);
        }
        parent.holds = parent.holds.saturating_sub(1);
        self.collect(place.dir);
    }

    /// Drops the node if nothing can reach it any more; returns the ids of dropped nodes that had content in upper.
    pub fn collect(&mut self, id: NodeId) -> Vec<NodeId> {
        let mut orphans = Vec::new();
        let mut queue = vec![id];
        while let Some(id) = queue.pop() {
            let Some(node) = self.nodes.get(&id) else { continue };
            let needed = node.refs > 0 || node.holds > 0 || id == NodeId::ROOT;
            if needed || self.keep_all || !(node.is_dead() || node.is_passing()) {
                continue;
            }
            let Some(node) = self.nodes.remove(&id) else { continue };
            if node.in_upper() {
                orphans.push(id);
            }
            if let Some(key) = node.key
                && self.by_inode.get(&key) == Some(&id)
            {
                self.by_inode.remove(&key);
            }
            for place in &node.places {
                self.drop_known(id, place);
                queue.push(place.dir);
            }
        }
        orphans
    }

    fn drop_known(&mut self, id: NodeId, place: &Place) {
        let Some(parent) = self.nodes.get_mut(&place.dir) else { return };
        parent.holds = parent.holds.saturating_sub(1);
        let Some(dir) = parent.dir.as_deref_mut() else { return };
        if dir.known.get(&place.name).is_some_and(|k| k.node == id) {
            dir.known.remove(&place.name);
        }
    }

    /// Whether `id` is `top` or a directory below it.
    pub fn is_within(&self, id: NodeId, top: NodeId) -> bool {
        let mut at = id;
        for _ in 0..=self.nodes.len() {
            if at == top {
                return true;
            }
            match self.dir(at) {
                Some(dir) if at != NodeId::ROOT => at = dir.parent,
                _ => return false,
            }
        }
        // A circle; only a forged journal could make one, and its records are checked against that.
        true
    }
}
