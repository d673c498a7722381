//! One FUSE-protocol filesystem over a stage. See `DESIGN.md` beside this crate.
//!
//! [`StageFs`] is the filesystem, free of any transport; [`fuse`] serves it on a `/dev/fuse` descriptor. The engine's
//! in-process filesystem is an adapter in the VM crate.

mod attributes;
mod directory;
mod file;
mod filesystem;
pub mod fuse;
mod handle;
mod nodes;
mod state;

pub use directory::DirItem;
pub use file::{MAX_IO, Opened, WriteKind};
pub use filesystem::{Caller, Entry, FsOptions, Paused, StageFs};
pub use handle::Handle;
pub use pvisor_stage as stage;
pub use rustix::io::Errno;
pub use state::StateError;
