//! The name server that the sandbox uses, and what it learns from the answers.

mod bindings;

pub(crate) use bindings::Bindings;
