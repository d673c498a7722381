//! What one run is asked to be.

use serde::{Deserialize, Serialize};

use crate::{Confinement, ExecutorKind, ExecutorRequest, Need, OsBytes, RunId, Sources};

/// Everything that decides a run, after arguments, configuration and defaults are resolved. Nothing is looked up later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// The run's name.
    pub id: RunId,
    /// What to run.
    pub command: CommandSpec,
    /// What was asked for with `--executor`.
    pub requested: ExecutorRequest,
    /// What was selected; `None` before selection.
    pub executor: Option<ExecutorKind>,
    /// The directory whose changes are staged: absolute, without symbolic links.
    pub project: OsBytes,
    /// Where changes go; `None`: the project itself is written (host executor, on explicit request).
    pub stage: Option<StageSpec>,
    /// Filesystem controls of the host executor.
    pub filesystem: FilesystemMode,
    /// Other controls of the host executor.
    #[serde(default)]
    pub confinement: Confinement,
    /// Network policy.
    pub network: NetworkMode,
    /// Limits.
    pub resources: Resources,
    /// Root filesystem of a guest.
    pub root: GuestRoot,
    /// Milliseconds from the command's start to its end by force; `None`: no limit.
    pub timeout_ms: Option<u64>,
    /// Milliseconds between the polite signal and SIGKILL.
    pub grace_ms: u64,
    /// Accept a KVM that emulates guest kernel code.
    pub force_slow_kvm: bool,
    /// How much each dimension's control matters, in the order of [`crate::Dimension::ALL`]; a missing one is `none`.
    pub needs: Vec<(crate::Dimension, Need)>,
    /// What shaped the run besides the command line.
    #[serde(default, skip_serializing_if = "Sources::is_empty")]
    pub sources: Sources,
}

/// The command as it is executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CommandSpec {
    /// Program and arguments; never empty. A program without a slash is looked up in `PATH` of `env`.
    pub argv: Vec<OsBytes>,
    /// The whole environment, `NAME=value`.
    pub env: Vec<OsBytes>,
    /// Working directory: absolute.
    pub cwd: OsBytes,
    /// User id inside.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
    /// Supplementary group ids inside.
    pub groups: Vec<u32>,
    /// File mode creation mask.
    pub umask: u32,
    /// Give the command a terminal of its own.
    pub tty: bool,
}

/// Where changes are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StageSpec {
    /// The stage's directory: absolute.
    pub dir: OsBytes,
    /// When it is synced.
    pub durability: Durability,
    /// Bytes that it may occupy; `None`: what its file system has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
}

/// When a stage is synced to disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// At the end and at savepoints.
    #[default]
    Checkpoint,
    /// Also before the first mutation of each path.
    Strict,
}

/// What of the host's filesystem the host executor shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FilesystemMode {
    /// All of it.
    #[default]
    Host,
    /// A projected root.
    Sandbox,
}

/// What the command may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NetworkMode {
    /// The host's network as it is (host executor).
    #[default]
    Host,
    /// Nothing but the command's own loopback.
    DenyAll,
    /// A network of its own, whose only way out is the policy.
    Egress(EgressSpec),
}

/// The policy of a command's network. Rules are kept as they are written: `name`, `*.suffix`, an address or a range, each
/// with `:port` or without. A deny rule beats an allow rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EgressSpec {
    /// For what no rule is about.
    pub default: EgressDefault,
    /// What may be reached.
    pub allow: Vec<String>,
    /// What may not.
    pub deny: Vec<String>,
    /// Payload bytes a second in each direction; `None`: as fast as it goes.
    pub limit: Option<std::num::NonZeroU64>,
    /// TCP ports of the command that are offered on the host.
    pub publish: Vec<PublishSpec>,
    /// Ask the person about what no rule is about.
    #[serde(default)]
    pub ask: bool,
    /// What the person said no to before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}

/// What happens to a destination that no rule is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EgressDefault {
    /// Nothing but what the allow list names.
    #[default]
    Nothing,
    /// Public addresses; loopback, link-local, metadata and private ones only where a rule names them.
    Public,
}

/// One port of the command that is offered on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PublishSpec {
    /// Where the host listens; port 0 lets it choose.
    pub host: std::net::SocketAddr,
    /// The command's port.
    pub port: u16,
}

/// Limits; `None` leaves the executor's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Virtual CPUs of a guest; processors that a command on the host can keep busy.
    pub cpus: Option<u8>,
    /// Memory in MiB.
    pub memory_mib: Option<u32>,
    /// Processes and threads at a time.
    #[serde(default)]
    pub pids: Option<u32>,
    /// Open files of each process.
    #[serde(default)]
    pub open_files: Option<u32>,
    /// Size of each file in MiB.
    #[serde(default)]
    pub file_size_mib: Option<u32>,
    /// Processor time of each process in seconds.
    #[serde(default)]
    pub cpu_time_s: Option<u32>,
}

/// Root filesystem of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GuestRoot {
    /// The host's own `/`, read-only, secrets hidden, with a private upper that is thrown away.
    #[default]
    Host,
    /// This directory in the same way.
    Dir(OsBytes),
}
