//! `pvisor status`.

use std::io::{self, Write};

use pvisor_spec::{
    AnswerRecord, AnsweredBy, Bundle, CommandEnd, ExecutorKind, ExitCode, KnownBy, Level, Observation, OsBytes,
    Outcome, Probe, ProfileGrant, Receipt, RunId, Safety, StageState, signal_name,
};
use pvisor_stage::{Review, Selection};
use serde::Serialize;

use super::surroundings;
use crate::access::{scope_text, subject_text};
use crate::args::StatusArgs;
use crate::report::{Failure, ago, answer, answer_json, count, left, plain, plain_path, size, span};
use crate::resolve::told_of_grant;
use crate::runs::{Phase, Run, now_ms};
use crate::stages::{self, Target};

/// Everything about one run, for programs.
#[derive(Serialize)]
struct Status<'a> {
    id: RunId,
    state: Phase,
    outcome: Option<&'a Outcome>,
    exit_code: Option<u8>,
    executor: Option<ExecutorKind>,
    selection: &'a str,
    command: &'a [OsBytes],
    cwd: &'a OsBytes,
    project: &'a OsBytes,
    started_ms: u64,
    ended_ms: Option<u64>,
    forked_from: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<&'a ProfileGrant>,
    stage: Stage<'a>,
    safety: Safety,
    observations: Vec<Observation>,
    receipts: &'a [Receipt],
    probes: &'a [Probe],
    answers: &'a [AnswerRecord],
    bundle_intact: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    review: Option<&'a Review>,
    trouble: Option<&'a str>,
}

#[derive(Serialize)]
struct Stage<'a> {
    state: StageState,
    dir: Option<&'a OsBytes>,
    changes: Option<u64>,
    seal: Option<&'a str>,
    /// Bytes on disk, and the most that was allowed.
    held_bytes: Option<u64>,
    max_bytes: Option<u64>,
    applied_ms: Option<u64>,
    /// Until when what was replaced by applying is kept for `pvisor undo`.
    originals_until_ms: Option<u64>,
    undone_ms: Option<u64>,
    discarded_ms: Option<u64>,
}

pub(super) fn status(args: &StatusArgs) -> Result<u8, Failure> {
    let (ambient, store) = surroundings()?;
    let mut run = store.find(&args.run, &ambient.cwd)?;
    if run.stage_state() == StageState::Sealed
        && let Some(recovered) = run.stage_dir().and_then(stages::recover)
    {
        if recovered.undone {
            stages::remember_undone(&store, &run, false);
            run = store.read(run.id)?;
        }
        run.trouble.get_or_insert(recovered.told);
    }
    let review = if args.review { reviewed(&run)? } else { None };
    let status = describe(&run, review.as_ref());
    if args.json {
        answer_json(&status)?;
    } else {
        answer(|out| {
            tell(out, &run, &status)?;
            match &review {
                Some(review) => {
                    writeln!(out, "\nChanges")?;
                    review.write_summary(out)
                }
                None => Ok(()),
            }
        })?;
    }
    Ok(ExitCode::OK)
}

/// What the run changed, where its stage is complete.
fn reviewed(run: &Run) -> Result<Option<Review>, Failure> {
    match run.stage_dir() {
        Some(dir) if run.stage_state() == StageState::Sealed => {
            let target = Target { dir: dir.to_owned(), run: None };
            pvisor_stage::review(dir, &Selection::default()).map(Some).map_err(|e| stages::review_failure(&e, &target))
        }
        _ => Ok(None),
    }
}

