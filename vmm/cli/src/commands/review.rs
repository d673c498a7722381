//! `pvisor review`.

use std::io::IsTerminal as _;

use pvisor_spec::ExitCode;
use pvisor_stage::Visible;

use super::surroundings;
use crate::args::ReviewArgs;
use crate::report::{Failure, answer, answer_json};
use crate::stages;

pub(super) fn review(args: &ReviewArgs) -> Result<u8, Failure> {
    let (ambient, store) = surroundings()?;
    let target = stages::find(&args.run, &store, &ambient)?;
    let review = pvisor_stage::review(&target.dir).map_err(|e| stages::review_failure(&e, &target))?;
    if args.json {
        answer_json(&review)?;
    } else if args.diff {
        // Into a file or a pipe as it is, for `git apply`; a terminal must not act on what a command wrote.
        if std::io::stdout().is_terminal() {
            answer(|out| {
                let mut visible = Visible::new(out);
                review.write_diff(&mut visible)?;
                std::io::Write::flush(&mut visible)
            })?;
        } else {
            answer(|out| review.write_diff(out))?;
        }
    } else {
        answer(|out| review.write_summary(out))?;
    }
    Ok(ExitCode::OK)
}
