//! Applying a sealed stage's changes to its project.
//!
//! 1. **Judge** every path three ways: what the command found, what it left, what is there now. One conflict, and
//!    nothing is written.
//! 2. **Prepare** every new content, complete with its metadata, in a private directory on the target's filesystem,
//!    outside of the project where that is possible. Sync. Write the whole plan to the ledger: *prepared*.
//! 3. **Execute** the plan with renames. New names must be free (`RENAME_NOREPLACE`); what is replaced is swapped out
//!    (`RENAME_EXCHANGE`) and what is removed is moved out, compared once nobody else has a name for it, and put back
//!    if it is not what the plan expects. Everything happens beneath the target's descriptor, never through a link.
//! 4. Sync. Ledger: *target applied*. Remove what was replaced. Ledger: *committed*.
//!
//! Whoever finds a ledger between prepared and committed does the rest.

mod conflict;
mod content;
mod discard;
mod disk;
mod error;
mod execute;
mod fault;
mod ground;
mod home;
mod judgement;
mod ledger;
mod make;
mod metadata;
mod originals;
mod parallel;
mod powers;
mod prepare;
mod print;
mod recovery;
mod removal;
mod selection;
mod staging;
mod target;
#[cfg(test)]
mod tests;
mod transaction;
mod undo;

use std::path::{Path, PathBuf};

pub use conflict::{Conflict, ConflictKind};
pub use discard::{DiscardError, Discarded, discard};
pub use error::{ApplyError, Partial, PartialCause};
pub use fault::Fault;
pub use home::HomeError;
pub use ledger::{Keeping, LedgerError};
pub use originals::expire_originals;
pub use recovery::{RecoverError, Recovery, recover};
pub use selection::{Selection, SelectionError};
pub use undo::{UndoError, UndoOptions, Undone, undo};

pub(crate) use fault::Blame;
pub(crate) use home::{Home, open_object};
pub(crate) use ledger::{LEDGER, Ledger};
pub(crate) use recovery::recover_now as recover_home;
pub(crate) use removal::remove_tree;
pub(crate) use selection::below;
pub(crate) use target::Target;
#[cfg(test)]
pub(crate) use tests::model;

use crate::{ChangeSet, RelPath};

/// What to apply, and where.
#[derive(Clone, Debug, Default)]
pub struct ApplyOptions {
    /// Another directory than the one that the command worked on.
    pub target: Option<PathBuf>,
    /// Judge only: nothing is written.
    pub dry_run: bool,
    /// Write changes that make the host run something, too.
    pub allow_exec_sinks: bool,
    /// Which changes.
    pub selection: Selection,
    /// Keep what is replaced or removed, so that it can be put back.
    pub keep: Option<Keeping>,
}

/// What became of the originals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OriginalsKept {
    /// They were not to be kept, or nothing was written.
    #[default]
    NotAsked,
    /// They are kept until then: milliseconds since the Unix epoch.
    Until(u64),
    /// The target's filesystem has no place for them outside of the target: they are gone.
    NoPlace,
}

/// What an apply did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Paths that were changed in the target (or would be, in a dry run).
    pub written: u64,
    /// Paths that were as the command left them already.
    pub same: u64,
    /// Parts of changes that this caller can't make, and why (lower-case fragments). What else the same path has to
    /// change was changed.
    pub not_appliable: Vec<(RelPath, String)>,
    /// Paths that were not selected and are not applied yet.
    pub left: u64,
    /// What became of the originals.
    pub originals: OriginalsKept,
}

/// Applies the changes of the sealed stage at `dir`. An earlier apply that was cut off is finished first.
///
/// # Errors
/// All of them leave the target as it was, but [`ApplyError::Partial`].
pub fn apply(dir: &Path, options: &ApplyOptions) -> Result<Applied, ApplyError> {
    let disk = disk::Disk::new(&fault::Uninterrupted);
    let home = Home::open(dir)?;
    recovery::recover_home(&home, disk)?;
    let set = crate::load_changes(dir)?;
    forward(disk, &home, &set, options)
}

/// The same for changes that are loaded already; `set` must be that of the stage at `dir`.
///
/// # Errors
/// All of them leave the target as it was, but [`ApplyError::Partial`].
pub fn apply_changes(dir: &Path, set: &ChangeSet, options: &ApplyOptions) -> Result<Applied, ApplyError> {
    apply_interruptible(dir, set, options, &fault::Uninterrupted)
}

fn apply_interruptible(
    dir: &Path,
    set: &ChangeSet,
    options: &ApplyOptions,
    interrupt: &dyn fault::Interrupt,
) -> Result<Applied, ApplyError> {
    let disk = disk::Disk::new(interrupt);
    let home = Home::open(dir)?;
    recovery::recover_home(&home, disk)?;
    forward(disk, &home, set, options)
}

/// The disk as it is.
pub(crate) fn plain_disk() -> disk::Disk<'static> {
    disk::Disk::new(&fault::Uninterrupted)
}

fn forward(disk: disk::Disk<'_>, home: &Home, set: &ChangeSet, options: &ApplyOptions) -> Result<Applied, ApplyError> {
    let aim = ledger::Aim::Apply(options.keep);
    transaction::Transaction { disk, home, set, options, aim, originals: &[] }.run()
}
