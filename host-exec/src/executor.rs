//! The executor as the rest of pvisor sees it.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use pvisor_spec::{CommandEnd, Executor, ExecutorKind, Refusal, WorkerEvent, WorkerFailure, WorkerJob};

use crate::probe;
use crate::work;

/// Runs commands as processes of the host.
///
/// `work` needs a process of its own that has one thread and no other children: it forks, mounts, takes over signals
/// and lets itself be killed when its parent process, or the thread of it that started this one, ends.
#[derive(Debug, Default)]
pub struct HostExecutor {
    answers: Mutex<Option<OwnedFd>>,
}

impl HostExecutor {
    /// One that hears answers to its questions ([`WorkerEvent::Asked`]) from this pipe, each a JSON document
    /// ([`pvisor_spec::Answer`]) on a line. Without, nobody is asked and what would be is denied.
    pub fn answered_from(answers: OwnedFd) -> Self {
        Self { answers: Mutex::new(Some(answers)) }
    }
}

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
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner).take();
        work::run(&job, answers, &*report)
    }
}
