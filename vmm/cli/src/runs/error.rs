//! What can be wrong with the run store.

use std::io;
use std::path::PathBuf;

use pvisor_spec::{ExitCode, RunId};

use crate::report::{Failure, chain};

/// Why the run store did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("neither PVISOR_RUN_HOME nor XDG_STATE_HOME nor HOME says where runs are kept")]
    NoHome,
    #[error("runs can't be kept in {}", path.display())]
    Unusable { path: PathBuf, source: io::Error },
    #[error("runs can't be kept in {}: it belongs to user {owner}", path.display())]
    NotOurs { path: PathBuf, owner: u32 },
    #[error("can't read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("can't write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{} is damaged: {reason}", path.display())]
    Corrupt { path: PathBuf, reason: String },
    #[error("no run is called {name:?}")]
    NoSuchRun { name: String, near: Vec<RunId> },
    #[error("{name:?} is the beginning of {} runs", candidates.len())]
    Ambiguous { name: String, candidates: Vec<RunId> },
    #[error("there are no runs yet")]
    NoRuns,
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let message = chain(&error);
        match error {
            StoreError::NoHome | StoreError::Unusable { .. } => {
                Self::new("state_directory", message).hint("set PVISOR_RUN_HOME to a directory that you can write")
            }
            StoreError::NotOurs { .. } => Self::new("state_directory", message)
                .hint("set PVISOR_RUN_HOME to a directory of your own, or run pvisor as the user that it belongs to"),
            StoreError::Read { .. } => Self::new("run_store", message),
            StoreError::Write { .. } => Self::new("run_store", message)
                .hint("free some space there, or set PVISOR_RUN_HOME to a directory that you can write"),
            StoreError::Corrupt { path, .. } => {
                let dir = path.parent().unwrap_or(&path);
                Self::new("run_record", message).hint(format!(
                    "the other runs are not concerned; its stage may still be whole: `pvisor review {}`",
                    dir.join("stage").display()
                ))
            }
            StoreError::NoSuchRun { near, .. } => {
                let failure = Self::new("no_such_run", message).code(ExitCode::NO_SUCH_RUN);
                let failure = match near.first() {
                    Some(newest) => failure.hint(format!("the newest run is {newest}")),
                    None => failure,
                };
                failure.hint("`pvisor list` shows all runs; a stage's directory and `last` name one too")
            }
            StoreError::Ambiguous { candidates, .. } => {
                let names: Vec<String> = candidates.iter().take(5).map(RunId::to_string).collect();
                Self::new("ambiguous_run", message)
                    .hint(format!("give more of it: {}", names.join(", ")))
                    .code(ExitCode::NO_SUCH_RUN)
            }
            StoreError::NoRuns => {
                Self::new("no_such_run", message).hint("`pvisor run -- CMD` makes one").code(ExitCode::NO_SUCH_RUN)
            }
        }
    }
}
