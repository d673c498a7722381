//! Making one of a stage in use, in three steps, of which only the middle one needs a pause.

use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::create::{choose, make_half, publish};
use super::manifest::{Manifest, describe_contents};
use super::share::{Pair, Shared, copy_journal};
use super::{Collected, SAVEPOINTS, Savepoint, SavepointError, remove_halves};
use crate::apply::Blame;
use crate::journal::Journal;
use crate::layout::UPPER;
use crate::live::Saving;
use crate::seal::each;
use crate::upper::Upper;
use crate::{NodeId, Stage};

/// A savepoint with a name and a place, and nothing in it.
#[derive(Debug)]
pub struct PreparedSavepoint<'a> {
    saving: Saving<'a>,
    half: Half,
    name: String,
    now_ms: u64,
}

/// A savepoint with all that belongs to it, but not complete.
#[derive(Debug)]
pub struct TakenSavepoint<'a> {
    prepared: PreparedSavepoint<'a>,
    ids: Vec<NodeId>,
    journal_length: u64,
}

/// The directory of one that is being made. Gone with it, unless it was published.
#[derive(Debug)]
struct Half {
    path: PathBuf,
    published: bool,
}

impl Drop for Half {
    fn drop(&mut self) {
        if !self.published
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "half a savepoint could not be removed");
        }
    }
}

impl Stage {
    /// Begins a savepoint; without a name it gets the next free number. `now_ms`: milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// There is one of that name, it can't be a name, or nothing of the stage is kept.
    pub fn prepare_savepoint(&self, name: Option<&str>, now_ms: u64) -> Result<PreparedSavepoint<'_>, SavepointError> {
        let saving = self.saving().ok_or(SavepointError::ThrownAway)?;
        let dir = saving.dir();
        let name = choose(dir, name)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if let Ok(all) = openat(CWD, dir.join(SAVEPOINTS), flags, Mode::empty()) {
            // Left by one that failed and could not clean up.
            remove_halves(dir, &all, &mut Collected::default())?;
        }
        let half = Half { path: make_half(dir, &name)?, published: false };
        Ok(PreparedSavepoint { saving, half, name, now_ms })
    }
}

impl<'a> PreparedSavepoint<'a> {
    /// Takes what is staged now, without copying it where the file system can share it. Until this returns, nobody may
    /// write a content: what is open is not looked after.
    ///
    /// # Errors
    /// [`SavepointError::Overdue`] once `deadline` has passed; a file can't be made.
    pub fn take(self, deadline: Instant) -> Result<TakenSavepoint<'a>, SavepointError> {
        let moment = self.saving.moment();
        let pair = Pair::open(self.saving.dir(), &self.half.path)?;
        let one = |(id, body): &(NodeId, std::sync::Arc<crate::tree::Body>)| {
            if Instant::now() >= deadline {
                return Err(SavepointError::Overdue);
            }
            if pair.share_now(*id)? == Shared::SameFile {
                body.set_shared(true);
            }
            Ok(*id)
        };
        let ids = each(&moment.contents, one).into_iter().collect::<Result<_, _>>()?;
        let journal_length = moment.journal_length;
        drop(moment);
        Ok(TakenSavepoint { prepared: self, ids, journal_length })
    }
}

impl TakenSavepoint<'_> {
    /// Completes the savepoint and brings it to disk, while the stage goes on being used.
    ///
    /// # Errors
    /// A file can't be read, written or synced; nothing is left of the savepoint then.
    pub fn finish(self) -> Result<Savepoint, SavepointError> {
        let Self { prepared, ids, journal_length } = self;
        let PreparedSavepoint { saving, mut half, name, now_ms } = prepared;
        let (dir, path): (&Path, &Path) = (saving.dir(), &half.path);
        // What was appended since lies behind.
        copy_journal(dir, path, journal_length)?;
        let (journal_hash, length) = Journal::hash(path).blame("read", path)?;
        if length != journal_length {
            return Err(SavepointError::damaged(&name, "the journal changed while it was copied"));
        }
        let upper = Upper::open(path).blame("open", path.join(UPPER))?;
        let contents = describe_contents(&upper, &ids, path)?;
        let manifest = Manifest { name, created_ms: now_ms, journal_length, journal_hash, seal: None, contents };
        let savepoint = publish(dir, path, &manifest)?;
        half.published = true;
        Ok(savepoint)
    }
}
