//! The frame link: two bounded queues between whoever moves the sandbox's frames (a virtio-net backend, a test) and the
//! engine.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::os::Signal;

/// Bytes that may wait in one direction: about 700 standard frames.
const CAPACITY: usize = 1 << 20;
/// Frames that may wait in one direction, so that tiny ones can't take more memory than large ones.
const MAX_FRAMES: usize = 4096;
/// Empty buffers kept for the next frames.
const POOL: usize = 256;

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The queue is full: keep the frame, wait for the link's descriptor, try again.
    #[error("the queue to the network is full")]
    Full,
    /// The network was stopped or broke.
    #[error("the network is closed")]
    Closed,
}

/// The sandbox's end of the network: frames of its interface go in and come out.
///
/// The descriptor of [`AsFd`] becomes readable when there are frames to receive and when a refused frame can be sent
/// again. It is lowered by the [`Link::recv`] that finds nothing; whoever has a refused frame in hand should try it again
/// after that. On Linux it is an eventfd, so that an edge-triggered watcher is woken each time.
#[derive(Debug)]
pub struct Link {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// From the sandbox.
    out: Mutex<Queue>,
    /// To the sandbox.
    into: Mutex<Queue>,
    engine: Arc<mio::Waker>,
    sandbox: Signal,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The writer found it full and waits for room.
    starved: bool,
    /// The reader found it empty and waits for frames.
    idle: bool,
    pool: Vec<Vec<u8>>,
}

impl Queue {
    fn has_room(&self) -> bool {
        self.bytes < CAPACITY && self.frames.len() < MAX_FRAMES
    }

    /// Half empty: enough to be worth waking the writer.
    fn has_much_room(&self) -> bool {
        self.bytes < CAPACITY / 2 && self.frames.len() < MAX_FRAMES / 2
    }

    fn push(&mut self, frame: Vec<u8>) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }

    fn keep(&mut self, mut buffer: Vec<u8>) {
        if self.pool.len() < POOL {
            buffer.clear();
            self.pool.push(buffer);
        }
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    // Nothing panics while a queue is locked; were it so, its counters are still those of its frames.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// Takes a frame from the sandbox. It is copied.
    ///
    /// # Errors
    /// [`SendError::Full`] asks for a retry, [`SendError::Closed`] is final.
    pub fn send(&self, frame: &[u8]) -> Result<(), SendError> {
        if self.is_closed() {
            return Err(SendError::Closed);
        }
        let mut queue = lock(&self.shared.out);
        if !queue.has_room() {
            queue.starved = true;
            return Err(SendError::Full);
        }
        let mut buffer = queue.pool.pop().unwrap_or_default();
        buffer.extend_from_slice(frame);
        queue.push(buffer);
        let wake = std::mem::take(&mut queue.idle);
        drop(queue);
        if wake {
            self.shared.wake_engine();
        }
        Ok(())
    }

    /// Gives the next frame for the sandbox and its length, which is never more than that of `frame`: frames are at most
    /// the link's MTU and 14 bytes long, and one that does not fit is dropped.
    pub fn recv(&self, frame: &mut [u8]) -> Option<usize> {
        loop {
            let mut queue = lock(&self.shared.into);
            let Some(next) = queue.pop() else {
                self.shared.sandbox.lower();
                queue.idle = true;
                return None;
            };
            let wake = queue.starved && queue.has_much_room();
            if wake {
                queue.starved = false;
            }
            drop(queue);
            if wake {
                self.shared.wake_engine();
            }
            let length = next.len();
            let fits = frame.get_mut(..length).map(|place| place.copy_from_slice(&next));
            lock(&self.shared.into).keep(next);
            if fits.is_some() {
                return Some(length);
            }
        }
    }

    /// Whether the network was stopped or broke. Frames for the sandbox that were on their way still come out.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.sandbox.as_fd()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Shared {
    fn wake_engine(&self) {
        // It can fail only where the system is out of memory; the engine then wakes at its next timer.
        let _ = self.engine.wake();
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.sandbox.raise();
        self.wake_engine();
    }
}

