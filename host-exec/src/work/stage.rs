//! The stage of a run, made and served.

use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use pvisor_spec::WorkerFailure;
use pvisor_virtiofs::fuse::{self, Server};
use pvisor_virtiofs::stage::{Keep, Stage, StageOptions};
use pvisor_virtiofs::{FsOptions, StageFs};

use crate::failure::{failure, failure_from};
use crate::plan::Plan;

/// How long the last mount may take to go after the command's processes are gone. Somebody who entered the mount
/// namespace from outside can hold it.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(30);

/// A stage on its mount.
pub(super) struct ServedStage {
    stage: Arc<Stage>,
    server: Server,
}

impl ServedStage {
    /// Makes the stage and answers the requests that come from its mount.
    pub(super) fn open(plan: &Plan, device: OwnedFd) -> Result<Self, WorkerFailure> {
        let Some(spec) = &plan.stage else { return Err(failure("internal", "a mount without a stage", "")) };
        let options = StageOptions {
            durability: spec.durability,
            keep: Keep::Reviewable,
            max_bytes: spec.max_bytes,
            ..StageOptions::default()
        };
        let stage = Stage::create(&spec.dir, &plan.project, options)
            .map_err(|e| failure_from("stage", &e, "name another directory with --stage"))?;
        let stage = Arc::new(stage);
        let filesystem = Arc::new(StageFs::new(Arc::clone(&stage), FsOptions::default()));
        let server = fuse::serve(filesystem, device, threads())
            .map_err(|e| failure_from("mount", &e, crate::launch::FUSE_HINT))?;
        Ok(Self { stage, server })
    }

    /// Waits for the mount to go, then brings the journal to disk. Nothing writes to the stage any more.
    pub(super) fn finish(self) -> Result<(), WorkerFailure> {
        match self.server.finish(UNMOUNT_LIMIT) {
            Ok(()) => {}
            // Nothing gets to the stage any more, so it is complete all the same.
            Err(error @ fuse::ServeError::StillMounted(_)) => tracing::warn!("{error}"),
            Err(error) => return Err(failure_from("stage", &error, "")),
        }
        self.stage.sync().map_err(|e| failure("stage", format!("can't bring the journal to disk: {e}"), ""))
    }
}

/// Threads for requests: they wait for the disk more than they compute.
fn threads() -> NonZeroUsize {
    const MOST: usize = 8;
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new(processors.clamp(2, MOST)).unwrap_or(NonZeroUsize::MIN)
}
