//! Where frames come from and go to: the queues of a link, or a TAP device.

use std::time::Duration;

use crate::link::QueuePort;

/// One of the ways to reach the sandbox's interface.
pub(crate) enum Port {
    /// A link inside this process.
    Queue(QueuePort),
    /// A TAP device of a network namespace.
    #[cfg(target_os = "linux")]
    Tap(super::tap::TapPort),
}

/// Sends a call to whichever port it is.
macro_rules! each {
    ($port:expr, $name:ident => $call:expr) => {
        match $port {
            Port::Queue($name) => $call,
            #[cfg(target_os = "linux")]
            Port::Tap($name) => $call,
        }
    };
}

impl Port {
    /// The next frame from the sandbox.
    pub(crate) fn receive(&mut self) -> Option<Vec<u8>> {
        each!(self, port => port.receive())
    }

    /// Gives the buffer of a received frame back.
    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) {
        each!(self, port => port.recycle(buffer));
    }

    /// Whether more frames should be sent now.
    pub(crate) fn has_room(&self) -> bool {
        each!(self, port => port.has_room())
    }

    /// An empty buffer for a frame.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        each!(self, port => port.buffer())
    }

    /// Sends a frame, at the latest at the next flush.
    pub(crate) fn transmit(&mut self, frame: Vec<u8>) {
        each!(self, port => port.transmit(frame));
    }

    /// Makes sure that all frames are on their way, as far as there is room.
    pub(crate) fn flush(&mut self) {
        each!(self, port => port.flush());
    }

    /// Gets ready to sleep; `false` if there is something to do after all. `wants_room`: wake up when there is room.
    pub(crate) fn prepare_sleep(&mut self, wants_room: bool) -> bool {
        each!(self, port => port.prepare_sleep(wants_room))
    }

    /// Whether the sandbox's side is gone for good.
    pub(crate) fn is_closed(&self) -> bool {
        each!(self, port => port.is_closed())
    }
}

/// The earlier of two times to wake up, where `None` is never.
pub(crate) fn earlier<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Rounds a wait up to what the system's poll can express, so that it does not wake just before the time.
pub(crate) fn poll_timeout(wait: Duration) -> Duration {
    wait + Duration::from_micros(50)
}
