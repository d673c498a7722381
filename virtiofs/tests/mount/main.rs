//! Real programs on a really mounted stage, compared with the same programs on a plain copy.
//!
//! Each test mounts in a mount namespace of its own thread, so it needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests")]

mod fixture;
mod metadata;
mod programs;
mod sharing;
