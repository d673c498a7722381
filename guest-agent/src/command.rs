//! The running command: its streams with their credits, and when it counts as ended.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use pvisor_proto::{Bytes, CHUNK, CreditError, End, Grant, Output, Running, ToHost, WINDOW, Window, WindowSize};
use rustix::io::{Errno, ioctl_fionread, read, write};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::port::Port;
use crate::spawn::{self, Spawned};

/// After the command's end, an output that a descendant keeps open counts as ended when it gave no byte for so long …
const IDLE: Duration = Duration::from_millis(100);

/// … or in any case after this time. Neither counts before all that was in the pipes at the end is sent.
const LINGER: Duration = Duration::from_secs(1);

/// Character that a terminal takes for the end of input.
const END_OF_INPUT: u8 = 4;

/// A command between `Start` and `Exited`.
pub struct Command {
    id: u64,
    pid: Pid,
    terminal: bool,
    stdin: Option<Input>,
    outputs: [Stream; 2],
    end: Option<Ending>,
}

struct Input {
    fd: OwnedFd,
    waiting: VecDeque<u8>,
    window: Window,
    /// The host has no more.
    closing: bool,
    last: u8,
}

struct Stream {
    /// `None`: at its end.
    fd: Option<OwnedFd>,
    credit: Grant,
    /// Bytes that were in the pipe when the command ended and are not sent yet.
    owed: usize,
}

struct Ending {
    end: End,
    last_byte: Instant,
    /// Since when nothing is owed.
    paid: Option<Instant>,
}

impl Command {
    /// A command that has just been started by the message of this id.
    pub fn new(id: u64, spawned: Spawned) -> Self {
        let stream = |fd| Stream { fd, credit: Grant::full(WINDOW), owed: 0 };
        Self {
            id,
            pid: spawned.pid,
            terminal: spawned.stderr.is_none(),
            stdin: Some(Input {
                fd: spawned.stdin,
                waiting: VecDeque::new(),
                window: Window::full(WINDOW),
                closing: false,
                last: b'\n',
            }),
            outputs: [stream(Some(spawned.stdout)), stream(spawned.stderr)],
            end: None,
        }
    }

    /// Id of the message that started it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// What a new attachment must know; output windows are open again.
    pub fn reattach(&mut self) -> Running {
        for stream in &mut self.outputs {
            stream.credit = Grant::full(WINDOW);
        }
        Running { command: self.id, stdin: self.stdin.as_ref().filter(|i| !i.closing).map(|i| i.window.open()) }
    }

    /// The descriptor of standard input to watch, and whether for room; without it, only for being closed.
    pub fn watch_input(&self) -> Option<(BorrowedFd<'_>, bool)> {
        let input = self.stdin.as_ref()?;
        match (input.waiting.is_empty(), self.terminal) {
            (false, _) => Some((input.fd.as_fd(), true)),
            (true, false) => Some((input.fd.as_fd(), false)),
            // The other side of a terminal shows on its output.
            (true, true) => None,
        }
    }

