//! One run in a worker process: stages, machine, conversation, end.
//!
//! Threads: the machine's event loop has the first one, `session` talks with the agent, `controls` hears signals,
//! `console` keeps the kernel's log; the agent client and the engine have their own. Whoever finds out first how the
//! run ends says so through [`ending::Ending`] and ends the process.

mod boundaries;
mod console;
mod controls;
mod ending;
mod failure;
mod machine;
mod policy;
mod receipts;
mod session;
mod stages;

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::thread;

use nix::sys::signalfd::SignalFd;
use pvisor_host_exec::Egress;
use pvisor_spec::{NetworkMode, WorkerFailure, WorkerJob};

use crate::agent::Key;
use crate::engine::{Network, keep_log, port};
use console::Console;
use controls::{Controls, hear_signals};
use ending::{Ending, Report, sleep_for_ever};
use failure::internal;
use machine::Size;
use session::Session;
use stages::Stages;

/// Variables that change what the engine does. `HOSTNAME` would name its threads.
const ENGINE_VARIABLES: [&str; 3] = ["MSB_KRUN_KERNEL_CMDLINE", "MSB_KRUN_BOOT_TRACE", "HOSTNAME"];

/// Carries out the job. Returns only what kept the guest from running.
pub(crate) fn work(job: &WorkerJob, report: Report) -> WorkerFailure {
    let ending = Ending::new(report);
    match start(job, &ending) {
        Ok(never) => match never {},
        Err(failure) => {
            ending.claim();
            failure
        }
    }
}

fn start(job: &WorkerJob, ending: &Arc<Ending>) -> Result<Infallible, WorkerFailure> {
    prepare_process(job);
    keep_log();
    ending.end_on_panic();
    let signals = hear_signals().map_err(|e| internal("can't hear signals", &e))?;
    let size = machine::load_kernel(job, Size::of(job.spec.resources)?)?;
    let console = Console::start(job.run_dir.as_path()).map_err(|e| internal("can't keep the console's log", &e))?;
    let stages = Arc::new(Stages::create(job)?);
    let launched = launch(job, ending, size, console, signals, Arc::clone(&stages));
    if launched.is_err() {
        // Nobody else may speak any more, and nobody uses what is removed.
        ending.claim();
        stages.throw_away();
    }
    launched
}

fn launch(
    job: &WorkerJob,
    ending: &Arc<Ending>,
    size: Size,
    console: Console,
    signals: SignalFd,
    stages: Arc<Stages>,
) -> Result<Infallible, WorkerFailure> {
    let no_thread = |e| internal("can't start a thread", &e);
    let (agent, reader, writer, closer) = port().map_err(|e| internal("can't make the agent's port", &e))?;
    let key = random_key()?;
    let on_exit = {
        let (ending, closer) = (Arc::clone(ending), closer.clone());
        Box::new(move |code| {
            ending.machine_is_over(code);
            closer.close();
            // The engine would end the process now; that is for the one who knows how the command did.
            sleep_for_ever()
        })
    };
    let (network, egress) = match &job.spec.network {
        NetworkMode::Egress(spec) => {
            let (link, egress) = Egress::start(spec, job.run_dir.as_path())?;
            (Network::Stack(link), Some(egress))
        }
        NetworkMode::DenyAll | NetworkMode::Host => (Network::Sealed, None),
    };
    let machine = machine::build(size, &key, &console, agent, &stages, network, on_exit)?;
    let controls = Controls::start(signals, closer, Arc::clone(ending), Arc::clone(&stages)).map_err(no_thread)?;
    let ending = Arc::clone(ending);
    let egress = Mutex::new(egress);
    let session = Session { job: job.clone(), size, key, stages, console, controls, ending, egress };
    thread::Builder::new().name("session".to_owned()).spawn(move || session.run(reader, writer)).map_err(no_thread)?;
    Err(machine.run().into())
}

/// Takes out of the environment what is not for the engine, and gives it the run's directory for the guest's memory,
/// which it keeps in an unlinked sparse file.
fn prepare_process(job: &WorkerJob) {
    // SAFETY: by the contract of `KrunExecutor::work` no other thread exists yet that could read the environment.
    unsafe {
        for name in ENGINE_VARIABLES {
            std::env::remove_var(name);
        }
        std::env::set_var("TMPDIR", job.run_dir.as_os_str());
    }
}

fn random_key() -> Result<Key, WorkerFailure> {
    let mut bytes = [0; 32];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match filled {
        // So few bytes come at once or not at all.
        Ok(32) => Ok(Key::new(bytes)),
        Ok(_) => Err(failure::failure("internal", "the host gave out too few random bytes", "")),
        Err(e) => Err(internal("the host gives out no random bytes", &e)),
    }
}
