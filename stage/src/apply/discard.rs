//! Throwing a stage away.

use std::path::Path;

use rustix::fs::{AtFlags, CWD};

use super::disk::Disk;
use super::fault::{Blame, Fault, Uninterrupted};
use super::home::{Home, HomeError};
use super::ledger::{LEDGER, Ledger, LedgerError};
use super::recovery::{RecoverError, recover_home};
use super::removal::remove_tree;
use crate::Errno;
use crate::layout::{JOURNAL, LOCK, ORIGINALS, SEAL, UPPER, WORK};
use crate::savepoint::{RESTORING, SAVEPOINTS};

/// Why a stage was not thrown away.
#[derive(Debug, thiserror::Error)]
pub enum DiscardError {
    /// It is in use or no stage. Nothing was removed.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The ledger can't be trusted, and with it what the stage may still be needed for. Nothing was removed.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// An apply was cut off and can't be finished: the stage is still needed. Nothing was removed.
    #[error("an apply from this stage was cut off and has to be finished first")]
    Recover(#[source] RecoverError),
    /// A system call failed. A second attempt goes on from there.
    #[error(transparent)]
    Io(#[from] Fault),
}

/// What was thrown away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discarded {
    /// Number of files.
    pub files: u64,
    /// The stage's directory itself is gone. It stays where something else is in it.
    pub directory: bool,
}

/// Removes what belongs to the stage at `dir`, and `dir` if it is then empty. Links are removed, never followed. An
/// apply that was cut off is finished first, if its target still exists.
///
/// # Errors
/// The directory is no stage, the stage is in use, or a system call failed.
pub fn discard(dir: &Path) -> Result<Discarded, DiscardError> {
    discard_with(dir, Disk::new(&Uninterrupted))
}

pub(crate) fn discard_with(dir: &Path, disk: Disk<'_>) -> Result<Discarded, DiscardError> {
    let home = Home::open(dir)?;
    match recover_home(&home, disk) {
        Ok(_) | Err(RecoverError::TargetGone(_)) => {}
        Err(RecoverError::Home(e)) => return Err(e.into()),
        Err(RecoverError::Ledger(e)) => return Err(e.into()),
        Err(e) => return Err(DiscardError::Recover(e)),
    }
    if let Some(ledger) = Ledger::load(&home)? {
        // Some are outside of the stage, where nobody would find them without the ledger.
        for originals in &ledger.originals {
            super::originals::remove(&home, disk, originals)?;
        }
    }
    let mut files = 0;
    // Without its seal nothing can be applied from it any more; by its journal and its lock it can be recognised to
    // the end.
    for name in [SEAL, LEDGER, ORIGINALS, RESTORING, SAVEPOINTS, UPPER, WORK, JOURNAL] {
        files += remove_tree(disk, home.dir(), name.as_bytes()).blame("remove", dir.join(name))?;
    }
    disk.unlink(home.dir(), LOCK.as_bytes()).blame("remove", dir.join(LOCK))?;
    let directory = match rustix::fs::unlinkat(CWD, dir, AtFlags::REMOVEDIR) {
        Ok(()) => true,
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::BUSY | Errno::ACCESS | Errno::PERM | Errno::INVAL) => false,
        Err(e) => return Err(e).blame("remove", dir)?,
    };
    Ok(Discarded { files: files + 1, directory })
}
