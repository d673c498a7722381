//! The reference table, so that node ids which a guest holds stay valid in another process.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{NodeId, Stage};
use crate::FileKind;
use crate::tree::{Child, Node};

/// Most nodes in a table.
const MAX_NODES: usize = 16 * 1024 * 1024;

#[derive(Serialize, Deserialize)]
struct Table {
    version: u32,
    next: u64,
    nodes: Vec<Row>,
}

/// One node, after the directory it is in.
#[derive(Serialize, Deserialize)]
struct Row {
    id: u64,
    references: u64,
    kind: FileKind,
    /// Where the lower has it, for a node that the journal does not have.
    place: Option<(u64, Vec<u8>)>,
}

/// Why a reference table can't be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferencesError {
    /// The bytes are no table of this version.
    #[error("damaged, or of another version")]
    Damaged,
    /// The table names a node that the stage does not have.
    #[error("node {0} is not in this stage")]
    Unknown(u64),
    /// The lower changed: it has no such file any more.
    #[error("node {0} is not in the staged directory any more")]
    Vanished(u64),
    /// The stage is in use already.
    #[error("the stage has references already")]
    InUse,
}

impl Stage {
    /// All references on nodes.
    pub fn capture_references(&self) -> Vec<u8> {
        let state = self.shared.state();
        let mut ids: Vec<NodeId> = state.tree.nodes.keys().copied().collect();
        // A lower node's directory was looked up before it, so its id is smaller.
        ids.sort_unstable();
        let place = |n: &Node| n.places.first().map(|p| (p.dir.0, p.name.to_vec()));
        let row = |id: NodeId| {
            let node = state.tree.get(id)?;
            let place = if node.is_passing() { Some(place(node)?) } else { None };
            Some(Row { id: id.0, references: node.refs, kind: node.kind, place })
        };
        let nodes = ids.into_iter().filter_map(row).collect();
        let table = Table { version: 1, next: state.tree.next_id(), nodes };
        postcard::to_stdvec(&table).unwrap_or_default()
    }

    /// Takes over the references that a stage of the same lower and with the same journal had.
    ///
    /// # Errors
    /// [`ReferencesError`]; nothing is changed then but nodes without references.
    pub fn restore_references(&self, bytes: &[u8]) -> Result<(), ReferencesError> {
        let Ok((table, [])) = postcard::take_from_bytes::<Table>(bytes) else { return Err(ReferencesError::Damaged) };
        if table.version != 1 || table.nodes.len() > MAX_NODES {
            return Err(ReferencesError::Damaged);
        }
        let mut state = self.shared.state();
        let in_use = |(id, n): (&NodeId, &Node)| n.refs > u64::from(*id == NodeId::ROOT);
        if state.tree.nodes.iter().any(in_use) {
            return Err(ReferencesError::InUse);
        }
        let mut references = HashMap::new();
        for row in &table.nodes {
            let id = NodeId(row.id);
            if let Some((parent, name)) = &row.place {
                let parent = NodeId(*parent);
                if !crate::change::is_name(name) || parent >= id || row.id >= table.next {
                    return Err(ReferencesError::Damaged);
                }
                if state.tree.child(parent, name) != Child::Unsaid || state.tree.get(id).is_some() {
                    return Err(ReferencesError::Unknown(row.id));
                }
                let path = self.shared.lower_path(&state.tree, parent, name);
                let path = path.ok_or(ReferencesError::Vanished(row.id))?;
                let stat = self.shared.lower.stat(&path).map_err(|_| ReferencesError::Vanished(row.id))?;
                if stat.kind != row.kind {
                    return Err(ReferencesError::Vanished(row.id));
                }
                let placed = state.tree.insert_lower(id, parent, name, &stat);
                placed.and_then(|()| state.tree.add_place(id, parent, name, false)).ok_or(ReferencesError::Damaged)?;
            } else if state.tree.get(id).is_none_or(|n| n.kind != row.kind) {
                return Err(ReferencesError::Unknown(row.id));
            }
            references.insert(id, row.references);
        }
        state.tree.skip_ids(table.next.saturating_sub(1));
        for (id, count) in references {
            if let Some(node) = state.tree.get_mut(id) {
                node.refs = count;
            }
        }
        Ok(())
    }
}
