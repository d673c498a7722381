//! Making a stage.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use pvisor_spec::Durability;
use rustix::fs::{FallocateFlags, fallocate};

use super::quota::Quota;
use super::{Shared, Stage, State};
use crate::LoadError;
use crate::journal::{Header, Journal};
use crate::layout::{self, Lock, RESERVE, UPPER, WORK};
use crate::lower::{Lower, Mask, PatternError};
use crate::stat::Stat;
use crate::tree::Tree;
use crate::upper::Upper;

/// Space kept back for the seal, in bytes.
const RESERVED: u64 = 2 * 1024 * 1024;

/// What becomes of the changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// They are sealed and reviewed.
    #[default]
    Reviewable,
    /// They are thrown away: no journal, no preimages, no seal.
    ThrowAway,
}

/// How a stage is made.
#[derive(Clone, Debug, Default)]
pub struct StageOptions {
    /// When it is synced.
    pub durability: Durability,
    /// What becomes of the changes.
    pub keep: Keep,
    /// Paths of the lower that look absent: globs against absolute host paths. `*` stays within one component, `**`
    /// does not. What is made there shows.
    pub hidden: Vec<String>,
    /// Directories of the lower that look empty: absolute host paths. They can't be removed or renamed.
    pub boundaries: Vec<PathBuf>,
    /// Bytes that contents and journal may occupy together. A change that takes more fails with `DQUOT`. The file
    /// system's own bookkeeping, and what the seal adds, are not held to it.
    pub max_bytes: Option<u64>,
}

/// Why a stage can't be made.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file or directory can't be made or opened.
    #[error("{path:?}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// There is something in the stage's directory.
    #[error("{0:?} is not empty")]
    NotEmpty(PathBuf),
    /// Another process works on the stage.
    #[error("the stage {0:?} is in use")]
    InUse(PathBuf),
    /// The stage would show and change itself.
    #[error("the stage {stage:?} lies inside the directory {lower:?} that it is to stage")]
    Inside {
        /// The stage's directory.
        stage: PathBuf,
        /// The lower.
        lower: PathBuf,
    },
    /// The directory to stage lies in the stage.
    #[error("the directory {lower:?} lies inside its own stage {stage:?}")]
    Around {
        /// The stage's directory.
        stage: PathBuf,
        /// The lower.
        lower: PathBuf,
    },
    /// The lower is no directory.
    #[error("{0:?} is not a directory")]
    NotDirectory(PathBuf),
    /// The stage to go on with can't be read, or is not sealed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The stage to go on with is of another directory, or something of it was applied already.
    #[error("the stage {stage:?} can't go on with the directory {lower:?}: {what}")]
    Unfit {
        /// The stage's directory.
        stage: PathBuf,
        /// The lower.
        lower: PathBuf,
        /// Why.
        what: &'static str,
    },
    /// A pattern of hidden paths is wrong.
    #[error(transparent)]
    Pattern(#[from] PatternError),
}

pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io { path, source }
}

