//! Putting a question to the person: on the controlling terminal, while the worker holds the command.
//!
//! The terminal is read key by key, so that no key of it is a signal: an interrupt is an answer here, and nobody else
//! hears of it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal as Number};
use pvisor_spec::AnsweredBy;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, OutputModes, QueueSelector, Termios, tcflush, tcgetattr, tcgetpgrp,
    tcsetattr,
};

use super::signals::Arrived;
use super::spawn::Worker;

/// How long the person has for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a question stands there before keys count: what was typed before it was read was not meant for it.
const SETTLING: Duration = Duration::from_millis(300);

/// Longest line that is taken in; answers are shorter.
const MAX_LINE: usize = 16;

/// Undoes what the command may have done to the terminal and could hide a question with: colours, other character
/// sets, margins.
const RESET: &str = "\x1b[!p\x1b[0m\x0f";

/// What is shown. Texts of others in it are escaped already.
#[derive(Debug)]
pub(crate) struct Prompt {
    /// The question and what can be answered: lines.
    pub(crate) text: String,
    /// What stands before the answer: the question once more, in short.
    pub(crate) line: String,
}

impl Worker {
    /// Asks the person, until there is an answer that `understand` takes.
    ///
    /// # Errors
    /// There is none, and why.
    pub(crate) fn put<T>(&mut self, prompt: &Prompt, understand: impl Fn(&str) -> Option<T>) -> Result<T, AnsweredBy> {
        let mut console = Console::open().ok_or(AnsweredBy::NoTerminal)?;
        let deadline = Instant::now() + PATIENCE;
        let reset = if knows_sequences() { RESET } else { "" };
        console.write(&format!("{reset}\r\n{}\n", prompt.text))?;
        self.let_settle()?;
        console.discard_typed();
        loop {
            console.write(&prompt.line)?;
            let line = self.read_line(&mut console, deadline)?;
            match understand(&line) {
                Some(answer) => return Ok(answer),
                None => console.write("pvisor: that is none of the answers above\n")?,
            }
        }
    }

    fn let_settle(&mut self) -> Result<(), AnsweredBy> {
        match self.wait_beside(None, Instant::now() + SETTLING) {
            Happened::Overdue | Happened::Input => Ok(()),
            Happened::Interrupted => Err(AnsweredBy::Interrupt),
        }
    }

    fn read_line(&mut self, console: &mut Console, deadline: Instant) -> Result<String, AnsweredBy> {
        let mut line = String::new();
        loop {
            while let Some(key) = console.key()? {
                match key {
                    b'\n' | b'\r' => {
                        console.write("\n")?;
                        return Ok(line);
                    }
                    // ^C, ^D
                    3 | 4 => {
                        let _ = console.write("^C\n");
                        return Err(AnsweredBy::Interrupt);
                    }
                    8 | 127 if line.pop().is_some() => console.write("\x08 \x08")?,
                    b' '..=b'~' if line.len() < MAX_LINE => {
                        line.push(char::from(key));
                        console.write(&char::from(key).to_string())?;
                    }
                    _ => {}
                }
            }
            match self.wait_beside(Some(console.tty.as_fd()), deadline) {
                Happened::Overdue => {
                    let _ = console.write("\npvisor: no answer, so no\n");
                    return Err(AnsweredBy::Timeout);
                }
                Happened::Interrupted => {
                    let _ = console.write("\n");
                    return Err(AnsweredBy::Interrupt);
                }
                Happened::Input => {}
            }
        }
    }

    /// Waits for input, and passes on signals meanwhile.
    fn wait_beside(&mut self, terminal: Option<BorrowedFd<'_>>, deadline: Instant) -> Happened {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Happened::Overdue;
            }
            if self.is_interrupted() {
                return Happened::Interrupted;
            }
            let mut fds = vec![PollFd::from_borrowed_fd(self.signals.fd(), PollFlags::IN)];
            // Whatever the worker says now, it does not wait for the answer any more.
            fds.push(PollFd::new(&self.handle, PollFlags::IN));
            fds.extend(self.events.fd().map(|fd| PollFd::new(fd, PollFlags::IN)));
            let beside = fds.len();
            fds.extend(terminal.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return Happened::Interrupted,
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready[1..beside].contains(&true) {
                return Happened::Interrupted;
            }
            if ready.get(beside) == Some(&true) {
                return Happened::Input;
            }
        }
    }

    /// Takes in signals; true: one of them is to end the run.
    fn is_interrupted(&mut self) -> bool {
        let mut ends = false;
        loop {
            match self.signals.next() {
                Ok(None) => return ends,
                Ok(Some(Arrived { signal: Number::SIGCHLD, .. })) => {}
                Ok(Some(arrived)) => {
                    ends |=
                        matches!(arrived.signal, Number::SIGINT | Number::SIGTERM | Number::SIGHUP | Number::SIGQUIT);
                    self.pass_on(arrived);
                }
                Err(_) => return true,
            }
        }
    }
}

enum Happened {
    Input,
    Interrupted,
    Overdue,
}

/// The controlling terminal, as long as it is ours alone. Dropping it puts it back as it was.
struct Console {
    tty: OwnedFd,
    before: Termios,
}

impl Console {
    /// `None`: there is none, or another job has its foreground.
    fn open() -> Option<Self> {
        // From the background, where we can come to be at any time, a read is then an error, and no stop.
        let mut stops = SigSet::from(Number::SIGTTOU);
        stops.add(Number::SIGTTIN);
        stops.thread_block().ok()?;
        // An open file of its own, so that not to wait is nobody else's business.
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let tty = rustix::fs::open("/dev/tty", flags, Mode::empty()).ok()?;
        let console = Self { before: tcgetattr(&tty).ok()?, tty };
        if !console.is_ours() {
            // It stays as it is.
            return None;
        }
        let mut ours = console.before.clone();
        ours.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN);
        ours.input_modes.insert(InputModes::ICRNL);
        ours.input_modes.remove(InputModes::INLCR | InputModes::IGNCR | InputModes::IXON);
        ours.output_modes.insert(OutputModes::OPOST | OutputModes::ONLCR);
        tcsetattr(&console.tty, OptionalActions::Now, &ours).ok()?;
        console.discard_typed();
        Some(console)
    }

    fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| group == rustix::process::getpgrp())
    }

    fn discard_typed(&self) {
        let _ = tcflush(&self.tty, QueueSelector::IFlush);
    }

    /// The next key, if one was pressed.
    fn key(&mut self) -> Result<Option<u8>, AnsweredBy> {
        // One at a time: what comes after an answer is not for us.
        let mut key = [0];
        match rustix::io::read(&self.tty, &mut key) {
            Ok(0) => Err(AnsweredBy::NoTerminal),
            Ok(_) => Ok(Some(key[0])),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(_) => Err(AnsweredBy::NoTerminal),
        }
    }

    fn write(&mut self, text: &str) -> Result<(), AnsweredBy> {
        const STUCK: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            match rustix::io::write(&self.tty, rest) {
                Ok(length) => rest = &rest[length..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let mut fds = [PollFd::new(&self.tty, PollFlags::OUT)];
                    // Nobody sees what does not get through.
                    if poll(&mut fds, Some(&STUCK)) == Ok(0) {
                        return Err(AnsweredBy::NoTerminal);
                    }
                }
                Err(_) => return Err(AnsweredBy::NoTerminal),
            }
        }
        Ok(())
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        if self.is_ours() {
            self.discard_typed();
            let _ = tcsetattr(&self.tty, OptionalActions::Now, &self.before);
        }
    }
}

fn knows_sequences() -> bool {
    std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}
