//! `pvisor fork`: more runs with the changes of one that is over, or of a savepoint; with a command, one that goes on
//! from there.

use std::path::Path;

use pvisor_spec::{ExitCode, Interruption, OsBytes, Outcome, RunId};
use pvisor_stage::{LoadError, StageStatus};
use serde::Serialize;

use super::attempt::{Attempt, Origin};
use super::run::carry_out;
use super::surroundings;
use crate::args::ForkArgs;
use crate::bundle;
use crate::report::{Failure, answer, answer_json, plain, say};
use crate::resolve::{Ambient, resolve_like};
use crate::runs::{Run, Store, now_ms};
use crate::stages::{self, savepoint_failure, sealed};

#[derive(Serialize)]
struct Answer {
    of: RunId,
    forks: Vec<Fork>,
}

#[derive(Serialize)]
struct Fork {
    id: RunId,
    stage: OsBytes,
    changes: u64,
}

/// Forks; with a command the number is its exit code, and standard output is its own.
pub(super) fn fork(args: &ForkArgs) -> Result<u8, Failure> {
    if args.command.is_empty() {
        return fork_only(args);
    }
    Ok(fork_and_run(args).unwrap_or_else(|failure| {
        failure.tell_aside(args.json);
        failure.code
    }))
}

fn fork_and_run(args: &ForkArgs) -> Result<u8, Failure> {
    // A command's exit code can be any; what is wrong before there is one is told as `run` tells it.
    let refused = |failure: Failure| failure.code(ExitCode::FAILED);
    let (ambient, store) = surroundings().map_err(refused)?;
    let of = origin(args, &ambient, &store).map_err(refused)?;
    let stage = staged(&of).map_err(refused)?.to_owned();
    let (resolved, missing) = resolve_like(&of.record.spec, &args.command, &args.env, &ambient)?;
    for name in missing {
        let name = plain(&name.to_string_lossy());
        say(&format!("{name} was given to the command of {}, and is not set here: --env {name}=VALUE", of.id));
    }
    let origin = Origin { run: of.id, stage, savepoint: args.savepoint.clone() };
    let attempt = Attempt::begin(&resolved, &store, args.json)?.with(origin);
    Ok(carry_out(attempt, &resolved, &ambient))
}

/// The run to fork, with everything that can be known to be wrong checked.
fn origin(args: &ForkArgs, ambient: &Ambient, store: &Store) -> Result<Run, Failure> {
    let live = store.find(&args.run, &ambient.cwd).ok().filter(|run| run.is_live() && args.savepoint.is_some());
    let run = match live {
        // A savepoint stays as it is while its run goes on.
        Some(run) => Some(run),
        None => stages::find(&args.run, store, ambient)?.run,
    };
    let Some(run) = run else {
        return Err(Failure::new("no_run", "that stage has no record of a run, so it can't be forked")
            .code(ExitCode::NO_SUCH_RUN));
    };
    check(&run, args)?;
    Ok(run)
}

fn staged(of: &Run) -> Result<&Path, Failure> {
    of.stage_dir().ok_or_else(|| Failure::new("no_stage", format!("{} had no stage", of.id)))
}

fn fork_only(args: &ForkArgs) -> Result<u8, Failure> {
    let (ambient, store) = surroundings()?;
    let run = &origin(args, &ambient, &store)?;
    let mut forks = Vec::new();
    for _ in 0..args.count {
        forks.push(one(&store, run, args)?);
    }
    if args.json {
        answer_json(&Answer { of: run.id, forks })?;
    } else {
        answer(|out| forks.iter().try_for_each(|fork| writeln!(out, "{}", fork.id)))?;
    }
    Ok(ExitCode::OK)
}

/// Refuses what can't be forked before there is a run that nobody wants.
fn check(of: &Run, args: &ForkArgs) -> Result<(), Failure> {
    let Some(dir) = of.stage_dir() else { return Ok(()) };
    let checked = match &args.savepoint {
        Some(name) => pvisor_stage::savepoint(dir, name).map(drop),
        None => match pvisor_stage::status(dir) {
            Ok(StageStatus::Sealed { .. }) => Ok(()),
            Ok(_) => Err(LoadError::NotSealed(dir.to_owned()).into()),
            Err(e) => Err(e.into()),
        },
    };
    checked.map_err(|e| savepoint_failure(&e))
}

/// A run of its own, over from the beginning, whose stage has the same changes.
fn one(store: &Store, of: &Run, args: &ForkArgs) -> Result<Fork, Failure> {
    let id = RunId::new();
    let mut spec = of.record.spec.clone();
    let from = staged(of)?;
    spec.id = id;
    if let Some(stage) = &mut spec.stage {
        stage.dir = store.home().join(id.to_string()).join("stage").into();
    }
    let mut claim = store.begin(spec)?;
    claim.record.selection.clone_from(&of.record.selection);
    claim.record.forked_from = Some(of.id);
    let dir = claim.dir().join("stage");
    let forked = pvisor_stage::fork(from, args.savepoint.as_deref(), &dir).map_err(|e| savepoint_failure(&e));
    let (stage, outcome) = match &forked {
        Ok(seal) => (sealed(seal), outcome_of(of)),
        Err(failure) => (stages::record(&dir), Outcome::Refused(failure.into())),
    };
    let (receipts, probes) = of.bundle.as_ref().map(|b| (b.receipts.clone(), b.probes.clone())).unwrap_or_default();
    let bundle = bundle::compose(&claim.record, receipts, probes, outcome, stage, now_ms());
    claim.publish(&bundle)?;
    let seal = forked?;
    Ok(Fork { id, stage: dir.into(), changes: seal.changes })
}

/// The command's own end: what its changes are the changes of.
fn outcome_of(run: &Run) -> Outcome {
    match &run.bundle {
        Some(bundle) => bundle.outcome.clone(),
        None if run.is_live() => Outcome::Interrupted(Interruption {
            kind: "goes_on".to_owned(),
            message: format!("{} still went on when this savepoint of it was forked", run.id),
            hint: String::new(),
        }),
        None => Outcome::Interrupted(Interruption {
            kind: "supervisor_lost".to_owned(),
            message: "nothing is known of the command's end".to_owned(),
            hint: String::new(),
        }),
    }
}
