//! Passing on standard input.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use pvisor_proto::{Bytes, CHUNK, ToGuest};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, read, write};

use super::command::CommandState;
use super::error::AgentError;
use super::link::{self, Link};

/// Makes the thread that waits for input look whether it is still wanted.
pub(super) struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(super) fn wake(&self) {
        // Fails only when it has been woken some 2^64 times already.
        let _ = write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// Starts the thread that relays `stdin`. Nobody waits for it: it ends when the input does or when the guest wants no
/// more, and it never reads what the guest has no room for.
pub(super) fn spawn(link: Arc<Link>, id: u64, state: Arc<CommandState>, stdin: OwnedFd) -> Result<(), AgentError> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(AgentError::local)?);
    state.set_input_waker(Waker(Arc::clone(&wake)));
    link::spawn("stdin", move || {
        let mut buffer = vec![0; CHUNK];
        while let Some(room) = state.input_room() {
            match read_some(&stdin, &wake, &mut buffer[..room]) {
                Input::Bytes(length) => {
                    if !state.spend_input(length) {
                        return;
                    }
                    let _ = link.send(id, &ToGuest::Stdin(Bytes::from(&buffer[..length])));
                }
                Input::Ended => {
                    let _ = link.send(id, &ToGuest::StdinClose);
                    return;
                }
                Input::Unwanted => return,
            }
        }
    })?;
    Ok(())
}

enum Input {
    Bytes(usize),
    Ended,
    Unwanted,
}

/// Waits for input or for the end of interest in it. An input that can't be read counts as ended.
fn read_some(stdin: &OwnedFd, wake: &OwnedFd, buffer: &mut [u8]) -> Input {
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Err(Errno::INTR) => continue,
            Err(_) => return Input::Ended,
            Ok(_) => {}
        }
        if !fds[1].revents().is_empty() {
            return Input::Unwanted;
        }
        match read(stdin, &mut *buffer) {
            Ok(0) => return Input::Ended,
            Ok(length) => return Input::Bytes(length),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => return Input::Ended,
        }
    }
}
