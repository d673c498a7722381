//! The worker: launches, serves the stage, relays, and cleans up.

mod asking;
mod control;
mod group;
mod relay;
mod save;
mod stage;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use pvisor_spec::{CommandEnd, Observation, Probe, Receipt, RunSpec, WorkerEvent, WorkerFailure, WorkerJob};

use crate::ask::Desk;
use crate::egress::{Egress, write_resolver};
use crate::failure::failure;
use crate::launch::{self, Served};
use crate::log::{EventLog, FLOW_LOG};
use crate::plan::Plan;
use crate::{receipts, trials};
use asking::Asking;
use control::Control;
use group::Groups;
use relay::Relay;
use stage::ServedStage;

/// Runs a job to its end.
pub(crate) fn run(
    job: &WorkerJob,
    answers: Option<OwnedFd>,
    report: &(dyn Fn(WorkerEvent) + Send + Sync),
) -> Result<CommandEnd, WorkerFailure> {
    map_large_memory();
    let plan = Plan::new(job)?;
    die_with_parent()?;
    let decoys = trials::prepare(&plan)?;
    let (signals, mask) = take_signals()?;
    if let Some(egress) = &plan.egress {
        write_resolver(egress, &plan.run_dir)
            .map_err(|e| failure("network", format!("can't write the resolver's file: {e}"), ""))?;
    }
    let internal = |e: std::io::Error| failure("internal", format!("{FLOW_LOG}: {e}"), "");
    let log = plan.is_logged().then(|| EventLog::create(&plan.run_dir)).transpose().map_err(internal)?;
    let desk = log.as_ref().filter(|_| plan.asks()).map(|log| Desk::new(Arc::clone(log))).transpose();
    let desk = desk.map_err(|e| internal(e.into()))?.map(Arc::new);
    let (mut served, mut egress) = (Vec::new(), None);
    let launched = launch::launch(&plan, mask, &mut |which, device| {
        raise_file_limit();
        end_on_panic();
        match (which, &plan.egress) {
            (Served::Network, Some(way_out)) => {
                let log = log.as_ref().ok_or_else(|| failure("internal", "a network without a log", ""))?;
                egress = Some(Egress::start_on_tap(way_out, device, log, desk.as_ref())?);
            }
            _ => served.push(ServedStage::open(&plan, which, device)?),
        }
        Ok(())
    })?;
    drop(decoys);
    let alone = launched.namespaces.is_none();
    let judged = launched.tried.iter().map(|(trial, tried)| trials::judge(*trial, *tried, alone));
    let probes: Vec<Probe> = judged.collect();
    for probe in &probes {
        report(WorkerEvent::Probed(probe.clone()));
    }
    check_probes(&plan, alone, &probes)?;
    let group = Groups::make(&plan, launched.pid.as_raw_nonzero().get());
    let mut receipts = receipts::collect(&plan, &launched, &probes, egress.as_ref())?;
    receipts.extend(group.as_ref().map(Groups::receipt));
    receipts::weaken(&plan, &mut receipts);
    let lacking = lacking(&job.spec, &receipts);
    for receipt in receipts {
        report(WorkerEvent::Installed(receipt));
    }
    lacking?;
    let saver = served.iter().find_map(|served| served.saver(&launched));
    let control = saver.and_then(|saver| {
        let listening = Control::listen(&plan.run_dir, move |request| saver.answer(request));
        // The command runs all the same.
        listening.inspect_err(|error| tracing::warn!(%error, "nobody can ask for a savepoint of this run")).ok()
    });
    // Whatever goes wrong from here on: when the launched process is gone, so is everything of the command.
    let asking = desk.map(|desk| Asking::new(desk, answers, launched.namespaces));
    let mut end = Relay::new(&plan, launched, signals, asking, report).run();
    if let Some(control) = control {
        control.stop();
    }
    if let Some(egress) = egress {
        egress.stop();
    }
    drop(group);
    // What is mounted in another comes after it.
    for served in served.into_iter().rev() {
        if let Err(broken) = served.finish() {
            end = Err(end.err().unwrap_or(broken));
        }
    }
    end
}

/// A run that may start only with everything enforced does not start with less.
fn lacking(spec: &RunSpec, receipts: &[Receipt]) -> Result<(), WorkerFailure> {
    let observations = Observation::from_receipts(receipts, &spec.needs);
    let lacking = observations.iter().filter(|o| o.is_lacking(spec.confinement.strict));
    let names: Vec<String> = lacking.map(|o| format!("{:?}", o.dimension)).collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(failure(
        "control_missing",
        format!("required and not enforced here: {}", names.join(", ")),
        "`pvisor doctor` shows what this machine lacks",
    ))
}

/// A control that does not do what it is for is worse than none: the command does not start.
fn check_probes(plan: &Plan, alone: bool, probes: &[Probe]) -> Result<(), WorkerFailure> {
    let tried = plan.trials.get().map_or(0, |trials| trials.of(alone).count());
    if probes.len() != tried {
        return Err(failure("probe", format!("{} of {tried} probes came to an end", probes.len()), ""));
    }
    match probes.iter().find(|probe| !probe.holds) {
        None => Ok(()),
        Some(probe) => Err(failure(
            "probe",
            format!(
                "{} does not hold: {} was to be {}, and {}",
                probe.control.0, probe.name, probe.expected, probe.observed
            ),
            "nothing was run; this machine is not as pvisor takes it to be",
        )),
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

/// Has large allocations always be fresh memory of the kernel's. The library for requests has a buffer of 16 MiB for each
/// thread; without this, the memory of one that was freed is used again, and every page of it is cleared.
fn map_large_memory() {
    #[cfg(target_env = "gnu")]
    {
        const LARGE: libc::c_int = 1 << 20;
        // SAFETY: the call sets a number that the allocator reads.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
    }
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
