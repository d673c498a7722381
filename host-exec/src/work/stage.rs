//! The stage of a run, made and served.

use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pvisor_spec::WorkerFailure;
use pvisor_virtiofs::fuse::{self, Server};
use pvisor_virtiofs::stage::{Keep, Stage, StageOptions};
use pvisor_virtiofs::{FsOptions, StageFs};

use super::save::Saver;
use crate::failure::{failure, failure_from};
use crate::launch::{Launched, Served};
use crate::plan::Plan;

/// How long the last mount may take to go after the command's processes are gone. Somebody who entered the mount
/// namespace from outside can hold it.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(30);

/// Directory of the home's throw-away changes in the run's own.
const HOME: &str = "home";

/// A stage on its mount.
pub(super) struct ServedStage {
    stage: Arc<Stage>,
    filesystem: Arc<StageFs>,
    server: Server,
    /// Its directory, where nobody wants its changes.
    throw_away: Option<PathBuf>,
}

impl ServedStage {
    /// Makes the stage and answers the requests that come from its mount.
    pub(super) fn open(plan: &Plan, which: Served, device: OwnedFd) -> Result<Self, WorkerFailure> {
        let hidden = plan.sandbox.as_ref().map_or_else(Vec::new, |sandbox| sandbox.hidden.clone());
        let home = plan.sandbox.as_ref().and_then(|sandbox| sandbox.home.as_ref());
        let options = StageOptions { hidden, ..StageOptions::default() };
        let (dir, lower, options, resume) = match (which, &plan.stage, home) {
            (Served::Project, Some(spec), _) => {
                let options = StageOptions {
                    durability: spec.durability,
                    keep: Keep::Reviewable,
                    max_bytes: spec.max_bytes,
                    ..options
                };
                (spec.dir.clone(), &plan.project, options, spec.resume)
            }
            (Served::Home, _, Some(home)) => {
                (plan.run_dir.join(HOME), home, StageOptions { keep: Keep::ThrowAway, ..options }, false)
            }
            _ => return Err(failure("internal", "a mount without a stage", "")),
        };
        let made = if resume { Stage::resume(&dir, lower, &options) } else { Stage::create(&dir, lower, options) };
        let stage = made.map_err(|e| failure_from("stage", &e, "name another directory with --stage"))?;
        let stage = Arc::new(stage);
        let filesystem = Arc::new(StageFs::new(Arc::clone(&stage), FsOptions::default()));
        let server = fuse::serve(Arc::clone(&filesystem), device, threads())
            .map_err(|e| failure_from("mount", &e, crate::launch::FUSE_HINT))?;
        let throw_away = (which == Served::Home).then_some(dir);
        Ok(Self { stage, filesystem, server, throw_away })
    }

    /// What saves it while the command runs; `None`: nobody wants its changes, or its processes can't be held.
    pub(super) fn saver(&self, launched: &Launched) -> Option<Saver> {
        let apart = launched.namespaces.is_some_and(|n| n.pid);
        (apart && self.throw_away.is_none()).then(|| Saver {
            filesystem: Arc::clone(&self.filesystem),
            mappings: self.server.mappings(),
            channel: Arc::clone(&launched.channel),
            first: launched.pid,
        })
    }

    /// Waits for the mount to go, then brings the journal to disk. Nothing writes to the stage any more.
    pub(super) fn finish(self) -> Result<(), WorkerFailure> {
        match self.server.finish(UNMOUNT_LIMIT) {
            Ok(()) => {}
            // Nothing gets to the stage any more, so it is complete all the same.
            Err(error @ fuse::ServeError::StillMounted(_)) => tracing::warn!("{error}"),
            Err(error) => return Err(failure_from("stage", &error, "")),
        }
        if let Some(dir) = self.throw_away {
            drop((self.stage, self.filesystem));
            if let Err(error) = std::fs::remove_dir_all(&dir) {
                tracing::warn!(path = %dir.display(), %error, "can't remove what was written to the home directory");
            }
            return Ok(());
        }
        self.stage.sync().map_err(|e| failure("stage", format!("can't bring the journal to disk: {e}"), ""))
    }
}

/// Threads for requests: they wait for the disk more than they compute.
fn threads() -> NonZeroUsize {
    // So many copies of large files at once hold up nobody else.
    const LEAST: usize = 8;
    const MOST: usize = 16;
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new(processors.clamp(LEAST, MOST)).unwrap_or(NonZeroUsize::MIN)
}
