//! The byte stream between this process and the agent in the guest: the host's end of a virtio-console port.
//!
//! Two bounded buffers. The engine's threads work on one end of each, the agent client on the other; a full buffer
//! makes its writer wait, so a command that writes faster than anyone reads is slowed down, and nobody polls.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use msb_krun::ConsolePortBackend;
use rustix::event::{EventfdFlags, eventfd};

/// Bytes that each direction holds at most.
const CAPACITY: usize = 256 << 10;

#[derive(Default)]
struct Lane {
    bytes: VecDeque<u8>,
    closed: bool,
}

impl Lane {
    fn take(&mut self, buf: &mut [u8]) -> usize {
        // Reading from a deque of bytes copies whole slices and never fails.
        self.bytes.read(buf).unwrap_or(0)
    }

    fn put(&mut self, buf: &[u8]) -> usize {
        let room = CAPACITY.saturating_sub(self.bytes.len()).min(buf.len());
        self.bytes.extend(&buf[..room]);
        room
    }
}

struct Shared {
    to_guest: Mutex<Lane>,
    to_guest_room: Condvar,
    /// Readable exactly while `to_guest` holds bytes or is closed; changed under its lock.
    to_guest_ready: OwnedFd,
    to_host: Mutex<Lane>,
    to_host_bytes: Condvar,
    to_host_room: Condvar,
}

fn lock(lane: &Mutex<Lane>) -> MutexGuard<'_, Lane> {
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn raise(&self) {
        // Fails only where the counter is at its maximum: then the descriptor is readable, as it should be.
        let _ = rustix::io::write(&self.to_guest_ready, &1u64.to_ne_bytes());
    }

    fn lower(&self) {
        // Fails only where the counter is zero: then the descriptor is not readable, as it should be.
        let _ = rustix::io::read(&self.to_guest_ready, &mut [0; 8]);
    }
}

/// The engine's end.
pub struct Port(Arc<Shared>);

/// Bytes from the guest.
pub struct PortReader(Arc<Shared>);

/// Bytes to the guest.
pub struct PortWriter(Arc<Shared>);

/// Ends the stream from any thread.
#[derive(Clone)]
pub struct PortCloser(Arc<Shared>);

/// The three ends of a new stream for the agent client, and the engine's.
///
/// # Errors
/// No descriptor left.
pub fn port() -> io::Result<(Port, PortReader, PortWriter, PortCloser)> {
    let shared = Arc::new(Shared {
        to_guest: Mutex::default(),
        to_guest_room: Condvar::new(),
        to_guest_ready: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        to_host: Mutex::default(),
        to_host_bytes: Condvar::new(),
        to_host_room: Condvar::new(),
    });
    Ok((
        Port(Arc::clone(&shared)),
        PortReader(Arc::clone(&shared)),
        PortWriter(Arc::clone(&shared)),
        PortCloser(shared),
    ))
}

