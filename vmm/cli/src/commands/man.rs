//! `pvisor man`.

use clap::CommandFactory as _;
use pvisor_spec::ExitCode;

use crate::args::Cli;
use crate::report::{Failure, answer};

/// Prints one page: the program's, followed by one for each of its commands.
pub(super) fn man() -> Result<u8, Failure> {
    let mut program = Cli::command();
    program.build();
    let mut pages = Vec::new();
    clap_mangen::Man::new(program.clone()).render(&mut pages)?;
    for command in program.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        clap_mangen::Man::new(command.clone()).render(&mut pages)?;
    }
    answer(|out| out.write_all(&pages))?;
    Ok(ExitCode::OK)
}
