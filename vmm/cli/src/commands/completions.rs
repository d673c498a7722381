//! `pvisor completions`.

use clap::CommandFactory as _;
use pvisor_spec::ExitCode;

use crate::args::{Cli, CompletionsArgs};
use crate::report::{Failure, answer};

pub(super) fn completions(args: &CompletionsArgs) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "pvisor", &mut script);
    answer(|out| out.write_all(&script))?;
    Ok(ExitCode::OK)
}
