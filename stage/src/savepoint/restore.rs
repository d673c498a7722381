//! Putting a savepoint in the stage's place.
//!
//! Everything is made ready in `work/restore` first. Then `restoring` names the savepoint; while it is there, the stage
//! has no seal and is neither the one nor the other, and restoring again starts over from the savepoint, which is not
//! changed by any of this. The seal comes last.

use std::io;
use std::path::Path;

use super::manifest::Manifest;
use super::share::{Files, make_dir, swap, sync_filesystem, write_new};
use super::{SavepointError, check_name, collect, place, savepoints};
use crate::Seal;
use crate::apply::{Blame, Fault, Home, Ledger, plain_disk, recover_home, remove_tree};
use crate::layout::{self, JOURNAL, SEAL, UPPER, WORK};

/// Names the savepoint that is being restored.
pub(crate) const RESTORING: &str = "restoring";
/// Where it is made ready, in `work`.
pub(super) const IN_WORK: &str = "restore";

/// The savepoint whose restoring was cut off.
pub(super) fn pending(dir: &Path) -> Result<Option<String>, Fault> {
    let path = dir.join(RESTORING);
    match std::fs::read_to_string(&path) {
        Ok(name) => Ok(Some(name)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).blame("read", path),
    }
}

/// Makes the stage at `dir` what it was when the savepoint was made, and seals it. Without a name it is the last one,
/// or the one whose restoring was cut off.
///
/// # Errors
/// The savepoint is damaged, the stage is in use, or other changes of it are applied: then nothing was changed. A system
/// call failed: then restoring can be tried again.
pub fn restore_savepoint(dir: &Path, name: Option<&str>) -> Result<(String, Seal), SavepointError> {
    let home = Home::open(dir)?;
    recover_home(&home)?;
    let name = choose(dir, name)?;
    let manifest = Manifest::read(dir, &name)?;
    manifest.verify(dir)?;
    check_applied(&home, &manifest)?;
    let ready = prepare(&home, &manifest)?;
    home.replace(plain_disk(), RESTORING, name.as_bytes()).blame("write", dir.join(RESTORING))?;
    let seal = dir.join(SEAL);
    match std::fs::remove_file(&seal) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        removed => removed.blame("remove", &seal)?,
    }
    layout::sync_dir(dir).blame("sync", dir)?;
    swap(&ready.join(UPPER), &dir.join(UPPER), &ready.join("replaced"))?;
    std::fs::rename(ready.join(JOURNAL), dir.join(JOURNAL)).blame("replace", dir.join(JOURNAL))?;
    if manifest.seal.is_some() {
        std::fs::rename(ready.join(SEAL), &seal).blame("replace", &seal)?;
    }
    sync_filesystem(dir)?;
    std::fs::remove_file(dir.join(RESTORING)).blame("remove", dir.join(RESTORING))?;
    layout::sync_dir(dir).blame("sync", dir)?;
    collect(&home)?;
    let sealed = match manifest.seal {
        Some((digest, changes)) => Seal { digest, changes },
        // It was read and compared just now, whatever has happened to the machine since it was written.
        None => crate::seal::seal_verified(dir)?,
    };
    Ok((name, sealed))
}

fn choose(dir: &Path, name: Option<&str>) -> Result<String, SavepointError> {
    let pending = pending(dir)?;
    let name = match (name, pending) {
        (Some(name), _) => name.to_owned(),
        (None, Some(pending)) => pending,
        (None, None) => savepoints(dir)?.0.pop().ok_or(SavepointError::None)?.name,
    };
    check_name(&name)?;
    Ok(name)
}

/// What was applied must stay what the ledger says it is.
fn check_applied(home: &Home, manifest: &Manifest) -> Result<(), SavepointError> {
    let Some(ledger) = Ledger::load(home)? else { return Ok(()) };
    let is_applied = !ledger.applied.is_empty() || !ledger.originals.is_empty();
    if is_applied && manifest.seal.is_none_or(|(digest, _)| digest != ledger.seal) {
        return Err(SavepointError::Applied);
    }
    if !is_applied {
        // It would name the old seal.
        let disk = plain_disk();
        disk.unlink(home.dir(), crate::apply::LEDGER.as_bytes()).blame("remove", home.path().join("ledger"))?;
    }
    Ok(())
}

fn prepare(home: &Home, manifest: &Manifest) -> Result<std::path::PathBuf, SavepointError> {
    let work = home.path().join(WORK);
    let ready = work.join(IN_WORK);
    remove_tree(plain_disk(), home.work().blame("open", &work)?, IN_WORK.as_bytes()).blame("remove", &ready)?;
    make_dir(&ready)?;
    let from = place(home.path(), &manifest.name);
    let files = Files { contents: &manifest.contents, journal_length: manifest.journal_length };
    files.share(&from, &ready)?;
    if manifest.seal.is_some() {
        let path = from.join(SEAL);
        write_new(&ready.join(SEAL), &std::fs::read(&path).blame("read", &path)?)?;
    }
    sync_filesystem(&ready)?;
    Ok(ready)
}
