//! The run store: one directory per run, which outlives the run.
//!
//! | file | what |
//! |---|---|
//! | `run.json` | what was asked for, which processes are at it, how far it came |
//! | `progress.json` | the same, while the run goes on |
//! | `bundle.json` | the Run Bundle; there once the run is over |
//! | `control` | the worker's socket, while the command of a host run goes on |
//! | `lock` | `flock` held by the supervisor for its whole life |
//! | `stage/` | the stage, where no other place was named |
//! | `console.log` | what the guest's console said |
//!
//! Beside the runs, `access.json` has the remembered answers, and `originals/` has an empty file for each run whose apply keeps what it replaced, with the time until
//! when in its name.
//!
//! A run whose lock is free but whose record says that it goes on has lost its supervisor. Whoever reads the store
//! next settles it: ends what is left of it and writes the bundle that the supervisor could not.

mod claim;
mod control;
mod error;
mod file;
mod home;
mod lock;
mod name;
mod originals;
mod process;
mod record;
mod settle;
mod store;

pub(crate) use claim::Claim;
pub(crate) use control::{ControlError, ask};
pub(crate) use error::StoreError;
pub(crate) use file::{Sync, write_json};
pub(crate) use home::run_home;
pub(crate) use lock::{Attempt as LockAttempt, exclusive_within};
pub(crate) use process::ProcessRef;
pub(crate) use record::{Phase, RunRecord};
pub(crate) use store::{Entry, Run, Store};

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
