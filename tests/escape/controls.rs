//! What each control is for: without it, an attempt that it stops succeeds.

use crate::attempts::Preset;

/// One removal.
pub struct Removal {
    /// What it shows: the control that is claimed in bundles.
    pub control: &'static str,
    /// What is left out: it, and other layers that would stop the same.
    pub without: &'static [&'static str],
    pub preset: Preset,
    /// Name of the attempt that must succeed now.
    pub attempt: &'static str,
    /// Whose run it is.
    pub root: bool,
    /// Whether root runs the command as another user.
    pub as_other: bool,
}

const fn of(
    control: &'static str,
    without: &'static [&'static str],
    preset: Preset,
    attempt: &'static str,
    root: bool,
) -> Removal {
    Removal { control, without, preset, attempt, root, as_other: false }
}

use Preset::{Safe, Sandbox, Stage};

pub const ALL: &[Removal] = &[
    of("projected_root", &["projected_root", "landlock"], Safe, "read an absolute path", false),
    of("projected_root", &["projected_root", "landlock"], Safe, "write an absolute path", true),
    of("landlock", &["landlock"], Safe, "open standard input again, to write", false),
    of("landlock", &["landlock"], Sandbox, "an abstract socket of the host", true),
    of("landlock", &["landlock"], Sandbox, "go through a directory on standard input", false),
    of("pid_namespace", &["pid_namespace"], Stage, "kill a host process", false),
    of("ipc_namespace", &["ipc_namespace"], Safe, "shared memory of System V", false),
    of("network_namespace", &["network_namespace"], Safe, "TCP to the host's loopback", true),
    of("network_namespace", &["network_namespace"], Safe, "UDP to the host's loopback", false),
    of("private_devices", &["private_devices"], Safe, "read a disk", true),
    of("secret_paths", &["secret_paths"], Safe, "read a private key", false),
    of("secret_paths", &["secret_paths"], Sandbox, "read the passwords' hashes", true),
    of("no_capabilities", &["no_capabilities", "seccomp"], Stage, "unmount the stage and write", true),
    of("user_namespace", &["user_namespace", "no_capabilities"], Stage, "a higher priority", true),
    of("seccomp", &["seccomp"], Safe, "the keyrings", false),
    of("seccomp", &["seccomp"], Safe, "io_uring", true),
    of("seccomp", &["seccomp"], Safe, "a user namespace with clone3", false),
    of("seccomp", &["seccomp"], Stage, "page faults in user space", true),
    Removal {
        as_other: true,
        ..of("no_new_privs", &["no_new_privs", "no_capabilities", "seccomp"], Stage, "a set-user-id program", true)
    },
    of("control_group", &["control_group"], Stage, "a fork bomb", true),
    of("process_limits", &["process_limits"], Stage, "a fork bomb", false),
    of("process_limits", &["process_limits"], Stage, "all descriptors", true),
    of("process_limits", &["process_limits"], Stage, "a disk filler", false),
    of("process_limits", &["process_limits"], Stage, "a memory bomb", false),
    of("stage_mount", &["stage"], Stage, "write the project past the stage", false),
];
