//! OCI containers: for now, which runtimes this machine has. See `DESIGN.md` beside this crate.

mod runtime;

pub use runtime::runtimes;
