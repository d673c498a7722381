//! Signals that the supervisor receives, read instead of delivered.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::{getpid, kill_current_process_group, kill_process};

/// Signals that are passed on to the worker.
const PASSED_ON: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGWINCH,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// `si_code` of a signal that the kernel sent, a terminal's for instance.
const SI_KERNEL: i32 = 0x80;

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrived {
    /// Which one.
    pub(super) signal: Signal,
    /// Sent by the kernel to the whole foreground group rather than by a process to this one.
    pub(super) by_terminal: bool,
}

/// How this process ends where the person at the terminal interrupted the command: as the command did, since shells tell
/// by that whether to go on with a script or a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// By SIGINT to the whole job, which the terminal has not sent to it.
    Job,
    /// By SIGINT to this process.
    Own,
}

impl Interrupt {
    /// Ends this process, unless the caller ignores SIGINT.
    pub(crate) fn raise(self) {
        let _ = SigSet::from(Signal::SIGINT).thread_unblock();
        let _ = match self {
            Self::Job => kill_current_process_group(rustix::process::Signal::INT),
            Self::Own => kill_process(getpid(), rustix::process::Signal::INT),
        };
    }
}

/// Signals of this thread, blocked and read instead. They stay blocked: after a run there is nothing left that a signal
/// should cut short.
#[derive(Debug)]
pub(super) struct Signals {
    arrived: SignalFd,
    before: SigSet,
}

impl Signals {
    /// Starts to read signals. The process must have one thread only.
    pub(super) fn watch() -> nix::Result<Self> {
        let mut set = SigSet::empty();
        for signal in PASSED_ON {
            set.add(signal);
        }
        set.add(Signal::SIGCHLD);
        let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let arrived = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { arrived, before })
    }

    /// Numbers of the signals that the caller had blocked already: those that the command is to find blocked.
    pub(super) fn blocked_before(&self) -> impl Iterator<Item = i32> {
        self.before.iter().map(|signal| signal as i32)
    }

    /// The descriptor to wait for.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.arrived.as_fd()
    }

    /// The next signal that is there now.
    pub(super) fn next(&mut self) -> nix::Result<Option<Arrived>> {
        let Some(info) = self.arrived.read_signal()? else { return Ok(None) };
        let number = i32::try_from(info.ssi_signo).unwrap_or_default();
        let signal = Signal::try_from(number)?;
        Ok(Some(Arrived { signal, by_terminal: info.ssi_code == SI_KERNEL }))
    }
}
