//! Contents in upper: dropping those that nothing needs, hashing and syncing the others.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;

use super::{SealError, Sealer, crew};
use crate::Errno;
use crate::journal::Journal;
use crate::layout::{self, JOURNAL, UPPER};
use crate::live::NodeId;
use crate::load::{SealBody, SealedContent, net_changes, view};
use crate::stat::Stat;
use crate::upper::{content_name, hash_file};

/// From this many files on, syncing the whole file system is quicker than each for itself.
const SYNC_EACH: usize = 64;

impl Sealer<'_> {
    /// Ids of the contents that the view needs, with a path of each.
    fn needed(&self) -> Result<BTreeMap<NodeId, Vec<u8>>, SealError> {
        let view = view(&self.tree).map_err(|m| self.damaged(m))?;
        let in_upper = |id: NodeId| self.tree.get(id).is_some_and(|n| n.in_upper());
        Ok(view.into_iter().filter(|(_, id)| in_upper(*id)).map(|(path, id)| (id, path)).collect())
    }

    /// Removes contents whose making was cut off.
    pub(super) fn drop_strays(&self) -> Result<(), SealError> {
        let known = self.tree.nodes.iter().filter(|(_, node)| node.in_upper());
        self.keep_only(&known.map(|(id, _)| content_name(*id)).collect())
    }

    /// Removes contents of files that have no name any more.
    pub(super) fn drop_unneeded(&self) -> Result<(), SealError> {
        self.keep_only(&self.needed()?.into_keys().map(content_name).collect())
    }

    fn keep_only(&self, names: &HashSet<String>) -> Result<(), SealError> {
        let path = self.dir.join(UPPER);
        for entry in std::fs::read_dir(&path).map_err(SealError::io(&path))? {
            let name = entry.map_err(SealError::io(&path))?.file_name();
            let wanted = std::str::from_utf8(name.as_bytes()).is_ok_and(|n| names.contains(n));
            if !wanted {
                std::fs::remove_file(path.join(&name)).map_err(SealError::io(path.join(&name)))?;
            }
        }
        Ok(())
    }

    /// Hashes and syncs everything; what the seal is to say.
    pub(super) fn settle(self) -> Result<SealBody, SealError> {
        let ids: Vec<NodeId> = self.needed()?.into_keys().collect();
        let each = ids.len() < SYNC_EACH;
        let results = crew::each(&ids, |id| self.content(*id, each));
        let mut contents = Vec::with_capacity(ids.len());
        for (id, result) in ids.iter().zip(results) {
            contents.push(result.map_err(SealError::io(self.dir.join(UPPER).join(content_name(*id))))?);
        }
        let upper = self.dir.join(UPPER);
        if !each {
            let dir = File::open(&upper).map_err(SealError::io(&upper))?;
            rustix::fs::syncfs(&dir).map_err(SealError::io(&upper))?;
        }
        self.upper.sync().map_err(SealError::io(&upper))?;
        let journal = self.dir.join(JOURNAL);
        self.journal.finish().map_err(SealError::io(&journal))?;
        layout::sync_dir(self.dir).map_err(SealError::io(self.dir))?;
        let by_id = contents.iter().map(|c| (c.id(), *c)).collect();
        let changes = net_changes(&self.tree, &by_id).map_err(|m| self.damaged(m))?.len() as u64;
        let (journal_hash, journal_length) = Journal::hash(self.dir).map_err(SealError::io(&journal))?;
        Ok(SealBody { journal_length, journal_hash, changes, contents })
    }

    fn content(&self, id: NodeId, sync: bool) -> Result<SealedContent, Errno> {
        let file = self.upper.content(id, false)?;
        let (hash, size) = hash_file(&file)?;
        let stat = Stat::of(&file)?;
        if stat.size != size {
            return Err(Errno::AGAIN);
        }
        if sync {
            rustix::fs::fsync(&file)?;
        }
        Ok(SealedContent::new(id, size, hash, stat.mtime))
    }
}
