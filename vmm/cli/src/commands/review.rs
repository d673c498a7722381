//! `pvisor review`.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;

use pvisor_spec::ExitCode;
use pvisor_stage::{Binaries, Review, Visible, load_changes, review_changes};

use super::surroundings;
use crate::args::ReviewArgs;
use crate::report::{Failure, answer, answer_json, count, plain_path};
use crate::stages;

pub(super) fn review(args: &ReviewArgs) -> Result<u8, Failure> {
    let (ambient, store) = surroundings()?;
    let target = stages::find(&args.run, &store, &ambient)?;
    let set = load_changes(&target.dir).map_err(|e| stages::review_failure(&e.into(), &target))?;
    let selection = stages::selection(&args.selection, &set.lower)?;
    let review = review_changes(&target.dir, set, &selection).map_err(|e| stages::review_failure(&e, &target))?;
    if let Some(file) = &args.html {
        write_page(&ambient.cwd.join(file), &review, &target.name())?;
    }
    if args.json {
        answer_json(&review)?;
    } else if let Some(file) = &args.html {
        answer(|out| {
            writeln!(out, "{} written to {}", count(review.entries.len() as u64, "change"), plain_path(file))
        })?;
    } else if args.diff {
        // Into a file or a pipe as it is, for `git apply`; a terminal must not act on what a command wrote.
        if io::stdout().is_terminal() {
            answer(|out| {
                let mut visible = Visible::new(out);
                review.write_diff(Binaries::Named, &mut visible)?;
                visible.flush()
            })?;
        } else {
            answer(|out| review.write_diff(Binaries::Whole, out))?;
        }
    } else if args.stat {
        answer(|out| review.write_stat(out))?;
    } else {
        answer(|out| review.write_summary(out))?;
    }
    Ok(ExitCode::OK)
}

/// Writes the page whole or not at all, readable by nobody else: it has contents of the project in it.
fn write_page(file: &Path, review: &Review, name: &str) -> Result<(), Failure> {
    let failed = |e: &io::Error| {
        Failure::new("output", format!("can't write {}: {e}", plain_path(file))).hint("name another file with --html")
    };
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || {
        let mut page = tempfile::Builder::new().prefix(".pvisor-review-").tempfile_in(dir)?;
        let mut out = io::BufWriter::new(page.as_file_mut());
        review.write_html(name, &mut out)?;
        out.flush()?;
        drop(out);
        page.persist(file).map_err(|e| e.error)?;
        Ok(())
    };
    write().map_err(|e| failed(&e))
}
