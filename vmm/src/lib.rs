//! The krun executor: a command in a guest of its own, on a VM engine behind [`engine`].
#![allow(unsafe_code)]

pub mod agent;
pub mod engine;
pub mod probe;
