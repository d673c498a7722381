//! Another stage with the same changes.

use std::io;
use std::path::Path;

use super::manifest::Manifest;
use super::share::{Files, make_dir, sync_filesystem, write_new};
use super::{SavepointError, check_name, place, restore};
use crate::apply::{Blame, Home, HomeError, recover_home};
use crate::layout::{self, LOCK, Lock, SEAL, WORK};
use crate::load::{self, SealedContent, SealedStage};
use crate::{LoadError, Seal};

/// Makes a stage at `to`, which must not be there, of the same directory and with the same changes as the stage at
/// `dir`, or one of its savepoints; a savepoint's also while its run goes on. It has its own ledger: nothing of it is
/// applied. The result is sealed.
///
/// # Errors
/// No savepoint was named and the stage is in use or not sealed, the savepoint is damaged, or a file can't be made.
pub fn fork(dir: &Path, savepoint: Option<&str>, to: &Path) -> Result<Seal, SavepointError> {
    let home = match Home::open(dir) {
        // A savepoint never changes and nobody else can remove it, so it can be read while the run goes on.
        Err(HomeError::Locked(_)) if savepoint.is_some() => None,
        home => Some(home?),
    };
    if let Some(home) = &home {
        recover_home(home)?;
        if let Some(name) = restore::pending(dir)? {
            return Err(SavepointError::Restoring(name));
        }
    }
    let (from, contents, journal_length, seal) = match savepoint {
        Some(name) => {
            check_name(name)?;
            let manifest = Manifest::read(dir, name)?;
            manifest.verify(dir)?;
            let seal = manifest.seal.map(|(digest, changes)| Seal { digest, changes });
            (place(dir, name), manifest.contents, manifest.journal_length, seal)
        }
        None => {
            load::check_stage(dir)?;
            let sealed = SealedStage::read(dir)?;
            let seal = Seal { digest: sealed.digest, changes: sealed.body.changes };
            let mut contents = sealed.body.contents;
            contents.sort_by_key(SealedContent::id);
            (dir.to_owned(), contents, sealed.body.journal_length, Some(seal))
        }
    };
    match make_dir(to) {
        Err(fault) if fault.source.kind() == io::ErrorKind::AlreadyExists => {
            return Err(SavepointError::Occupied(to.to_owned()));
        }
        made => made?,
    }
    let lock = Lock::take(to).blame("lock", to.join(LOCK))?;
    make_dir(&to.join(WORK))?;
    Files { contents: &contents, journal_length }.share(&from, to)?;
    sync_filesystem(to)?;
    let Some(sealed) = seal else {
        return Ok(crate::seal::seal_verified(to)?);
    };
    let path = from.join(SEAL);
    write_new(&to.join(WORK).join(SEAL), &std::fs::read(&path).blame("read", &path)?)?;
    std::fs::rename(to.join(WORK).join(SEAL), to.join(SEAL)).blame("publish", to.join(SEAL))?;
    sync_filesystem(to)?;
    layout::sync_dir(to).blame("sync", to)?;
    drop(lock);
    // What was shared is what was sealed, or nothing is forked.
    check(to, sealed)
}

fn check(to: &Path, sealed: Seal) -> Result<Seal, SavepointError> {
    match crate::load_changes(to) {
        Ok(set) if set.seal == sealed.digest => Ok(sealed),
        Ok(_) => Err(LoadError::Damaged { path: to.to_owned(), what: "the seal is another one" }.into()),
        Err(e) => Err(e.into()),
    }
}
