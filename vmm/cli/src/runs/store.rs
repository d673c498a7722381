//! Reading and making runs.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pvisor_spec::{Bundle, Outcome, RunId, RunSpec, StageRecord, StageState};

use super::claim::{BUNDLE, LOCK, PROGRESS, RECORD, UNBORN};
use super::file::{Sync, read_json, write_json};
use super::lock::{Attempt, exclusive_within, try_exclusive};
use super::record::RECORD_SCHEMA;
use super::{Claim, Phase, RunRecord, StoreError, settle};

/// All runs of one person.
#[derive(Debug)]
pub(crate) struct Store {
    home: PathBuf,
}

/// One run as the store has it.
#[derive(Debug)]
pub(crate) struct Run {
    /// Its name.
    pub(crate) id: RunId,
    /// Its directory.
    pub(crate) dir: PathBuf,
    /// Its record.
    pub(crate) record: RunRecord,
    /// Its bundle, once it is over.
    pub(crate) bundle: Option<Bundle>,
    /// Something of it that could not be read or settled: a fragment.
    pub(crate) trouble: Option<String>,
}

/// What a directory of the store turned out to be.
#[derive(Debug)]
pub(crate) enum Entry {
    /// A run.
    Run(Box<Run>),
    /// A run whose record can't be read.
    Unreadable {
        /// Its name.
        id: RunId,
        /// Why: a fragment.
        reason: String,
    },
}

impl Run {
    /// Whether its supervisor is still at it.
    pub(crate) fn is_live(&self) -> bool {
        self.record.phase != Phase::Ended
    }

    /// Whether something of its end is still to be written, by its supervisor or by somebody else.
    fn is_unsettled(&self) -> bool {
        self.is_live() || (self.bundle.is_none() && self.trouble.is_none())
    }

    /// The stage's directory, where it has a stage.
    pub(crate) fn stage_dir(&self) -> Option<&Path> {
        self.record.spec.stage.as_ref().map(|s| s.dir.as_path())
    }

    /// Where its stage stands now.
    pub(crate) fn stage_state(&self) -> StageState {
        if self.record.discarded_ms.is_some() {
            return StageState::Discarded;
        }
        match self.stage_record() {
            Some(stage) => stage.state,
            None => self.stage_dir().map_or(StageState::None, |_| StageState::Unsealed),
        }
    }

    /// What is known of its stage: as it was at the end of the run, or when it was sealed afterwards.
    pub(crate) fn stage_record(&self) -> Option<&StageRecord> {
        self.record.sealed_later.as_ref().or(self.bundle.as_ref().map(|b| &b.stage))
    }

    /// Whether everything of the command has stopped, and only the seal of its stage could not be written.
    pub(crate) fn only_seal_failed(&self) -> bool {
        let outcome = self.bundle.as_ref().map(|b| &b.outcome);
        matches!(outcome, Some(Outcome::Interrupted(i)) if i.kind == crate::stages::SEAL_FAILED)
            && self.stage_state() == StageState::Unsealed
    }

    /// What the guest's console said, where there was a guest.
    pub(crate) fn console_log(&self) -> PathBuf {
        self.dir.join("console.log")
    }
}

impl Store {
    /// The store in that directory, which need not exist.
    pub(crate) fn at(home: PathBuf) -> Self {
        Self { home }
    }

    /// The directory.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// Makes a new run that this process watches over.
    ///
    /// # Errors
    /// The directory can't be made or written, or belongs to someone else.
    pub(crate) fn begin(&self, spec: RunSpec) -> Result<Claim, StoreError> {
        let unusable = |source| StoreError::Unusable { path: self.home.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.home).map_err(unusable)?;
        let owner = self.home.metadata().map_err(unusable)?.uid();
        let us = rustix::process::geteuid().as_raw();
        if owner != us && us != 0 {
            return Err(StoreError::NotOurs { path: self.home.clone(), owner });
        }
        // Where links lead, the name that a guest would find it by.
        let home = self.home.canonicalize().map_err(unusable)?;
        Claim::make(&home, spec)
    }

    /// The names of all runs, newest first.
    ///
    /// # Errors
    /// The directory can't be read.
    pub(crate) fn ids(&self) -> Result<Vec<RunId>, StoreError> {
        let fail = |source| StoreError::Read { path: self.home.clone(), source };
        let entries = match fs::read_dir(&self.home) {
            Ok(entries) => entries,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(vec![]),
            Err(e) => return Err(fail(e)),
        };
        let mut ids: Vec<RunId> = Vec::new();
        for entry in entries {
            let name = entry.map_err(fail)?.file_name();
            let Some(name) = name.to_str() else { continue };
            if let Ok(id) = name.parse() {
                ids.push(id);
            } else if let Some(unborn) = name.strip_prefix(UNBORN) {
                self.bury(unborn);
            }
        }
        ids.sort_unstable_by(|a, b| b.cmp(a));
        Ok(ids)
    }

