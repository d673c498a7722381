//! Profiles: what known agents need beyond a sandbox, as data. They are in the program, one file each in `profiles/`
//! beside this crate's sources.

use std::ffi::OsStr;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The files, in the order of their names.
static FILES: [(&str, &str); 7] = [
    ("aider", include_str!("../profiles/aider.toml")),
    ("claude", include_str!("../profiles/claude.toml")),
    ("codex", include_str!("../profiles/codex.toml")),
    ("gemini", include_str!("../profiles/gemini.toml")),
    ("goose", include_str!("../profiles/goose.toml")),
    ("opencode", include_str!("../profiles/opencode.toml")),
    ("zcode", include_str!("../profiles/zcode.toml")),
];

/// What one agent needs. Paths begin with `~/`, the caller's home directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profile {
    /// What `--profile` calls it.
    pub(crate) name: String,
    /// What it is, in a few words.
    pub(crate) summary: String,
    /// File names of its programs.
    pub(crate) commands: Vec<String>,
    /// Its state: what is written there stays.
    pub(crate) write: Vec<String>,
    /// What it reads only; also where it is in what it writes.
    pub(crate) read: Vec<String>,
    /// Variables that it is configured with.
    pub(crate) variables: Vec<String>,
    /// Services that it talks with, `NAME:PORT`.
    pub(crate) hosts: Vec<String>,
    /// What the person should know before: a fragment.
    pub(crate) caution: String,
    /// BLAKE3 of the text, hexadecimal.
    #[serde(skip_deserializing)]
    pub(crate) digest: String,
}

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProfileError {
    #[error("there is no profile {name:?}")]
    Unknown { name: String },
    #[error("the profile {name} can't be read: {reason}")]
    Malformed { name: &'static str, reason: String },
}

impl From<ProfileError> for crate::report::Failure {
    fn from(error: ProfileError) -> Self {
        let message = error.to_string();
        match error {
            ProfileError::Unknown { .. } => Self::new("no_profile", message).hint(format!("there are: {}", names())),
            ProfileError::Malformed { .. } => Self::new("internal", message),
        }
    }
}

/// The names of all profiles.
fn names() -> String {
    FILES.map(|(name, _)| name).join(", ")
}

/// All profiles, by name.
///
/// # Errors
/// One of ours can't be read.
pub(crate) fn all() -> Result<Vec<Profile>, ProfileError> {
    FILES.iter().map(|(name, text)| parse(name, text)).collect()
}

/// The profile of that name.
///
/// # Errors
/// There is none.
pub(crate) fn find(name: &str) -> Result<Profile, ProfileError> {
    match FILES.iter().find(|(known, _)| *known == name) {
        Some((name, text)) => parse(name, text),
        None => Err(ProfileError::Unknown { name: name.to_owned() }),
    }
}

/// The name of the profile that is for this program, if there is one.
pub(crate) fn for_program(program: &OsStr) -> Option<String> {
    let file = Path::new(program).file_name()?.to_str()?;
    all().ok()?.into_iter().find(|profile| profile.commands.iter().any(|command| command == file)).map(|p| p.name)
}

fn parse(name: &'static str, text: &str) -> Result<Profile, ProfileError> {
    let mut profile: Profile = toml::from_str(text)
        .map_err(|e| ProfileError::Malformed { name, reason: e.to_string().trim_end().to_owned() })?;
    profile.digest = blake3::hash(text.as_bytes()).to_hex().to_string();
    Ok(profile)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Component, PathBuf};

    use globset::GlobBuilder;
    use pvisor_spec::{EgressDefault, EgressSpec};

    use super::*;

    #[test]
    fn every_profile_is_complete_and_says_what_can_be_granted() {
        let profiles = all().unwrap();
        let wanted = ["aider", "claude", "codex", "gemini", "goose", "opencode", "zcode"];
        assert_eq!(profiles.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), wanted);
        let mut commands = BTreeSet::new();
        for profile in &profiles {
            let name = &profile.name;
            assert!(!profile.summary.is_empty() && !profile.write.is_empty() && !profile.caution.is_empty(), "{name}");
            assert!(!profile.commands.is_empty() && !profile.variables.is_empty(), "{name}");
            for command in &profile.commands {
                assert!(commands.insert(command.clone()), "{name}: {command} is another profile's");
            }
            for variable in &profile.variables {
                let fits = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
                assert!(variable.chars().all(fits), "{name}: {variable}");
            }
            let allow = profile.hosts.clone();
            let egress = EgressSpec { default: EgressDefault::Nothing, allow, ..EgressSpec::default() };
            pvisor_host_exec::check_egress(&egress).unwrap();
            for host in &profile.hosts {
                assert!(host.ends_with(":443") && !host.contains(['*', '/']), "{name}: {host} is not one service");
            }
        }
    }

    #[test]
    fn no_profile_grants_what_is_hidden_or_more_than_an_agents_own() {
        let home = PathBuf::from("/data/me");
        let hidden: Vec<_> = crate::secrets::hidden_globs([home.clone()].iter(), &[])
            .iter()
            .map(|glob| GlobBuilder::new(glob).literal_separator(true).build().unwrap().compile_matcher())
            .collect();
        let shared = [".config", ".local", ".local/share", ".local/state", ".cache"];
        for profile in all().unwrap() {
            for path in profile.write.iter().chain(&profile.read) {
                let rest = Path::new(path.strip_prefix("~/").unwrap_or_else(|| panic!("{path}")));
                assert!(rest.components().all(|c| matches!(c, Component::Normal(_))), "{path}");
                assert!(!shared.iter().any(|shared| Path::new(shared) == rest), "{path} is everybody's");
                let whole = home.join(rest);
                let around = || whole.ancestors().take_while(|p| *p != home);
                assert!(!hidden.iter().any(|glob| around().any(|p| glob.is_match(p))), "{path} is hidden");
            }
        }
    }

    #[test]
    fn unknown_and_missing_keys_are_errors() {
        let (_, text) = FILES[0];
        assert!(parse("aider", &format!("{text}\nwrites = []\n")).unwrap_err().to_string().contains("writes"));
        let without: String = text.lines().filter(|l| !l.starts_with("caution")).collect::<Vec<_>>().join("\n");
        assert!(parse("aider", &without).unwrap_err().to_string().contains("caution"));
        assert!(parse("aider", &format!("digest = \"x\"\n{text}")).is_err());
    }

    #[test]
    fn a_program_is_known_by_its_file_name() {
        assert_eq!(for_program(OsStr::new("/usr/local/bin/claude")).as_deref(), Some("claude"));
        assert_eq!(for_program(OsStr::new("goosed")).as_deref(), Some("goose"));
        assert_eq!(for_program(OsStr::new("claude-ish")), None);
        assert_eq!(for_program(OsStr::new("..")), None);
        assert!(matches!(find("nope"), Err(ProfileError::Unknown { .. })));
    }
}
