//! The host executor: a command on the host, under namespaces, on a staged project. See `DESIGN.md` beside this
//! crate.
#![allow(unsafe_code)]

mod capability;
mod egress;
mod executor;
mod failure;
mod launch;
mod plan;
mod probe;
mod receipts;
mod restrict;
mod sandbox;
mod trials;
mod work;

pub use capability::{all, cgroup_v2, fuse, landlock, seccomp, tun, user_namespaces};
pub use egress::{Egress, EgressError, FLOW_LOG, FlowLine, check_egress};
pub use executor::HostExecutor;
