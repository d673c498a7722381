//! Putting originals back: an apply of the inverse changes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::disk::Disk;
use super::error::count;
use super::fault::{Blame, Interrupt, Uninterrupted};
use super::home::Home;
use super::ledger::{Act, Aim, Ledger, Original};
use super::originals::{KeptFile, directories, expire};
use super::recovery::recover_home;
use super::transaction::Transaction;
use super::{ApplyError, ApplyOptions, Conflict, ConflictKind, Recovery, Selection};
use crate::journal::Frames;
use crate::review::quoted;
use crate::{After, Before, Change, ChangeSet, Fingerprint, LoadError, ObjectId, RelPath};

/// What to undo.
#[derive(Clone, Debug, Default)]
pub struct UndoOptions {
    /// Another directory than the one that the command worked on.
    pub target: Option<PathBuf>,
    /// Judge only: nothing is written.
    pub dry_run: bool,
    /// Which of the applied changes.
    pub selection: Selection,
    /// Milliseconds since the Unix epoch: what has expired by then is not there any more.
    pub now_ms: u64,
}

/// What an undo did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Undone {
    /// The directory.
    pub target: PathBuf,
    /// Paths that were changed in it (or would be, in a dry run).
    pub written: u64,
    /// Paths that were as before the apply already.
    pub same: u64,
    /// Parts that this caller can't put back, and why (lower-case fragments).
    pub not_undoable: Vec<(RelPath, String)>,
    /// Paths that are applied and stay so: they were not selected, or their originals are not kept (any more).
    pub left: u64,
}

/// Why an undo did not happen, or not wholly.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    /// Nothing was applied there, or what was is not kept (any more).
    #[error("no originals are kept for {0:?}")]
    NothingKept(PathBuf),
    /// A kept file is gone. Nothing was written.
    #[error("the original of {} is not where it was kept", quoted(.0.as_bytes()))]
    Missing(RelPath),
    /// A kept file that has to be copied is not what it was. Nothing was written.
    #[error("the original of {} is not what was kept", quoted(.0.as_bytes()))]
    Damaged(RelPath),
    /// The directory is not as the apply left it. Nothing was written.
    #[error("{} changed since they were applied; nothing was undone", count(.0.len()))]
    Conflicts(Vec<Conflict>),
    /// Anything else, as with an apply.
    #[error(transparent)]
    Other(ApplyError),
}

impl<E: Into<ApplyError>> From<E> for UndoError {
    fn from(e: E) -> Self {
        match e.into() {
            ApplyError::Conflicts(conflicts) => {
                Self::Conflicts(conflicts.into_iter().map(|c| Conflict { what: c.what.after_apply(), ..c }).collect())
            }
            ApplyError::Damaged(path) => Self::Damaged(path),
            other => Self::Other(other),
        }
    }
}

impl ConflictKind {
    /// The same, told of what an apply left rather than of what the command found.
    fn after_apply(self) -> Self {
        match self {
            Self::Changed => Self::ChangedAfterApply,
            Self::Removed => Self::RemovedAfterApply,
            other => other,
        }
    }
}

/// Puts back what applies from the stage at `dir` replaced or removed in a directory, and removes what they made there.
/// An apply or undo that was cut off is finished first.
///
/// # Errors
/// All of them leave the target as it was, but [`ApplyError::Partial`].
pub fn undo(dir: &Path, options: &UndoOptions) -> Result<Undone, UndoError> {
    undo_interruptible(dir, options, &Uninterrupted)
}

