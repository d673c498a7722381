//! `pvisor profile`.

use std::io::{self, Write};

use pvisor_spec::ExitCode;
use serde::Serialize;

use crate::args::{JsonArgs, ProfileCommand, ProfileShowArgs};
use crate::profile::{self, Profile};
use crate::report::{Failure, answer, answer_json};

#[derive(Serialize)]
struct Answer<'a> {
    profiles: &'a [Profile],
}

pub(super) fn profile(command: &ProfileCommand) -> Result<u8, Failure> {
    match command {
        ProfileCommand::List(args) => list(args),
        ProfileCommand::Show(args) => show(args),
    }
}

fn list(args: &JsonArgs) -> Result<u8, Failure> {
    let profiles = profile::all()?;
    if args.json {
        answer_json(&Answer { profiles: &profiles })?;
    } else {
        answer(|out| {
            for Profile { name, summary, commands, .. } in &profiles {
                writeln!(out, "{name:10}{summary:24}{}", commands.join(", "))?;
            }
            Ok(())
        })?;
    }
    Ok(ExitCode::OK)
}

fn show(args: &ProfileShowArgs) -> Result<u8, Failure> {
    let profile = profile::find(&args.name)?;
    if args.json {
        answer_json(&profile)?;
    } else {
        answer(|out| tell(out, &profile))?;
    }
    Ok(ExitCode::OK)
}

fn tell(out: &mut dyn Write, profile: &Profile) -> io::Result<()> {
    writeln!(out, "{}: {}", profile.name, profile.summary)?;
    for (what, values) in [
        ("commands", &profile.commands),
        ("writes", &profile.write),
        ("reads", &profile.read),
        ("variables", &profile.variables),
        ("hosts", &profile.hosts),
    ] {
        for (number, value) in values.iter().enumerate() {
            writeln!(out, "  {:11}{value}", if number == 0 { what } else { "" })?;
        }
    }
    writeln!(out, "  {:11}{}", "caution", profile.caution)
}
