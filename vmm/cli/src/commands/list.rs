//! `pvisor list`.

use pvisor_spec::{ExecutorKind, ExitCode, Outcome, RunId, StageState};
use serde::Serialize;

use super::surroundings;
use crate::args::JsonArgs;
use crate::report::{Failure, ago, answer, answer_json, left, plain};
use crate::runs::{Entry, Phase, Run, now_ms};

/// Most characters of a command that are shown.
const COMMAND_WIDTH: usize = 48;

/// One run, for programs.
#[derive(Serialize)]
struct Row<'a> {
    id: RunId,
    state: Phase,
    outcome: Option<&'a Outcome>,
    executor: Option<ExecutorKind>,
    started_ms: u64,
    project: &'a pvisor_spec::OsBytes,
    command: &'a [pvisor_spec::OsBytes],
    stage: StageState,
    changes: Option<u64>,
    /// Until when what was replaced by applying is kept for `pvisor undo`.
    originals_until_ms: Option<u64>,
}

#[derive(Serialize)]
struct Unreadable<'a> {
    id: RunId,
    reason: &'a str,
}

#[derive(Serialize)]
struct Answer<'a> {
    runs: Vec<Row<'a>>,
    unreadable: Vec<Unreadable<'a>>,
}

pub(super) fn list(args: &JsonArgs) -> Result<u8, Failure> {
    let (_, store) = surroundings()?;
    let entries = store.entries()?;
    if args.json {
        let mut told = Answer { runs: Vec::new(), unreadable: Vec::new() };
        for entry in &entries {
            match entry {
                Entry::Run(run) => told.runs.push(row(run)),
                Entry::Unreadable { id, reason } => told.unreadable.push(Unreadable { id: *id, reason }),
            }
        }
        answer_json(&told)?;
    } else {
        let now = now_ms();
        answer(|out| {
            if entries.is_empty() {
                return writeln!(out, "no runs yet in {}", store.home().display());
            }
            writeln!(
                out,
                "{:40}  {:11}  {:12}  {:8}  {:9}  {:7}  COMMAND",
                "RUN", "STATE", "STARTED", "EXECUTOR", "STAGE", "UNDO"
            )?;
            for entry in &entries {
                match entry {
                    Entry::Run(run) => writeln!(out, "{}", line(run, now))?,
                    Entry::Unreadable { id, reason } => writeln!(out, "{id}  unreadable   {}", plain(reason))?,
                }
            }
            Ok(())
        })?;
    }
    Ok(ExitCode::OK)
}

fn row(run: &Run) -> Row<'_> {
    Row {
        id: run.id,
        state: run.record.phase,
        outcome: run.bundle.as_ref().map(|b| &b.outcome),
        executor: run.record.spec.executor,
        started_ms: run.record.started_ms,
        project: &run.record.spec.project,
        command: &run.record.spec.command.argv,
        stage: run.stage_state(),
        changes: run.stage_record().and_then(|s| s.changes),
        originals_until_ms: run.record.originals_until_ms,
    }
}

fn line(run: &Run, now: u64) -> String {
    let executor = run.record.spec.executor.map_or_else(|| "-".to_owned(), |kind| kind.to_string());
    format!(
        "{}  {:11}  {:12}  {executor:8}  {:9}  {:7}  {}",
        run.id,
        state(run),
        ago(run.record.started_ms, now),
        stage(run),
        run.record.originals_until_ms.map_or_else(|| "-".to_owned(), |until| left(until, now)),
        command(run)
    )
}

fn state(run: &Run) -> String {
    match run.bundle.as_ref().map(|b| &b.outcome) {
        Some(Outcome::Completed(end)) => format!("exit {}", end.exit_code()),
        Some(Outcome::Refused(_)) => "refused".to_owned(),
        Some(Outcome::Interrupted(_)) => "interrupted".to_owned(),
        None => match run.record.phase {
            Phase::Preparing => "starting".to_owned(),
            Phase::Running => "running".to_owned(),
            Phase::Sealing => "sealing".to_owned(),
            Phase::Ended => "unknown".to_owned(),
        },
    }
}

fn stage(run: &Run) -> String {
    match run.stage_state() {
        StageState::None => "-".to_owned(),
        StageState::Discarded => "discarded".to_owned(),
        StageState::Unsealed if run.is_live() => "open".to_owned(),
        StageState::Unsealed => "unsealed".to_owned(),
        StageState::Sealed if run.record.applied_ms.is_some() => "applied".to_owned(),
        StageState::Sealed => match run.stage_record().and_then(|s| s.changes) {
            Some(changes) => format!("{changes} ch."),
            None => "sealed".to_owned(),
        },
    }
}

fn command(run: &Run) -> String {
    let words: Vec<String> = run.record.spec.command.argv.iter().map(|a| a.display().to_string()).collect();
    let text = plain(&words.join(" ")).replace(['\n', '\t'], " ");
    match text.char_indices().nth(COMMAND_WIDTH) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
