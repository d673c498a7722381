//! What shaped a run besides the command line, as its record names it.

use serde::{Deserialize, Serialize};

use crate::HostMount;

/// What shaped a run besides the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Sources {
    /// The profile that was asked for, and what it adds to what the command may do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileGrant>,
}

impl Sources {
    /// Whether nothing did.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What a profile adds to what a command may do. A rule that denies something is never weakened by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProfileGrant {
    /// The profile's name.
    pub name: String,
    /// BLAKE3 of its text, hexadecimal.
    pub digest: String,
    /// Paths of the host in the sandbox; what is written to writable ones is neither staged nor thrown away.
    pub mounts: Vec<HostMount>,
    /// Names of the caller's variables that the command is given.
    pub variables: Vec<String>,
    /// Destinations that the command's network opens.
    pub hosts: Vec<String>,
    /// What the profile names and the run is not given.
    pub left_out: Vec<LeftOut>,
}

/// Something that was asked for and does not count in this run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// As it is written where it was asked for.
    pub what: String,
    /// Why: a lower-case fragment.
    pub reason: String,
}

impl LeftOut {
    /// `what` does not count, because of `reason`.
    pub fn new(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { what: what.into(), reason: reason.into() }
    }
}
