//! A TAP device as the port of an engine.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use crate::Tap;

/// Frames that wait for a device that takes no more.
const MAX_WAITING: usize = 256;
/// Empty buffers kept for the next frames.
const POOL: usize = 64;

/// The device and what is in hand for it.
pub(crate) struct TapPort {
    tap: Tap,
    max_frame: usize,
    readable: bool,
    writable: bool,
    closed: bool,
    outbox: VecDeque<Vec<u8>>,
    pool: Vec<Vec<u8>>,
}

impl TapPort {
    /// Registers the device under `token`, edge-triggered.
    pub(crate) fn new(tap: Tap, max_frame: usize, registry: &Registry, token: Token) -> io::Result<Self> {
        use std::os::fd::AsFd;
        let fd = tap.as_fd().as_raw_fd();
        registry.register(&mut SourceFd(&fd), token, Interest::READABLE | Interest::WRITABLE)?;
        let (outbox, pool) = (VecDeque::new(), Vec::new());
        Ok(Self { tap, max_frame, readable: true, writable: true, closed: false, outbox, pool })
    }

    /// The device became ready.
    pub(crate) fn on_event(&mut self, event: &mio::event::Event) {
        self.readable |= event.is_readable() || event.is_error();
        self.writable |= event.is_writable() || event.is_error();
    }

    pub(crate) fn receive(&mut self) -> Option<Vec<u8>> {
        if !self.readable {
            return None;
        }
        let mut frame = self.buffer();
        // One byte more than the longest frame: whatever fills it was cut and is dropped by the length checks.
        frame.reserve(self.max_frame + 1);
        loop {
            match self.tap.read(&mut frame) {
                Ok(0) => self.closed = true,
                Ok(_) => return Some(frame),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // EIO while the interface is down is passing; EBADFD says that the device is gone.
                Err(error) => self.closed |= error.raw_os_error() == Some(libc::EBADFD),
            }
            self.readable = false;
            self.recycle(frame);
            return None;
        }
    }

    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) {
        if self.pool.len() < POOL {
            self.pool.push(buffer);
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.outbox.is_empty()
    }

    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.pool.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    pub(crate) fn transmit(&mut self, frame: Vec<u8>) {
        if self.outbox.is_empty() && self.write(&frame) {
            self.recycle(frame);
        } else if self.outbox.len() < MAX_WAITING {
            self.outbox.push_back(frame);
        }
    }

    /// Whether the frame is done with; `false` if the device takes no more now.
    fn write(&mut self, frame: &[u8]) -> bool {
        if !self.writable {
            return false;
        }
        loop {
            match self.tap.write(frame) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.writable = false;
                    return false;
                }
                // Refused for good, as while the interface is down: lost like on any wire.
                _ => return true,
            }
        }
    }

    pub(crate) fn flush(&mut self) {
        while let Some(frame) = self.outbox.pop_front() {
            if !self.write(&frame) {
                self.outbox.push_front(frame);
                return;
            }
            self.recycle(frame);
        }
    }

    pub(crate) fn prepare_sleep(&mut self, wants_room: bool) -> bool {
        !(self.readable || wants_room && self.has_room())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }
}
