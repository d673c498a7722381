//! The worker's events as they come up the pipe: claims, capped in length and number.

use std::os::fd::OwnedFd;

use pvisor_spec::WorkerEvent;
use rustix::io::Errno;

/// Longest line in bytes, newline included.
pub(crate) const MAX_LINE: usize = 1 << 20;

/// Most events of one run.
const MAX_EVENTS: usize = 10_000;

/// Why the stream is not believed any further.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EventError {
    #[error("the worker sent an event of over {MAX_LINE} bytes")]
    TooLong,
    #[error("the worker sent over {MAX_EVENTS} events")]
    TooMany,
    #[error("the worker sent something that is no event: {0}")]
    Malformed(String),
    #[error("can't read from the worker: {0}")]
    Read(#[from] Errno),
}

/// The reading end of the event pipe; non-blocking.
#[derive(Debug)]
pub(super) struct EventPipe {
    fd: OwnedFd,
    pending: Vec<u8>,
    seen: usize,
    closed: bool,
}

impl EventPipe {
    /// Takes the reading end, which must be non-blocking.
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { fd, pending: Vec::new(), seen: 0, closed: false }
    }

    /// The descriptor to wait for; `None` once the worker has closed its end.
    pub(super) fn fd(&self) -> Option<&OwnedFd> {
        (!self.closed).then_some(&self.fd)
    }

    /// The next whole event that is there now.
    ///
    /// # Errors
    /// The stream is not what a worker of ours sends.
    pub(super) fn next(&mut self) -> Result<Option<WorkerEvent>, EventError> {
        loop {
            if let Some(end) = self.pending.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                self.seen += 1;
                if self.seen > MAX_EVENTS {
                    return Err(EventError::TooMany);
                }
                return serde_json::from_slice(&line).map(Some).map_err(|e| EventError::Malformed(e.to_string()));
            }
            if self.pending.len() >= MAX_LINE {
                return Err(EventError::TooLong);
            }
            if self.closed || !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Reads what is there; `false` where that is nothing.
    fn fill(&mut self) -> Result<bool, EventError> {
        let mut block = [0; 4096];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.fd, &mut block)) {
            Ok(0) => {
                self.closed = true;
                Ok(false)
            }
            Ok(n) => {
                self.pending.extend_from_slice(&block[..n]);
                Ok(true)
            }
            Err(Errno::AGAIN) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use pvisor_spec::CommandEnd;
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    fn pipe() -> (EventPipe, OwnedFd) {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        (EventPipe::new(reader), writer)
    }

    fn send(fd: &OwnedFd, bytes: &[u8]) {
        assert_eq!(rustix::io::write(fd, bytes).unwrap(), bytes.len());
    }

    #[test]
    fn events_come_whole_and_in_order() {
        let (mut events, writer) = pipe();
        assert_eq!(events.next(), Ok(None));
        let ended = serde_json::to_string(&WorkerEvent::Ended(CommandEnd::Exited(7))).unwrap();
        send(&writer, b"{\"started\":{\"pid\":12}}\n");
        send(&writer, &ended.as_bytes()[..5]);
        assert_eq!(events.next(), Ok(Some(WorkerEvent::Started { pid: Some(12) })));
        assert_eq!(events.next(), Ok(None));
        send(&writer, &ended.as_bytes()[5..]);
        send(&writer, b"\n");
        drop(writer);
        assert_eq!(events.next(), Ok(Some(WorkerEvent::Ended(CommandEnd::Exited(7)))));
        assert_eq!(events.next(), Ok(None));
        assert!(events.fd().is_none());
    }

    #[test]
    fn a_line_without_end_is_cut_off() {
        let (mut events, writer) = pipe();
        let result = (0..MAX_LINE / 4096 + 2).find_map(|_| {
            send(&writer, &[b'x'; 4096]);
            events.next().err()
        });
        assert_eq!(result, Some(EventError::TooLong));
    }

    #[test]
    fn other_lines_and_floods_are_errors() {
        let (mut events, writer) = pipe();
        send(&writer, b"{\"started\":{\"pid\":-1}}\n");
        assert!(matches!(events.next(), Err(EventError::Malformed(_))));
        let (mut events, writer) = pipe();
        let mut result = Ok(());
        for _ in 0..=MAX_EVENTS {
            send(&writer, b"{\"started\":{\"pid\":null}}\n");
            if let Err(e) = events.next() {
                result = Err(e);
            }
        }
        assert_eq!(result, Err(EventError::TooMany));
    }
}
