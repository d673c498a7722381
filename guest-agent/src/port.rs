//! The port: frames in, frames out, never waiting.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use pvisor_proto::{Decoder, FrameError, ToGuest, ToHost, encode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read, write};

/// Bytes waiting to be sent beyond which no more are produced.
const BACKLOG: usize = 256 * 1024;

/// Bytes per read.
const READ: usize = 64 * 1024;

/// The agent's end of the connection to the host.
pub struct Port {
    fd: OwnedFd,
    decoder: Decoder,
    buffer: Vec<u8>,
    outgoing: Vec<u8>,
    sent: usize,
}

impl Port {
    /// Takes over a descriptor and makes it non-blocking.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let flags = fcntl_getfl(&fd)?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Self { fd, decoder: Decoder::new(), buffer: vec![0; READ], outgoing: Vec::new(), sent: 0 })
    }

    /// To wait for it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Queues a message. All of ours are small but for output, which is cut to fit.
    pub fn send(&mut self, id: u64, message: &ToHost) {
        if let Err(error) = encode(id, message, &mut self.outgoing) {
            crate::console::report(format_args!("a message was not sent: {error}"));
        }
    }

    /// Whether bytes wait to be sent.
    pub fn has_backlog(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    /// Whether so many bytes wait that nothing should be produced or asked for now.
    pub fn is_full(&self) -> bool {
        self.outgoing.len() - self.sent >= BACKLOG
    }

    /// Sends what the port takes now.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.has_backlog() {
            match write(&self.fd, &self.outgoing[self.sent..]) {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(written) => self.sent += written,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if !self.has_backlog() {
            self.outgoing.clear();
            self.sent = 0;
        } else if self.sent >= BACKLOG {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// Sends everything, or as much as goes in this time.
    pub fn flush_within(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while self.flush().is_ok() && self.has_backlog() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return };
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let _ = poll(&mut [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::OUT)], Some(&timeout));
        }
    }

    /// Takes in what has come; false: the port is at its end.
    pub fn fill(&mut self) -> io::Result<bool> {
        match read(&self.fd, &mut self.buffer) {
            Ok(0) => Ok(false),
            Ok(length) => {
                self.decoder.feed(&self.buffer[..length]);
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// The next message that has come whole.
    pub fn next(&mut self) -> Result<Option<(u64, ToGuest)>, FrameError> {
        self.decoder.next()
    }
}
