//! A stage in use: the merged view and its mutations.

mod attr;
mod content;
mod create;
mod file;
mod listing;
mod lookup;
mod options;
mod pin;
mod references;
mod remove;
mod rename;
mod standing;
#[cfg(test)]
mod tests;
mod types;
mod work;
mod xattr;

pub(crate) use attr::timestamps;
pub(crate) use options::boot_id;

pub use file::OpenFile;
pub use options::{Keep, OpenError, StageOptions};
pub use references::ReferencesError;
pub use types::{Access, Attr, Entry, NewNode, NodeId, SetAttr, SetTime, StatFs};

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pvisor_spec::Durability;

use crate::Errno;
use crate::journal::Journal;
use crate::layout::Lock;
use crate::lower::{Lower, Mask};
use crate::tree::Tree;
use crate::upper::Upper;

/// A stage that is being written. Every method may be called from any thread.
#[derive(Debug)]
pub struct Stage {
    shared: Arc<Shared>,
}

/// What the stage and its open files share.
#[derive(Debug)]
struct Shared {
    lower: Lower,
    mask: Mask,
    upper: Upper,
    /// The tree and the journal's end, changed together. Held for short: never while content is read or written.
    state: Mutex<State>,
    /// The journal's file, to sync it without the lock above.
    journal: Option<Arc<File>>,
    keep: Keep,
    durability: Durability,
    _lock: Lock,
}

#[derive(Debug)]
struct State {
    tree: Tree,
    journal: Journal,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere does not make the tree wrong: it changes only after all checks.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes contents of nodes that are gone.
    fn sweep(&self, orphans: Vec<NodeId>) {
        for id in orphans {
            self.upper.remove(id);
        }
    }

    fn sync_journal(&self) -> Result<(), Errno> {
        self.journal.as_ref().map_or(Ok(()), rustix::fs::fdatasync)
    }
}

impl Stage {
    /// Brings the journal to disk.
    ///
    /// # Errors
    /// What the file system said.
    pub fn sync(&self) -> Result<(), Errno> {
        self.shared.sync_journal()
    }

    /// Space of the file system that holds the staged contents.
    ///
    /// # Errors
    /// What the file system said.
    pub fn statfs(&self) -> Result<StatFs, Errno> {
        let space = self.shared.upper.space()?;
        Ok(StatFs {
            block_size: space.f_bsize,
            fragment_size: space.f_frsize,
            blocks: space.f_blocks,
            blocks_free: space.f_bfree,
            blocks_available: space.f_bavail,
            files: space.f_files,
            files_free: space.f_ffree,
            name_max: 255,
        })
    }
}
