//! Savepoints while the command runs: its processes are held still, what they mapped is written, no request is at work,
//! and only then the stage is taken. The rest is done while they go on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pvisor_spec::{ControlAnswer, ControlRequest, Saved, WorkerFailure};
use pvisor_virtiofs::StageFs;
use pvisor_virtiofs::fuse::Mappings;
use pvisor_virtiofs::stage::SavepointError;
use rustix::io::Errno;
use rustix::process::Pid;

use crate::failure::{failure, failure_from};
use crate::launch::{Channel, Still, StillError};
use crate::log::now_ms;

/// Word for programs: the pause was too short.
const PAUSE: &str = "pause_limit";

/// Saves the stage of a command that runs.
pub(super) struct Saver {
    pub(super) filesystem: Arc<StageFs>,
    pub(super) mappings: Mappings,
    pub(super) channel: Arc<Channel>,
    /// Process 1 of the command's namespace.
    pub(super) first: Pid,
}

impl Saver {
    /// Does what is asked.
    pub(super) fn answer(&self, request: &ControlRequest) -> ControlAnswer {
        let ControlRequest::Save { name, pause_limit_ms } = request;
        match self.save(name.as_deref(), Duration::from_millis(*pause_limit_ms)) {
            Ok(saved) => ControlAnswer::Saved(saved),
            Err(failure) => ControlAnswer::Failed(failure),
        }
    }

    fn save(&self, name: Option<&str>, limit: Duration) -> Result<Saved, WorkerFailure> {
        let stage = self.filesystem.stage();
        let prepared = stage.prepare_savepoint(name, now_ms()).map_err(|e| not_saved(&e, limit))?;
        let begin = Instant::now();
        let deadline = begin.checked_add(limit).unwrap_or(begin);
        let still = Still::hold(&self.channel, self.first, deadline).map_err(|e| not_held(&e, limit))?;
        for file in still.mapped_files().map_err(|e| not_held(&e, limit))? {
            if Instant::now() >= deadline {
                return Err(too_long("what the command has mapped was not written", limit));
            }
            self.mappings
                .write_back(file)
                .map_err(|e| failure("savepoint", format!("what the command has mapped can't be written: {e}"), ""))?;
        }
        let paused = self.filesystem.pause(deadline).map_err(|e| match e {
            Errno::TIMEDOUT => too_long("a request to the stage did not come to its end", limit),
            _ => failure("savepoint", "the run is ending", ""),
        })?;
        // As long as all is still, nobody is in the middle of what takes several requests.
        still.check().map_err(|e| not_held(&e, limit))?;
        let taken = prepared.take(deadline).map_err(|e| not_saved(&e, limit))?;
        drop(paused);
        drop(still);
        let pause_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        let savepoint = taken.finish().map_err(|e| not_saved(&e, limit))?;
        Ok(Saved { name: savepoint.name, pause_ms })
    }
}

fn not_held(error: &StillError, limit: Duration) -> WorkerFailure {
    match error {
        StillError::Restless { .. } => too_long(&error.to_string(), limit),
        StillError::Continued { .. } => failure_from("continued", error, "try it again"),
        StillError::Silent | StillError::Unreadable { .. } => failure_from("savepoint", error, ""),
    }
}

fn not_saved(error: &SavepointError, limit: Duration) -> WorkerFailure {
    match error {
        SavepointError::Overdue => too_long("not all of the stage could be taken", limit),
        _ => failure_from("savepoint", error, ""),
    }
}

fn too_long(what: &str, limit: Duration) -> WorkerFailure {
    let message = format!("the pause came to its limit of {limit:?}: {what}");
    failure(PAUSE, message, "nothing was saved and the run goes on; --max-pause gives it longer")
}
