//! Content hashes of preimages that were put off.

use super::{SealError, Sealer, crew};
use crate::Errno;
use crate::journal::{HashState, Record};
use crate::live::NodeId;
use crate::lower::Lower;
use crate::stat::Stat;
use crate::upper::hash_file;

struct Job {
    id: NodeId,
    /// Its paths in the lower: one name of a hard link may be gone, another not.
    paths: Vec<Vec<u8>>,
    stat: Stat,
}

impl Sealer<'_> {
    /// Takes every hash that is pending; where the file is not as it was pinned, it is lost.
    pub(super) fn finish_preimages(&mut self) -> Result<(), SealError> {
        let pending = self.tree.nodes.iter().filter_map(|(id, node)| {
            let pin = node.pin.as_ref().filter(|p| p.hash == HashState::Pending)?;
            let paths = self.tree.lower_paths(node).collect();
            Some(Job { id: *id, paths, stat: pin.stat })
        });
        let mut jobs: Vec<Job> = pending.collect();
        jobs.sort_unstable_by_key(|j| j.id);
        for (job, hash) in jobs.iter().zip(crew::each(&jobs, |job| hash(&self.lower, job))) {
            self.record(&Record::Hash { node: job.id.0, hash })?;
        }
        Ok(())
    }
}

fn hash(lower: &Lower, job: &Job) -> HashState {
    let taken = job.paths.iter().find_map(|path| hash_at(lower, path, &job.stat).ok().flatten());
    taken.map_or(HashState::Lost, HashState::Known)
}

fn hash_at(lower: &Lower, path: &[u8], pinned: &Stat) -> Result<Option<crate::ContentHash>, Errno> {
    let (file, before) = lower.open_file(path)?;
    if !before.same_identity(pinned) {
        return Ok(None);
    }
    let (hash, size) = hash_file(&file)?;
    let steady = size == pinned.size && Stat::of(&file)?.same_identity(pinned);
    Ok(steady.then_some(hash))
}
