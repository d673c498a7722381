//! The krun executor: a command in a guest of its own. See `DESIGN.md` beside this crate.
//!
//! [`KrunExecutor`] is the way in. [`probe`] measures whether KVM is worth using, [`engine`] is all that knows the VM
//! engine, [`agent`] talks with the agent in the guest, and the private `run` puts them together for one run.
#![allow(unsafe_code)]

pub mod agent;
pub mod engine;
mod executor;
pub mod probe;
mod run;

pub use executor::KrunExecutor;
