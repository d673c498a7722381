//! Why a savepoint could not be made or used.

use std::path::PathBuf;

use crate::apply::{Fault, HomeError, LedgerError, RecoverError};
use crate::{LoadError, SealError};

/// Why a savepoint could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum SavepointError {
    /// The stage's directory can't be used, for instance because a run is at it.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// An apply or undo was cut off and can't be finished.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// The ledger can't be trusted.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The stage can't be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The restored stage can't be sealed. It can be restored again.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] Fault),
    /// It can't be the name of one.
    #[error("{0:?} can't be a savepoint's name: letters, digits, dots and dashes, 64 at the most")]
    Name(String),
    /// There is one of that name.
    #[error("there is a savepoint {0:?} already")]
    Exists(String),
    /// There is none of that name.
    #[error("there is no savepoint {0:?}")]
    Unknown(String),
    /// The stage has none.
    #[error("the stage has no savepoint")]
    None,
    /// It is not what was saved.
    #[error("the savepoint {name:?} is damaged: {what}")]
    Damaged {
        /// Which.
        name: String,
        /// How.
        what: String,
    },
    /// A restore was cut off; until it is done, the stage is neither the one nor the other.
    #[error("the savepoint {0:?} was being restored, and that was cut off")]
    Restoring(String),
    /// Other changes than those of the savepoint are applied.
    #[error("what is applied from this stage is not what the savepoint has")]
    Applied,
    /// The machine was started anew since the stage was written, so its files may not be what was written.
    #[error("the machine was restarted before the stage {0:?} was sealed")]
    Restarted(PathBuf),
    /// The pause of a run that goes on came to its limit.
    #[error("the pause came to its limit while the stage was saved")]
    Overdue,
    /// Nothing of the stage is kept.
    #[error("the stage is thrown away at the end, so nothing of it is saved")]
    ThrownAway,
    /// The directory for a fork has something in it.
    #[error("{0:?} is there already")]
    Occupied(PathBuf),
}

impl SavepointError {
    pub(super) fn damaged(name: &str, what: impl Into<String>) -> Self {
        Self::Damaged { name: name.to_owned(), what: what.into() }
    }
}
