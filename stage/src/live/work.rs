//! One change under the lock: finding what it touches, making that known to the journal, recording it.

use std::time::Duration;

use pvisor_spec::Durability;

use super::attr::Facts;
use super::{NodeId, Shared, State};
use crate::journal::Record;
use crate::stat::{Time, now};
use crate::tree::{Child, Node};
use crate::{Errno, FileKind};

/// Why a change did not happen yet.
#[derive(Debug)]
pub(super) enum Stop {
    /// It can't.
    Errno(Errno),
    /// A lower file was changed so lately that a later change might not show in its times. Try again after this.
    Young(Duration),
}

impl From<Errno> for Stop {
    fn from(e: Errno) -> Self {
        Self::Errno(e)
    }
}

pub(super) type Outcome<T> = Result<T, Stop>;

/// How often a change waits for a young lower file.
const PATIENCE: u32 = 3;

/// The lock, held, and what is needed under it.
pub(super) struct Work<'a> {
    pub shared: &'a Shared,
    pub state: &'a mut State,
    /// Wait for a young file rather than give up on its preimage.
    pub patient: bool,
    pub now: Time,
}

impl Shared {
    /// Runs `change` under the lock, again after each wait. It must come to the same if it is run again.
    pub(super) fn change<T>(&self, mut change: impl FnMut(&mut Work<'_>) -> Outcome<T>) -> Result<T, Errno> {
        let mut waits = 0;
        loop {
            let stop = {
                let mut state = self.state();
                let patient = waits < PATIENCE;
                change(&mut Work { shared: self, state: &mut state, patient, now: now() })
            };
            match stop {
                Ok(value) => return Ok(value),
                Err(Stop::Errno(e)) => return Err(e),
                Err(Stop::Young(wait)) => {
                    std::thread::sleep(wait);
                    waits += 1;
                }
            }
        }
    }
}

impl Work<'_> {
    /// Journal first, then tree.
    pub fn record(&mut self, record: &Record) -> Result<(), Errno> {
        if let Err(misfit) = self.state.tree.check(record) {
            tracing::error!(%misfit, ?record, "a change that does not fit was refused");
            return Err(Errno::IO);
        }
        let quota = self.shared.quota.as_ref();
        if let Some(quota) = quota {
            quota.admit(record)?;
        }
        self.state.journal.append(record)?;
        if let Some(quota) = quota {
            quota.set_journal(self.state.journal.length());
        }
        self.state.tree.commit(record);
        if matches!(record, Record::Pin { .. }) && self.shared.durability == Durability::Strict {
            self.shared.sync_journal()?;
        }
        Ok(())
    }

    pub fn node(&self, id: NodeId) -> Result<&Node, Errno> {
        self.state.tree.get(id).ok_or(Errno::STALE)
    }

    /// A directory that still exists.
    pub fn live_dir(&self, id: NodeId) -> Result<(), Errno> {
        let dir = self.node(id)?.dir.as_ref().ok_or(Errno::NOTDIR)?;
        if dir.dead { Err(Errno::NOENT) } else { Ok(()) }
    }

    /// The node of a name in the merged view.
    pub fn find(&mut self, parent: NodeId, name: &[u8]) -> Result<Option<NodeId>, Errno> {
        check_name(name)?;
        self.live_dir(parent)?;
        match self.state.tree.child(parent, name) {
            Child::Gone => Ok(None),
            Child::Node(id) => {
                if !self.has_vanished(id)? {
                    return Ok(Some(id));
                }
                // Its content was only in the lower, and somebody removed it there.
                self.record(&Record::Remove { parent: parent.0, name: name.to_vec(), at: self.now })?;
                Ok(None)
            }
            Child::Unsaid => {
                let Some(path) = self.shared.lower_path(&self.state.tree, parent, name) else { return Ok(None) };
                match self.shared.lower.stat(&path) {
                    Ok(stat) => self.state.tree.intern(parent, name, &stat).map(Some).ok_or(Errno::STALE),
                    Err(Errno::NOENT) => Ok(None),
                    Err(e) => Err(e),
                }
            }
        }
    }

    fn has_vanished(&mut self, id: NodeId) -> Result<bool, Errno> {
        if !self.is_missing(id)? {
            return Ok(false);
        }
        self.shared.rebind(&mut self.state.tree, id);
        self.is_missing(id)
    }

    fn is_missing(&self, id: NodeId) -> Result<bool, Errno> {
        let node = self.node(id)?;
        let (FileKind::File, false, Some(origin)) = (node.kind, node.in_upper(), &node.origin) else {
            return Ok(false);
        };
        match self.shared.lower.stat(origin) {
            Ok(stat) => Ok(stat.kind != FileKind::File),
            Err(Errno::NOENT) => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// No entry in the merged view; a hidden one of the lower counts as an entry.
    pub fn is_empty(&mut self, id: NodeId) -> Result<bool, Errno> {
        let Some(dir) = self.state.tree.dir(id) else { return Err(Errno::NOTDIR) };
        if dir.slots.values().any(|s| s.node.is_some()) {
            return Ok(false);
        }
        let in_place = dir.known.iter().filter(|(name, k)| k.adopted && !dir.slots.contains_key(*name));
        let in_place: Vec<Box<[u8]>> = in_place.map(|(name, _)| name.clone()).collect();
        for name in in_place {
            if self.find(id, &name)?.is_some() {
                return Ok(false);
            }
        }
        let node = self.node(id)?;
        let Some(origin) = node.origin.clone().filter(|o| !self.shared.mask.bounds(o)) else { return Ok(true) };
        let entries = match self.shared.lower.list(&origin) {
            Ok((entries, _)) => entries,
            Err(Errno::NOENT) => return Ok(true),
            Err(e) => return Err(e),
        };
        let Some(dir) = self.state.tree.dir(id) else { return Err(Errno::STALE) };
        Ok(entries.iter().all(|e| dir.slots.contains_key(&e.name)))
    }

    /// `Err(BUSY)` for a directory that a mount or boundary of the lower is in.
    pub fn movable(&self, id: NodeId) -> Result<(), Errno> {
        let node = self.node(id)?;
        if id == NodeId::ROOT {
            return Err(Errno::BUSY);
        }
        match &node.origin {
            Some(origin) if node.dir.is_some() && self.shared.mask.holds_boundary(origin) => Err(Errno::BUSY),
            _ => Ok(()),
        }
    }

    /// One more reference for the caller, and the facts for its answer.
    pub fn refer(&mut self, id: NodeId) -> Result<Facts, Errno> {
        let node = self.state.tree.get_mut(id).ok_or(Errno::STALE)?;
        node.refs = node.refs.saturating_add(1);
        Facts::of(&self.state.tree, id)
    }
}

/// A name as the kernel passes it on.
pub(super) fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > 255 {
        return Err(Errno::NAMETOOLONG);
    }
    if crate::change::is_name(name) { Ok(()) } else { Err(Errno::INVAL) }
}
