//! `pvisor apply`.

use std::io::{self, Write};
use std::path::Path;

use pvisor_spec::{ExitCode, OsBytes};
use pvisor_stage::{Applied, ApplyOptions, Keeping, OriginalsKept, apply_changes, load_changes};
use serde::Serialize;

use super::surroundings;
use crate::args::ApplyArgs;
use crate::report::{Failure, LeftOut, answer, answer_json, count, left_out, plain_path, tell_left_out};
use crate::runs::now_ms;
use crate::stages::{self, Target, selection};

/// What was done, for programs.
#[derive(Serialize)]
struct Answer<'a> {
    target: OsBytes,
    dry_run: bool,
    /// Paths that were changed, or would be.
    written: u64,
    /// Paths that were so already.
    same: u64,
    /// Paths that were not selected.
    left: u64,
    not_appliable: Vec<LeftOut<'a>>,
    /// Until when what was replaced is kept for `pvisor undo`.
    originals_until_ms: Option<u64>,
}

/// Days that originals are kept, where nothing else is said.
const KEEP_DAYS: u16 = 7;

pub(super) fn apply(args: &ApplyArgs) -> Result<u8, Failure> {
    let (ambient, store) = surroundings()?;
    let target = stages::find(&args.run, &store, &ambient)?;
    let set = load_changes(&target.dir).map_err(|e| stages::apply_failure(&e.into(), &target))?;
    let options = ApplyOptions {
        target: args.target.as_ref().map(|dir| ambient.cwd.join(dir)),
        dry_run: args.dry_run,
        allow_exec_sinks: args.allow_exec_sinks,
        selection: selection(&args.selection, &set.lower)?,
        keep: keeping(args),
    };
    if let (Some(run), Some(keeping), false) = (&target.run, options.keep, args.dry_run) {
        store.mark_originals(run.id, keeping.until_ms)?;
    }
    let applied = apply_changes(&target.dir, &set, &options).map_err(|e| stages::apply_failure(&e, &target))?;
    if options.target.is_none() && !options.dry_run {
        stages::remember_applied(&store, &target, applied.left == 0, kept_until(&applied));
    }
    let place = options.target.unwrap_or(set.lower);
    if args.json {
        answer_json(&describe(&applied, &place, args.dry_run))?;
    } else {
        answer(|out| tell(out, &applied, (&target, &place), args))?;
    }
    Ok(ExitCode::OK)
}

fn keeping(args: &ApplyArgs) -> Option<Keeping> {
    const DAY_MS: u64 = 86_400_000;
    let since_ms = now_ms();
    let days = u64::from(args.keep_originals.unwrap_or(KEEP_DAYS));
    (!args.no_keep_originals).then_some(Keeping { since_ms, until_ms: since_ms + days * DAY_MS })
}

fn kept_until(applied: &Applied) -> Option<u64> {
    match applied.originals {
        OriginalsKept::Until(until) => Some(until),
        OriginalsKept::NotAsked | OriginalsKept::NoPlace => None,
    }
}

fn describe<'a>(applied: &'a Applied, place: &Path, dry_run: bool) -> Answer<'a> {
    Answer {
        target: place.into(),
        dry_run,
        written: applied.written,
        same: applied.same,
        left: applied.left,
        not_appliable: left_out(&applied.not_appliable),
        originals_until_ms: kept_until(applied),
    }
}

fn tell(out: &mut dyn Write, applied: &Applied, (target, place): (&Target, &Path), args: &ApplyArgs) -> io::Result<()> {
    let place = plain_path(place);
    match (applied.written, args.dry_run) {
        (0, _) if applied.left == 0 => writeln!(out, "there is nothing left to apply to {place}")?,
        (n, true) => writeln!(out, "{} would be applied to {place}; nothing was written", count(n, "change"))?,
        (n, false) => writeln!(out, "{} applied to {place}", count(n, "change"))?,
    }
    if applied.left > 0 {
        writeln!(out, "{} left", count(applied.left, "change"))?;
    }
    tell_left_out(out, "not appliable", &applied.not_appliable)?;
    match applied.originals {
        OriginalsKept::Until(_) => {
            let days = count(args.keep_originals.unwrap_or(KEEP_DAYS).into(), "day");
            writeln!(out, "to take it back within {days}: pvisor undo {}", target.name())?;
        }
        OriginalsKept::NoPlace => writeln!(
            out,
            "what was replaced is not kept: there is no place for it on the filesystem of {place} but in it"
        )?,
        OriginalsKept::NotAsked => {}
    }
    Ok(())
}
