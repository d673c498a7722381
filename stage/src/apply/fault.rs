//! What can go wrong with one system call, and the hook through which tests make it so.

use std::io;
use std::path::PathBuf;

/// A system call on a path failed.
#[derive(Debug, thiserror::Error)]
#[error("can't {action} {path:?}")]
pub struct Fault {
    /// What was tried: a verb.
    pub action: &'static str,
    /// On what.
    pub path: PathBuf,
    /// What the kernel said.
    pub source: io::Error,
}

/// Turns the error of a call into one that names what it was about.
pub(crate) trait Blame<T> {
    /// Adds what was tried, and on what.
    fn blame(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T, Fault>;
}

impl<T, E: Into<io::Error>> Blame<T> for Result<T, E> {
    fn blame(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T, Fault> {
        self.map_err(|source| Fault { action, path: path.into(), source: source.into() })
    }
}

/// A kind of change to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Effect {
    /// A file, directory, link or node appears in a staging directory.
    Create,
    /// Content is written.
    Write,
    /// Owner, mode, attributes or times are set.
    Metadata,
    /// Something gets a second name.
    Link,
    /// Something moves to a name that must be free.
    Rename,
    /// Two names swap what they stand for.
    Exchange,
    /// A name goes.
    Remove,
    /// Everything written so far reaches the disk.
    Sync,
}

/// Asked before each change to the disk.
pub(crate) trait Interrupt: Sync {
    /// The change happens only where this returns `Ok`; else it fails with that error, as if the kernel had said so.
    ///
    /// # Errors
    /// What the change is to fail with.
    fn before(&self, effect: Effect) -> io::Result<()>;
}

/// Lets everything happen.
pub(crate) struct Uninterrupted;

impl Interrupt for Uninterrupted {
    fn before(&self, _: Effect) -> io::Result<()> {
        Ok(())
    }
}
