//! What savepoints of a stage in use need of it.

use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::{Keep, NodeId, Stage, State};
use crate::tree::Body;

/// The right to make a savepoint: one at a time.
#[derive(Debug)]
pub(crate) struct Saving<'a> {
    stage: &'a Stage,
    _one: MutexGuard<'a, ()>,
}

/// Everything that is staged at one moment, and the lock that keeps the namespace as it is.
pub(crate) struct Moment<'a> {
    /// Contents that have a name, by id.
    pub contents: Vec<(NodeId, Arc<Body>)>,
    /// Bytes of the journal that say where they are.
    pub journal_length: u64,
    _state: MutexGuard<'a, State>,
}

impl Stage {
    /// Waits for its turn; `None`: nothing of the stage is kept.
    pub(crate) fn saving(&self) -> Option<Saving<'_>> {
        if self.shared.keep == Keep::ThrowAway {
            return None;
        }
        let one = self.shared.saving.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Saving { stage: self, _one: one })
    }
}

impl<'a> Saving<'a> {
    /// The stage's directory.
    pub fn dir(&self) -> &'a Path {
        &self.stage.shared.dir
    }

    /// Stops changes of the namespace and tells what is there.
    pub fn moment(&self) -> Moment<'a> {
        let state = self.stage.shared.state();
        let staged = state.tree.nodes.iter().filter(|(_, node)| node.in_upper() && !node.is_dead());
        let mut contents: Vec<(NodeId, Arc<Body>)> =
            staged.filter_map(|(id, node)| Some((*id, Arc::clone(node.body.as_ref()?)))).collect();
        contents.sort_unstable_by_key(|(id, _)| *id);
        Moment { contents, journal_length: state.journal.length(), _state: state }
    }
}
