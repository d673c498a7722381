//! Savepoints: the stage alone, kept as it is at one instant, in a directory of its own inside the stage's.
//!
//! | in `savepoints/NAME/` | what |
//! |---|---|
//! | `manifest` | envelope: length and BLAKE3 of the journal's prefix, BLAKE3, size and time of each content, the seal's digest |
//! | `journal` | that prefix |
//! | `upper/` | the contents: sharing blocks or, where the file system can't, the very files |
//! | `seal` | of a sealed stage |
//!
//! A content is shared as a file only where nobody writes it any more: nothing ever writes to contents of stages that
//! are not in use, and one that is gives a content that it shares a new file before it writes it again. The journal is
//! always a file of its own, for a stage in use and a seal append to it.

mod create;
mod error;
mod fork;
mod live;
mod manifest;
mod restore;
mod share;
#[cfg(test)]
mod tests;

pub use create::create_savepoint;
pub use error::SavepointError;
pub use fork::fork;
pub use live::{PreparedSavepoint, TakenSavepoint};
pub use restore::restore_savepoint;

pub(crate) use restore::RESTORING;

use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;

use crate::ContentHash;
use crate::apply::{Blame, Fault, Home, remove_tree};
use crate::layout::WORK;
use manifest::Manifest;

/// Directory of the savepoints.
pub(crate) const SAVEPOINTS: &str = "savepoints";
/// Prefix of one that is being made.
const HALF: &str = ".new-";
/// Prefix of one that is being removed.
const GOING: &str = ".old-";
/// Longest name, in bytes.
const MAX_NAME: usize = 64;

/// What is known of a savepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Savepoint {
    /// Its name.
    pub name: String,
    /// When it was made: milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// The seal that the stage had: digest, and number of changes. `None`: its run went on, or had broken off.
    pub seal: Option<(ContentHash, u64)>,
    /// Number of staged contents.
    pub contents: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What was cleaned up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Half-made and half-removed savepoints that are gone.
    pub savepoints: u64,
    /// Files in them.
    pub files: u64,
}

/// The savepoints of the stage at `dir`, oldest first; those that can't be read come last, with the reason.
///
/// # Errors
/// The directory can't be listed.
#[allow(clippy::type_complexity, reason = "two plain lists")]
pub fn savepoints(dir: &Path) -> Result<(Vec<Savepoint>, Vec<(String, SavepointError)>), SavepointError> {
    let (mut whole, mut broken) = (Vec::new(), Vec::new());
    for name in names(dir)? {
        match Manifest::read(dir, &name) {
            Ok(manifest) => whole.push(manifest.describe()),
            Err(e) => broken.push((name, e)),
        }
    }
    whole.sort_by(|a, b| (a.created_ms, &a.name).cmp(&(b.created_ms, &b.name)));
    Ok((whole, broken))
}

/// One of them.
///
/// # Errors
/// There is none of that name, or its manifest is damaged.
pub fn savepoint(dir: &Path, name: &str) -> Result<Savepoint, SavepointError> {
    check_name(name)?;
    Ok(Manifest::read(dir, name)?.describe())
}

/// Reads all of a savepoint and compares it with its manifest.
///
/// # Errors
/// [`SavepointError::Damaged`], or it can't be read.
pub fn verify_savepoint(dir: &Path, name: &str) -> Result<Savepoint, SavepointError> {
    check_name(name)?;
    let manifest = Manifest::read(dir, name)?;
    manifest.verify(dir)?;
    Ok(manifest.describe())
}

/// Removes a savepoint.
///
/// # Errors
/// There is none of that name, the stage is in use, or a file can't be removed.
pub fn delete_savepoint(dir: &Path, name: &str) -> Result<Collected, SavepointError> {
    check_name(name)?;
    let home = Home::open(dir)?;
    let (from, to) = (place(dir, name), place(dir, &format!("{GOING}{name}")));
    if from.symlink_metadata().is_err() {
        return Err(SavepointError::Unknown(name.to_owned()));
    }
    if restore::pending(dir)?.as_deref() == Some(name) {
        return Err(SavepointError::Restoring(name.to_owned()));
    }
    // From here on it is no savepoint any more, whole or not.
    std::fs::rename(&from, &to).blame("remove", &from)?;
    collect(&home)
}

/// Removes what was left of savepoints that were being made, restored or removed when the process was killed.
///
/// # Errors
/// The stage is in use, or a file can't be removed.
pub fn collect_savepoints(dir: &Path) -> Result<Collected, SavepointError> {
    collect(&Home::open(dir)?)
}

fn collect(home: &Home) -> Result<Collected, SavepointError> {
    let mut collected = Collected::default();
    let disk = crate::apply::plain_disk();
    if restore::pending(home.path())?.is_none() {
        let work = home.path().join(WORK);
        collected.files += remove_tree(disk, home.work().blame("open", &work)?, restore::IN_WORK.as_bytes())
            .blame("remove", work.join(restore::IN_WORK))?;
    }
    let Ok(dir) = home.subdir(SAVEPOINTS) else { return Ok(collected) };
    remove_halves(home.path(), &dir, &mut collected)?;
    Ok(collected)
}

/// Removes what is half made or half removed; `dir` is the directory of the savepoints.
fn remove_halves(stage: &Path, dir: &OwnedFd, collected: &mut Collected) -> Result<(), Fault> {
    let disk = crate::apply::plain_disk();
    let all = stage.join(SAVEPOINTS);
    for name in list(&all)?.into_iter().filter(|n| n.starts_with(HALF) || n.starts_with(GOING)) {
        collected.files += remove_tree(disk, dir, name.as_bytes()).blame("remove", all.join(&name))?;
        collected.savepoints += 1;
    }
    Ok(())
}

/// Names of whole savepoints.
fn names(dir: &Path) -> Result<Vec<String>, Fault> {
    Ok(list(&dir.join(SAVEPOINTS))?.into_iter().filter(|name| check_name(name).is_ok()).collect())
}

fn list(dir: &Path) -> Result<Vec<String>, Fault> {
    let entries = match std::fs::read_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.blame("list", dir)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.blame("list", dir)?.file_name().into_string().ok());
    }
    Ok(names)
}

fn place(dir: &Path, name: &str) -> PathBuf {
    dir.join(SAVEPOINTS).join(name)
}

/// Letters, digits, `-`, `_` and dots, not at the beginning.
fn check_name(name: &str) -> Result<(), SavepointError> {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    if first && name.len() <= MAX_NAME && name.bytes().all(fine) {
        return Ok(());
    }
    Err(SavepointError::Name(name.to_owned()))
}
