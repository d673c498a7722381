//! What the supervisor tells a worker process, and what it hears back.
//!
//! The job is one JSON document on a line of the worker's descriptor for it, and each answer to one of its questions
//! another; events come back as one JSON document a line. The supervisor takes an event for a claim, never for a fact, and never parses bytes of a guest.

use serde::{Deserialize, Serialize};

use crate::{CommandEnd, OsBytes, Probe, Question, Receipt, RunSpec};

/// Everything a worker needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerJob {
    /// The run.
    pub spec: RunSpec,
    /// The run's own directory: absolute, exists, mode 0700.
    pub run_dir: OsBytes,
    /// Guest kernel image (krun).
    pub kernel: Option<OsBytes>,
    /// Guest initramfs (krun).
    pub initramfs: Option<OsBytes>,
    /// Hidden paths of the guest's or the sandbox's root: globs against the absolute path on the host.
    pub hidden: Vec<String>,
    /// The stage is there, sealed: the run goes on with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resume: bool,
    /// Controls to leave out, by name: for tests that show what each is for. pvisor itself never sets it, and what is
    /// left out is not claimed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
}

/// What a worker says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerEvent {
    /// A control was installed.
    Installed(Receipt),
    /// What the policy forbids was tried.
    Probed(Probe),
    /// The command runs. `pid`: its process id on the host where it has one.
    Started {
        /// Host process id.
        pid: Option<u32>,
    },
    /// The command wants to reach something that the person is to be asked about. It waits for the [`crate::Answer`], and
    /// the next question comes after that.
    Asked(Question),
    /// The command ended and every writer of the stage has stopped: the stage can be sealed.
    Ended(CommandEnd),
    /// The run broke: the stage stays unsealed.
    Failed(WorkerFailure),
}

/// What broke. The texts are lower-case fragments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct WorkerFailure {
    /// A word for programs: `kvm`, `kernel`, `stage`, `mount`, `guest_panic`, `guest_lost`, `handshake`, `internal` …
    pub kind: String,
    /// The whole chain of causes, outermost first.
    pub message: String,
    /// What the person can try; may be empty.
    pub hint: String,
}
