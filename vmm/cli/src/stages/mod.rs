//! What the command line asks of stages, and how their errors read.

mod failure;
mod originals;
mod selection;
mod target;
mod vacancy;

use std::path::Path;

use pvisor_spec::{Interruption, StageRecord, StageState};
use pvisor_stage::{LoadError, Recovery, Seal, StageStatus};

pub(crate) use failure::{apply_failure, discard_failure, review_failure, savepoint_failure, undo_failure};
pub(crate) use originals::{give_up_originals, remember_applied, remember_undone};
pub(crate) use selection::selection;
pub(crate) use target::{Target, find};
pub(crate) use vacancy::vacant;

use crate::bundle::no_stage;
use crate::report::chain;

/// Kind of the interruption of a run whose stage could not be sealed.
pub(crate) const SEAL_FAILED: &str = "seal";

/// Where the stage in that directory stands, for the bundle of a run that did not seal it.
pub(crate) fn record(dir: &Path) -> StageRecord {
    match pvisor_stage::status(dir) {
        Ok(StageStatus::Sealed { digest, changes }) => sealed(&Seal { digest, changes }),
        Ok(StageStatus::Unsealed | StageStatus::InUse) => unsealed(),
        Err(LoadError::NotAStage(_)) => no_stage(),
        // There, but damaged: nobody may apply it.
        Err(_) => unsealed(),
    }
}

/// Seals the stage of a run whose writers have stopped.
///
/// # Errors
/// It stays unsealed.
pub(crate) fn seal(dir: &Path) -> Result<StageRecord, Interruption> {
    match pvisor_stage::seal(dir) {
        Ok(seal) => Ok(sealed(&seal)),
        Err(e) => Err(Interruption {
            kind: SEAL_FAILED.to_owned(),
            message: format!("the command ended, but its stage can't be sealed: {}", chain(&e)),
            hint: "nothing is lost: when the cause is gone, `pvisor review` seals it".to_owned(),
        }),
    }
}

/// What there was to finish of a run's stage: a fragment for the person.
pub(crate) struct Recovered {
    /// What was done.
    pub(crate) told: String,
    /// It was an undo, and is complete now.
    pub(crate) undone: bool,
}

/// Finishes an apply or undo that was cut off.
pub(crate) fn recover(dir: &Path) -> Option<Recovered> {
    let told = |told: String, undone| Some(Recovered { told, undone });
    match pvisor_stage::recover(dir) {
        Ok(Recovery::Nothing | Recovery::CleanedUp) => None,
        Ok(Recovery::Finished { undo: false, .. }) => {
            told("an apply that had been cut off was finished".to_owned(), false)
        }
        Ok(Recovery::Finished { undo: true, contested, .. }) => {
            told("an undo that had been cut off was finished".to_owned(), contested.is_empty())
        }
        // Another command is at it, or the stage is gone: not what was asked.
        Err(pvisor_stage::RecoverError::Home(_)) => None,
        Err(e) => told(chain(&e), false),
    }
}

/// The record of a sealed stage.
pub(crate) fn sealed(seal: &Seal) -> StageRecord {
    StageRecord { state: StageState::Sealed, changes: Some(seal.changes), seal: Some(hex(&seal.digest)) }
}

/// A digest as it is written.
pub(crate) fn hex(digest: &[u8; 32]) -> String {
    digest.iter().map(|b| format!("{b:02x}")).collect()
}

fn unsealed() -> StageRecord {
    StageRecord { state: StageState::Unsealed, changes: None, seal: None }
}
