//! Arguments of savepoints and forks.

use std::ffi::OsString;

use clap::{Args, Subcommand, ValueHint};

use super::{EnvPair, RunNameArgs, Span};

/// `pvisor checkpoint`.
#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointCommand {
    /// Keep the stage as it is now, of a run on the host also while it goes on
    Create(CreateArgs),
    /// List the savepoints, oldest first
    List(RunNameArgs),
    /// Tell of one savepoint
    Show(SavepointArgs),
    /// Read all of a savepoint and compare it with what was saved
    Verify(SavepointArgs),
    /// Make the stage what it was, and seal it
    Restore(RestoreArgs),
    /// Remove a savepoint
    Delete(SavepointArgs),
    /// Remove what was left half made or half removed
    Gc(CollectArgs),
}

impl CheckpointCommand {
    pub(super) fn json(&self) -> bool {
        match self {
            Self::Create(args) => args.json,
            Self::List(args) => args.json,
            Self::Show(args) | Self::Verify(args) | Self::Delete(args) => args.json,
            Self::Restore(args) => args.json,
            Self::Gc(args) => args.json,
        }
    }
}

/// `pvisor checkpoint create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Id, unique beginning of an id, stage directory, or `last`
    #[arg(value_name = "RUN")]
    pub(crate) run: OsString,
    /// What to call it [default: the next number]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// How long a run that goes on may be held still for it
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub(crate) max_pause: Span,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A command on one savepoint.
#[derive(Debug, Args)]
pub(crate) struct SavepointArgs {
    /// Id, unique beginning of an id, stage directory, or `last`
    #[arg(value_name = "RUN")]
    pub(crate) run: OsString,
    /// The savepoint
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `pvisor checkpoint restore`.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Id, unique beginning of an id, stage directory, or `last`
    #[arg(value_name = "RUN")]
    pub(crate) run: OsString,
    /// The savepoint [default: the last one]
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `pvisor checkpoint gc`.
#[derive(Debug, Args)]
pub(crate) struct CollectArgs {
    /// Id, unique beginning of an id, stage directory, or `last` [default: all]
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<OsString>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `pvisor fork`.
#[derive(Debug, Args)]
pub(crate) struct ForkArgs {
    /// Id, unique beginning of an id, stage directory, or `last`
    #[arg(value_name = "RUN")]
    pub(crate) run: OsString,
    /// How many; with a command it is one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000),
        conflicts_with = "command")]
    pub(crate) count: u32,
    /// From this savepoint of the run rather than from its stage
    #[arg(long, value_name = "NAME")]
    pub(crate) savepoint: Option<String>,
    /// Set a variable of the command, or pass on the caller's value
    #[arg(long, value_name = "NAME[=VALUE]", requires = "command")]
    pub(crate) env: Vec<EnvPair>,
    /// Answer in JSON; with a command, report as `run --json` does
    #[arg(long)]
    pub(crate) json: bool,
    /// A command to run at once, with these changes and as the other run was run
    #[arg(last = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}
