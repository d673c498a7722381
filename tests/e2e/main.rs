//! The binary from outside: what a person types, and what comes of it.

mod architecture;
mod bad_input;
mod config;
mod endings;
mod exit_codes;
mod host_run;
mod json;
mod parallel;
mod run_store;
mod terminal;
mod world;
