//! What a run is asked to be and what it turned out to be.
//!
//! Plain data only: no I/O, no unsafe code, no knowledge of how anything is done. Every other crate but the guest
//! agent's two speaks in these types.

mod ask;
mod bytes;
mod capability;
mod confinement;
mod control;
mod envelope;
mod evidence;
mod executor;
mod exit;
mod glob;
mod id;
mod run;
mod sources;
mod worker;

pub use ask::{Answer, AnswerRecord, AnswerScope, AnsweredBy, Question, Subject};
pub use bytes::OsBytes;
pub use capability::{Capability, CapabilityState};
pub use confinement::{Confinement, EnvironmentMode, HomeView, HostMount};
pub use control::{CONTROL_LIMIT, CONTROL_SOCKET, ControlAnswer, ControlRequest, Saved};
pub use envelope::{Envelope, EnvelopeError, Magic};
pub use evidence::{
    BUNDLE_SCHEMA, Bundle, Control, Dimension, Interruption, KnownBy, Level, Need, Observation, Outcome, Probe,
    Receipt, Safety, StageRecord, StageState,
};
pub use executor::{Executor, ExecutorKind, ExecutorRequest, Refusal};
pub use exit::{CommandEnd, ExitCode, signal_name};
pub use glob::{PlainGlob, is_plain, matches_name};
pub use id::{ParseRunIdError, RunId};
pub use run::{
    CommandSpec, Durability, EgressDefault, EgressSpec, FilesystemMode, GuestRoot, NetworkMode, PublishSpec, Resources,
    RunSpec, StageSpec,
};
pub use sources::{LeftOut, ProfileGrant, Sources};
pub use worker::{WorkerEvent, WorkerFailure, WorkerJob};
