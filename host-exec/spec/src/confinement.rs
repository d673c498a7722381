//! How the host executor confines a command beyond its namespaces.

use serde::{Deserialize, Serialize};

use crate::OsBytes;

/// What a command on the host may do and see; the default is the tightest that changes nothing it sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Confinement {
    /// The caller's home directory: absolute, without symbolic links.
    pub home: Option<OsBytes>,
    /// What a filesystem sandbox shows at that path.
    pub home_view: HomeView,
    /// Further directories and files of the host that a filesystem sandbox shows.
    pub mounts: Vec<HostMount>,
    /// Paths that look absent: globs against absolute paths of the host, besides those of secrets.
    pub denied: Vec<String>,
    /// Which of the caller's variables the command was given.
    pub environment: EnvironmentMode,
    /// Leave the command the capabilities that it has: real root can then leave what it is kept in.
    pub keep_capabilities: bool,
    /// Let the command use io_uring.
    pub allow_io_uring: bool,
    /// Let the command make user namespaces.
    pub allow_user_namespaces: bool,
    /// Do not start unless every required dimension is enforced, where otherwise `cooperative` will do.
    pub strict: bool,
}

/// What a filesystem sandbox shows at the path of the home directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HomeView {
    /// An empty directory with the toolchains of the real one, read-only.
    #[default]
    Tools,
    /// The real one without its secrets; what is written there is thrown away.
    CopyOnWrite,
}

/// Which variables of the caller reach the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EnvironmentMode {
    /// All of them.
    #[default]
    Whole,
    /// The harmless ones, and those that were named.
    Projected,
}

/// A path of the host in a filesystem sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HostMount {
    /// On the host: absolute, without symbolic links.
    pub source: OsBytes,
    /// In the sandbox: absolute.
    pub target: OsBytes,
    /// Whether the command can write it.
    pub writable: bool,
}