impl ConsolePortBackend for Port {
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut lane = lock(&self.0.to_guest);
        let taken = lane.take(buf);
        if lane.bytes.is_empty() && !lane.closed {
            self.0.lower();
        }
        if taken > 0 {
            self.0.to_guest_room.notify_all();
            return Ok(taken);
        }
        // Zero bytes would tell the engine that the port is closed for good.
        if lane.closed && !buf.is_empty() { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    fn write(&self, buf: &[u8]) -> io::Result<usize> {
        let mut lane = lock(&self.0.to_host);
        if lane.closed {
            // Nobody will read it: a guest that waits for room would never stop.
            return Ok(buf.len());
        }
        let put = lane.put(buf);
        if put == 0 && !buf.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.0.to_host_bytes.notify_all();
        Ok(put)
    }

    fn read_wake_fd(&self) -> RawFd {
        self.0.to_guest_ready.as_raw_fd()
    }

    fn wait_until_writable(&self) {
        let lane = lock(&self.0.to_host);
        let full = |lane: &mut Lane| lane.bytes.len() >= CAPACITY && !lane.closed;
        drop(self.0.to_host_room.wait_while(lane, full).unwrap_or_else(PoisonError::into_inner));
    }
}

impl PortReader {
    /// Waits for bytes, at most for `limit` where there is one. Zero bytes: the stream has ended.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`].
    pub fn read_within(&mut self, buf: &mut [u8], limit: Option<Duration>) -> io::Result<usize> {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut lane = lock(&self.0.to_host);
        loop {
            let taken = lane.take(buf);
            if taken > 0 {
                self.0.to_host_room.notify_all();
                return Ok(taken);
            }
            if lane.closed || buf.is_empty() {
                return Ok(0);
            }
            lane = match deadline {
                None => self.0.to_host_bytes.wait(lane).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    self.0.to_host_bytes.wait_timeout(lane, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl Read for PortReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_within(buf, None)
    }
}

impl Write for PortWriter {
    /// Waits for room.
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let lane = lock(&self.0.to_guest);
        let full = |lane: &mut Lane| lane.bytes.len() >= CAPACITY && !lane.closed;
        let mut lane = self.0.to_guest_room.wait_while(lane, full).unwrap_or_else(PoisonError::into_inner);
        if lane.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let was_empty = lane.bytes.is_empty();
        let put = lane.put(buf);
        if was_empty && put > 0 {
            self.0.raise();
        }
        Ok(put)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl PortCloser {
    /// No more bytes either way: readers see the end after what is there, writers a broken pipe.
    pub fn close(&self) {
        let mut to_guest = lock(&self.0.to_guest);
        if !to_guest.closed {
            to_guest.closed = true;
            self.0.raise();
        }
        drop(to_guest);
        lock(&self.0.to_host).closed = true;
        self.0.to_guest_room.notify_all();
        self.0.to_host_bytes.notify_all();
        self.0.to_host_room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::thread;

    fn readable(port: &Port) -> bool {
        let mut fds = [PollFd::new(&port.0.to_guest_ready, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn the_wake_descriptor_is_readable_exactly_while_there_are_bytes() {
        let (port, _reader, mut writer, closer) = port().unwrap();
        let mut buf = [0; 4];
        assert!(!readable(&port));
        assert_eq!(port.read(&mut buf).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        writer.write_all(b"hello").unwrap();
        writer.write_all(b"!").unwrap();
        assert!(readable(&port));
        assert_eq!(port.read(&mut buf).unwrap(), 4);
        assert!(readable(&port));
        assert_eq!(port.read(&mut buf).unwrap(), 2);
        assert!(!readable(&port));
        closer.close();
        closer.close();
        assert!(readable(&port));
        assert_eq!(port.read(&mut buf).unwrap(), 0);
        assert_eq!(writer.write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_full_buffer_makes_the_writer_wait_and_loses_nothing() {
        const TOTAL: usize = 3 * CAPACITY + 17;
        let (port, mut reader, mut writer, _closer) = port().unwrap();
        let port = Arc::new(port);
        let guest = Arc::clone(&port);
        let sender = thread::spawn(move || {
            let data: Vec<u8> = (0..TOTAL).map(|i| (i % 251) as u8).collect();
            let mut at = 0;
            while at < TOTAL {
                match guest.write(&data[at..]) {
                    Ok(n) => at += n,
                    Err(_) => guest.wait_until_writable(),
                }
            }
            writer.write_all(&data).unwrap();
        });
        let mut got = vec![0; TOTAL];
        reader.read_exact(&mut got).unwrap();
        assert!(got.iter().enumerate().all(|(i, b)| *b == (i % 251) as u8));
        let (mut count, mut buf) = (0, [0; 1000]);
        while count < TOTAL {
            match port.read(&mut buf) {
                Ok(n) => count += n,
                Err(_) => thread::yield_now(),
            }
        }
        sender.join().unwrap();
    }

    #[test]
    fn closing_wakes_everyone() {
        let (port, mut reader, _writer, closer) = port().unwrap();
        assert_eq!(port.write(&vec![1; CAPACITY + 1]).unwrap(), CAPACITY);
        let waiter = thread::spawn(move || port.wait_until_writable());
        closer.close();
        waiter.join().unwrap();
        let mut rest = Vec::new();
        assert_eq!(reader.read_to_end(&mut rest).unwrap(), CAPACITY);
        let (_port, mut reader, _writer, _closer) = super::port().unwrap();
        let error = reader.read_within(&mut [0; 1], Some(Duration::from_millis(1))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
