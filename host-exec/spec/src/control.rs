//! What a command of the same person asks of a run that goes on, and what it hears.
//!
//! The worker listens on a socket in the run's directory. A connection is one request and one answer, each one JSON
//! document on one line.

use serde::{Deserialize, Serialize};

use crate::WorkerFailure;

/// Name of the socket in the run's directory.
pub const CONTROL_SOCKET: &str = "control";

/// Longest request and longest answer, in bytes, newline included.
pub const CONTROL_LIMIT: usize = 64 << 10;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ControlRequest {
    /// Make a savepoint of the stage.
    Save {
        /// What to call it; `None`: the next free number.
        name: Option<String>,
        /// How long the command may be held still for it, in milliseconds.
        pause_limit_ms: u64,
    },
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlAnswer {
    /// The savepoint is there.
    Saved(Saved),
    /// It was not done, and the run goes on.
    Failed(WorkerFailure),
}

/// A savepoint of a run that goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Its name.
    pub name: String,
    /// How long the command was held still, in milliseconds.
    pub pause_ms: u64,
}
