//! Why an apply did not happen, or not wholly.

use std::path::PathBuf;

use super::conflict::{Conflict, ConflictKind};
use super::fault::Fault;
use super::home::HomeError;
use super::ledger::LedgerError;
use super::recovery::RecoverError;
use super::selection::SelectionError;
use crate::review::{ExecSink, quoted};
use crate::{LoadError, RelPath};

/// Why an apply did not happen, or not wholly.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The stage's directory can't be used, for instance because a run is at it.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The stage is not sealed, or damaged. Nothing was written.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The ledger can't be trusted. Nothing was written.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// An earlier apply was cut off and can't be finished. Nothing else was written.
    #[error(transparent)]
    Recover(RecoverError),
    /// The selection makes no sense. Nothing was written.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// The changes contradict each other: the stage is damaged. Nothing was written.
    #[error("the stage is damaged: {}: {what}", quoted(.path.as_bytes()))]
    Malformed {
        /// Where.
        path: RelPath,
        /// What is wrong there.
        what: &'static str,
    },
    /// A staged content is not what was sealed. Nothing was written.
    #[error("the stage is damaged: the content of {} is not what was sealed", quoted(.0.as_bytes()))]
    Damaged(RelPath),
    /// The target is the stage, or in it.
    #[error("{0:?} is in the stage itself")]
    TargetInStage(PathBuf),
    /// The project is not what the command found. Nothing was written.
    #[error("{} changed since the command ran; nothing was applied", count(.0.len()))]
    Conflicts(Vec<Conflict>),
    /// Changes make the host run something, and that was not allowed. Nothing was written.
    #[error("{} would make the host run something; nothing was applied", count(paths(.0)))]
    ExecSinks(Vec<ExecSink>),
    /// A system call failed. Nothing was written.
    #[error(transparent)]
    Io(#[from] Fault),
    /// It stopped on the way.
    #[error(transparent)]
    Partial(Box<Partial>),
}

/// An apply that stopped on the way. The next command on the stage finishes what can be finished.
#[derive(Debug, thiserror::Error)]
#[error("stopped at {}: {what}; {} done, {} not", quoted(.at.as_bytes()), count(.done.len()), count(.undone.len()))]
pub struct Partial {
    /// The path that stopped it.
    pub at: RelPath,
    /// Why.
    pub what: PartialCause,
    /// Paths that are as the command left them.
    pub done: Vec<RelPath>,
    /// Paths that are as they were.
    pub undone: Vec<RelPath>,
    /// Files of the person's that could not be put back to their place, and where they are once the next command on the
    /// stage has finished this apply.
    pub kept: Vec<PathBuf>,
}

/// Why an apply stopped on the way.
#[derive(Debug, thiserror::Error)]
pub enum PartialCause {
    /// Somebody changed the path at that moment.
    #[error("{0}")]
    Contested(ConflictKind),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] Fault),
}

impl From<RecoverError> for ApplyError {
    fn from(e: RecoverError) -> Self {
        match e {
            RecoverError::Home(e) => Self::Home(e),
            RecoverError::Ledger(e) => Self::Ledger(e),
            other => Self::Recover(other),
        }
    }
}

/// Several reasons can be those of one path.
fn paths(sinks: &[ExecSink]) -> usize {
    sinks.chunk_by(|a, b| a.path == b.path).count()
}

pub(super) fn count(paths: usize) -> String {
    format!("{paths} {}", if paths == 1 { "path" } else { "paths" })
}
