//! A stage in use: the merged view and its mutations.

mod attr;
mod content;
mod create;
mod file;
mod listing;
mod lookup;
mod options;
mod pin;
mod quota;
mod references;
mod remove;
mod rename;
mod resume;
mod saving;
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
pub(crate) use saving::Saving;
pub use types::{Access, Attr, Entry, NewNode, NodeId, SetAttr, SetTime, StatFs};

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pvisor_spec::Durability;

use crate::Errno;
use crate::journal::Journal;
use crate::layout::Lock;
use crate::lower::{Lower, Mask};
use crate::tree::Tree;
use crate::upper::Upper;
use quota::Quota;

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
    /// How much it may hold.
    quota: Option<Quota>,
    /// The stage's directory.
    dir: PathBuf,
    /// Held while a savepoint is made.
    saving: Mutex<()>,
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
            self.drop_content(id);
        }
    }

    fn drop_content(&self, id: NodeId) {
        self.upper.remove(id);
        if let Some(quota) = &self.quota {
            quota.forget(id);
        }
    }

    fn sync_journal(&self) -> Result<(), Errno> {
        self.journal.as_ref().map_or(Ok(()), rustix::fs::fdatasync)
    }
}

impl Stage {
    /// Whether its size is limited. Contents must then be written through [`OpenFile`] alone: what is written past it
    /// is not counted.
    pub fn is_limited(&self) -> bool {
        self.shared.quota.is_some()
    }

    /// Brings the journal to disk.
    ///
    /// # Errors
    /// What the file system said.
    pub fn sync(&self) -> Result<(), Errno> {
        self.shared.sync_journal()
    }

    /// Space of the file system that holds the staged contents; where the stage's size is limited, that limit and what
    /// is left of it.
    ///
    /// # Errors
    /// What the file system said.
    pub fn statfs(&self) -> Result<StatFs, Errno> {
        let space = self.shared.upper.space()?;
        let (mut blocks, mut free, mut available) = (space.f_blocks, space.f_bfree, space.f_bavail);
        if let Some(quota) = &self.shared.quota {
            let (limit, left) = quota.room();
            let unit = space.f_frsize.max(1);
            blocks = limit / unit;
            free = free.min(left / unit);
            available = available.min(left / unit);
        }
        Ok(StatFs {
            block_size: space.f_bsize,
            fragment_size: space.f_frsize,
            blocks,
            blocks_free: free,
            blocks_available: available,
            files: space.f_files,
            files_free: space.f_ffree,
            name_max: 255,
        })
    }
}
