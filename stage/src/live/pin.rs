//! Adoption and preimages: what the journal must know of a lower node before it changes.

use std::time::Duration;

use super::work::{Outcome, Stop, Work};
use super::{Keep, NodeId};
use crate::journal::{HashState, Pin, Record};
use crate::stat::{Stat, Time};
use crate::upper::hash_file;
use crate::{Errno, FileKind};

/// Age in nanoseconds from which on every later change gives a file another ctime.
const SETTLED_NS: i128 = 50_000_000;
/// Up to this size the content of a file that never settles is hashed at once, in bytes.
const HASH_AT_ONCE: u64 = 4 * 1024 * 1024;

impl Work<'_> {
    /// Makes a lower node, and all directories above it, known to the journal.
    pub fn adopt(&mut self, id: NodeId) -> Result<(), Errno> {
        let mut chain = Vec::new();
        let mut at = id;
        while self.node(at)?.is_passing() {
            let place = self.node(at)?.places.first().cloned().ok_or(Errno::STALE)?;
            chain.push((at, place.clone()));
            at = place.dir;
        }
        while let Some((id, place)) = chain.pop() {
            let node = self.node(id)?;
            let origin = node.origin.clone().ok_or(Errno::STALE)?;
            let stat = self.shared.lower.stat(&origin)?;
            if node.kind != stat.kind || node.key != Some(stat.key()) {
                return Err(Errno::STALE);
            }
            let (node, parent, name) = (id.0, place.dir.0, place.name.to_vec());
            self.record(&Record::Adopt { node, parent, name, stat })?;
        }
        Ok(())
    }

    /// [`adopt`](Self::adopt), and the preimage.
    pub fn pin(&mut self, id: NodeId) -> Outcome<()> {
        self.adopt(id)?;
        let node = self.node(id)?;
        let (None, None, Some(origin)) = (&node.pin, &node.fresh, node.origin.clone()) else { return Ok(()) };
        let (kind, base) = (node.kind, node.base);
        let stat = match (self.shared.lower.stat(&origin), base) {
            (Ok(stat), _) if stat.kind == kind => stat,
            (Err(Errno::NOENT) | Ok(_), Some(base)) if kind != FileKind::File => base,
            (Ok(_), _) => return Err(Errno::STALE.into()),
            (Err(e), _) => return Err(e.into()),
        };
        let hash = self.hash_state(&origin, &stat)?;
        let or_none = |e| if e == Errno::NOENT { Ok(None) } else { Err(e) };
        let xattrs = self.shared.lower.xattrs(&origin, kind).map(Some).or_else(or_none)?.unwrap_or_default();
        let target = match kind {
            FileKind::Symlink => Some(self.shared.lower.read_link(&origin)?),
            _ => None,
        };
        self.record(&Record::Pin { node: id.0, pin: Box::new(Pin { stat, xattrs, target, hash }) })?;
        Ok(())
    }

    fn hash_state(&self, origin: &[u8], stat: &Stat) -> Outcome<HashState> {
        if stat.kind != FileKind::File {
            return Ok(HashState::None);
        }
        if self.shared.keep == Keep::ThrowAway {
            return Ok(HashState::Pending);
        }
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let age = nanoseconds((now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0))) - nanoseconds(stat.ctime);
        if age > SETTLED_NS {
            return Ok(HashState::Pending);
        }
        let wait = u64::try_from(SETTLED_NS - age.max(0) + 1_000_000).unwrap_or(0);
        if self.patient {
            return Err(Stop::Young(Duration::from_nanos(wait)));
        }
        // Somebody writes it all the time, or the clock is off.
        Ok(if stat.size <= HASH_AT_ONCE { self.hash_now(origin, stat) } else { HashState::Lost })
    }

    fn hash_now(&self, origin: &[u8], stat: &Stat) -> HashState {
        let hashed = self.shared.lower.open_file(origin).and_then(|(file, before)| {
            let (hash, size) = hash_file(&file)?;
            let steady = Stat::of(&file)?.same_identity(&before) && before.same_identity(stat) && size == stat.size;
            Ok(steady.then_some(hash))
        });
        match hashed {
            Ok(Some(hash)) => HashState::Known(hash),
            Ok(None) | Err(_) => HashState::Lost,
        }
    }

    /// Before the name `name` of node `id` is taken away from `parent`: the node's preimage, and the name itself
    /// where the lower has it.
    pub fn claim(&mut self, parent: NodeId, name: &[u8], id: NodeId) -> Outcome<()> {
        // Nobody asks a stage that is thrown away for preimages.
        match self.shared.keep {
            Keep::Reviewable => self.pin(id)?,
            Keep::ThrowAway => self.adopt(id)?,
        }
        self.adopt(parent)?;
        let Some(dir) = self.state.tree.dir(parent) else { return Err(Errno::NOTDIR.into()) };
        if dir.slots.contains_key(name) || dir.known.get(name).is_none_or(|k| k.adopted) {
            return Ok(());
        }
        let stat = self.node(id)?.base.ok_or(Errno::STALE)?;
        self.record(&Record::Adopt { node: id.0, parent: parent.0, name: name.to_vec(), stat })?;
        Ok(())
    }
}

fn nanoseconds((seconds, nanos): Time) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(nanos)
}
