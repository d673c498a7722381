//! `pvisor access`: remembered answers.

use pvisor_spec::{ExitCode, OsBytes};
use serde::Serialize;

use super::surroundings;
use crate::access::{Memory, Remembered, subject_text};
use crate::args::{AccessCommand, ForgetArgs};
use crate::report::{Failure, ago, answer, answer_json, count, plain_path};
use crate::runs::now_ms;

pub(super) fn access(command: &AccessCommand) -> Result<u8, Failure> {
    match command {
        AccessCommand::List(args) => list(args.json),
        AccessCommand::Forget(args) => forget(args),
    }
}

fn list(json: bool) -> Result<u8, Failure> {
    let (ambient, _) = surroundings()?;
    let answers = Memory::at(&ambient.run_home).all()?;
    if json {
        answer_json(&answers)?;
        return Ok(ExitCode::OK);
    }
    answer(|out| {
        for remembered in &answers {
            let verdict = if remembered.allowed { "yes" } else { "no" };
            let name = subject_text(&remembered.subject);
            let place = remembered.project.as_ref().map_or("every project".to_owned(), |p| plain_path(p.as_path()));
            writeln!(out, "{verdict:4}{name:40} {place}  ({})", ago(remembered.time_ms, now_ms()))?;
        }
        if answers.is_empty() { writeln!(out, "no answers are remembered") } else { Ok(()) }
    })?;
    Ok(ExitCode::OK)
}

/// What was forgotten, for programs.
#[derive(Serialize)]
struct Forgotten {
    forgotten: usize,
}

fn forget(args: &ForgetArgs) -> Result<u8, Failure> {
    let (ambient, _) = surroundings()?;
    let project = args.project.as_ref().map(|dir| {
        let path = ambient.cwd.join(dir);
        // One that is gone is known by the path that it had.
        OsBytes::from(path.canonicalize().unwrap_or(path))
    });
    let meant = |remembered: &Remembered| {
        let named = args.names.is_empty() || args.names.contains(&subject_text(&remembered.subject));
        named && (project.is_none() || remembered.project == project)
    };
    let forgotten = Memory::at(&ambient.run_home).forget(meant)?;
    if forgotten == 0 && !args.all {
        return Err(Failure::new("not_remembered", "no such answer is remembered")
            .hint("`pvisor access list` shows all of them"));
    }
    if args.json {
        answer_json(&Forgotten { forgotten })?;
    } else {
        answer(|out| writeln!(out, "{} forgotten", count(forgotten as u64, "answer")))?;
    }
    Ok(ExitCode::OK)
}
