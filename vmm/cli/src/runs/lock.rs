//! The lock of a run: held means that its supervisor lives.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Whether the lock could be had.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// It is ours until the file is closed.
    Held(File),
    /// Someone else holds it.
    Busy,
}

/// Tries to lock the file for this process alone. The file is made where it is missing.
pub(super) fn try_exclusive(path: &Path) -> io::Result<Attempt> {
    let file = open(path)?;
    attempt(file, FlockOperation::NonBlockingLockExclusive)
}

/// As [`try_exclusive`], again and again for a while: other readers hold it for moments only.
pub(crate) fn exclusive_within(path: &Path, patience: Duration) -> io::Result<Attempt> {
    let deadline = Instant::now() + patience;
    loop {
        match try_exclusive(path)? {
            Attempt::Busy if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            other => return Ok(other),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn attempt(file: File, how: FlockOperation) -> io::Result<Attempt> {
    match rustix::io::retry_on_intr(|| flock(&file, how)) {
        Ok(()) => Ok(Attempt::Held(file)),
        Err(Errno::WOULDBLOCK) => Ok(Attempt::Busy),
        Err(e) => Err(e.into()),
    }
}