    /// The descriptor of an output to watch; `None`: at its end, or without credit.
    pub fn watch_output(&self, kind: Output) -> Option<BorrowedFd<'_>> {
        let stream = &self.outputs[kind as usize];
        stream.fd.as_ref().filter(|_| stream.credit.available() > 0).map(AsFd::as_fd)
    }

    /// Takes standard input from the host.
    ///
    /// # Errors
    /// More than the window allows.
    pub fn take_input(&mut self, bytes: &[u8], port: &mut Port) -> Result<(), CreditError> {
        let Some(input) = &mut self.stdin else { return Ok(()) };
        input.window.receive(bytes.len())?;
        if !input.closing {
            input.waiting.extend(bytes);
        }
        self.pump_input(false, port);
        Ok(())
    }

    /// The host has no more standard input.
    pub fn end_input(&mut self, port: &mut Port) {
        let Some(input) = &mut self.stdin else { return };
        if self.terminal && !input.closing {
            // Ends a read only at the beginning of a line; elsewhere the first one just hands the line over.
            let last = input.waiting.back().copied().unwrap_or(input.last);
            let times = if last == b'\n' { 1 } else { 2 };
            input.waiting.extend(std::iter::repeat_n(END_OF_INPUT, times));
        }
        input.closing = true;
        self.pump_input(false, port);
    }

    /// Passes on standard input as far as it is taken. `hung_up`: nobody reads it any more.
    pub fn pump_input(&mut self, hung_up: bool, port: &mut Port) {
        let Some(input) = &mut self.stdin else { return };
        let mut closed = hung_up;
        while !closed && !input.waiting.is_empty() {
            match write(&input.fd, input.waiting.as_slices().0) {
                Ok(written) => {
                    input.last = input.waiting.drain(..written).next_back().unwrap_or(input.last);
                    if let Some(credit) = input.window.consume(written) {
                        port.send(self.id, &ToHost::StdinCredit(credit));
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(_) => closed = true,
            }
        }
        if closed {
            if !input.closing {
                port.send(self.id, &ToHost::StdinClosed);
            }
            self.stdin = None;
        } else if input.closing && !self.terminal {
            self.stdin = None;
        }
    }

    /// Credit for an output from the host.
    ///
    /// # Errors
    /// More than the window holds.
    pub fn add_credit(&mut self, kind: Output, bytes: u32) -> Result<(), CreditError> {
        self.outputs[kind as usize].credit.add(bytes)
    }

    /// Nobody reads this output: the command gets a broken pipe, or a hang-up of its terminal.
    pub fn close_output(&mut self, kind: Output) {
        if self.terminal {
            let _ = kill_process_group(self.pid, Signal::HUP);
        } else {
            self.outputs[kind as usize].close();
        }
    }

    /// Sends what an output has, one message at most.
    pub fn pump_output(&mut self, kind: Output, port: &mut Port) {
        let stream = &mut self.outputs[kind as usize];
        let Some(fd) = &stream.fd else { return };
        let room = stream.credit.available().min(CHUNK);
        let mut chunk = vec![0; room];
        match read(fd, &mut chunk) {
            // Zero bytes were asked for where there is no credit.
            Ok(0) if room == 0 => {}
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The far side of a terminal is closed when reading gives EIO.
            Ok(0) | Err(_) => stream.close(),
            Ok(length) => {
                chunk.truncate(length);
                stream.credit.take(length);
                stream.owed = stream.owed.saturating_sub(length);
                let message = match kind {
                    Output::Stdout => ToHost::Stdout(Bytes(chunk)),
                    Output::Stderr => ToHost::Stderr(Bytes(chunk)),
                };
                port.send(self.id, &message);
                if let Some(ending) = &mut self.end {
                    ending.last_byte = Instant::now();
                }
            }
        }
    }

    /// Sends a signal to the process group.
    ///
    /// # Errors
    /// The command has ended, or there is no such signal.
    pub fn signal(&self, signal: u8) -> Result<(), Errno> {
        if self.end.is_some() {
            return Err(Errno::SRCH);
        }
        let signal = Signal::from_named_raw(i32::from(signal)).ok_or(Errno::INVAL)?;
        kill_process_group(self.pid, signal)
    }

    /// Sets the size of the terminal.
    ///
    /// # Errors
    /// There is none.
    pub fn resize(&self, size: WindowSize) -> Result<(), Errno> {
        match &self.outputs[0].fd {
            Some(terminal) if self.terminal => spawn::resize(terminal, size),
            _ => Err(Errno::NOTTY),
        }
    }

    /// The command's process ended in this way.
    pub fn set_end(&mut self, end: End) {
        for stream in &mut self.outputs {
            stream.owed = stream.fd.as_ref().and_then(|fd| ioctl_fionread(fd).ok()).map_or(0, |n| n as usize);
        }
        self.end = Some(Ending { end, last_byte: Instant::now(), paid: None });
    }

    /// How it ended, once its output is at its end as well.
    pub fn finished(&mut self) -> Option<End> {
        let now = Instant::now();
        self.due(now).filter(|due| *due <= now)?;
        self.end.as_ref().map(|ending| ending.end)
    }

    /// When [`Command::finished`] must be asked again, if nothing happens before.
    pub fn deadline(&mut self) -> Option<Instant> {
        self.due(Instant::now())
    }

    fn due(&mut self, now: Instant) -> Option<Instant> {
        let ending = self.end.as_mut()?;
        if self.outputs.iter().all(|s| s.fd.is_none()) {
            return Some(now);
        }
        if self.outputs.iter().any(|s| s.owed > 0) {
            return None;
        }
        let paid = *ending.paid.get_or_insert(now);
        Some((ending.last_byte + IDLE).min(paid + LINGER))
    }
}

impl Stream {
    fn close(&mut self) {
        self.fd = None;
        self.owed = 0;
    }
}
