//! What a machine can do.

use serde::{Deserialize, Serialize};

/// One line of `pvisor doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    /// A word for programs: `kvm`, `fuse`, `user_namespaces` …
    pub name: String,
    /// Whether it is there.
    pub state: CapabilityState,
    /// What was measured: a lower-case fragment.
    pub detail: String,
    /// What to do where it is missing; empty otherwise.
    pub hint: String,
}

/// Whether a capability is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CapabilityState {
    /// There and usable.
    Usable,
    /// There, but not as it should be.
    Limited,
    /// Not there.
    Missing,
}
