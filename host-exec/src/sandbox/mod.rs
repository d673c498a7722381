//! The filesystem sandbox: a root directory made for one run, from a list of operations that is decided before the
//! first process is made.

mod build;
mod hidden;
mod layout;

use std::path::PathBuf;

use crate::launch::Served;

pub(crate) use build::{build, freeze_settings};
pub(crate) use layout::{Wanted, lay_out};

/// One step of making the root. Places are absolute paths in the new root; what leads to them is made as needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SetupOp {
    /// A symbolic link.
    Link { at: PathBuf, target: PathBuf },
    /// A file or directory of the host, with everything that is mounted in it.
    Bind { from: PathBuf, at: PathBuf, access: Access },
    /// An empty filesystem in memory. `size`: its bytes at most.
    Memory { at: PathBuf, mode: u32, size: u64 },
    /// The processes of the own namespace.
    Proc { at: PathBuf },
    /// Pseudo-terminals of its own.
    Terminals { at: PathBuf },
    /// A filesystem that the worker serves.
    Serve { which: Served, at: PathBuf },
    /// What is there, where it is there, can't be written any more.
    Freeze { at: PathBuf },
    /// What is there, where it is there, can't be seen or read any more.
    Hide { at: PathBuf },
}

/// What can be done with what is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    /// A device node: the only kind that works as one.
    Device,
}

/// A sandbox to build.
#[derive(Clone, Debug)]
pub(crate) struct Sandbox {
    /// In order.
    pub(crate) ops: Vec<SetupOp>,
    /// Places that can be written.
    pub(crate) writable: Vec<PathBuf>,
    /// Paths with secrets that are covered.
    pub(crate) covers: Vec<PathBuf>,
    /// Globs of what the served filesystems do not show.
    pub(crate) hidden: Vec<String>,
    /// Where the home directory is served, if it is.
    pub(crate) home: Option<PathBuf>,
    /// What Landlock lets through where it is alone.
    pub(crate) alone_readable: Vec<PathBuf>,
}

impl Sandbox {
    /// A path that is covered for its secrets, if there is one.
    pub(crate) fn first_cover(&self) -> Option<&PathBuf> {
        self.covers.first()
    }
}

impl SetupOp {
    /// Where it makes something.
    pub(crate) fn place(&self) -> &PathBuf {
        match self {
            Self::Link { at, .. }
            | Self::Bind { at, .. }
            | Self::Memory { at, .. }
            | Self::Proc { at }
            | Self::Terminals { at }
            | Self::Serve { at, .. }
            | Self::Freeze { at }
            | Self::Hide { at } => at,
        }
    }
}
