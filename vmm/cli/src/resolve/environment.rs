//! The command's variables.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use pvisor_spec::OsBytes;

use super::Ambient;
use crate::args::EnvPair;

/// Variables that a guest is given; `LC_*` as well.
const PASSED: [&str; 9] = ["HOME", "LANG", "TERM", "COLORTERM", "PATH", "SHELL", "USER", "LOGNAME", "TZ"];

/// What `--env` says; a name alone stands for the caller's value, and for nothing where there is none.
pub(super) fn named(pairs: &[EnvPair], ambient: &Ambient) -> Vec<OsBytes> {
    let value = |pair: &EnvPair| match &pair.value {
        Some(value) => Some(value.clone()),
        None => ambient.env.iter().find(|(name, _)| *name == pair.name).map(|(_, value)| value.clone()),
    };
    pairs.iter().filter_map(|pair| Some(assignment(&pair.name, &value(pair)?))).collect()
}

/// The caller's environment and what was named; the later of two of the same name wins.
pub(super) fn whole(named: &[OsBytes], ambient: &Ambient) -> Vec<OsBytes> {
    let callers: Vec<OsBytes> = ambient.env.iter().map(|(name, value)| assignment(name, value)).collect();
    last_of_each(callers.into_iter().chain(named.iter().cloned()))
}

/// What a guest is given of `env`: the harmless ones, and those that were named.
pub(super) fn projected(env: &[OsBytes], named: &[OsBytes]) -> Vec<OsBytes> {
    let passed = env.iter().filter(|v| is_passed(name_of(v)));
    last_of_each(passed.chain(named).cloned())
}

/// Names of a run's variables that a guest is not given by itself: those that somebody named.
pub(super) fn named_before(env: &[OsBytes]) -> impl Iterator<Item = EnvPair> {
    let names = env.iter().map(name_of).filter(|name| !is_passed(name));
    names.map(|name| EnvPair { name: OsString::from_vec(name.to_vec()), value: None })
}

fn is_passed(name: &[u8]) -> bool {
    name.starts_with(b"LC_") || PASSED.iter().any(|p| p.as_bytes() == name)
}

fn last_of_each(all: impl Iterator<Item = OsBytes>) -> Vec<OsBytes> {
    let mut kept: Vec<OsBytes> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    let mut all: Vec<OsBytes> = all.collect();
    while let Some(variable) = all.pop() {
        if seen.insert(name_of(&variable).to_vec()) {
            kept.push(variable);
        }
    }
    kept.reverse();
    kept
}

fn name_of(variable: &OsBytes) -> &[u8] {
    variable.as_bytes().split(|b| *b == b'=').next().unwrap_or_default()
}

fn assignment(name: &OsStr, value: &OsStr) -> OsBytes {
    OsString::from_vec([name.as_bytes(), b"=", value.as_bytes()].concat()).into()
}