/// The engine's end of a [`Link`].
#[derive(Debug)]
pub(crate) struct QueuePort {
    shared: Arc<Shared>,
    /// Taken from the shared queue in one go.
    inbox: VecDeque<Vec<u8>>,
    /// Goes to the shared queue in one go.
    outbox: Vec<Vec<u8>>,
    /// Bytes and frames that the outbox may still take; a guess that only errs on the low side.
    room_bytes: usize,
    room_frames: usize,
    used: Vec<Vec<u8>>,
}

/// A link and its other end. `engine` wakes the thread that serves the port.
///
/// # Errors
/// No descriptors left.
pub(crate) fn link(engine: Arc<mio::Waker>) -> io::Result<(Link, QueuePort)> {
    let shared = Arc::new(Shared {
        out: Mutex::new(Queue { idle: true, ..Queue::default() }),
        into: Mutex::new(Queue { idle: true, ..Queue::default() }),
        engine,
        sandbox: Signal::new()?,
        closed: AtomicBool::new(false),
    });
    let port = QueuePort {
        shared: Arc::clone(&shared),
        inbox: VecDeque::new(),
        outbox: Vec::new(),
        room_bytes: CAPACITY,
        room_frames: MAX_FRAMES,
        used: Vec::new(),
    };
    Ok((Link { shared }, port))
}

impl QueuePort {
    /// The next frame from the sandbox.
    pub(crate) fn receive(&mut self) -> Option<Vec<u8>> {
        if self.inbox.is_empty() {
            let mut queue = lock(&self.shared.out);
            for buffer in self.used.drain(..) {
                queue.keep(buffer);
            }
            std::mem::swap(&mut self.inbox, &mut queue.frames);
            queue.bytes = 0;
            let wake = std::mem::take(&mut queue.starved);
            drop(queue);
            if wake {
                self.shared.sandbox.raise();
            }
        }
        self.inbox.pop_front()
    }

    /// Gives a received frame's buffer back.
    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) {
        if self.used.len() < POOL {
            self.used.push(buffer);
        }
    }

    /// Whether more frames should be sent. A few more than that are taken, so that answers need not be held back.
    pub(crate) fn has_room(&self) -> bool {
        self.room_bytes > 0 && self.room_frames > 0
    }

    /// A buffer for a frame.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.used.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Sends a frame to the sandbox, at the next [`QueuePort::flush`].
    pub(crate) fn transmit(&mut self, frame: Vec<u8>) {
        self.room_bytes = self.room_bytes.saturating_sub(frame.len());
        self.room_frames = self.room_frames.saturating_sub(1);
        self.outbox.push(frame);
    }

    /// Hands all frames over and wakes the sandbox's side if it waits for them.
    pub(crate) fn flush(&mut self) {
        let mut queue = lock(&self.shared.into);
        for frame in self.outbox.drain(..) {
            // Twice the capacity is the end: what is beyond are answers that a flood asked for.
            if queue.bytes < 2 * CAPACITY && queue.frames.len() < 2 * MAX_FRAMES {
                queue.push(frame);
            }
        }
        self.room_bytes = CAPACITY.saturating_sub(queue.bytes);
        self.room_frames = MAX_FRAMES.saturating_sub(queue.frames.len());
        while self.used.len() < POOL / 2
            && let Some(buffer) = queue.pool.pop()
        {
            self.used.push(buffer);
        }
        let wake = !queue.frames.is_empty() && std::mem::take(&mut queue.idle);
        drop(queue);
        if wake {
            self.shared.sandbox.raise();
        }
    }

    /// Gets ready to sleep; `false` if there is something to do after all. `wants_room`: wake up when there is room.
    pub(crate) fn prepare_sleep(&mut self, wants_room: bool) -> bool {
        if !self.inbox.is_empty() {
            return false;
        }
        if wants_room {
            let mut queue = lock(&self.shared.into);
            if queue.has_much_room() {
                return false;
            }
            queue.starved = true;
        }
        let mut queue = lock(&self.shared.out);
        if queue.frames.is_empty() {
            queue.idle = true;
            return true;
        }
        false
    }

    /// Whether the sandbox's side is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }
}

