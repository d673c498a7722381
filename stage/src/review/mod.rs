//! Showing a person what a sealed stage changes, before it is applied.

mod binary;
mod contents;
mod diff;
mod entry;
mod html;
mod hunk;
mod pairs;
#[cfg(test)]
mod property;
mod quote;
mod section;
mod sink;
mod stat;
mod summary;
#[cfg(test)]
mod tests;
mod visible;

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

pub(crate) use contents::Contents;
pub use entry::{ReviewEntry, Side, SideKind, Status};
pub(crate) use quote::quoted;
pub(crate) use sink::Sinks;
pub use sink::{Danger, ExecSink, Flag, FlagKind};
pub use visible::Visible;

use crate::apply::{Fault, Home, HomeError, Ledger, LedgerError, RecoverError, Target, recover_home};
use crate::layout::UPPER;
use crate::{ChangeSet, LoadError, RelPath, Selection, SelectionError};

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
    /// The selection makes no sense.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] Fault),
}

/// What a diff says of contents that are no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binaries {
    /// All of them, so that the diff can be applied.
    Whole,
    /// That they differ.
    Named,
}

/// What a sealed stage changes and has not applied yet.
#[derive(Debug)]
pub struct Review {
    /// The directory that the command worked on.
    pub lower: PathBuf,
    /// Net changes that are selected and not applied to it, sorted by path. A file that only moved is one entry.
    pub entries: Vec<ReviewEntry>,
    /// Number of paths that are applied to it already.
    pub applied: u64,
    /// Number of paths that are neither applied nor selected.
    pub left: u64,
    set: ChangeSet,
    upper: rustix::fd::OwnedFd,
    /// `None`: it is gone.
    project: Option<Target>,
    /// Index of the first name of each file with several.
    first_names: HashMap<u64, usize>,
}

/// Reviews what is selected of the sealed stage at `dir`. An apply that was cut off is finished first.
///
/// # Errors
/// The stage is not sealed, in use or damaged, or the selection makes no sense.
pub fn review(dir: &Path, selection: &Selection) -> Result<Review, ReviewError> {
    review_changes(dir, crate::load_changes(dir)?, selection)
}

/// The same for changes that are loaded already; `set` must be that of the stage at `dir`.
///
/// # Errors
/// The stage is in use or damaged, or the selection makes no sense.
pub fn review_changes(dir: &Path, set: ChangeSet, selection: &Selection) -> Result<Review, ReviewError> {
    let home = Home::open(dir).map_err(RecoverError::from)?;
    recover_home(&home).map_err(ReviewError::from)?;
    let ledger = Ledger::load(&home).map_err(RecoverError::from)?;
    let target = set.lower.canonicalize().unwrap_or_else(|_| set.lower.clone());
    let applied: HashSet<&RelPath> = ledger.iter().flat_map(|l| l.applied_to(target.as_os_str().as_bytes())).collect();
    let upper = home.subdir(UPPER).map_err(|e| Fault { action: "open", path: dir.join(UPPER), source: e.into() })?;
    let chosen: HashSet<&RelPath> = selection.choose(&set.changes)?.into_iter().map(|change| &change.path).collect();
    let present: Vec<usize> = (0..set.changes.len()).filter(|at| !applied.contains(&set.changes[*at].path)).collect();
    let open: Vec<usize> = present.iter().copied().filter(|at| chosen.contains(&set.changes[*at].path)).collect();
    let applied = (set.changes.len() - present.len()) as u64;
    let left = (present.len() - open.len()) as u64;
    let project = Target::open(&target).ok();
    let contents = Contents { upper: &upper, project: project.as_ref() };
    let entries = entry::entries(&set.changes, &open, &present, contents);
    let mut first_names = HashMap::new();
    for (at, change) in set.changes.iter().enumerate() {
        if let Some(group) = change.after.as_ref().and_then(|a| a.link_group) {
            first_names.entry(group).or_insert(at);
        }
    }
    Ok(Review { lower: set.lower.clone(), entries, applied, left, set, upper, project, first_names })
}

/// The JSON form of a review.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename = "Review")]
pub struct ReviewDocument<'r> {
    /// Name and version of this form.
    schema: &'static str,
    /// The directory that the command worked on.
    lower: pvisor_spec::OsBytes,
    /// BLAKE3 of the seal, hexadecimal: names this very set of changes.
    seal: String,
    /// Number of paths that are applied to the directory already.
    applied: u64,
    /// Number of paths that are neither applied nor selected.
    left: u64,
    /// The other ones, sorted by path.
    changes: &'r [ReviewEntry],
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

    /// A unified diff as git writes it, and as `git apply` takes it where `binaries` are whole. What git has no form for,
    /// or takes no patch of, stands in lines that begin with `#`. Contents are written as they are: to show it on a
    /// terminal, write to a [`Visible`].
    ///
    /// # Errors
    /// `out` can't be written.
    pub fn write_diff(&self, binaries: Binaries, out: &mut dyn Write) -> io::Result<()> {
        diff::write(self, binaries, out)
    }

    /// How many lines changed in which file.
    ///
    /// # Errors
    /// `out` can't be written.
    pub fn write_stat(&self, out: &mut dyn Write) -> io::Result<()> {
        stat::write(self, out)
    }

    /// One page for a browser that needs nothing else. `name`: how the person calls the run.
    ///
    /// # Errors
    /// `out` can't be written.
    pub fn write_html(&self, name: &str, out: &mut dyn Write) -> io::Result<()> {
        html::write(self, name, out)
    }

    /// Number of changes that are applied only where exec sinks are allowed.
    pub fn dangerous(&self) -> usize {
        self.entries.iter().filter(|entry| entry.is_dangerous()).count()
    }

    fn contents(&self) -> Contents<'_> {
        Contents { upper: &self.upper, project: self.project.as_ref() }
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
        let document = ReviewDocument {
            schema: REVIEW_SCHEMA,
            lower: pvisor_spec::OsBytes::from(&*self.lower),
            seal: entry::hex(&self.set.seal),
            applied: self.applied,
            left: self.left,
            changes: &self.entries,
        };
        document.serialize(serializer)
    }
}
