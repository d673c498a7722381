//! Executors: the ways to run a command.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{CommandEnd, WorkerEvent, WorkerFailure, WorkerJob};

/// A way to run a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExecutorKind {
    /// A libkrun guest.
    Krun,
    /// A process of the host.
    Host,
    /// An OCI container.
    Oci,
}

impl fmt::Display for ExecutorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Krun => "krun",
            Self::Host => "host",
            Self::Oci => "oci",
        })
    }
}

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExecutorRequest {
    /// The strongest that this machine can run at speed.
    #[default]
    Auto,
    /// This one or none.
    Only(ExecutorKind),
}

/// Why an executor can't run here, and what to do about it. Both are lower-case fragments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The fact, with its measurement.
    pub reason: String,
    /// What the person can try.
    pub hint: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Refusal {}

/// One way to run a command. `probe` is called in the supervisor, `work` in a worker process that does nothing else.
pub trait Executor {
    /// Which one.
    fn kind(&self) -> ExecutorKind;

    /// Whether it can run here.
    ///
    /// # Errors
    /// The measured reason why it can't.
    fn probe(&self) -> Result<(), Refusal>;

    /// Runs the job to its end, reporting as it goes; what it returns is reported last by the caller. An
    /// implementation may also report [`WorkerEvent::Ended`] itself and never return.
    ///
    /// # Errors
    /// What kept the command from running, or broke under it.
    fn work(
        &self,
        job: WorkerJob,
        report: std::sync::Arc<dyn Fn(WorkerEvent) + Send + Sync>,
    ) -> Result<CommandEnd, WorkerFailure>;
}
