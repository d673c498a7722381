//! Asking the worker of a run that goes on for something.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pvisor_spec::{CONTROL_LIMIT, CONTROL_SOCKET, ControlAnswer, ControlRequest};

use super::Run;

/// How long the other side may take to read what is asked.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    /// Nobody listens.
    #[error("nobody there can be asked at this moment")]
    Absent(#[source] io::Error),
    /// The line broke: the run has ended, for instance.
    #[error("the line to the run broke")]
    Io(#[source] io::Error),
    /// The answer is none.
    #[error("the run did not answer")]
    Malformed,
}

/// Asks, and waits for the answer as long as the run goes on.
///
/// # Errors
/// [`ControlError`].
pub(crate) fn ask(run: &Run, request: &ControlRequest) -> Result<ControlAnswer, ControlError> {
    let dir = std::fs::File::open(&run.dir).map_err(ControlError::Absent)?;
    // The directory's own path may be longer than the address of a socket can be.
    let mut stream = UnixStream::connect(format!("/proc/self/fd/{}/{CONTROL_SOCKET}", dir.as_raw_fd()))
        .map_err(ControlError::Absent)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(ControlError::Io)?;
    let mut line = serde_json::to_vec(request).map_err(|e| ControlError::Io(e.into()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(ControlError::Io)?;
    let mut answer = Vec::new();
    stream.take(CONTROL_LIMIT as u64).read_to_end(&mut answer).map_err(ControlError::Io)?;
    serde_json::from_slice(&answer).map_err(|_| ControlError::Malformed)
}
