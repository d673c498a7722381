//! Where others can change what a stage shows, for callers that go on using what they were told.

use rustix::fd::OwnedFd;
use rustix::fs::OFlags;

use super::{NodeId, Stage};
use crate::Errno;

impl Stage {
    /// The directory of the lower that shows through a directory, as an `O_PATH` descriptor; `None` where nothing of
    /// the lower does.
    ///
    /// # Errors
    /// `NOTDIR`; `STALE` for an unknown node; what the lower says.
    pub fn lower_dir(&self, node: NodeId) -> Result<Option<OwnedFd>, Errno> {
        let shared = &*self.shared;
        let origin = {
            let state = shared.state();
            let node = state.tree.get(node).ok_or(Errno::STALE)?;
            node.dir.as_ref().ok_or(Errno::NOTDIR)?;
            match &node.origin {
                Some(origin) if !shared.mask.bounds(origin) => origin.clone(),
                _ => return Ok(None),
            }
        };
        shared.lower.open_at(&origin, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW).map(Some)
    }

    /// The directory where the lower has a node, wherever the stage shows it; `None`: only the stage has it, or the
    /// lower has it at several places.
    pub fn lower_place(&self, node: NodeId) -> Option<NodeId> {
        let state = self.shared.state();
        match &state.tree.get(node)?.places[..] {
            [place] => Some(place.dir),
            _ => None,
        }
    }

    /// The node that the lower has under a name in a directory, wherever the stage shows it, if it was ever looked up.
    pub fn lower_child(&self, directory: NodeId, name: &[u8]) -> Option<NodeId> {
        let state = self.shared.state();
        state.tree.dir(directory)?.known.get(name).map(|known| known.node)
    }
}
