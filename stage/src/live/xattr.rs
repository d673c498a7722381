//! Extended attributes: `user.*`, kept in the journal.

use rustix::fs::XattrFlags;

use super::attr::{Facts, Source};
use super::{NodeId, Stage};
use crate::journal::Record;
use crate::lower::{MAX_XATTR_TOTAL, Xattrs, is_kept_xattr};
use crate::{Errno, FileKind};

/// Longest value, in bytes.
const MAX_VALUE: usize = 64 * 1024;

/// `Err` for names that are never there or can't be.
fn check(name: &[u8]) -> Result<(), Errno> {
    if name.is_empty() || name.len() > 255 {
        return Err(Errno::RANGE);
    }
    if name == b"user." || name.contains(&0) {
        return Err(Errno::INVAL);
    }
    if is_kept_xattr(name) { Ok(()) } else { Err(Errno::OPNOTSUPP) }
}

impl Stage {
    fn xattrs(&self, id: NodeId) -> Result<Xattrs, Errno> {
        let facts = {
            let state = self.shared.state();
            let facts = Facts::of(&state.tree, id)?;
            let node = state.tree.get(id).ok_or(Errno::STALE)?;
            if let Some(own) = node.xattrs.as_ref().or(node.pin.as_ref().map(|p| &p.xattrs)) {
                return Ok(own.clone());
            }
            facts
        };
        match &facts.source {
            Source::Lower(path) => match self.shared.lower.xattrs(path, facts.kind) {
                // A staged directory outlives its lower.
                Err(Errno::NOENT) => Ok(Xattrs::new()),
                other => other,
            },
            Source::Upper | Source::Fresh { .. } => Ok(Xattrs::new()),
        }
    }

    /// Value of an attribute.
    ///
    /// # Errors
    /// `NODATA` if it is not there, `OPNOTSUPP` for names that are not staged, `RANGE` for names that are too long.
    pub fn get_xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        // The kernel asks for it before each write, and programs for theirs: not there, rather than not possible.
        if name.starts_with(b"security.") || name.starts_with(b"trusted.") {
            return Err(Errno::NODATA);
        }
        check(name)?;
        self.xattrs(node)?.remove(name).ok_or(Errno::NODATA)
    }

    /// Names of all attributes, sorted.
    ///
    /// # Errors
    /// `STALE` for an unknown node; what the lower says.
    pub fn list_xattr(&self, node: NodeId) -> Result<Vec<Vec<u8>>, Errno> {
        Ok(self.xattrs(node)?.into_keys().collect())
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// `OPNOTSUPP` for names that are not staged, `PERM` on what is neither file nor directory, `EXIST` and `NODATA`
    /// as the flags say, `TOOBIG`, `NOSPC`.
    pub fn set_xattr(&self, id: NodeId, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<(), Errno> {
        check(name)?;
        if value.len() > MAX_VALUE {
            return Err(Errno::TOOBIG);
        }
        if !(XattrFlags::CREATE | XattrFlags::REPLACE).symmetric_difference(XattrFlags::all()).is_empty()
            && flags.bits() & !3 != 0
        {
            return Err(Errno::INVAL);
        }
        self.shared.change(|work| {
            let old = work.own_xattrs(id)?;
            match old.get(name) {
                Some(_) if flags.contains(XattrFlags::CREATE) => return Err(Errno::EXIST.into()),
                None if flags.contains(XattrFlags::REPLACE) => return Err(Errno::NODATA.into()),
                _ => {}
            }
            let total: usize = old.iter().map(|(n, v)| n.len() + v.len()).sum();
            if total + name.len() + value.len() > MAX_XATTR_TOTAL {
                return Err(Errno::NOSPC.into());
            }
            let (name, value) = (name.to_vec(), value.to_vec());
            work.record(&Record::SetXattr { node: id.0, name, value, at: work.now })?;
            Ok(())
        })
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// `NODATA` if it is not there, and as [`set_xattr`](Self::set_xattr).
    pub fn remove_xattr(&self, id: NodeId, name: &[u8]) -> Result<(), Errno> {
        check(name)?;
        self.shared.change(|work| {
            if !work.own_xattrs(id)?.contains_key(name) {
                return Err(Errno::NODATA.into());
            }
            work.record(&Record::RemoveXattr { node: id.0, name: name.to_vec(), at: work.now })?;
            Ok(())
        })
    }
}

impl super::work::Work<'_> {
    /// The node's attributes, after its preimage is recorded.
    fn own_xattrs(&mut self, id: NodeId) -> super::work::Outcome<Xattrs> {
        if !matches!(self.node(id)?.kind, FileKind::File | FileKind::Directory) {
            return Err(Errno::PERM.into());
        }
        self.pin(id)?;
        let node = self.node(id)?;
        let own = node.xattrs.as_ref().or(node.pin.as_ref().map(|p| &p.xattrs));
        Ok(own.cloned().unwrap_or_default())
    }
}
