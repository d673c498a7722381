//! Going on with a stage that was sealed: what a fork begins with.

use std::io;
use std::path::Path;

use super::options::{Parts, at, header, place_check, reserve};
use super::{NodeId, OpenError, Stage, StageOptions, State};
use crate::apply::LEDGER;
use crate::journal::{Frames, Journal};
use crate::layout::{self, JOURNAL, Lock, RESERVE, SEAL, UPPER, WORK};
use crate::load::{self, LoadError, SealedStage};
use crate::lower::{Lower, Mask};
use crate::upper::Upper;

impl Stage {
    /// Goes on with the sealed stage of `lower` at `dir`, of which nothing has been applied: its changes show, and come
    /// before those that follow. It is not sealed any more then. Contents that another stage or a savepoint has as the
    /// same file are left to them.
    ///
    /// # Errors
    /// [`OpenError`]; the stage stays as it is.
    pub fn resume(dir: &Path, lower: &Path, options: &StageOptions) -> Result<Self, OpenError> {
        let lower = lower.canonicalize().map_err(at(lower))?;
        let dir = dir.canonicalize().map_err(at(dir))?;
        let mask = Mask::new(&lower, &options.hidden, &options.boundaries)?;
        place_check(&dir, &lower, &mask)?;
        let lock = Lock::take(&dir).map_err(at(&dir))?.ok_or_else(|| OpenError::InUse(dir.clone()))?;
        load::check_stage(&dir)?;
        SealedStage::read(&dir)?;
        let unfit = |what| OpenError::Unfit { stage: dir.clone(), lower: lower.clone(), what };
        if dir.join(LEDGER).symlink_metadata().is_ok() {
            return Err(unfit("something of it was applied"));
        }
        let replayed = load::replay_live(&dir).map_err(|e| e.into_load(&dir))?;
        if replayed.torn {
            return Err(LoadError::Damaged { path: dir.clone(), what: "the journal is cut off" }.into());
        }
        let pinned = Lower::open(&lower).map_err(io::Error::from).map_err(at(&lower))?;
        let (root, found) = (replayed.header.root, pinned.root_stat());
        if (root.dev, root.ino) != (found.dev, found.ino) {
            return Err(unfit("it is of another one"));
        }
        let upper = Upper::open(&dir).map_err(io::Error::from).map_err(at(&dir.join(UPPER)))?;
        let journal = rewrite(&dir, &header(&lower, &root, options), replayed.end)?;
        let parts = Parts { dir, lower: pinned, mask, upper, lock };
        let stage = Self::of(parts, State { tree: replayed.tree, journal }, options);
        stage.count_contents()?;
        Ok(stage)
    }

    fn count_contents(&self) -> Result<(), OpenError> {
        let shared = &self.shared;
        for (id, node) in &shared.state().tree.nodes {
            let Some(body) = node.body.as_ref().filter(|b| b.in_upper()) else { continue };
            body.set_shared(true);
            if let Some(quota) = &shared.quota {
                quota.count(*id, &content(shared, *id)?);
            }
        }
        Ok(())
    }
}

fn content(shared: &super::Shared, id: NodeId) -> Result<std::fs::File, OpenError> {
    shared.upper.content(id, false).map_err(io::Error::from).map_err(at(&shared.dir.join(UPPER)))
}

/// The same frames under a header of today. What is in between is a stage without a seal.
fn rewrite(dir: &Path, header: &crate::journal::Header, end: u64) -> Result<Journal, OpenError> {
    let work = dir.join(WORK);
    let temp = work.join(JOURNAL);
    match std::fs::remove_file(&temp) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(at(&temp)(e)),
        _ => {}
    }
    let start = Frames::open(dir).map_err(|source| LoadError::Journal { path: dir.join(JOURNAL), source })?.at();
    let journal = Journal::create_from(&work, header, dir, (start, end)).map_err(at(&temp))?;
    reserve(&work.join(RESERVE));
    let seal = dir.join(SEAL);
    std::fs::remove_file(&seal).map_err(at(&seal))?;
    layout::sync_dir(dir).map_err(at(dir))?;
    std::fs::rename(&temp, dir.join(JOURNAL)).map_err(at(&dir.join(JOURNAL)))?;
    Ok(journal)
}
