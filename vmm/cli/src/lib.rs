//! The `pvisor` command: arguments become a run, a worker process carries it out, the record tells how it went.
//! See `DESIGN.md` beside this crate.

mod access;
mod args;
mod artefacts;
mod bundle;
mod commands;
mod profile;
mod report;
mod resolve;
mod runs;
mod secrets;
mod select;
mod stages;
mod supervisor;
mod worker;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;
use clap::error::ErrorKind;

use args::Cli;
use report::{Failure, answer};

/// The whole program, from the process's arguments to its exit code.
pub fn main() -> ExitCode {
    log_if_asked();
    let line: Vec<OsString> = std::env::args_os().collect();
    let code = match Cli::try_parse_from(&line) {
        Ok(cli) => commands::dispatch(&cli.command),
        Err(error) => refuse(&error, &line),
    };
    ExitCode::from(code)
}

/// Tells a usage error, or answers `--help` and `--version`.
fn refuse(error: &clap::Error, line: &[OsString]) -> u8 {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let styled = std::io::IsTerminal::is_terminal(&std::io::stdout()) && std::env::var_os("NO_COLOR").is_none();
        let text = if styled { error.render().ansi().to_string() } else { error.render().to_string() };
        return match answer(|out| out.write_all(text.as_bytes())) {
            Ok(()) => pvisor_spec::ExitCode::OK,
            Err(_) => pvisor_spec::ExitCode::ERROR,
        };
    }
    let own = line.iter().take_while(|word| *word != "--");
    if own.into_iter().any(|word| word == "--json") {
        let text = error.render().to_string();
        let (message, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
        let message = message.trim_start_matches("error: ").trim();
        Failure::new("usage", message).hint(rest.trim()).tell(true);
    } else {
        // Colours and streams are clap's business; a reader that left is nobody's.
        let _ = error.print();
    }
    pvisor_spec::ExitCode::USAGE
}

/// Diagnostic messages, for those who set `PVISOR_LOG`.
fn log_if_asked() {
    if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env("PVISOR_LOG") {
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    }
}
