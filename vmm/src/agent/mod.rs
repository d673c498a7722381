//! The host's side of the conversation with the agent in the guest.
//!
//! [`AgentClient`] speaks over any pair of byte-stream ends; in a run they are the two directions of the console port.
//! Everything that comes from there is hostile: it is checked before it is believed, and what the guest may make us
//! hold is bounded by the windows of flow control. Threads do the relaying, all of them blocking and none of them
//! awaited where the other end may never answer, so that neither an idle standard input nor a guest that hangs keeps
//! the process from ending.
//!
//! ```text
//! connect → mount → set_clock, reseed → start → RunningCommand::wait → shutdown
//! ```

mod client;
mod command;
mod error;
mod input;
mod link;
mod output;
mod stdio;

pub use client::{AgentClient, Attachment, GuestMount, StartOptions};
pub use command::{CommandHandle, Finished, RunningCommand};
pub use error::AgentError;
pub use pvisor_proto::{Key, Output, PORT_NAME, Rlimit, WindowSize};
pub use stdio::{RawTerminal, Stdio, terminal_size};

#[cfg(test)]
mod tests;
