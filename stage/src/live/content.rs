//! Copy-up, and the same once more where a staged content is a savepoint's too.

use std::fs::File;
use std::sync::{Arc, PoisonError};

use super::attr::timestamps;
use super::{NodeId, Shared};
use crate::journal::Record;
use crate::stat::Stat;
use crate::tree::Body;
use crate::upper::copy_content;
use crate::{Errno, FileKind};

impl Shared {
    pub(super) fn body(&self, id: NodeId) -> Result<Arc<Body>, Errno> {
        let state = self.state();
        let node = state.tree.get(id).ok_or(Errno::STALE)?;
        match (&node.body, node.kind) {
            (Some(body), _) => Ok(Arc::clone(body)),
            (None, FileKind::Directory) => Err(Errno::ISDIR),
            (None, FileKind::Symlink) => Err(Errno::LOOP),
            (None, _) => Err(Errno::NXIO),
        }
    }

    /// Brings the first `limit` bytes of a file's content to upper, if it is not there yet. Holds only this file's
    /// lock while it copies; readers go on with the lower's content.
    pub(super) fn copy_up(&self, id: NodeId, limit: u64) -> Result<(), Errno> {
        let body = self.body(id)?;
        if body.in_upper() {
            return Ok(());
        }
        let _copying = body.copying.lock().unwrap_or_else(PoisonError::into_inner);
        if body.in_upper() {
            return Ok(());
        }
        let origin = self.change(|work| {
            work.pin(id)?;
            Ok(work.node(id)?.origin.clone().ok_or(Errno::STALE)?)
        })?;
        let file = self.upper.create(id)?;
        let filled = self.fill(id, &origin, (&file, limit)).and_then(|()| self.switch(id, &origin));
        if filled.is_err() {
            self.drop_content(id);
        }
        filled
    }

    /// To be called before a staged content is changed: where a savepoint or another stage has the very file, the first
    /// `limit` bytes go on in one of our own. Open files find it by the count of moves.
    pub(super) fn unshare(&self, id: NodeId, body: &Body, limit: u64) -> Result<(), Errno> {
        if !body.is_shared() {
            return Ok(());
        }
        let _copying = body.copying.lock().unwrap_or_else(PoisonError::into_inner);
        if !body.is_shared() {
            return Ok(());
        }
        let shared = self.upper.content(id, false)?;
        let stat = Stat::of(&shared)?;
        // Whoever else had it may have given it up.
        if stat.nlink > 1 {
            let own = self.upper.replace(id, |own| {
                copy_content(&shared, own, limit)?;
                rustix::fs::futimens(own, &timestamps(Some(stat.atime), Some(stat.mtime)))
            })?;
            body.count_move();
            if let Some(quota) = &self.quota {
                quota.give_back(id);
                quota.count(id, &own);
            }
        }
        body.set_shared(false);
        Ok(())
    }

    fn fill(&self, id: NodeId, origin: &[u8], (file, limit): (&File, u64)) -> Result<(), Errno> {
        if limit == 0 {
            return Ok(());
        }
        let (from, stat) = self.lower.open_file(origin)?;
        let Some(quota) = &self.quota else { return copy_content(&from, file, limit) };
        // A sparse file stays sparse; one that its file system compresses does not stay small.
        let _grant = quota.grant(stat.size.min(limit).min(stat.blocks.saturating_mul(512)))?;
        copy_content(&from, file, limit)?;
        quota.count(id, file);
        Ok(())
    }

    /// From here on the content is in upper.
    fn switch(&self, id: NodeId, origin: &[u8]) -> Result<(), Errno> {
        let seen = self.lower.stat(origin).ok();
        self.change(|work| {
            let node = work.node(id)?;
            let stat = seen.or(node.base);
            let (atime, mtime) = (node.meta.atime.or(stat.map(|s| s.atime)), node.meta.mtime.or(stat.map(|s| s.mtime)));
            self.upper.set_times(id, &timestamps(atime, mtime))?;
            work.record(&Record::Content { node: id.0 })?;
            Ok(())
        })
    }
}
