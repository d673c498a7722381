//! The stage that a person means.

use std::ffi::OsStr;
use std::path::PathBuf;

use pvisor_spec::{ExitCode, StageState};
use pvisor_stage::LoadError;

use crate::report::{Failure, plain_path};
use crate::resolve::Ambient;
use crate::runs::{Run, Store, StoreError};

/// A stage, with the run that made it where the store knows it.
#[derive(Debug)]
pub(crate) struct Target {
    /// The stage's directory.
    pub(crate) dir: PathBuf,
    /// Its run.
    pub(crate) run: Option<Run>,
}

impl Target {
    /// How the person can name it again.
    pub(crate) fn name(&self) -> String {
        match &self.run {
            Some(run) => run.id.to_string(),
            None => plain_path(&self.dir),
        }
    }
}

/// The stage of a run that is over, by the run's name or by the stage's directory.
///
/// # Errors
/// There is no such run, it goes on, or it left no stage.
pub(crate) fn find(name: &OsStr, store: &Store, ambient: &Ambient) -> Result<Target, Failure> {
    let run = match store.find(name, &ambient.cwd) {
        Ok(run) => run,
        Err(unknown @ (StoreError::NoSuchRun { .. } | StoreError::NoRuns)) => {
            // A stage whose run was kept elsewhere, or is not kept any more.
            let dir = ambient.cwd.join(name);
            return match pvisor_stage::status(&dir) {
                Err(LoadError::NotAStage(_) | LoadError::Io { .. }) => Err(unknown.into()),
                _ => Ok(Target { dir, run: None }),
            };
        }
        Err(other) => return Err(other.into()),
    };
    if run.is_live() {
        return Err(Failure::new("run_goes_on", format!("{} is still going on", run.id))
            .hint("wait for its end, or end it with `pvisor kill`")
            .code(ExitCode::NOT_SEALED));
    }
    let run = if run.only_seal_failed() { seal_later(run, store)? } else { run };
    match (run.stage_state(), run.stage_dir()) {
        (StageState::Discarded, _) => {
            Err(Failure::new("discarded", format!("the changes of {} were discarded", run.id)))
        }
        (StageState::Sealed | StageState::Unsealed, Some(dir)) => Ok(Target { dir: dir.to_owned(), run: Some(run) }),
        (StageState::None, Some(_)) => Err(Failure::new("no_stage", format!("{} ended before it had a stage", run.id))
            .hint(format!("`pvisor status {}` tells why", run.id))),
        (_, None) => Err(Failure::new(
            "no_stage",
            format!("{} had no stage: it wrote {} directly", run.id, plain_path(run.record.spec.project.as_path())),
        )
        .hint("run with --stage, or without --executor host, to review changes before they are made")),
    }
}

/// Seals a stage that was complete when its run ended, and could not be sealed then.
fn seal_later(mut run: Run, store: &Store) -> Result<Run, Failure> {
    let Some(dir) = run.stage_dir() else { return Ok(run) };
    let sealed = super::seal(dir).map_err(|broken| Failure::from(broken).code(ExitCode::NOT_SEALED))?;
    store.amend(&run, |record| record.sealed_later = Some(sealed.clone()))?;
    run.record.sealed_later = Some(sealed);
    Ok(run)
}
