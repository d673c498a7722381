//! The executor that the command line selects.

use std::sync::Arc;

use pvisor_spec::{CommandEnd, Executor, ExecutorKind, Refusal, WorkerEvent, WorkerFailure, WorkerJob};

use crate::{probe, run};

/// Runs commands in a libkrun guest.
#[derive(Clone, Copy, Debug, Default)]
pub struct KrunExecutor {
    accept_slow: bool,
}

impl KrunExecutor {
    /// The executor. `accept_slow`: a KVM that emulates guest kernel code will do
    /// ([`pvisor_spec::RunSpec::force_slow_kvm`]).
    pub fn new(accept_slow: bool) -> Self {
        Self { accept_slow }
    }
}

impl Executor for KrunExecutor {
    fn kind(&self) -> ExecutorKind {
        ExecutorKind::Krun
    }

    fn probe(&self) -> Result<(), Refusal> {
        probe::admit(self.accept_slow)
    }

    /// Must be called while the process has one thread only. Returns failures only: a run that got as far as its guest
    /// reports its end itself and ends the process.
    fn work(
        &self,
        job: WorkerJob,
        report: Arc<dyn Fn(WorkerEvent) + Send + Sync>,
    ) -> Result<CommandEnd, WorkerFailure> {
        Err(run::work(&job, report))
    }
}