impl Stage {
    /// Makes a stage of `lower` in `dir`, which must be empty or absent; the parent must be there. The stage is in
    /// use, and locked, as long as the result or one of its open files lives.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn create(dir: &Path, lower: &Path, options: StageOptions) -> Result<Self, OpenError> {
        let lower = lower.canonicalize().map_err(at(lower))?;
        if !lower.is_dir() {
            return Err(OpenError::NotDirectory(lower));
        }
        let mask = Mask::new(&lower, &options.hidden, &options.boundaries)?;
        let (dir, made) = make_dir(dir)?;
        let result = place_check(&dir, &lower, &mask).and_then(|()| Self::fill(&dir, &lower, mask, &options));
        if result.is_err() && made {
            // Nothing of worth is in it; what can't be removed stays empty.
            let _ = std::fs::remove_dir_all(&dir);
        }
        result
    }

    fn fill(dir: &Path, lower: &Path, mask: Mask, options: &StageOptions) -> Result<Self, OpenError> {
        let pinned = Lower::open(lower).map_err(io::Error::from).map_err(at(lower))?;
        let lock = Lock::take(dir).map_err(at(dir))?.ok_or_else(|| OpenError::InUse(dir.to_owned()))?;
        for name in [UPPER, WORK] {
            let path = dir.join(name);
            DirBuilder::new().mode(0o700).create(&path).map_err(at(&path))?;
        }
        let journal = match options.keep {
            Keep::ThrowAway => Journal::void(),
            Keep::Reviewable => {
                reserve(&dir.join(WORK).join(RESERVE));
                let path = dir.join(layout::JOURNAL);
                Journal::create(dir, &header(lower, pinned.root_stat(), options)).map_err(at(&path))?
            }
        };
        let upper = Upper::open(dir).map_err(io::Error::from).map_err(at(&dir.join(UPPER)))?;
        if options.durability == Durability::Strict {
            layout::sync_dir(dir).map_err(at(dir))?;
        }
        let tree = Tree::new(pinned.root_stat(), false);
        Ok(Self::of(Parts { dir: dir.to_owned(), lower: pinned, mask, upper, lock }, State { tree, journal }, options))
    }

    /// Puts it together.
    pub(super) fn of(parts: Parts, state: State, options: &StageOptions) -> Self {
        let Parts { dir, lower, mask, upper, lock } = parts;
        let quota = options.max_bytes.map(Quota::new);
        if let Some(quota) = &quota {
            quota.set_journal(state.journal.length());
        }
        let shared = Shared {
            lower,
            mask,
            upper,
            journal: state.journal.file(),
            state: Mutex::new(state),
            keep: options.keep,
            durability: options.durability,
            quota,
            dir,
            saving: Mutex::new(()),
            _lock: lock,
        };
        Self { shared: Arc::new(shared) }
    }
}

/// What a stage is made of, but for what it says.
pub(super) struct Parts {
    pub dir: PathBuf,
    pub lower: Lower,
    pub mask: Mask,
    pub upper: Upper,
    pub lock: Lock,
}

/// The stage's directory, by its canonical path, and whether it was made now.
fn make_dir(dir: &Path) -> Result<(PathBuf, bool), OpenError> {
    let made = match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => true,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => false,
        Err(e) => return Err(at(dir)(e)),
    };
    let dir = dir.canonicalize().map_err(at(dir))?;
    let mut entries = std::fs::read_dir(&dir).map_err(at(&dir))?;
    if entries.next().is_some() {
        let busy = dir.join(layout::LOCK).exists() && Lock::take(&dir).is_ok_and(|l| l.is_none());
        return Err(if busy { OpenError::InUse(dir) } else { OpenError::NotEmpty(dir) });
    }
    Ok((dir, made))
}

/// A stage that the view shows would stage its own files.
pub(super) fn place_check(dir: &Path, lower: &Path, mask: &Mask) -> Result<(), OpenError> {
    if lower.starts_with(dir) {
        return Err(OpenError::Around { stage: dir.to_owned(), lower: lower.to_owned() });
    }
    let Ok(inside) = dir.strip_prefix(lower) else { return Ok(()) };
    let covered = inside.ancestors().any(|p| {
        let path = p.as_os_str().as_bytes();
        mask.hides(path) || (mask.bounds(path) && p != inside)
    });
    if covered { Ok(()) } else { Err(OpenError::Inside { stage: dir.to_owned(), lower: lower.to_owned() }) }
}

pub(super) fn header(path: &Path, root: &Stat, options: &StageOptions) -> Header {
    Header {
        lower: path.as_os_str().as_bytes().to_vec(),
        root: *root,
        boot: boot_id(),
        hidden: options.hidden.clone(),
        boundaries: options.boundaries.iter().map(|b| b.as_os_str().as_bytes().to_vec()).collect(),
    }
}

/// Names this boot of the machine; empty where it is unknown.
pub(crate) fn boot_id() -> Vec<u8> {
    std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim_ascii().to_vec()
}

/// Where the space can't be had now, sealing on a full disk may have to wait for some.
pub(super) fn reserve(path: &Path) {
    if let Ok(file) = File::create_new(path) {
        let _ = fallocate(&file, FallocateFlags::empty(), 0, RESERVED);
    }
}
