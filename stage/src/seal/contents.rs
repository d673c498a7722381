//! Contents in upper: dropping those that nothing needs, hashing the others; bringing all of the stage to disk.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

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

    /// Hashes everything; what the seal is to say.
    pub(super) fn settle(&self) -> Result<SealBody, SealError> {
        let ids: Vec<NodeId> = self.needed()?.into_keys().collect();
        let results = crew::each(&ids, |id| self.content(*id));
        let mut contents = Vec::with_capacity(ids.len());
        for (id, result) in ids.iter().zip(results) {
            contents.push(result.map_err(SealError::io(self.content_path(*id)))?);
        }
        let by_id = contents.iter().map(|c| (c.id(), *c)).collect();
        let changes = net_changes(&self.tree, &by_id).map_err(|m| self.damaged(m))?.len() as u64;
        let journal = self.dir.join(JOURNAL);
        self.journal.trim().map_err(SealError::io(&journal))?;
        let (journal_hash, journal_length) = Journal::hash(self.dir).map_err(SealError::io(&journal))?;
        Ok(SealBody { journal_length, journal_hash, changes, contents })
    }

    fn content(&self, id: NodeId) -> Result<SealedContent, Errno> {
        let file = self.upper.content(id, false)?;
        let (hash, size) = hash_file(&file)?;
        let stat = Stat::of(&file)?;
        if stat.size != size {
            return Err(Errno::AGAIN);
        }
        Ok(SealedContent::new(id, size, hash, stat.mtime))
    }

    fn content_path(&self, id: NodeId) -> PathBuf {
        self.dir.join(UPPER).join(content_name(id))
    }

    /// Brings the whole stage to disk, and with it the seal that is to be published.
    pub(super) fn sync(&self, body: &SealBody, seal: &Path) -> Result<(), SealError> {
        let upper = self.dir.join(UPPER);
        let mut parts = vec![seal.to_owned(), self.dir.join(JOURNAL), upper.clone(), self.dir.to_owned()];
        if body.contents.len() < SYNC_EACH {
            parts.extend(body.contents.iter().map(|c| self.content_path(c.id())));
        } else {
            rustix::fs::syncfs(self.upper.dir()).map_err(SealError::io(&upper))?;
        }
        let synced = crew::wait_for_each(&parts, |path| {
            File::options().read(true).custom_flags(layout::nofollow()).open(path)?.sync_all()
        });
        parts.iter().zip(synced).try_for_each(|(path, synced)| synced.map_err(SealError::io::<io::Error>(path)))
    }
}
