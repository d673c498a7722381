//! Runs in a real guest. They need a machine whose KVM runs guests, so plain `cargo test` counts them as ignored;
//! `tests/all` runs them here where KVM works, else in the emulated machine of `tests/lab`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod command;
mod endings;
mod isolation;
mod network;
mod project;
mod sandbox;
#[path = "../network/mod.rs"]
mod services;
mod stdio;
