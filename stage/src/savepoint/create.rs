//! Making one.

use std::path::{Path, PathBuf};

use super::manifest::{MANIFEST, Manifest, describe_contents};
use super::share::{Files, is_dir, make_dir, sync_filesystem, write_new};
use super::{HALF, SAVEPOINTS, Savepoint, SavepointError, check_name, collect, names, place, restore};
use crate::NodeId;
use crate::apply::{Blame, Home, recover_home};
use crate::journal::Journal;
use crate::layout::{self, SEAL, UPPER};
use crate::live::boot_id;
use crate::load::{self, LoadError, SealedContent, SealedStage};
use crate::upper::Upper;

/// What a stage that is not in use consists of.
struct Parts {
    contents: Vec<SealedContent>,
    journal_length: u64,
    seal: Option<SealedStage>,
}

/// Makes a savepoint of the stage at `dir`, which nobody may be at. Without a name it gets the next free number.
/// `now_ms`: milliseconds since the Unix epoch.
///
/// # Errors
/// The stage is in use or can't be read, or there is a savepoint of that name. No half of one is ever seen.
pub fn create_savepoint(dir: &Path, name: Option<&str>, now_ms: u64) -> Result<Savepoint, SavepointError> {
    let home = Home::open(dir)?;
    recover_home(&home)?;
    if let Some(name) = restore::pending(dir)? {
        return Err(SavepointError::Restoring(name));
    }
    load::check_stage(dir)?;
    collect(&home)?;
    let name = choose(dir, name)?;
    let parts = Parts::of(dir)?;
    let half = make_half(dir, &name)?;
    let manifest = parts.save(dir, &half, (name, now_ms))?;
    publish(dir, &half, &manifest)
}

/// A directory for one that is being made.
pub(super) fn make_half(dir: &Path, name: &str) -> Result<PathBuf, SavepointError> {
    let all = dir.join(SAVEPOINTS);
    if !is_dir(&all) {
        make_dir(&all)?;
        layout::sync_dir(dir).blame("sync", dir)?;
    }
    let half = place(dir, &format!("{HALF}{name}"));
    make_dir(&half)?;
    Ok(half)
}

/// Completes one that is being made, and gives it its name.
pub(super) fn publish(dir: &Path, half: &Path, manifest: &Manifest) -> Result<Savepoint, SavepointError> {
    write_new(&half.join(MANIFEST), &manifest.encode()?)?;
    sync_filesystem(half)?;
    let whole = place(dir, &manifest.name);
    std::fs::rename(half, &whole).blame("publish", &whole)?;
    let all = dir.join(SAVEPOINTS);
    layout::sync_dir(&all).blame("sync", &all)?;
    Ok(manifest.describe())
}

/// A name that there is no savepoint of.
pub(super) fn choose(dir: &Path, name: Option<&str>) -> Result<String, SavepointError> {
    let name = match name {
        Some(name) => name.to_owned(),
        None => free_number(dir)?,
    };
    check_name(&name)?;
    if place(dir, &name).symlink_metadata().is_ok() {
        return Err(SavepointError::Exists(name));
    }
    Ok(name)
}

fn free_number(dir: &Path) -> Result<String, SavepointError> {
    let highest = names(dir)?.iter().filter_map(|name| name.parse::<u64>().ok()).max();
    Ok(highest.unwrap_or(0).saturating_add(1).to_string())
}

impl Parts {
    fn of(dir: &Path) -> Result<Self, SavepointError> {
        match SealedStage::read(dir) {
            Ok(sealed) => {
                let mut contents = sealed.body.contents.clone();
                contents.sort_by_key(SealedContent::id);
                Ok(Self { contents, journal_length: sealed.body.journal_length, seal: Some(sealed) })
            }
            Err(LoadError::NotSealed(_)) => Self::of_unsealed(dir),
            Err(e) => Err(e.into()),
        }
    }

    /// Everything that was acknowledged before the run broke off.
    fn of_unsealed(dir: &Path) -> Result<Self, SavepointError> {
        let replayed = load::replay(dir).map_err(|e| e.into_load(dir))?;
        let (then, now) = (&replayed.header.boot, boot_id());
        if *then != now && !then.is_empty() && !now.is_empty() {
            return Err(SavepointError::Restarted(dir.to_owned()));
        }
        let upper = Upper::open(dir).blame("open", dir.join(UPPER))?;
        let staged = replayed.tree.nodes.iter().filter(|(_, node)| node.in_upper() && !node.is_dead());
        let mut ids: Vec<NodeId> = staged.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        let contents = describe_contents(&upper, &ids, dir)?;
        Ok(Self { contents, journal_length: replayed.end, seal: None })
    }

    fn save(&self, dir: &Path, half: &Path, (name, now_ms): (String, u64)) -> Result<Manifest, SavepointError> {
        let files = Files { contents: &self.contents, journal_length: self.journal_length };
        files.share(dir, half)?;
        let (journal_hash, journal_length) = Journal::hash(half).blame("read", half)?;
        let seal = self.seal.as_ref().map(|sealed| (sealed.digest, sealed.body.changes));
        if let Some(sealed) = &self.seal {
            if journal_hash != sealed.body.journal_hash || journal_length != sealed.body.journal_length {
                let what = "the journal is not the one that was sealed";
                return Err(LoadError::Damaged { path: dir.to_owned(), what }.into());
            }
            let path = dir.join(SEAL);
            write_new(&half.join(SEAL), &std::fs::read(&path).blame("read", &path)?)?;
        } else if journal_length != self.journal_length {
            return Err(SavepointError::damaged(&name, "the journal changed while it was copied"));
        }
        let contents = self.contents.clone();
        Ok(Manifest { name, created_ms: now_ms, journal_length, journal_hash, seal, contents })
    }
}
