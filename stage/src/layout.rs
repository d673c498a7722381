//! Names of the files in a stage's directory, and its lock.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use pvisor_spec::Envelope;
use rustix::fs::{FlockOperation, flock};

use crate::Errno;

pub(crate) const UPPER: &str = "upper";
pub(crate) const WORK: &str = "work";
pub(crate) const JOURNAL: &str = "journal";
pub(crate) const LOCK: &str = "lock";
pub(crate) const SEAL: &str = "seal";
/// What applies replaced or removed.
pub(crate) const ORIGINALS: &str = "originals";
/// Inside `work`: space kept back so that a stage on a full disk can still be sealed.
pub(crate) const RESERVE: &str = "reserve";

pub(crate) const JOURNAL_ENVELOPE: Envelope = Envelope { magic: *b"PVSTGJNL", major: 1, minor: 0 };
pub(crate) const SEAL_ENVELOPE: Envelope = Envelope { magic: *b"PVSTGSEL", major: 1, minor: 0 };

/// Exclusive use of a stage, as long as it lives.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Lock {
    /// Takes the lock without waiting; `None`: somebody else has it.
    ///
    /// # Errors
    /// The lock file can't be opened or locked.
    pub fn take(dir: &Path) -> io::Result<Option<Self>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(nofollow()).open(dir.join(LOCK))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { file })),
            Err(Errno::AGAIN) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough while another thread is between fork and exec: its child has the descriptor too.
        if let Err(e) = flock(&self.file, FlockOperation::Unlock) {
            tracing::warn!(error = %e, "a stage could not be unlocked");
        }
    }
}

/// `O_NOFOLLOW | O_CLOEXEC` for files of the stage itself.
pub(crate) fn nofollow() -> i32 {
    (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC).bits().cast_signed()
}

/// Syncs a directory, so that entries made in it are on disk.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