pub(super) fn undo_interruptible(
    dir: &Path,
    options: &UndoOptions,
    interrupt: &dyn Interrupt,
) -> Result<Undone, UndoError> {
    let disk = Disk::new(interrupt);
    let home = Home::open(dir).map_err(ApplyError::from)?;
    let recovery = recover_home(&home, disk)?;
    expire(&home, disk, options.now_ms)?;
    let path = match &options.target {
        Some(target) => target.clone(),
        None => staged_directory(dir)?,
    };
    let target = path.canonicalize().blame("open", &path)?;
    let ledger = Ledger::load(&home).map_err(ApplyError::from)?;
    let Some(ledger) = ledger.filter(|l| l.originals.iter().any(|o| o.site.target == target.as_os_str().as_bytes()))
    else {
        // The one that was cut off may have been this.
        return match recovery {
            Recovery::Finished { target: of, undo: true, applied, .. } if of == target => {
                Ok(Undone { target, written: applied, ..Undone::default() })
            }
            _ => Err(UndoError::NothingKept(target)),
        };
    };
    let (set, originals) = inverse(&home, &ledger, &target)?;
    let selection = options.selection.clone();
    let left = ledger.applied_to(target.as_os_str().as_bytes()).len().saturating_sub(set.changes.len());
    // What was there before is nothing that a run brings in.
    let as_apply = ApplyOptions {
        target: Some(target.clone()),
        dry_run: options.dry_run,
        allow_exec_sinks: true,
        selection,
        keep: None,
    };
    let transaction =
        Transaction { disk, home: &home, set: &set, options: &as_apply, aim: Aim::Undo, originals: &originals };
    let done = transaction.run()?;
    Ok(Undone {
        target,
        written: done.written,
        same: done.same,
        not_undoable: done.not_appliable,
        left: left as u64 + done.left,
    })
}

/// The directory that the stage is of.
fn staged_directory(dir: &Path) -> Result<PathBuf, UndoError> {
    let frames = Frames::open(dir)
        .map_err(|source| UndoError::from(LoadError::Journal { path: dir.join(crate::layout::JOURNAL), source }))?;
    Ok(PathBuf::from(OsStr::from_bytes(&frames.header().lower)))
}

/// The changes that lead back, and the kept files that they name.
fn inverse(home: &Home, ledger: &Ledger, target: &Path) -> Result<(ChangeSet, Vec<KeptFile>), UndoError> {
    let mut changes: BTreeMap<&RelPath, Change> = BTreeMap::new();
    let mut files = Vec::new();
    let here = ledger.originals.iter().filter(|o| o.site.target == target.as_os_str().as_bytes());
    for originals in here {
        let directories = directories(home, originals)?;
        for entry in &originals.entries {
            let mut object = None;
            if let Some((at, name)) = &entry.kept {
                let staging = usize::try_from(*at).ok().and_then(|at| directories.get(at)).and_then(Option::as_ref);
                let held = staging.map(|s| s.held(name).blame("read", &s.label)).transpose()?.flatten();
                let (Some(staging), Some(_)) = (staging, held) else {
                    return Err(UndoError::Missing(entry.path.clone()));
                };
                object = Some(ObjectId(files.len() as u64));
                files.push(KeptFile { staging: std::sync::Arc::clone(staging), name: name.clone() });
            }
            // No path is applied twice; were it so, the first original is the one to go back to.
            changes.entry(&entry.path).or_insert_with(|| change(entry, object));
        }
    }
    let changes = changes.into_values().collect();
    Ok((ChangeSet { lower: target.to_owned(), seal: ledger.seal, changes }, files))
}

fn change(entry: &Original, object: Option<ObjectId>) -> Change {
    Change {
        path: entry.path.clone(),
        before: entry.after.clone().map_or(Before::Absent, Before::Present),
        after: entry.before.clone().map(|print| After { print, object, link_group: None }),
    }
}

impl Act {
    /// What stood at the path before the step and what stands there after it; `None`: it only prepares another.
    pub(super) fn sides(&self) -> Option<(Option<&Fingerprint>, Option<&Fingerprint>)> {
        match self {
            Self::Loosen => None,
            Self::Remove { before, .. } | Self::RemoveDir { before } => Some((Some(before), None)),
            Self::Put { before, after, .. } => Some((before.as_ref(), Some(after))),
            Self::Adjust { before, after, .. } | Self::Settle { before, after, .. } => {
                Some((Some(before), Some(after)))
            }
        }
    }
}
