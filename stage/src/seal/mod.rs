//! Sealing: a stage that nobody writes any more is made complete, synced and closed.

mod contents;
mod crew;
mod links;
mod materialise;
mod preimages;
#[cfg(test)]
mod tests;

pub(crate) use crew::each;

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::journal::{Journal, Record};
use crate::layout::{self, JOURNAL, Lock, RESERVE, SEAL, UPPER, WORK};
use crate::live::boot_id;
use crate::load::{self, LoadError, SealBody, SealedStage};
use crate::lower::{Lower, Mask};
use crate::savepoint::RESTORING;
use crate::tree::{Misfit, Tree};
use crate::upper::Upper;
use crate::{ContentHash, Errno};

/// What a sealed stage is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// BLAKE3 of the seal: names these very changes.
    pub digest: ContentHash,
    /// Number of net changes.
    pub changes: u64,
}

/// Why a stage can't be sealed. It stays unsealed then, and nothing of it is lost.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The run, or another command, still works on the stage.
    #[error("the stage {0:?} is in use")]
    InUse(PathBuf),
    /// The machine was started anew since the stage was written, so its files may not be what was written.
    #[error("the machine was restarted before the stage {0:?} was sealed")]
    Restarted(PathBuf),
    /// Restoring a savepoint was cut off.
    #[error("the stage {0:?} is half restored from a savepoint")]
    Restoring(PathBuf),
    /// Another directory stands where the staged one was.
    #[error("the staged directory {0:?} is not the one that the run began with")]
    LowerReplaced(PathBuf),
    /// The stage can't be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A staged path can't be read or copied, or a file of the stage not written.
    #[error("{path:?}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl SealError {
    fn io<E: Into<io::Error>>(path: impl Into<PathBuf>) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source: source.into() }
    }
}

/// Seals the stage in `dir`, from that directory alone. A stage that is sealed stays as it is, with the same result.
///
/// # Errors
/// [`SealError`]; the stage can be sealed again when the cause is gone.
pub fn seal(dir: &Path) -> Result<Seal, SealError> {
    load::check_stage(dir)?;
    let _lock = lock(dir)?;
    seal_locked(dir, Trust::SameBoot)
}

/// [`seal`] for a stage whose files were compared with their hashes just now, by whoever holds its lock.
pub(crate) fn seal_verified(dir: &Path) -> Result<Seal, SealError> {
    load::check_stage(dir)?;
    seal_locked(dir, Trust::Verified)
}

/// Why the files of an unsealed stage are what was written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// The machine has run since.
    SameBoot,
    /// They were compared.
    Verified,
}

fn lock(dir: &Path) -> Result<Lock, SealError> {
    let lock = Lock::take(dir).map_err(SealError::io(dir.join(layout::LOCK)))?;
    lock.ok_or_else(|| SealError::InUse(dir.to_owned()))
}

fn seal_locked(dir: &Path, trust: Trust) -> Result<Seal, SealError> {
    if dir.join(RESTORING).symlink_metadata().is_ok() {
        return Err(SealError::Restoring(dir.to_owned()));
    }
    match SealedStage::read(dir) {
        Ok(sealed) => return Ok(Seal { digest: sealed.digest, changes: sealed.body.changes }),
        Err(LoadError::NotSealed(_)) => {}
        Err(e) => return Err(e.into()),
    }
    // From here on its space may be needed.
    let _ = std::fs::remove_file(dir.join(WORK).join(RESERVE));
    let mut sealer = Sealer::open(dir, trust)?;
    sealer.drop_strays()?;
    sealer.materialise()?;
    sealer.find_links()?;
    sealer.finish_preimages()?;
    sealer.drop_unneeded()?;
    let body = sealer.settle()?;
    sealer.publish(&body)
}

/// An unsealed stage, replayed.
struct Sealer<'a> {
    dir: &'a Path,
    tree: Tree,
    journal: Journal,
    lower: Lower,
    lower_path: PathBuf,
    mask: Mask,
    upper: Upper,
}

impl<'a> Sealer<'a> {
    fn open(dir: &'a Path, trust: Trust) -> Result<Self, SealError> {
        let replayed = load::replay(dir).map_err(|e| e.into_load(dir))?;
        let header = replayed.header;
        let boot = boot_id();
        let same = trust == Trust::Verified || header.boot == boot;
        if !same && !header.boot.is_empty() && !boot.is_empty() {
            return Err(SealError::Restarted(dir.to_owned()));
        }
        let lower_path = path_of(header.lower);
        let lower = Lower::open(&lower_path).map_err(SealError::io(&lower_path))?;
        let found = lower.root_stat();
        if (found.dev, found.ino) != (header.root.dev, header.root.ino) {
            return Err(SealError::LowerReplaced(lower_path));
        }
        let boundaries: Vec<PathBuf> = header.boundaries.into_iter().map(path_of).collect();
        let mask = Mask::new(&lower_path, &header.hidden, &boundaries)
            .map_err(|_| LoadError::Damaged { path: dir.to_owned(), what: "a pattern of hidden paths is wrong" })?;
        let journal = Journal::resume(dir, replayed.end).map_err(SealError::io(dir.join(JOURNAL)))?;
        let upper = Upper::open(dir).map_err(SealError::io(dir.join(UPPER)))?;
        Ok(Self { dir, tree: replayed.tree, journal, lower, lower_path, mask, upper })
    }

    fn record(&mut self, record: &Record) -> Result<(), SealError> {
        self.tree.check(record).map_err(|m| self.damaged(m))?;
        self.journal.append(record).map_err(SealError::io(self.dir.join(JOURNAL)))?;
        self.tree.commit(record);
        Ok(())
    }

    /// Writes the seal beside the others, brings everything to disk, then moves the seal into place: it is there whole or
    /// not at all, and never before what it seals.
    fn publish(&self, body: &SealBody) -> Result<Seal, SealError> {
        let dir = self.dir;
        let what = LoadError::Damaged { path: dir.to_owned(), what: "the seal can't be written down" };
        let bytes = SealedStage::encode(body).map_err(|_| what)?;
        let (temp, path) = (dir.join(WORK).join(SEAL), dir.join(SEAL));
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(layout::nofollow());
        let written = options.open(&temp).and_then(|mut file| file.write_all(&bytes));
        written.map_err(SealError::io(&temp))?;
        self.sync(body, &temp)?;
        std::fs::rename(&temp, &path).map_err(SealError::io(&path))?;
        layout::sync_dir(dir).map_err(SealError::io(dir))?;
        Ok(Seal { digest: *blake3::hash(&bytes).as_bytes(), changes: body.changes })
    }

    fn damaged(&self, misfit: Misfit) -> SealError {
        LoadError::Damaged { path: self.dir.to_owned(), what: misfit.0 }.into()
    }

    fn lower_error(&self, path: &[u8]) -> impl FnOnce(Errno) -> SealError + use<> {
        let path = self.lower_path.join(path_of(path.to_vec()));
        move |e| SealError::Io { path, source: e.into() }
    }
}

fn path_of(bytes: Vec<u8>) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}
