//! The host executor: a command on the host, under namespaces, on a staged project. See `DESIGN.md` beside this
//! crate.
#![allow(unsafe_code)]

mod capability;
mod executor;
mod failure;
mod launch;
mod plan;
mod probe;
mod receipts;
mod work;

pub use capability::{all, cgroup_v2, fuse, landlock, seccomp, tun, user_namespaces};
pub use executor::HostExecutor;
