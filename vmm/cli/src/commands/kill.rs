//! `pvisor kill`.

use std::time::Duration;

use pvisor_spec::ExitCode;
use rustix::process::Signal;
use serde::Serialize;

use super::surroundings;
use crate::args::RunNameArgs;
use crate::report::{Failure, answer, answer_json};
use crate::runs::Run;

/// Beyond the run's own grace period, for sealing the stage and writing the record.
const LENIENCE: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct Killed {
    id: pvisor_spec::RunId,
    /// `false`: it was over already.
    ended: bool,
    /// Whether it had to be ended by force.
    forced: bool,
}

pub(super) fn kill(args: &RunNameArgs) -> Result<u8, Failure> {
    let (ambient, store) = surroundings()?;
    let run = store.find(&args.run, &ambient.cwd)?;
    let killed = if run.is_live() { end(&run)? } else { Killed { id: run.id, ended: false, forced: false } };
    // Reading it settles what a supervisor that was killed could not.
    let after = store.read(run.id)?;
    if let Some(trouble) = after.trouble {
        return Err(Failure::new("kill", format!("{} is not wholly ended: {trouble}", run.id)));
    }
    if after.is_live() {
        return Err(Failure::new(
            "kill",
            format!("{} still goes on, and its processes can't be seen from here", run.id),
        )
        .hint("run `pvisor kill` where it was started: in the same container or PID namespace"));
    }
    if args.json {
        answer_json(&killed)?;
    } else {
        answer(|out| match (killed.ended, killed.forced) {
            (false, _) => writeln!(out, "{} was over already", run.id),
            (true, false) => writeln!(out, "{} ended", run.id),
            (true, true) => writeln!(out, "{} did not end when asked to and was ended by force", run.id),
        })?;
    }
    Ok(ExitCode::OK)
}

/// Asks, waits for the grace period, then takes away the worker, then the supervisor.
fn end(run: &Run) -> Result<Killed, Failure> {
    let done = |forced| Ok(Killed { id: run.id, ended: true, forced });
    let failed = |message: String| Failure::new("kill", message).hint("it may belong to another user");
    let Some(supervisor) = &run.record.supervisor else {
        return Err(failed("the record does not name its supervisor".to_owned()));
    };
    let grace = Duration::from_millis(run.record.spec.grace_ms);
    if !supervisor.signal(Signal::TERM) && supervisor.is_alive() {
        return Err(failed(format!("process {} can't be signalled", supervisor.pid)));
    }
    // What is stopped hears nothing.
    supervisor.signal(Signal::CONT);
    if let Some(worker) = &run.record.worker {
        worker.signal(Signal::CONT);
    }
    if supervisor.wait(grace + LENIENCE) {
        return done(false);
    }
    if let Some(worker) = &run.record.worker {
        worker.end(LENIENCE).map_err(|left| failed(left.message).hint(left.hint))?;
    }
    if !supervisor.wait(LENIENCE) {
        supervisor.end(LENIENCE).map_err(|left| failed(left.message).hint(left.hint))?;
    }
    done(true)
}
