//! The staged namespace in memory: what the journal's records make of it. The live stage and the replay share it.

mod commit;
mod node;
mod table;

pub(crate) use node::{Body, Directory, MetaChange, Node};
pub(crate) use table::{Child, Tree, join};

/// A record that does not fit the tree it is applied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Misfit(pub &'static str);
