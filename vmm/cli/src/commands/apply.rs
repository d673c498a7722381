//! `pvisor apply`.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use pvisor_spec::{ExitCode, OsBytes};
use pvisor_stage::{Applied, ApplyOptions, RelPath, Selection, apply_changes, load_changes};
use serde::Serialize;

use super::surroundings;
use crate::args::ApplyArgs;
use crate::report::{Failure, answer, answer_json, chain, count, plain, plain_path, say};
use crate::runs::{Store, now_ms};
use crate::stages::{self, Target};

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
    not_appliable: Vec<NotAppliable<'a>>,
}

#[derive(Serialize)]
struct NotAppliable<'a> {
    path: OsBytes,
    reason: &'a str,
}

pub(super) fn apply(args: &ApplyArgs) -> Result<u8, Failure> {
    let (ambient, store) = surroundings()?;
    let target = stages::find(&args.run, &store, &ambient)?;
    let set = load_changes(&target.dir).map_err(|e| stages::apply_failure(&e.into(), &target))?;
    let paths = args.path.iter().map(|path| relative(path, &set.lower));
    let options = ApplyOptions {
        target: args.target.as_ref().map(|dir| ambient.cwd.join(dir)),
        dry_run: args.dry_run,
        selection: Selection {
            paths: paths.collect::<Result<_, _>>()?,
            include: args.include.clone(),
            exclude: args.exclude.clone(),
        },
    };
    let applied = apply_changes(&target.dir, &set, &options).map_err(|e| stages::apply_failure(&e, &target))?;
    if options.target.is_none() && !options.dry_run && applied.left == 0 {
        remember(&store, &target);
    }
    let place = options.target.unwrap_or(set.lower);
    if args.json {
        answer_json(&describe(&applied, &place, args.dry_run))?;
    } else {
        answer(|out| tell(out, &applied, &place, args.dry_run))?;
    }
    Ok(ExitCode::OK)
}

/// Notes that nothing is left to apply.
fn remember(store: &Store, target: &Target) {
    let Some(run) = target.run.as_ref().filter(|run| run.record.applied_ms.is_none()) else { return };
    if let Err(e) = store.amend(run, |record| record.applied_ms = Some(now_ms())) {
        say(&format!("warning: {}", plain(&chain(&e))));
    }
}

fn describe<'a>(applied: &'a Applied, place: &Path, dry_run: bool) -> Answer<'a> {
    let not_appliable = applied.not_appliable.iter();
    Answer {
        target: place.into(),
        dry_run,
        written: applied.written,
        same: applied.same,
        left: applied.left,
        not_appliable: not_appliable
            .map(|(path, reason)| NotAppliable { path: path.as_bytes().to_vec().into(), reason })
            .collect(),
    }
}

fn tell(out: &mut dyn Write, applied: &Applied, place: &Path, dry_run: bool) -> io::Result<()> {
    let place = plain_path(place);
    match (applied.written, dry_run) {
        (0, _) if applied.left == 0 => writeln!(out, "there is nothing left to apply to {place}")?,
        (n, true) => writeln!(out, "{} would be applied to {place}; nothing was written", count(n, "change"))?,
        (n, false) => writeln!(out, "{} applied to {place}", count(n, "change"))?,
    }
    if applied.left > 0 {
        writeln!(out, "{} left", count(applied.left, "change"))?;
    }
    for (path, reason) in &applied.not_appliable {
        let path = String::from_utf8_lossy(path.as_bytes());
        writeln!(out, "not appliable: {}: {}", plain(&path).replace('\n', "\\n"), plain(reason))?;
    }
    Ok(())
}

/// A path of the project as the stage names it: given from the project's root, or absolute and below it.
fn relative(path: &Path, project: &Path) -> Result<RelPath, Failure> {
    let failed = |why: &str| {
        Failure::new("selection", format!("--path {}: {why}", plain_path(path)))
            .hint("paths are relative to the project, as `pvisor review` shows them")
            .code(ExitCode::USAGE)
    };
    let inside =
        if path.is_absolute() { path.strip_prefix(project).map_err(|_| failed("not in the project"))? } else { path };
    let mut plain = PathBuf::new();
    for component in inside.components() {
        match component {
            Component::Normal(name) => plain.push(name),
            Component::CurDir => {}
            _ => return Err(failed("it leads out of the project")),
        }
    }
    RelPath::new(plain.as_os_str().as_bytes().to_vec()).map_err(|e| failed(&e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_from_the_projects_root() {
        let project = Path::new("/p");
        for (given, meant) in [("a/b", "a/b"), ("./a/", "a"), ("/p/a", "a"), ("/p", ""), (".", "")] {
            assert_eq!(relative(Path::new(given), project).unwrap().as_bytes(), meant.as_bytes(), "{given}");
        }
        for bad in ["..", "a/../b", "/q/a", "/"] {
            assert_eq!(relative(Path::new(bad), project).unwrap_err().code, ExitCode::USAGE, "{bad}");
        }
    }
}
