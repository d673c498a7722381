//! `pvisor undo`.

use std::io::{self, Write};

use pvisor_spec::{ExitCode, OsBytes};
use pvisor_stage::{UndoOptions, Undone};
use serde::Serialize;

use super::surroundings;
use crate::args::UndoArgs;
use crate::report::{Failure, LeftOut, answer, answer_json, count, left_out, plain_path, tell_left_out};
use crate::runs::now_ms;
use crate::stages::{self, selection};

/// What was done, for programs.
#[derive(Serialize)]
struct Answer<'a> {
    target: OsBytes,
    dry_run: bool,
    /// Paths that were put back, or would be.
    written: u64,
    /// Paths that were as before already.
    same: u64,
    /// Paths that are applied and stay so: not selected, or not kept.
    left: u64,
    not_undoable: Vec<LeftOut<'a>>,
}

pub(super) fn undo(args: &UndoArgs) -> Result<u8, Failure> {
    let (ambient, store) = surroundings()?;
    let target = stages::find(&args.run, &store, &ambient)?;
    let place = args.target.as_ref().map(|dir| ambient.cwd.join(dir));
    let project = place.clone().or_else(|| Some(target.run.as_ref()?.record.spec.project.as_path().to_owned()));
    let options = UndoOptions {
        selection: selection(&args.selection, project.as_deref().unwrap_or(&ambient.cwd))?,
        target: place,
        dry_run: args.dry_run,
        now_ms: now_ms(),
    };
    let undone = pvisor_stage::undo(&target.dir, &options).map_err(|e| stages::undo_failure(&e, &target))?;
    if let Some(run) = target.run.as_ref().filter(|_| options.target.is_none() && !options.dry_run) {
        stages::remember_undone(&store, run, undone.left > 0);
    }
    if args.json {
        answer_json(&describe(&undone, args.dry_run))?;
    } else {
        answer(|out| tell(out, &undone, args.dry_run))?;
    }
    Ok(ExitCode::OK)
}

fn describe(undone: &Undone, dry_run: bool) -> Answer<'_> {
    Answer {
        target: undone.target.clone().into(),
        dry_run,
        written: undone.written,
        same: undone.same,
        left: undone.left,
        not_undoable: left_out(&undone.not_undoable),
    }
}

fn tell(out: &mut dyn Write, undone: &Undone, dry_run: bool) -> io::Result<()> {
    let place = plain_path(&undone.target);
    let changes = count(undone.written, "change");
    match dry_run {
        true => writeln!(out, "{changes} would be undone in {place}; nothing was written")?,
        false => writeln!(out, "{changes} undone in {place}; they are staged as before")?,
    }
    if undone.left > 0 {
        writeln!(out, "{} left as applied", count(undone.left, "change"))?;
    }
    tell_left_out(out, "not undone", &undone.not_undoable)
}
