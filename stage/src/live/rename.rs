//! Names that move.

use rustix::fs::RenameFlags;

use super::work::{Outcome, Work, check_name};
use super::{NodeId, Stage};
use crate::Errno;
use crate::journal::Record;

/// Both ends of a move.
struct Move<'a> {
    from: NodeId,
    name: &'a [u8],
    to: NodeId,
    new_name: &'a [u8],
    exchange: bool,
}

impl Stage {
    /// Moves a name, directories with all they hold; replaces what is there, unless the flags say otherwise.
    ///
    /// # Errors
    /// `NOENT`, `EXIST` (with `NOREPLACE`), `ISDIR`, `NOTDIR`, `NOTEMPTY`, `INVAL` into its own subtree or for other
    /// flags, `BUSY` for a boundary and what holds one, `NAMETOOLONG`, `NOSPC`; `IO` once the journal is broken.
    pub fn rename(
        &self,
        from: NodeId,
        name: &[u8],
        to: NodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let keep = flags.contains(RenameFlags::NOREPLACE);
        let known = RenameFlags::EXCHANGE | RenameFlags::NOREPLACE;
        if !known.contains(flags) || (exchange && keep) {
            return Err(Errno::INVAL);
        }
        check_name(name)?;
        check_name(new_name)?;
        let wanted = Move { from, name, to, new_name, exchange };
        let orphans = self.shared.change(|work| {
            let victim = wanted.run(work, keep)?;
            Ok(victim.map(|id| work.state.tree.collect(id)).unwrap_or_default())
        })?;
        self.shared.sweep(orphans);
        Ok(())
    }
}

impl Move<'_> {
    /// Does it; the node that was replaced, if any.
    fn run(&self, work: &mut Work<'_>, keep: bool) -> Outcome<Option<NodeId>> {
        let moved = work.find(self.from, self.name)?.ok_or(Errno::NOENT)?;
        let other = work.find(self.to, self.new_name)?;
        match other {
            Some(_) if keep => return Err(Errno::EXIST.into()),
            None if self.exchange => return Err(Errno::NOENT.into()),
            _ => {}
        }
        self.check_ancestry(work, moved, other)?;
        if other == Some(moved) {
            // Two names of one file, or the same name: nothing happens.
            return Ok(None);
        }
        work.movable(moved)?;
        if let Some(other) = other {
            self.check_target(work, moved, other)?;
        }
        work.claim(self.from, self.name, moved)?;
        work.adopt(self.to)?;
        if let Some(other) = other {
            work.claim(self.to, self.new_name, other)?;
        }
        work.record(&Record::Rename {
            from: self.from.0,
            name: self.name.to_vec(),
            to: self.to.0,
            new_name: self.new_name.to_vec(),
            exchange: self.exchange,
            at: work.now,
        })?;
        Ok(other.filter(|_| !self.exchange))
    }

    fn check_ancestry(&self, work: &Work<'_>, moved: NodeId, other: Option<NodeId>) -> Result<(), Errno> {
        let tree = &work.state.tree;
        if tree.dir(moved).is_some() && tree.is_within(self.to, moved) {
            return Err(Errno::INVAL);
        }
        match other {
            Some(other) if tree.dir(other).is_some() && tree.is_within(self.from, other) => {
                Err(if self.exchange { Errno::INVAL } else { Errno::NOTEMPTY })
            }
            _ => Ok(()),
        }
    }

    fn check_target(&self, work: &mut Work<'_>, moved: NodeId, other: NodeId) -> Result<(), Errno> {
        work.movable(other)?;
        if self.exchange {
            return Ok(());
        }
        match (work.node(moved)?.dir.is_some(), work.node(other)?.dir.is_some()) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            (true, true) if !work.is_empty(other)? => Err(Errno::NOTEMPTY),
            _ => Ok(()),
        }
    }
}
