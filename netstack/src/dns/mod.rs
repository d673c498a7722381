//! The name server that the sandbox uses, and what it learns from the answers.

mod bindings;
mod host;
mod server;
mod upstream;
mod wire;

pub use bindings::Binding;
pub(crate) use bindings::Bindings;
pub(crate) use server::{NameServer, ReplyTo};
pub(crate) use upstream::unspecified;
pub(crate) use wire::MAX_QUERY;
