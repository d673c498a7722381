//! `pvisor run`: ten stops from the command line to the exit code.

use pvisor_spec::{CommandEnd, ExitCode, Interruption, Outcome};

use super::attempt::{Attempt, Progress};
use super::surroundings;
use crate::args::RunArgs;
use crate::bundle::without_values;
use crate::report::{Failure, answer_json};
use crate::resolve::{Ambient, Config, ResolveError, Resolved, resolve};
use crate::runs::Store;

/// Runs a command; the number is the exit code. Standard output belongs to the command.
pub(super) fn run(args: &RunArgs) -> u8 {
    pass(args).unwrap_or_else(|failure| {
        failure.tell_aside(args.json);
        failure.code
    })
}

/// The ten stops.
fn pass(args: &RunArgs) -> Result<u8, Failure> {
    let (config, ambient, store) = parse(args)?; // 1
    let resolved = resolve(args, &config, &ambient)?; // 2
    if args.dry_run {
        answer_json(&without_values(resolved.spec()))?;
        return Ok(ExitCode::OK);
    }
    let attempt = Attempt::begin(&resolved, &store, args.json)?;
    Ok(carry_out(attempt, &resolved, &ambient))
}

/// All stops of a run that has a record; the number is the exit code.
pub(super) fn carry_out(mut attempt: Attempt, resolved: &Resolved, ambient: &Ambient) -> u8 {
    let outcome = match live(&mut attempt, resolved, ambient) {
        Ok(end) => Outcome::Completed(end),
        Err(broken) => attempt.broken(broken),
    };
    let bundle = attempt.seal(outcome); // 9
    attempt.report(&bundle) // 10
}

/// From the record of a run to the end of its command.
fn live(attempt: &mut Attempt, resolved: &Resolved, ambient: &Ambient) -> Result<CommandEnd, Interruption> {
    attempt.select(resolved)?; // 3
    attempt.stage()?; // 4
    let mut worker = attempt.spawn()?; // 5
    attempt.wire(&mut worker, ambient); // 6
    let progress = attempt.confine(&mut worker)?; // 7
    match progress {
        Progress::Started => attempt.start(&mut worker), // 8
        Progress::Over(end) => Ok(end),
    }
}

/// What the arguments are read against: configuration, surroundings, runs.
fn parse(args: &RunArgs) -> Result<(Config, Ambient, Store), Failure> {
    if args.command.is_empty() {
        return Err(ResolveError::NoCommand.into());
    }
    let (ambient, store) = surroundings().map_err(|failure| failure.code(ExitCode::FAILED))?;
    let config = Config::read(&ambient)?;
    Ok((config, ambient, store))
}