fn describe<'a>(run: &'a Run, review: Option<&'a Review>) -> Status<'a> {
    let (record, bundle) = (&run.record, run.bundle.as_ref());
    let receipts: &[Receipt] = bundle.map_or(&record.receipts, |b| &b.receipts);
    let observations = match bundle {
        Some(bundle) => bundle.observations.clone(),
        None => Observation::from_receipts(receipts, &record.spec.needs),
    };
    Status {
        id: run.id,
        state: record.phase,
        outcome: bundle.map(|b| &b.outcome),
        exit_code: bundle.map(|b| exit_code(&b.outcome)),
        executor: record.spec.executor,
        selection: &record.selection,
        command: &record.spec.command.argv,
        cwd: &record.spec.command.cwd,
        project: &record.spec.project,
        started_ms: record.started_ms,
        ended_ms: bundle.map(|b| b.ended_ms),
        forked_from: record.forked_from,
        profile: record.spec.sources.profile.as_ref(),
        stage: Stage {
            state: run.stage_state(),
            dir: record.spec.stage.as_ref().map(|s| &s.dir),
            changes: run.stage_record().and_then(|s| s.changes),
            seal: run.stage_record().and_then(|s| s.seal.as_deref()),
            held_bytes: held(run),
            max_bytes: record.spec.stage.as_ref().and_then(|s| s.max_bytes),
            applied_ms: record.applied_ms,
            originals_until_ms: record.originals_until_ms,
            undone_ms: record.undone_ms,
            discarded_ms: record.discarded_ms,
        },
        safety: Safety::from_observations(&observations),
        observations,
        receipts,
        probes: bundle.map_or(&[], |b| &b.probes),
        answers: bundle.map_or(&record.answers, |b| &b.answers),
        review,
        bundle_intact: bundle.map(is_intact),
        trouble: run.trouble.as_deref(),
    }
}

/// What the stage occupies, where there is one and it can be read.
fn held(run: &Run) -> Option<u64> {
    let there = matches!(run.stage_state(), StageState::Sealed | StageState::Unsealed);
    pvisor_stage::held_bytes(run.stage_dir().filter(|_| there)?).ok()
}

/// Whether the bundle is as its writer left it.
fn is_intact(bundle: &Bundle) -> bool {
    bundle.compute_digest() == bundle.digest
}

/// The code that `pvisor run` exited with.
pub(super) fn exit_code(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::Completed(end) => end.exit_code(),
        Outcome::Refused(i) | Outcome::Interrupted(i) => match i.kind.as_str() {
            "timeout" => ExitCode::TIMED_OUT,
            "interrupted" => CommandEnd::Signaled(2).exit_code(),
            _ => ExitCode::FAILED,
        },
    }
}

fn tell(out: &mut dyn Write, run: &Run, status: &Status<'_>) -> io::Result<()> {
    writeln!(out, "{}", run.id)?;
    let command: Vec<String> = status.command.iter().map(|a| a.display().to_string()).collect();
    field(out, "command", &command.join(" "))?;
    field(out, "project", &plain_path(status.project.as_path()))?;
    let executor = status.executor.map_or_else(|| "none".to_owned(), |kind| kind.to_string());
    field(out, "executor", &format!("{executor} ({})", status.selection))?;
    field(out, "started", &ago(status.started_ms, now_ms()))?;
    match (status.outcome, status.ended_ms) {
        (Some(outcome), Some(ended)) => {
            let took = span(ended.saturating_sub(status.started_ms));
            field(out, "outcome", &format!("{} after {took}", outcome_text(outcome)))?;
            if let Outcome::Refused(i) | Outcome::Interrupted(i) = outcome
                && !i.hint.is_empty()
            {
                field(out, "", &i.hint)?;
            }
        }
        _ => field(out, "outcome", "not over yet")?,
    }
    if let Some(of) = status.forked_from {
        field(out, "fork of", &of.to_string())?;
    }
    for line in status.profile.iter().flat_map(|grant| told_of_grant(grant)) {
        field(out, "grants", &line)?;
    }
    field(out, "stage", &stage_text(run, status))?;
    if let Some(until) = status.stage.originals_until_ms {
        let left = left(until, now_ms());
        field(out, "originals", &format!("kept for {left} more: pvisor undo {}", run.id))?;
    }
    if status.bundle_intact == Some(false) {
        field(out, "warning", "the bundle was changed after it was written")?;
    }
    if let Some(trouble) = status.trouble {
        field(out, "warning", trouble)?;
    }
    writeln!(out, "\nSafety boundary")?;
    for observation in &status.observations {
        writeln!(out, "  {}", observation_text(observation))?;
    }
    let besides = status.receipts.iter().filter(|r| r.dimensions.is_empty() && r.level != Level::Unenforced);
    let besides: Vec<&str> = besides.map(|receipt| receipt.control.0.as_str()).collect();
    if !besides.is_empty() {
        writeln!(out, "  {:18}{}", "besides", besides.join(", "))?;
    }
    if let Some(bundle) = run.bundle.as_ref().filter(|bundle| !bundle.probes.is_empty()) {
        let held = bundle.probes.iter().filter(|probe| probe.holds).count();
        writeln!(out, "  {:18}{held} of {} held", "probes", bundle.probes.len())?;
    }
    if !status.answers.is_empty() {
        writeln!(out, "\nQuestions")?;
    }
    for answer in status.answers {
        let verdict = if answer.allowed { "yes" } else { "no" };
        let why = match answer.by {
            AnsweredBy::Person => scope_text(answer.scope),
            AnsweredBy::Timeout => "nobody answered in time",
            AnsweredBy::Interrupt => "the question was interrupted",
            AnsweredBy::NoTerminal => "there was no terminal to ask on",
            AnsweredBy::AskedEnough => "nothing more was to be asked",
        };
        writeln!(out, "  {verdict:4}{} ({why})", subject_text(&answer.subject))?;
    }
    Ok(())
}

