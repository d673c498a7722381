//! Writing to the three standard streams, which belong to others as well.
//!
//! Their flags are never changed: another process that shares the descriptor may have made it non-blocking, so a full
//! pipe is waited for here. A reader that left is no error of ours.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::Serialize;

use super::chain;

/// A stream whose far end may be slow, gone, or non-blocking.
struct Stream<'a>(BorrowedFd<'a>);

impl Write for Stream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::io::write(self.0, bytes) {
                Ok(n) => return Ok(n),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait_until_writable(self.0)?,
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn wait_until_writable(fd: BorrowedFd<'_>) -> io::Result<()> {
    match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Writes an answer to standard output.
///
/// # Errors
/// What the stream says, but for a reader that left: then there is nobody to answer.
pub(crate) fn answer(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let stdout = io::stdout();
    let mut out = io::BufWriter::with_capacity(1 << 16, Stream(stdout.as_fd()));
    let result = write(&mut out).and_then(|()| out.flush());
    // What could not be written must not be tried again on drop.
    let _ = out.into_parts();
    match result {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Writes a JSON document and a newline to standard output.
///
/// # Errors
/// As [`answer`].
pub(crate) fn answer_json(value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    answer(|out| writeln!(out, "{text}"))
}

/// One message on standard error, each line of it marked as ours. Failing to write it changes nothing.
pub(crate) fn say(message: &str) {
    let mut text = String::with_capacity(message.len() + 16);
    for line in message.lines() {
        text.push_str("pvisor: ");
        text.push_str(line);
        text.push('\n');
    }
    let _ = Stream(io::stderr().as_fd()).write_all(text.as_bytes());
}

/// One JSON document on a line of standard error. Failing to write it changes nothing.
pub(crate) fn say_json(value: &impl Serialize) {
    match serde_json::to_string(value) {
        Ok(mut text) => {
            text.push('\n');
            let _ = Stream(io::stderr().as_fd()).write_all(text.as_bytes());
        }
        Err(e) => say(&chain(&e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_non_blocking_pipe_is_waited_for() {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let big = vec![7u8; 1 << 20];
        let copy = big.clone();
        let thread = std::thread::spawn(move || Stream(writer.as_fd()).write_all(&copy));
        let mut got = Vec::new();
        let mut block = [0; 4096];
        loop {
            match rustix::io::read(&reader, &mut block) {
                Ok(0) => break,
                Ok(n) => got.extend_from_slice(&block[..n]),
                Err(Errno::AGAIN) => std::thread::yield_now(),
                Err(e) => panic!("{e}"),
            }
        }
        thread.join().unwrap().unwrap();
        assert!(got == big);
    }

    #[test]
    fn a_reader_that_left_is_an_error_of_the_stream_not_a_signal() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        drop(reader);
        let error = Stream(writer.as_fd()).write_all(b"x").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
