//! The worker: launches, serves the stage, relays, and cleans up.

mod relay;
mod stage;

use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use pvisor_spec::{CommandEnd, WorkerEvent, WorkerFailure, WorkerJob};

use crate::failure::failure;
use crate::launch;
use crate::plan::Plan;
use crate::receipts;
use relay::Relay;
use stage::ServedStage;

/// Runs a job to its end.
pub(crate) fn run(job: &WorkerJob, report: &(dyn Fn(WorkerEvent) + Send + Sync)) -> Result<CommandEnd, WorkerFailure> {
    let plan = Plan::new(&job.spec)?;
    die_with_parent()?;
    let (signals, mask) = take_signals()?;
    let mut launched = launch::launch(&plan, mask)?;
    raise_file_limit();
    end_on_panic();
    let served = match launched.device.take() {
        None => None,
        Some(device) => Some(ServedStage::open(&plan, device)?),
    };
    for receipt in receipts::collect(&plan, &launched)? {
        report(WorkerEvent::Installed(receipt));
    }
    // Whatever goes wrong from here on: when the launched process is gone, so is everything of the command.
    let end = Relay::new(&plan, launched, signals, report).run();
    match served.map_or(Ok(()), ServedStage::finish) {
        Ok(()) => end,
        Err(broken) => Err(end.err().unwrap_or(broken)),
    }
}

/// Has the kernel kill this process when its parent ends.
fn die_with_parent() -> Result<(), WorkerFailure> {
    let parent = rustix::process::getppid();
    let kill = Some(rustix::process::Signal::KILL);
    rustix::process::set_parent_process_death_signal(kill)
        .map_err(|e| failure("internal", format!("can't bind the worker to its supervisor: {e}"), ""))?;
    if rustix::process::getppid() == parent {
        return Ok(());
    }
    Err(failure("internal", "the supervisor is gone", ""))
}

/// Signals that the worker passes on.
const FORWARDED: [Signal; 7] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];

/// Has signals come in order on a descriptor; returns it and the mask from before, which is the command's.
fn take_signals() -> Result<(SignalFd, SigSet), WorkerFailure> {
    let broken = |e: nix::Error| failure("internal", format!("can't take over signals: {e}"), "");
    let mut taken: SigSet = FORWARDED.into_iter().collect();
    taken.add(Signal::SIGCONT);
    let mut blocked = taken;
    // To hand the terminal over from outside its foreground.
    blocked.add(Signal::SIGTTOU);
    let mask = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(broken)?;
    // A caller that ignores it would have the kernel throw away how children ended.
    // SAFETY: the default action is no function that could misbehave.
    unsafe { nix::sys::signal::signal(Signal::SIGCHLD, SigHandler::SigDfl) }.map_err(broken)?;
    let signals = SignalFd::with_flags(&taken, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(broken)?;
    Ok((signals, mask))
}

/// A stage holds one descriptor or two for each file that the command has open. The launched process has its own
/// limit already, the one of the caller.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::debug!(%error, "the limit of open files stays at {:?}", limit.current);
    }
}

/// A thread of the file system that is gone would leave the command waiting for an answer; the end of the process
/// ends everything.
fn end_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tell(info);
        std::process::abort();
    }));
}
