//! `pvisor discard`.

use pvisor_spec::{ExitCode, StageState};
use pvisor_stage::{DiscardError, HomeError};
use serde::Serialize;

use super::surroundings;
use crate::args::RunNameArgs;
use crate::report::{Failure, answer, answer_json, plain_path};
use crate::runs::now_ms;
use crate::stages::{self, Target};

#[derive(Serialize)]
struct Answer {
    stage: pvisor_spec::OsBytes,
    /// `false`: there was nothing to discard any more.
    discarded: bool,
    /// Files of the stage that were removed.
    files: u64,
}

pub(super) fn discard(args: &RunNameArgs) -> Result<u8, Failure> {
    let (ambient, store) = surroundings()?;
    let target = match stages::find(&args.run, &store, &ambient) {
        Ok(target) => target,
        // To discard twice is to have discarded.
        Err(failure) if failure.kind == "discarded" => {
            let run = store.find(&args.run, &ambient.cwd)?;
            let dir = run.stage_dir().unwrap_or(&run.dir).to_owned();
            return tell(args.json, &Target { dir, run: Some(run) }, None);
        }
        Err(failure) => return Err(failure),
    };
    let files = match pvisor_stage::discard(&target.dir) {
        Ok(discarded) => Some(discarded.files),
        // Removed by hand, or by a discard that was cut off in the end: the record is still to be brought up to date.
        Err(DiscardError::Home(HomeError::NotAStage(_) | HomeError::Io(_))) if is_gone(&target) => None,
        Err(e) => return Err(stages::discard_failure(&e)),
    };
    if let Some(run) = &target.run
        && run.stage_state() != StageState::Discarded
    {
        store.amend(run, |record| record.discarded_ms = Some(now_ms()))?;
    }
    tell(args.json, &target, files)
}

/// Nothing is left of the stage. An empty directory in its place is what a discard removes last.
fn is_gone(target: &Target) -> bool {
    let removed = || target.run.is_some() && std::fs::remove_dir(&target.dir).is_ok();
    matches!(target.dir.symlink_metadata(), Err(e) if e.kind() == std::io::ErrorKind::NotFound) || removed()
}

fn tell(json: bool, target: &Target, files: Option<u64>) -> Result<u8, Failure> {
    if json {
        let stage = target.dir.clone().into();
        answer_json(&Answer { stage, discarded: files.is_some(), files: files.unwrap_or_default() })?;
    } else {
        answer(|out| match files {
            Some(_) => writeln!(out, "the changes of {} are discarded", target.name()),
            None => writeln!(out, "there is nothing left to discard in {}", plain_path(&target.dir)),
        })?;
    }
    Ok(ExitCode::OK)
}
