//! Reading a sealed stage: nothing in it is believed before it is checked, and the lower is not looked at.

mod net;
mod replay;
mod sealed;
#[cfg(test)]
mod tests;

pub(crate) use net::{children, net_changes, view};
pub(crate) use replay::{replay, replay_live};
pub(crate) use sealed::{SealBody, SealedContent, SealedStage};

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use pvisor_spec::EnvelopeError;

use crate::journal::{Journal, JournalError};
use crate::layout::{JOURNAL, Lock, UPPER};
use crate::tree::Misfit;
use crate::upper::Upper;
use crate::{ChangeSet, ContentHash};

/// Why a stage can't be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The directory is no stage.
    #[error("{0:?} is not a stage")]
    NotAStage(PathBuf),
    /// The stage was never sealed.
    #[error("the stage {0:?} is not sealed")]
    NotSealed(PathBuf),
    /// A file can't be read.
    #[error("{path:?}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The journal is damaged.
    #[error("the journal {path:?}")]
    Journal {
        /// Which.
        path: PathBuf,
        /// Where and how.
        #[source]
        source: JournalError,
    },
    /// A record of the journal does not fit those before it.
    #[error("the journal {path:?} contradicts itself at byte {at}")]
    Misfit {
        /// Which.
        path: PathBuf,
        /// Offset of the record.
        at: u64,
        /// How.
        #[source]
        source: Misfit,
    },
    /// The seal is damaged or of another format.
    #[error("the seal {path:?}")]
    Seal {
        /// Which.
        path: PathBuf,
        /// How.
        #[source]
        source: EnvelopeError,
    },
    /// The parts of the stage do not belong together.
    #[error("the stage {path:?} is damaged: {what}")]
    Damaged {
        /// Which stage.
        path: PathBuf,
        /// How.
        what: &'static str,
    },
}

/// Where a stage stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageStatus {
    /// It is being written, sealed, applied or discarded right now.
    InUse,
    /// Whoever wrote it stopped without sealing it. It can only be sealed or discarded.
    Unsealed,
    /// Complete and immutable.
    Sealed {
        /// BLAKE3 of the seal.
        digest: ContentHash,
        /// Number of net changes.
        changes: u64,
    },
}

impl LoadError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

/// Where the stage in `dir` stands.
///
/// # Errors
/// [`LoadError`]; not [`LoadError::NotSealed`].
pub fn status(dir: &Path) -> Result<StageStatus, LoadError> {
    check_stage(dir)?;
    match SealedStage::read(dir) {
        Ok(sealed) => Ok(StageStatus::Sealed { digest: sealed.digest, changes: sealed.body.changes }),
        Err(LoadError::NotSealed(_)) => {
            let lock = Lock::take(dir).map_err(LoadError::io(dir))?;
            Ok(if lock.is_some() { StageStatus::Unsealed } else { StageStatus::InUse })
        }
        Err(e) => Err(e),
    }
}

/// Bytes that the contents and the journal of the stage in `dir` occupy on disk, as they are now.
///
/// # Errors
/// They can't be read.
pub fn held_bytes(dir: &Path) -> io::Result<u64> {
    // What a running stage removes meanwhile does not count.
    let blocks = |entry: io::Result<std::fs::Metadata>| match entry {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
        entry => entry.map(|meta| std::os::unix::fs::MetadataExt::blocks(&meta) * 512),
    };
    let mut sum = blocks(dir.join(JOURNAL).symlink_metadata())?;
    for entry in std::fs::read_dir(dir.join(UPPER))? {
        sum += blocks(entry?.metadata())?;
    }
    Ok(sum)
}

/// A directory is a stage by its journal and its upper.
pub(crate) fn check_stage(dir: &Path) -> Result<(), LoadError> {
    for name in [JOURNAL, UPPER] {
        match dir.join(name).symlink_metadata() {
            Ok(_) => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Err(LoadError::NotAStage(dir.to_owned()));
            }
            Err(e) => return Err(LoadError::io(&dir.join(name))(e)),
        }
    }
    Ok(())
}

/// The net changes of a sealed stage, from its own files alone.
///
/// # Errors
/// [`LoadError`].
pub fn load_changes(dir: &Path) -> Result<ChangeSet, LoadError> {
    check_stage(dir)?;
    let damaged = |what| LoadError::Damaged { path: dir.to_owned(), what };
    let sealed = SealedStage::read(dir)?;
    let (hash, length) = Journal::hash(dir).map_err(LoadError::io(&dir.join(JOURNAL)))?;
    if hash != sealed.body.journal_hash || length != sealed.body.journal_length {
        return Err(damaged("the journal is not the one that was sealed"));
    }
    let replayed = replay(dir).map_err(|e| e.into_load(dir))?;
    if replayed.torn {
        return Err(damaged("the journal is cut off"));
    }
    let upper = Upper::open(dir).map_err(io::Error::from).map_err(LoadError::io(&dir.join(UPPER)))?;
    let mut contents = HashMap::new();
    for content in &sealed.body.contents {
        let stat = upper.stat(content.id()).map_err(|_| damaged("a staged content is missing"))?;
        if stat.kind != crate::FileKind::File || stat.size != content.size {
            return Err(damaged("a staged content has another size"));
        }
        if contents.insert(content.id(), *content).is_some() {
            return Err(damaged("a staged content is named twice"));
        }
    }
    let changes = net_changes(&replayed.tree, &contents).map_err(|e| damaged(e.0))?;
    if changes.len() as u64 != sealed.body.changes {
        return Err(damaged("it has more or fewer changes than were sealed"));
    }
    let lower = PathBuf::from(OsString::from_vec(replayed.header.lower));
    if !lower.is_absolute() {
        return Err(damaged("the staged directory's path is not absolute"));
    }
    Ok(ChangeSet { lower, seal: sealed.digest, changes })
}
