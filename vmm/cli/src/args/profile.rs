//! Arguments about profiles.

use clap::{Args, Subcommand};

use super::JsonArgs;

/// `pvisor profile`.
#[derive(Debug, Subcommand)]
pub(crate) enum ProfileCommand {
    /// List the profiles
    List(JsonArgs),
    /// Tell what a profile grants
    Show(ProfileShowArgs),
}

impl ProfileCommand {
    pub(super) fn json(&self) -> bool {
        match self {
            Self::List(args) => args.json,
            Self::Show(args) => args.json,
        }
    }
}

/// `pvisor profile show`.
#[derive(Debug, Args)]
pub(crate) struct ProfileShowArgs {
    /// The profile
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}
