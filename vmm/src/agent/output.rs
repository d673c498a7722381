//! Passing on the command's output.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use pvisor_proto::{Output, ToGuest};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, write};

use super::command::CommandState;
use super::link::Link;

/// Writes one output of the command to `fd` until it ends; the first error, after which the rest was thrown away.
///
/// The guest is given credit only for what was written, so a reader that stands still makes the command stand still.
pub(super) fn relay(link: &Link, id: u64, state: &CommandState, stream: Output, fd: &OwnedFd) -> Option<io::Error> {
    let mut failed = None;
    while let Some(chunk) = state.next_output(stream) {
        if failed.is_none()
            && let Err(error) = write_all(fd, &chunk)
        {
            failed = Some(error);
            let _ = link.send(id, &ToGuest::OutputClose(stream));
        }
        if let Some(bytes) = state.consumed(stream, chunk.len()) {
            let _ = link.send(id, &ToGuest::Credit { stream, bytes });
        }
    }
    failed
}

/// Writes everything. The descriptor may be shared with other processes: its flags are left alone, and where someone
/// else made it non-blocking, this waits.
fn write_all(fd: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match write(fd, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => match poll(&mut [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::OUT)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
