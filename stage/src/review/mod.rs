//! Showing a person what a sealed stage changes, before it is applied.

mod diff;
mod entry;
mod hunk;
mod quote;
mod sink;
mod summary;
#[cfg(test)]
mod tests;
mod visible;

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::ser::{Serialize, SerializeStruct, Serializer};

pub use entry::{ReviewEntry, Side, SideKind, Status};
pub(crate) use quote::quoted;
pub use sink::Flag;
pub use visible::Visible;

use crate::apply::{Fault, Home, HomeError, Ledger, LedgerError, RecoverError, recover_home};
use crate::layout::UPPER;
use crate::{ChangeSet, LoadError, RelPath};

/// Name and version of the JSON form of a review.
pub const REVIEW_SCHEMA: &str = "pvisor.review/1";

/// Why a stage can't be reviewed.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// The stage is not sealed, or damaged.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An apply was cut off, and can't be finished.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] Fault),
}

/// What a sealed stage changes and has not applied yet.
#[derive(Debug)]
pub struct Review {
    /// The directory that the command worked on.
    pub lower: PathBuf,
    /// Net changes that are not applied to it, sorted by path. A file that only moved is one entry.
    pub entries: Vec<ReviewEntry>,
    /// Number of paths that are applied to it already.
    pub applied: u64,
    set: ChangeSet,
    upper: rustix::fd::OwnedFd,
    /// Index of the first name of each file with several.
    first_names: HashMap<u64, usize>,
}

/// Reviews the sealed stage at `dir`. An apply that was cut off is finished first.
///
/// # Errors
/// The stage is not sealed, in use or damaged.
pub fn review(dir: &Path) -> Result<Review, ReviewError> {
    review_changes(dir, crate::load_changes(dir)?)
}

/// The same for changes that are loaded already; `set` must be that of the stage at `dir`.
///
/// # Errors
/// The stage is in use or damaged.
pub fn review_changes(dir: &Path, set: ChangeSet) -> Result<Review, ReviewError> {
    let home = Home::open(dir).map_err(RecoverError::from)?;
    recover_home(&home).map_err(ReviewError::from)?;
    let ledger = Ledger::load(&home).map_err(RecoverError::from)?;
    let target = set.lower.canonicalize().unwrap_or_else(|_| set.lower.clone());
    let applied: HashSet<&RelPath> = ledger.iter().flat_map(|l| l.applied_to(target.as_os_str().as_bytes())).collect();
    let upper = home.subdir(UPPER).map_err(|e| Fault { action: "open", path: dir.join(UPPER), source: e.into() })?;
    let open: Vec<usize> = (0..set.changes.len()).filter(|at| !applied.contains(&set.changes[*at].path)).collect();
    let applied = (set.changes.len() - open.len()) as u64;
    let entries = entry::entries(&set.changes, &open, &upper);
    let mut first_names = HashMap::new();
    for (at, change) in set.changes.iter().enumerate() {
        if let Some(group) = change.after.as_ref().and_then(|a| a.link_group) {
            first_names.entry(group).or_insert(at);
        }
    }
    Ok(Review { lower: set.lower.clone(), entries, applied, set, upper, first_names })
}

impl Review {
    /// One line for each entry, whole directories in one line, what deserves a look, and the total.
    ///
    /// # Errors
    /// `out` can't be written.
    pub fn write_summary(&self, out: &mut dyn Write) -> io::Result<()> {
        summary::write(self, out)
    }

    /// The first name of the file, if the entry is another one.
    fn first_name(&self, entry: &ReviewEntry) -> Option<&RelPath> {
        let first = *self.first_names.get(&entry.link_group?)?;
        (first != entry.change).then(|| &self.set.changes[first].path)
    }

    /// A unified diff as git writes it, and as `git apply` takes it. What git has no form for stands in lines that begin
    /// with `#`. Contents are written as they are: to show it on a terminal, write to a [`Visible`].
    ///
    /// # Errors
    /// `out` can't be written.
    pub fn write_diff(&self, out: &mut dyn Write) -> io::Result<()> {
        diff::write(self, out)
    }
}

impl From<HomeError> for ReviewError {
    fn from(e: HomeError) -> Self {
        Self::Recover(e.into())
    }
}

impl From<LedgerError> for ReviewError {
    fn from(e: LedgerError) -> Self {
        Self::Recover(e.into())
    }
}

impl Serialize for Review {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Review", 5)?;
        out.serialize_field("schema", REVIEW_SCHEMA)?;
        out.serialize_field("lower", &pvisor_spec::OsBytes::from(&*self.lower))?;
        out.serialize_field("seal", &entry::hex(&self.set.seal))?;
        out.serialize_field("applied", &self.applied)?;
        out.serialize_field("changes", &self.entries)?;
        out.end()
    }
}