    /// Every run, newest first.
    ///
    /// # Errors
    /// The directory itself can't be read; a single run that can't be is an entry of its own kind.
    pub(crate) fn entries(&self) -> Result<Vec<Entry>, StoreError> {
        let entry = |id| match self.read(id) {
            Ok(run) => Entry::Run(Box::new(run)),
            Err(e) => Entry::Unreadable { id, reason: crate::report::chain(&e) },
        };
        Ok(self.ids()?.into_iter().map(entry).collect())
    }

    /// Reads one run and settles it where its supervisor is gone.
    ///
    /// # Errors
    /// There is no such run, or its record can't be read.
    pub(crate) fn read(&self, id: RunId) -> Result<Run, StoreError> {
        let run = self.load(id)?;
        if !run.is_unsettled() {
            return Ok(run);
        }
        let lock = run.dir.join(LOCK);
        let supervisor_lives = run.record.supervisor.as_ref().is_some_and(super::ProcessRef::is_alive);
        // Busy without a living supervisor: another reader settles it this moment.
        let patience = if supervisor_lives { Duration::ZERO } else { Duration::from_secs(2) };
        match exclusive_within(&lock, patience) {
            Ok(Attempt::Busy) => self.load(id),
            Ok(Attempt::Held(_lock)) => {
                let run = self.load(id)?;
                Ok(if run.is_unsettled() { settle::settle(run) } else { run })
            }
            Err(e) => {
                let trouble = format!("its lock can't be opened: {e}");
                Ok(Run { trouble: Some(trouble), ..run })
            }
        }
    }

    /// Changes the record of a run that is over.
    ///
    /// # Errors
    /// It can't be read or written.
    pub(crate) fn amend(&self, run: &Run, change: impl FnOnce(&mut RunRecord)) -> Result<(), StoreError> {
        let lock = run.dir.join(LOCK);
        let fail = |source| StoreError::Write { path: lock.clone(), source };
        let _held = exclusive_within(&lock, Duration::from_secs(2)).map_err(fail)?;
        let mut record = self.load(run.id)?.record;
        change(&mut record);
        write_json(&run.dir.join(RECORD), &record, Sync::Name)
    }

    /// A run as its files say, whatever became of its supervisor.
    fn load(&self, id: RunId) -> Result<Run, StoreError> {
        let dir = self.home.join(id.to_string());
        let path = dir.join(RECORD);
        let corrupt = |reason: &str| StoreError::Corrupt { path: path.clone(), reason: reason.to_owned() };
        let record: RunRecord = read_json(&path)?.ok_or_else(|| corrupt("it is not there"))?;
        if record.schema != RECORD_SCHEMA {
            return Err(corrupt(&format!(
                "written in format {:?}, this pvisor reads {RECORD_SCHEMA:?}",
                record.schema
            )));
        }
        if record.spec.id != id {
            return Err(corrupt("it is the record of another run"));
        }
        if record.spec.command.argv.is_empty() {
            return Err(corrupt("it has no command"));
        }
        let record = self.progress(&dir, record);
        let (bundle, trouble) = match read_json(&dir.join(BUNDLE)) {
            Ok(bundle) => (bundle, None),
            Err(e) => (None, Some(crate::report::chain(&e))),
        };
        Ok(Run { id, dir, record, bundle, trouble })
    }

    /// How far a run came that is not over; where that was lost, what is known from its start.
    fn progress(&self, dir: &Path, record: RunRecord) -> RunRecord {
        if record.phase == Phase::Ended {
            return record;
        }
        match read_json::<RunRecord>(&dir.join(PROGRESS)) {
            Ok(Some(later)) if later.schema == record.schema && later.spec.id == record.spec.id => later,
            _ => record,
        }
    }

    /// Removes what a supervisor left that died before its run had a name.
    fn bury(&self, unborn: &str) {
        if unborn.parse::<RunId>().is_err() {
            return;
        }
        let dir = self.home.join(format!("{UNBORN}{unborn}"));
        // One that is being made right now has no lock for a moment.
        let old = dir.metadata().and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
        if old.is_some_and(|age| age > Duration::from_secs(60))
            && let Ok(Attempt::Held(_lock)) = try_exclusive(&dir.join(LOCK))
        {
            let _ = fs::remove_dir_all(&dir);
        }
    }
}
