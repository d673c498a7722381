//! The binary from outside: what a person types, and what comes of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod answers;
mod architecture;
mod asking;
mod bad_input;
mod config;
mod endings;
mod exit_codes;
mod full_disk;
mod host_run;
mod images;
mod json;
mod kernels;
mod killed;
mod live_savepoints;
mod network;
mod parallel;
mod profile;
mod programs;
mod quota;
mod review;
mod run_store;
mod sandbox;
mod savepoints;
#[path = "../network/mod.rs"]
mod services;
mod terminal;
mod undo;
mod world;
