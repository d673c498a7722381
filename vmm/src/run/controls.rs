//! The thread that hears signals and watches the time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use pvisor_spec::{CommandEnd, RunSpec, WorkerEvent, signal_name};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::ending::Ending;
use super::failure::failure;
use super::policy::{Action, Policy, ends_boot};
use super::stages::Stages;
use crate::agent::{CommandHandle, terminal_size};
use crate::engine::PortCloser;

/// How long the conversation may take to notice that the machine was ended under it.
const AFTER_MACHINE: Duration = Duration::from_secs(2);

const HEARD: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGWINCH,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Blocks the signals of this thread, and so of every thread that it will start, and gives them to a descriptor.
/// The engine's own handlers are then never called.
pub(super) fn hear_signals() -> nix::Result<SignalFd> {
    let set: SigSet = HEARD.into_iter().collect();
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// What the thread does with what it hears.
enum Phase {
    /// The guest is not ready yet.
    Booting,
    /// The command runs.
    Running { command: CommandHandle, policy: Policy },
    /// The command has ended.
    Over,
}

/// Signals and time limit of one run.
pub(super) struct Controls {
    phase: Mutex<Phase>,
    changed: OwnedFd,
    forced: AtomicBool,
    closer: PortCloser,
    ending: Arc<Ending>,
    stages: Arc<Stages>,
}

impl Controls {
    /// Starts the thread.
    pub(super) fn start(
        signals: SignalFd,
        closer: PortCloser,
        ending: Arc<Ending>,
        stages: Arc<Stages>,
    ) -> io::Result<Arc<Self>> {
        let controls = Arc::new(Self {
            phase: Mutex::new(Phase::Booting),
            changed: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            forced: AtomicBool::new(false),
            closer,
            ending,
            stages,
        });
        let own = Arc::clone(&controls);
        thread::Builder::new().name("controls".to_owned()).spawn(move || own.watch(signals))?;
        Ok(controls)
    }

    /// From now on this command gets the signals, and its time runs.
    pub(super) fn command_runs(&self, command: CommandHandle, spec: &RunSpec) {
        let limit = spec.timeout_ms.map(Duration::from_millis);
        let policy = Policy::new(Instant::now(), limit, Duration::from_millis(spec.grace_ms));
        *self.phase() = Phase::Running { command, policy };
        // Fails only where the counter is at its maximum: then the thread is awake anyway.
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
    }

    /// The command has ended; how the run has, where that is for us to say.
    pub(super) fn command_ended(&self, end: Option<CommandEnd>) -> Option<CommandEnd> {
        let phase = std::mem::replace(&mut *self.phase(), Phase::Over);
        self.judge(&phase, end)
    }

    fn judge(&self, phase: &Phase, end: Option<CommandEnd>) -> Option<CommandEnd> {
        match phase {
            Phase::Running { policy, .. } if policy.timed_out() => Some(CommandEnd::TimedOut),
            // With its machine the command was killed as hard as can be.
            _ if end.is_none() && self.forced.load(Ordering::Acquire) => Some(CommandEnd::Signaled(9)),
            _ => end,
        }
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, signals: SignalFd) {
        loop {
            self.sleep(&signals);
            let _ = rustix::io::read(&self.changed, &mut [0; 8]);
            while let Ok(Some(info)) = signals.read_signal() {
                self.hear(u8::try_from(info.ssi_signo).unwrap_or(0));
            }
            let action = match &mut *self.phase() {
                Phase::Running { policy, .. } => policy.tick(Instant::now()),
                Phase::Booting | Phase::Over => None,
            };
            self.act(action);
        }
    }

    fn sleep(&self, signals: &SignalFd) {
        let next = match &*self.phase() {
            Phase::Running { policy, .. } => policy.next(),
            Phase::Booting | Phase::Over => None,
        };
        let timeout = next.map(|at| {
            // A millisecond more than less, so that the time has really come when this returns.
            let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 })
        });
        let mut fds = [
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.changed.as_fd(), PollFlags::IN),
        ];
        // An interrupted wait is as good as an ended one.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    fn hear(&self, signal: u8) {
        let action = match &mut *self.phase() {
            Phase::Running { policy, .. } => policy.signal(signal, Instant::now()),
            Phase::Booting if ends_boot(signal) => {
                let message = format!("{} came before the command started", signal_name(signal));
                self.stages.throw_away();
                self.ending.finish(WorkerEvent::Failed(failure("interrupted", message, "")));
            }
            Phase::Booting | Phase::Over => None,
        };
        self.act(action);
    }

    fn act(&self, action: Option<Action>) {
        match action {
            None => {}
            Some(Action::Signal(signal)) => {
                if let Phase::Running { command, .. } = &*self.phase() {
                    command.signal(signal);
                }
            }
            Some(Action::Resize) => {
                let size = terminal_size(io::stdin().as_fd()).or_else(|| terminal_size(io::stdout().as_fd()));
                if let (Phase::Running { command, .. }, Some(size)) = (&*self.phase(), size) {
                    command.resize(size);
                }
            }
            Some(Action::EndMachine) => self.end_machine(),
        }
    }

    /// Cuts the connection, which ends the conversation; where it hangs all the same, ends the run from here.
    fn end_machine(&self) {
        self.forced.store(true, Ordering::Release);
        self.closer.close();
        thread::sleep(AFTER_MACHINE);
        let end = self.judge(&self.phase(), None).unwrap_or(CommandEnd::Signaled(9));
        self.ending.claim_then(|| match self.stages.settle() {
            Ok(()) => WorkerEvent::Ended(end),
            Err(failure) => WorkerEvent::Failed(failure),
        })
    }
}
