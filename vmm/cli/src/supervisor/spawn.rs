//! Starting the worker: this program again, in a process of its own.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use pvisor_spec::WorkerJob;
use rustix::fs::{Mode, OFlags};
use rustix::io::FdFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, WaitStatus, pidfd_open, pidfd_send_signal};
use serde::Serialize;

use super::events::EventPipe;
use super::signals::Signals;
use super::watch::Interrupter;
use crate::runs::ProcessRef;

/// Why there is no worker.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpawnError {
    #[error("can't make a pipe to the worker")]
    Pipe(#[source] rustix::io::Errno),
    #[error("can't read signals")]
    Signals(#[source] nix::Error),
    #[error("can't start the worker")]
    Start(#[source] io::Error),
    #[error("can't watch the worker")]
    Watch(#[source] rustix::io::Errno),
    #[error("the worker ended before it had its job")]
    Job(#[source] io::Error),
}

/// A worker process.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(super) pid: Pid,
    /// A handle that can't come to mean another process.
    pub(super) handle: OwnedFd,
    pub(super) events: EventPipe,
    pub(super) signals: Signals,
    /// Whether signals of the terminal reach the worker without us.
    pub(super) shares_group: bool,
    /// Interrupts so far.
    pub(super) interrupts: u32,
    /// Who sent the last of them.
    pub(super) interrupted_by: Option<Interrupter>,
    /// How it ended, once it was reaped.
    pub(super) status: Option<WaitStatus>,
    /// The job goes down first, then answers to the worker's questions.
    job: File,
}

impl Worker {
    /// Starts a worker that waits for its job. Call from a thread that lives as long as the run: the worker dies
    /// with it.
    ///
    /// # Errors
    /// Whatever kept it from starting; nothing is left then.
    pub(crate) fn spawn() -> Result<Self, SpawnError> {
        let (job_reader, job) = pipe_with(PipeFlags::CLOEXEC).map_err(SpawnError::Pipe)?;
        let (events, events_writer) = pipe_with(PipeFlags::CLOEXEC).map_err(SpawnError::Pipe)?;
        rustix::io::ioctl_fionbio(&events, true).map_err(SpawnError::Pipe)?;
        for fd in [&job_reader, &events_writer] {
            rustix::io::fcntl_setfd(fd, FdFlags::empty()).map_err(SpawnError::Pipe)?;
        }
        // Before the worker exists, so that no signal is lost between.
        let signals = Signals::watch().map_err(SpawnError::Signals)?;
        let shares_group = has_terminal();
        let mut command = Command::new("/proc/self/exe");
        command.arg0("pvisor").arg("internal-worker");
        command.arg("--job").arg(job_reader.as_raw_fd().to_string());
        command.arg("--events").arg(events_writer.as_raw_fd().to_string());
        command.arg("--supervisor").arg(std::process::id().to_string());
        // The mask is inherited, with the signals in it that are blocked here.
        for signal in signals.blocked_before() {
            command.arg("--blocked").arg(signal.to_string());
        }
        if !shares_group {
            command.process_group(0);
        }
        let child = command.spawn().map_err(SpawnError::Start)?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(SpawnError::Watch(rustix::io::Errno::SRCH))?;
        // Not reaped yet, so the number is still the child's.
        let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(SpawnError::Watch)?;
        let events = EventPipe::new(events);
        Ok(Self {
            pid,
            handle,
            events,
            signals,
            shares_group,
            interrupts: 0,
            interrupted_by: None,
            status: None,
            job: job.into(),
        })
    }

    /// Gives the worker its job. Done once.
    ///
    /// # Errors
    /// The worker is gone already.
    pub(crate) fn wire(&mut self, job: &WorkerJob) -> Result<(), SpawnError> {
        self.send(job).map_err(SpawnError::Job)
    }

    /// Sends a document down the pipe, on a line of its own.
    pub(super) fn send(&mut self, document: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(document)?;
        line.push(b'\n');
        self.job.write_all(&line)
    }

    /// The worker as the record names it.
    pub(crate) fn process(&self) -> Option<ProcessRef> {
        ProcessRef::of(self.pid.as_raw_nonzero().get())
    }

    /// Ends the worker at once.
    pub(crate) fn kill(&self) {
        // It may have ended by itself.
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
    }
}

/// Whether this process has a controlling terminal.
fn has_terminal() -> bool {
    rustix::fs::open("/dev/tty", OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).is_ok()
}
