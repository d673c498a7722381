//! The supervisor: starts the worker, watches it, believes nothing that it can check.
//!
//! The worker carries the run out; the supervisor never parses a byte of a guest. The two speak over two pipes: the
//! job goes down as one JSON document, events come up as JSON lines. See `DESIGN.md` for who gets which signal.

mod check;
mod events;
mod question;
mod signals;
mod spawn;
mod watch;

pub(crate) use check::check;
pub(crate) use events::MAX_LINE;
pub(crate) use question::Prompt;
pub(crate) use signals::Interrupt;
pub(crate) use spawn::Worker;
pub(crate) use watch::{EarlyEnd, Ending, WORKER_LOST};
