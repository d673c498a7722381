//! The host executor: a command on the host, under namespaces, on a staged project. See `DESIGN.md` beside this
//! crate.
#![allow(unsafe_code)]

mod ask;
mod capability;
mod egress;
mod executor;
mod failure;
mod launch;
mod log;
mod plan;
mod probe;
mod receipts;
mod restrict;
mod sandbox;
mod trials;
mod work;

pub use capability::{all, cgroup_v2, fuse, landlock, seccomp, tun, user_namespaces};
pub use egress::{Egress, EgressError, check_egress, is_denied, is_destination};
pub use executor::HostExecutor;
pub use log::{FLOW_LOG, FlowLine};