fn field(out: &mut dyn Write, name: &str, text: &str) -> io::Result<()> {
    writeln!(out, "  {name:10}{}", plain(text).replace('\n', " "))
}

/// How a run ended, as a fragment.
pub(super) fn outcome_text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Completed(CommandEnd::Exited(code)) => format!("exit status {code}"),
        Outcome::Completed(CommandEnd::Signaled(signal)) => format!("ended by {}", signal_name(*signal)),
        Outcome::Completed(CommandEnd::TimedOut) => "the time limit ended it".to_owned(),
        Outcome::Completed(CommandEnd::NotFound) => "no such program".to_owned(),
        Outcome::Completed(CommandEnd::NotExecutable) => "the program can't be executed".to_owned(),
        Outcome::Refused(i) => format!("refused: {}", i.message),
        Outcome::Interrupted(i) => format!("interrupted: {}", i.message),
    }
}

fn stage_text(run: &Run, status: &Status<'_>) -> String {
    let dir = || run.stage_dir().map(plain_path).unwrap_or_default();
    let mut changes = status.stage.changes.map_or_else(String::new, |n| format!("{}, ", count(n, "change")));
    if let Some(held) = status.stage.held_bytes {
        let most = status.stage.max_bytes.map_or_else(String::new, |most| format!(" of at most {}", size(most)));
        changes.push_str(&format!("{}{most}, ", size(held)));
    }
    match status.stage.state {
        StageState::None if run.record.spec.stage.is_some() => "none was made".to_owned(),
        StageState::None => "none: the project itself was written".to_owned(),
        StageState::Discarded => "discarded".to_owned(),
        StageState::Unsealed if run.is_live() => format!("open, {changes}{}", dir()),
        StageState::Unsealed if run.only_seal_failed() => {
            format!("complete, to be sealed by `pvisor review`, {changes}{}", dir())
        }
        StageState::Unsealed => format!("unsealed, can only be discarded or saved, {changes}{}", dir()),
        StageState::Sealed if status.stage.applied_ms.is_some() => format!("applied, {changes}{}", dir()),
        StageState::Sealed => format!("sealed, {changes}{}", dir()),
    }
}

fn observation_text(observation: &Observation) -> String {
    let dimension = serde_name(&observation.dimension);
    let level = match observation.level {
        Level::Enforced => "enforced",
        Level::Cooperative => "cooperative",
        Level::Unenforced => "unenforced",
    };
    let known = match observation.known_by {
        Some(KnownBy::Observed) => "observed: ",
        Some(KnownBy::Returned) => "returned: ",
        Some(KnownBy::Assumed) => "assumed: ",
        None => "",
    };
    let controls: Vec<&str> = observation.controls.iter().map(|c| c.0.as_str()).collect();
    format!("{dimension:18}{level:13}{known}{}", plain(&controls.join(", "))).trim_end().to_owned()
}

/// The name that a value has in JSON.
fn serde_name(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}