impl Drop for QueuePort {
    fn drop(&mut self) {
        self.flush();
        self.shared.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn pair() -> (Link, QueuePort, mio::Poll) {
        let events = mio::Poll::new().unwrap();
        let waker = Arc::new(mio::Waker::new(events.registry(), mio::Token(0)).unwrap());
        let (link, port) = link(waker).unwrap();
        (link, port, events)
    }

    fn raised(link: &Link) -> bool {
        let mut fds = [PollFd::new(link, PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).unwrap() == 1
    }

    #[test]
    fn frames_come_out_in_order_and_the_descriptor_tells() {
        let (link, mut port, _events) = pair();
        let mut frame = [0; 100];
        assert_eq!(link.recv(&mut frame), None);
        assert!(!raised(&link));
        port.transmit(vec![1; 60]);
        port.transmit(vec![2; 70]);
        assert_eq!(link.recv(&mut frame), None, "not flushed yet");
        port.flush();
        assert!(raised(&link));
        assert_eq!((link.recv(&mut frame), frame[0]), (Some(60), 1));
        assert_eq!((link.recv(&mut frame), frame[0]), (Some(70), 2));
        assert_eq!(link.recv(&mut frame), None);
        assert!(!raised(&link));
        link.send(&[3; 64]).unwrap();
        assert_eq!(port.receive(), Some(vec![3; 64]));
        assert_eq!(port.receive(), None);
    }

    #[test]
    fn a_full_queue_refuses_and_tells_when_there_is_room() {
        let (link, mut port, _events) = pair();
        while link.send(&[0; 1500]).is_ok() {}
        assert_eq!(link.send(&[0; 60]), Err(SendError::Full));
        assert_eq!(link.recv(&mut []), None);
        assert!(!raised(&link));
        assert!(port.receive().is_some());
        assert!(raised(&link));
        assert_eq!(link.send(&[0; 60]), Ok(()));
        let mut tiny = 0;
        while link.send(&[0]).is_ok() {
            tiny += 1;
        }
        assert!(tiny <= MAX_FRAMES, "tiny frames are bounded by number: {tiny}");
    }

    #[test]
    fn the_engine_is_held_back_and_woken_when_half_is_taken() {
        let (link, mut port, mut poll) = pair();
        while port.has_room() {
            port.transmit(vec![0; 1500]);
        }
        port.flush();
        assert!(!port.has_room() && port.prepare_sleep(true));
        let mut events = mio::Events::with_capacity(4);
        let now = Some(std::time::Duration::ZERO);
        let mut frame = [0; 1500];
        let mut taken = 0;
        while events.is_empty() {
            assert!(link.recv(&mut frame).is_some(), "drained without a wake");
            taken += 1500;
            poll.poll(&mut events, now).unwrap();
        }
        assert!(taken >= CAPACITY / 2 - 1500, "woken too early, after {taken} bytes");
        port.flush();
        assert!(port.has_room());
    }

    #[test]
    fn either_end_closes_both() {
        let (link, port, _events) = pair();
        drop(port);
        assert!(link.is_closed() && raised(&link));
        assert_eq!(link.send(&[0; 60]), Err(SendError::Closed));
        let (link, port, _events) = pair();
        drop(link);
        assert!(port.is_closed());
    }

    #[test]
    fn a_frame_that_does_not_fit_is_dropped() {
        let (link, mut port, _events) = pair();
        port.transmit(vec![1; 200]);
        port.transmit(vec![2; 50]);
        port.flush();
        let mut frame = [0; 100];
        assert_eq!((link.recv(&mut frame), frame[0]), (Some(50), 2));
    }
}
