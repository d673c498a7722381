//! Names that go.

use super::work::{Outcome, Work};
use super::{NodeId, Stage};
use crate::Errno;
use crate::journal::Record;

impl Stage {
    /// Takes away a name of anything but a directory.
    ///
    /// # Errors
    /// `NOENT`, `ISDIR`, `NOTDIR` where the parent is none, `NAMETOOLONG`, `NOSPC`; `IO` once the journal is broken.
    pub fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.remove(|work| {
            let id = work.find(parent, name)?.ok_or(Errno::NOENT)?;
            if work.node(id)?.dir.is_some() {
                return Err(Errno::ISDIR.into());
            }
            remove(work, parent, name, id)
        })
    }

    /// Takes away an empty directory.
    ///
    /// # Errors
    /// `NOENT`, `NOTDIR`, `NOTEMPTY` (hidden entries of the lower count), `BUSY` for a boundary and what holds one,
    /// `NAMETOOLONG`, `NOSPC`; `IO` once the journal is broken.
    pub fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.remove(|work| {
            let id = work.find(parent, name)?.ok_or(Errno::NOENT)?;
            if work.node(id)?.dir.is_none() {
                return Err(Errno::NOTDIR.into());
            }
            work.movable(id)?;
            if !work.is_empty(id)? {
                return Err(Errno::NOTEMPTY.into());
            }
            remove(work, parent, name, id)
        })
    }

    fn remove(&self, mut change: impl FnMut(&mut Work<'_>) -> Outcome<NodeId>) -> Result<(), Errno> {
        let orphans = self.shared.change(|work| {
            let id = change(work)?;
            Ok(work.state.tree.collect(id))
        })?;
        self.shared.sweep(orphans);
        Ok(())
    }
}

fn remove(work: &mut Work<'_>, parent: NodeId, name: &[u8], id: NodeId) -> Outcome<NodeId> {
    work.claim(parent, name, id)?;
    work.record(&Record::Remove { parent: parent.0, name: name.to_vec(), at: work.now })?;
    Ok(id)
}
