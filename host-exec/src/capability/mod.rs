//! What this machine can do for the host executor and for controls.

mod cgroup;
mod kernel;

pub use cgroup::cgroup_v2;
pub(crate) use kernel::landlock_version;
pub use kernel::{landlock, seccomp, tun};

use pvisor_spec::{Capability, CapabilityState};

use crate::launch::{FUSE_HINT, NAMESPACE_HINT};
use crate::probe::{self, Stop, TrialError};

/// FUSE_PASSTHROUGH of the kernel's first request.
const PASSTHROUGH: u64 = 1 << 37;

/// All of them, in the order that `pvisor doctor` shows.
pub fn all() -> Vec<Capability> {
    vec![user_namespaces(), fuse(), landlock(), seccomp(), cgroup_v2(), tun()]
}

/// Whether this user may make user namespaces, with mount and process namespaces in them. Makes one.
pub fn user_namespaces() -> Capability {
    match probe::trial_user_namespace() {
        Ok(()) => usable("user_namespaces", "made one, with mount and process namespaces"),
        Err(error) => {
            let refusal = error.into_refusal();
            let as_root = rustix::process::geteuid().is_root();
            let state = if as_root { CapabilityState::Limited } else { CapabilityState::Missing };
            let detail = if as_root { format!("{} (not needed as root)", refusal.reason) } else { refusal.reason };
            capability("user_namespaces", state, detail, NAMESPACE_HINT)
        }
    }
}

/// Whether a stage can be mounted. Mounts one where nobody sees it.
pub fn fuse() -> Capability {
    match probe::trial_mount() {
        Ok(trial) => {
            let passthrough = if trial.flags & PASSTHROUGH == 0 {
                "the kernel has no passthrough"
            } else if rustix::process::geteuid().is_root() {
                "the kernel has passthrough"
            } else {
                "the kernel has passthrough, for root only"
            };
            usable("fuse", format!("mounted one; {passthrough}"))
        }
        Err(error) => {
            let state = match error {
                // There, and closed to this user.
                TrialError::At(Stop::Device, rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => {
                    CapabilityState::Limited
                }
                _ => CapabilityState::Missing,
            };
            let refusal = error.into_refusal();
            let hint = if refusal.hint.is_empty() { FUSE_HINT.to_owned() } else { refusal.hint };
            capability("fuse", state, refusal.reason, hint)
        }
    }
}

fn capability(name: &str, state: CapabilityState, detail: impl Into<String>, hint: impl Into<String>) -> Capability {
    Capability { name: name.to_owned(), state, detail: detail.into(), hint: hint.into() }
}

fn usable(name: &str, detail: impl Into<String>) -> Capability {
    capability(name, CapabilityState::Usable, detail, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_says_what_was_found_and_what_is_missing_says_what_to_do() {
        let all = all();
        let names: Vec<&str> = all.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["user_namespaces", "fuse", "landlock", "seccomp", "cgroup_v2", "tun"]);
        for capability in all {
            assert!(!capability.detail.is_empty(), "{capability:?}");
            assert_eq!(capability.hint.is_empty(), capability.state == CapabilityState::Usable, "{capability:?}");
        }
    }
}
