//! The executor as the rest of pvisor sees it.

use std::sync::Arc;

use pvisor_spec::{CommandEnd, Executor, ExecutorKind, Refusal, WorkerEvent, WorkerFailure, WorkerJob};

use crate::probe;
use crate::work;

/// Runs commands as processes of the host.
///
/// `work` needs a process of its own that has one thread and no other children: it forks, mounts, takes over signals
/// and lets itself be killed when its parent process, or the thread of it that started this one, ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostExecutor;

impl Executor for HostExecutor {
    fn kind(&self) -> ExecutorKind {
        ExecutorKind::Host
    }

    fn probe(&self) -> Result<(), Refusal> {
        probe::stage_mount()
    }

    fn work(
        &self,
        job: WorkerJob,
        report: Arc<dyn Fn(WorkerEvent) + Send + Sync>,
    ) -> Result<CommandEnd, WorkerFailure> {
        work::run(&job, &*report)
    }
}
