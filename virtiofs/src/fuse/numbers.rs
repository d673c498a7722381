//! Node ids as the kernel sees them.
//!
//! The library under the adapter sends one number as both node id and inode number, so the inode number has to be the
//! node id. A table leads back from it to the node, for as long as the kernel refers to it.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use pvisor_stage::NodeId;
use rustix::io::Errno;

/// First number given to nodes whose inode number another node has: far above those of real file systems.
const FIRST_OWN: u64 = 1 << 63;

/// The kernel's fixed number of the root.
const ROOT: u64 = 1;

pub(super) struct Numbers {
    table: RwLock<Table>,
}

struct Table {
    nodes: HashMap<u64, Known>,
    numbers: HashMap<NodeId, u64>,
    next_own: u64,
}

struct Known {
    node: NodeId,
    references: u64,
}

impl Numbers {
    pub(super) fn new() -> Self {
        Self { table: RwLock::new(Table { nodes: HashMap::new(), numbers: HashMap::new(), next_own: FIRST_OWN }) }
    }

    /// The node that a request is about.
    ///
    /// # Errors
    /// ESTALE: the kernel was never told this number, or has forgotten it.
    pub(super) fn node(&self, number: u64) -> Result<NodeId, Errno> {
        if number == ROOT {
            return Ok(NodeId::ROOT);
        }
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.nodes.get(&number).map(|known| known.node).ok_or(Errno::STALE)
    }

    /// The number of a node that the kernel knows; the inode number of one that it does not.
    pub(super) fn number(&self, node: NodeId, ino: u64) -> u64 {
        if node == NodeId::ROOT {
            return ROOT;
        }
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.numbers.get(&node).copied().unwrap_or(ino)
    }

    /// The number of a node that the kernel knows.
    pub(super) fn known(&self, node: NodeId) -> Option<u64> {
        if node == NodeId::ROOT {
            return Some(ROOT);
        }
        self.table.read().unwrap_or_else(PoisonError::into_inner).numbers.get(&node).copied()
    }

    /// The number of a node that a reply hands to the kernel, with one more reference.
    pub(super) fn refer(&self, node: NodeId, ino: u64) -> u64 {
        if node == NodeId::ROOT {
            return ROOT;
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let number = match table.numbers.get(&node) {
            Some(number) => *number,
            None => table.assign(node, ino),
        };
        table.nodes.entry(number).or_insert(Known { node, references: 0 }).references += 1;
        number
    }

    /// All nodes that the kernel knows, but the root.
    pub(super) fn all(&self) -> Vec<NodeId> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).numbers.keys().copied().collect()
    }

    /// Takes references back; returns the node, and whether the kernel has forgotten it now.
    pub(super) fn release(&self, number: u64, references: u64) -> Option<(NodeId, bool)> {
        if number == ROOT {
            return None;
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let known = table.nodes.get_mut(&number)?;
        let node = known.node;
        known.references = known.references.saturating_sub(references);
        let gone = known.references == 0;
        if gone {
            table.nodes.remove(&number);
            table.numbers.remove(&node);
        }
        Some((node, gone))
    }
}

impl Table {
    fn assign(&mut self, node: NodeId, ino: u64) -> u64 {
        let taken = |number: u64| number <= ROOT || self.nodes.contains_key(&number);
        let mut number = ino;
        if taken(number) {
            number = self.next_own;
            while taken(number) {
                number = number.wrapping_add(1).max(FIRST_OWN);
            }
            self.next_own = number.wrapping_add(1).max(FIRST_OWN);
        }
        self.numbers.insert(node, number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_keeps_its_number_until_the_last_reference_is_back() {
        let numbers = Numbers::new();
        assert_eq!(numbers.refer(NodeId(5), 700), 700);
        assert_eq!(numbers.refer(NodeId(5), 700), 700);
        assert_eq!(numbers.node(700), Ok(NodeId(5)));
        assert_eq!(numbers.release(700, 1), Some((NodeId(5), false)));
        assert_eq!(numbers.node(700), Ok(NodeId(5)));
        assert_eq!(numbers.release(700, 9), Some((NodeId(5), true)));
        assert_eq!(numbers.node(700), Err(Errno::STALE));
        assert_eq!(numbers.release(700, 1), None);
    }

    #[test]
    fn nodes_with_one_inode_number_are_told_apart() {
        let numbers = Numbers::new();
        let (first, second) = (numbers.refer(NodeId(5), 700), numbers.refer(NodeId(6), 700));
        assert_ne!(first, second);
        assert_eq!((numbers.node(first), numbers.node(second)), (Ok(NodeId(5)), Ok(NodeId(6))));
        assert_eq!(numbers.number(NodeId(6), 700), second);
        for odd in [0, 1] {
            let number = numbers.refer(NodeId(100 + odd), odd);
            assert!(number > ROOT);
            assert_eq!(numbers.node(number), Ok(NodeId(100 + odd)));
        }
    }

    #[test]
    fn the_root_is_always_there() {
        let numbers = Numbers::new();
        assert_eq!(numbers.refer(NodeId::ROOT, 700), 1);
        assert_eq!(numbers.release(1, 100), None);
        assert_eq!(numbers.node(1), Ok(NodeId::ROOT));
    }
}
