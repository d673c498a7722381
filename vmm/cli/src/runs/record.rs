//! `run.json`: what a run is and how far it came.

use pvisor_spec::{AnswerRecord, Receipt, RunId, RunSpec, StageRecord};
use serde::{Deserialize, Serialize};

use super::ProcessRef;

/// Name and version of the format.
pub(super) const RECORD_SCHEMA: &str = "pvisor.run/1";

/// How far a run came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// The command has not started.
    Preparing,
    /// The command runs.
    Running,
    /// The command is over, its stage is being sealed.
    Sealing,
    /// Over: the bundle says the rest.
    Ended,
}

/// Everything that is known of a run before it is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunRecord {
    /// [`RECORD_SCHEMA`].
    pub(super) schema: String,
    /// What was asked for.
    pub(crate) spec: RunSpec,
    /// Why this executor.
    pub(crate) selection: String,
    /// How far it came.
    pub(crate) phase: Phase,
    /// Milliseconds since the Unix epoch.
    pub(crate) started_ms: u64,
    /// The process that watches over the run.
    pub(crate) supervisor: Option<ProcessRef>,
    /// The process that carries the run out.
    pub(crate) worker: Option<ProcessRef>,
    /// Controls that were installed before the command started.
    #[serde(default)]
    pub(crate) receipts: Vec<Receipt>,
    /// What the person was asked, and the answers.
    #[serde(default)]
    pub(crate) answers: Vec<AnswerRecord>,
    /// The stage, where it could not be sealed at the end of the run and was sealed afterwards.
    #[serde(default)]
    pub(crate) sealed_later: Option<StageRecord>,
    /// When everything that was staged had been applied.
    #[serde(default)]
    pub(crate) applied_ms: Option<u64>,
    /// The run whose changes this one began with.
    #[serde(default)]
    pub(crate) forked_from: Option<RunId>,
    /// Until when what was replaced by applying is kept.
    #[serde(default)]
    pub(crate) originals_until_ms: Option<u64>,
    /// When what was applied was last undone.
    #[serde(default)]
    pub(crate) undone_ms: Option<u64>,
    /// When the stage was discarded.
    #[serde(default)]
    pub(crate) discarded_ms: Option<u64>,
}

impl RunRecord {
    /// The record of a run that begins now, under this process.
    pub(super) fn begin(spec: RunSpec) -> Self {
        Self {
            schema: RECORD_SCHEMA.to_owned(),
            spec,
            selection: String::new(),
            phase: Phase::Preparing,
            started_ms: super::now_ms(),
            supervisor: ProcessRef::own(),
            worker: None,
            receipts: Vec::new(),
            answers: Vec::new(),
            sealed_later: None,
            applied_ms: None,
            forked_from: None,
            originals_until_ms: None,
            undone_ms: None,
            discarded_ms: None,
        }
    }
}
