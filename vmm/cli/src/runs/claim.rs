//! A run's directory in the hands of its supervisor.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use pvisor_spec::{Bundle, CONTROL_SOCKET, RunSpec};

use super::file::{Sync, write_json};
use super::lock::{Attempt, try_exclusive};
use super::{Phase, RunRecord, StoreError};

/// Files of a run's directory.
pub(super) const RECORD: &str = "run.json";
/// The record as it is while the run goes on. Not synced: after a power cut the run is over anyway.
pub(super) const PROGRESS: &str = "progress.json";
pub(super) const BUNDLE: &str = "bundle.json";
pub(super) const LOCK: &str = "lock";
/// What was changed in a guest's root and in a copy of a home directory; the worker removes it, unless it is killed.
pub(super) const THROWN_AWAY: [&str; 2] = ["guest-root", "home"];

/// Prefix of a directory that is not a run yet.
pub(super) const UNBORN: &str = ".new-";

/// Writes bundle and record of a run that is over.
pub(super) fn close(dir: &Path, record: &RunRecord, bundle: &Bundle) -> Result<(), StoreError> {
    write_json(&dir.join(BUNDLE), bundle, Sync::Content)?;
    write_json(&dir.join(RECORD), record, Sync::Name)?;
    // Not looked at any more, and a socket that a worker left when it was killed.
    for name in [PROGRESS, CONTROL_SOCKET] {
        let _ = fs::remove_file(dir.join(name));
    }
    Ok(())
}

/// A run that this process watches over. Dropping it frees the lock.
#[derive(Debug)]
pub(crate) struct Claim {
    /// What is known; written by [`Claim::save`].
    pub(crate) record: RunRecord,
    dir: PathBuf,
    _lock: File,
}

impl Claim {
    /// Makes the directory of a new run. It appears under its name at once with lock and record, so that no reader
    /// finds half of it.
    pub(super) fn make(home: &Path, spec: RunSpec) -> Result<Self, StoreError> {
        let dir = home.join(spec.id.to_string());
        let unborn = home.join(format!("{UNBORN}{}", spec.id));
        let record = RunRecord::begin(spec);
        let unusable = |source| StoreError::Unusable { path: home.to_owned(), source };
        DirBuilder::new().mode(0o700).create(&unborn).map_err(unusable)?;
        let made = (|| {
            let lock = match try_exclusive(&unborn.join(LOCK)).map_err(unusable)? {
                Attempt::Held(lock) => lock,
                Attempt::Busy => return Err(unusable(io::Error::other("the lock of a new run is taken"))),
            };
            write_json(&unborn.join(RECORD), &record, Sync::Name)?;
            fs::rename(&unborn, &dir).map_err(unusable)?;
            Ok(lock)
        })();
        match made {
            Ok(lock) => Ok(Self { record, dir, _lock: lock }),
            Err(e) => {
                // Nothing of it was of use to anyone.
                let _ = fs::remove_dir_all(&unborn);
                Err(e)
            }
        }
    }

    /// The run's directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes the record of a run that goes on.
    ///
    /// # Errors
    /// It can't be written.
    pub(crate) fn save(&self) -> Result<(), StoreError> {
        write_json(&self.dir.join(PROGRESS), &self.record, Sync::None)
    }

    /// Removes what a worker that is gone could not.
    pub(crate) fn sweep(&self) {
        // Harmless where it stays: it is of no use to anyone, and goes with the run's directory.
        for name in THROWN_AWAY {
            let _ = fs::remove_dir_all(self.dir.join(name));
        }
    }

    /// Writes the bundle, and with it the end of the run.
    ///
    /// # Errors
    /// It can't be written.
    pub(crate) fn publish(&mut self, bundle: &Bundle) -> Result<(), StoreError> {
        self.record.phase = Phase::Ended;
        close(&self.dir, &self.record, bundle)
    }
}
