//! Sessions with the real agent, each as process 1 of a PID namespace of its own, over a socket pair.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "all of it is a test")]

mod harness;
mod lifecycle;
mod programs;
mod root;
mod streams;
mod terminal;
