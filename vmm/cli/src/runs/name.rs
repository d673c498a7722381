//! Finding the run that a person means.

use std::ffi::OsStr;
use std::path::Path;

use pvisor_spec::{RunId, StageState};

use super::{Entry, Run, Store, StoreError};

/// Fewest characters that count as the beginning of an id, after `run-`.
const SHORTEST_PREFIX: usize = 4;

impl Store {
    /// The run of that name: `last`, an id, a unique beginning of one (with or without `run-`), or the directory of
    /// its stage.
    ///
    /// # Errors
    /// There is none or more than one, or it can't be read.
    pub(crate) fn find(&self, name: &OsStr, cwd: &Path) -> Result<Run, StoreError> {
        let ids = self.ids()?;
        if name == "last" {
            return self.read(*ids.first().ok_or(StoreError::NoRuns)?);
        }
        let text = name.to_str().unwrap_or_default();
        if let Ok(id) = text.parse::<RunId>()
            && ids.contains(&id)
        {
            return self.read(id);
        }
        if let Some(run) = self.of_stage(&cwd.join(name))? {
            return Ok(run);
        }
        let full = if text.starts_with("run-") { text.to_owned() } else { format!("run-{text}") };
        let long_enough = full.len() >= "run-".len() + SHORTEST_PREFIX;
        let mut matching: Vec<RunId> = ids.iter().copied().filter(|id| id.to_string().starts_with(&full)).collect();
        match matching.pop() {
            Some(id) if matching.is_empty() && long_enough => self.read(id),
            Some(id) if long_enough => {
                matching.push(id);
                Err(StoreError::Ambiguous { name: text.to_owned(), candidates: matching })
            }
            _ => Err(StoreError::NoSuchRun { name: name.display().to_string(), near: ids }),
        }
    }

    /// The newest run whose stage is that directory.
    pub(crate) fn of_stage(&self, dir: &Path) -> Result<Option<Run>, StoreError> {
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        for entry in self.entries()? {
            if let Entry::Run(run) = entry
                && run.stage_dir().is_some_and(|stage| stage == dir)
                // A run that was refused for what is in the directory has no part in it.
                && run.stage_state() != StageState::None
            {
                return Ok(Some(*run));
            }
        }
        Ok(None)
    }
}
