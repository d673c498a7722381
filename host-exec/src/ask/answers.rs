//! Answers as they come down the pipe from the supervisor: one JSON document a line.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pvisor_spec::Answer;
use rustix::io::Errno;

/// Longest line, in bytes; answers are shorter.
const MAX_LINE: usize = 4096;

/// The reading end.
#[derive(Debug)]
pub(crate) struct AnswerPipe {
    fd: OwnedFd,
    pending: Vec<u8>,
}

/// What the pipe has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// An answer.
    Answer(Answer),
    /// Nothing now.
    Nothing,
    /// Nothing any more: the supervisor is gone, or said what is no answer.
    Over,
}

impl AnswerPipe {
    /// Takes the reading end, and makes it non-blocking.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn new(fd: OwnedFd) -> rustix::io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self { fd, pending: Vec::new() })
    }

    /// What comes next.
    pub(crate) fn next(&mut self) -> Heard {
        loop {
            if let Some(end) = self.pending.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return serde_json::from_slice(&line).map_or(Heard::Over, Heard::Answer);
            }
            let mut block = [0; 512];
            match rustix::io::read(&self.fd, &mut block) {
                Ok(0) => return Heard::Over,
                Ok(length) if self.pending.len() + length <= MAX_LINE => {
                    self.pending.extend_from_slice(&block[..length]);
                }
                Err(Errno::AGAIN) => return Heard::Nothing,
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => return Heard::Over,
            }
        }
    }
}

impl AsFd for AnswerPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use pvisor_spec::{AnswerScope, AnsweredBy};

    use super::*;

    fn pipe() -> (AnswerPipe, OwnedFd) {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        (AnswerPipe::new(reader).unwrap(), writer)
    }

    #[test]
    fn answers_come_whole_and_the_end_is_heard() {
        let (mut answers, writer) = pipe();
        assert_eq!(answers.next(), Heard::Nothing);
        let answer = Answer { number: 7, allowed: true, scope: AnswerScope::Run, by: AnsweredBy::Person };
        let line = serde_json::to_string(&answer).unwrap();
        rustix::io::write(&writer, &line.as_bytes()[..9]).unwrap();
        assert_eq!(answers.next(), Heard::Nothing);
        rustix::io::write(&writer, &[&line.as_bytes()[9..], b"\n"].concat()).unwrap();
        assert_eq!(answers.next(), Heard::Answer(answer));
        drop(writer);
        assert_eq!(answers.next(), Heard::Over);
    }

    #[test]
    fn what_is_no_answer_is_the_end() {
        for noise in [&b"{}\n"[..], b"yes\n", &[b'x'; 2 * MAX_LINE]] {
            let (mut answers, writer) = pipe();
            rustix::io::write(&writer, noise).unwrap();
            assert_eq!(answers.next(), Heard::Over);
        }
    }
}
