//! A running command: what is known of it, and who relays its streams.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use pvisor_proto::{CHUNK, CreditError, End, Grant, Output, ToGuest, ToHost, WINDOW, Window, WindowSize};
use pvisor_spec::CommandEnd;

use super::error::AgentError;
use super::input;
use super::link::{Link, spawn};
use super::output;
use super::stdio::Stdio;

/// What the reading thread and the relaying threads share of one command.
pub(super) struct CommandState {
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    outputs: [Queue; 2],
    stdin: Grant,
    stdin_closed: bool,
    end: Option<Result<End, AgentError>>,
    /// Makes the thread that waits for standard input look up.
    wake_input: Option<input::Waker>,
}

/// Output that came and is not passed on yet; at most one window of it.
struct Queue {
    chunks: VecDeque<Vec<u8>>,
    window: Window,
}

impl CommandState {
    pub(super) fn new() -> Self {
        let queue = || Queue { chunks: VecDeque::new(), window: Window::full(WINDOW) };
        let inner = Inner {
            outputs: [queue(), queue()],
            stdin: Grant::full(WINDOW),
            stdin_closed: false,
            end: None,
            wake_input: None,
        };
        Self { inner: Mutex::new(inner), changed: Condvar::new() }
    }

    /// A command that was started by another process, which left room for so many bytes of standard input; `None`: it
    /// has ended.
    pub(super) fn adopted(stdin: Option<u32>) -> Self {
        let state = Self::new();
        let mut inner = state.lock();
        inner.stdin = Grant::partial(stdin.unwrap_or(0), WINDOW);
        inner.stdin_closed = stdin.is_none();
        drop(inner);
        state
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, guard: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a message of the guest.
    ///
    /// # Errors
    /// The guest broke the rules of flow control.
    pub(super) fn receive(&self, message: ToHost) -> Result<(), AgentError> {
        let mut inner = self.lock();
        match message {
            ToHost::Stdout(bytes) => inner.outputs[Output::Stdout as usize].push(bytes.0)?,
            ToHost::Stderr(bytes) => inner.outputs[Output::Stderr as usize].push(bytes.0)?,
            ToHost::StdinCredit(bytes) => inner.stdin.add(bytes)?,
            ToHost::StdinClosed => inner.close_stdin(),
            ToHost::Exited(end) => inner.end(Ok(end)),
            _ => return Ok(()),
        }
        drop(inner);
        self.changed.notify_all();
        Ok(())
    }

    /// The connection broke.
    pub(super) fn fail(&self, error: &AgentError) {
        self.lock().end(Err(error.clone()));
        self.changed.notify_all();
    }

    /// The next output to pass on; `None`: no more will come.
    pub(super) fn next_output(&self, stream: Output) -> Option<Vec<u8>> {
        let mut inner = self.lock();
        loop {
            if let Some(chunk) = inner.outputs[stream as usize].chunks.pop_front() {
                return Some(chunk);
            }
            if inner.end.is_some() {
                return None;
            }
            inner = self.wait(inner);
        }
    }

    /// Counts output that was passed on; the credit to send for it.
    pub(super) fn consumed(&self, stream: Output, bytes: usize) -> Option<u32> {
        let mut inner = self.lock();
        let credit = inner.outputs[stream as usize].window.consume(bytes);
        credit.filter(|_| inner.end.is_none())
    }

    /// Bytes of standard input that may be read and sent now; waits for at least one. `None`: none will be wanted.
    pub(super) fn input_room(&self) -> Option<usize> {
        let mut inner = self.lock();
        loop {
            if inner.stdin_closed {
                return None;
            }
            match inner.stdin.available() {
                0 => inner = self.wait(inner),
                room => return Some(room.min(CHUNK)),
            }
        }
    }

    /// Counts standard input that is about to be sent; false: it is not wanted any more.
    pub(super) fn spend_input(&self, bytes: usize) -> bool {
        let mut inner = self.lock();
        !inner.stdin_closed && inner.stdin.take(bytes) == bytes
    }

    /// Sets who is woken when no more standard input is wanted.
    pub(super) fn set_input_waker(&self, waker: input::Waker) {
        let mut inner = self.lock();
        if inner.stdin_closed {
            waker.wake();
        }
        inner.wake_input = Some(waker);
    }

    fn wait_end(&self) -> Result<End, AgentError> {
        let mut inner = self.lock();
        loop {
            match &inner.end {
                Some(end) => return end.clone(),
                None => inner = self.wait(inner),
            }
        }
    }
}

impl Inner {
    fn end(&mut self, end: Result<End, AgentError>) {
        self.close_stdin();
        self.end.get_or_insert(end);
    }

    fn close_stdin(&mut self) {
        self.stdin_closed = true;
        if let Some(waker) = &self.wake_input {
            waker.wake();
        }
    }
}

impl Queue {
    fn push(&mut self, chunk: Vec<u8>) -> Result<(), CreditError> {
        self.window.receive(chunk.len())?;
        if !chunk.is_empty() {
            self.chunks.push_back(chunk);
        }
        Ok(())
    }
}

/// A command that runs in the guest. Its streams are relayed whether anyone waits or not.
pub struct RunningCommand {
    handle: CommandHandle,
    state: Arc<CommandState>,
    outputs: Vec<(Output, JoinHandle<Option<io::Error>>)>,
}

/// Reaches a running command from other threads.
#[derive(Clone)]
pub struct CommandHandle {
    link: Arc<Link>,
    id: u64,
}

/// How a command ended, and what became of its output.
#[derive(Debug)]
pub struct Finished {
    /// The end.
    pub end: CommandEnd,
    /// Outputs that could not be passed on to the end, with the first error. A reader that went away
    /// ([`io::ErrorKind::BrokenPipe`]) is among them: the command then got a broken pipe as well.
    pub lost_output: Vec<(Output, io::Error)>,
}

impl RunningCommand {
    pub(super) fn relay(link: Arc<Link>, id: u64, state: Arc<CommandState>, stdio: Stdio) -> Result<Self, AgentError> {
        let mut outputs = Vec::with_capacity(2);
        for (stream, fd, name) in [(Output::Stdout, stdio.stdout, "stdout"), (Output::Stderr, stdio.stderr, "stderr")] {
            let (link, state) = (Arc::clone(&link), Arc::clone(&state));
            outputs.push((stream, spawn(name, move || output::relay(&link, id, &state, stream, &fd))?));
        }
        input::spawn(Arc::clone(&link), id, Arc::clone(&state), stdio.stdin)?;
        Ok(Self { handle: CommandHandle { link, id }, state, outputs })
    }

    /// A way to reach the command from other threads.
    pub fn handle(&self) -> CommandHandle {
        self.handle.clone()
    }

    /// Waits until the command has ended and all of its output is passed on or given up.
    ///
    /// # Errors
    /// The guest was lost or broke the protocol. What it had sent by then is passed on all the same.
    pub fn wait(self) -> Result<Finished, AgentError> {
        let end = self.state.wait_end();
        let mut lost_output = Vec::new();
        for (stream, thread) in self.outputs {
            match thread.join() {
                Ok(None) => {}
                Ok(Some(error)) => lost_output.push((stream, error)),
                Err(_) => lost_output.push((stream, io::Error::other("the relay stopped"))),
            }
        }
        self.handle.link.forget(self.handle.id);
        let end = match end? {
            End::Exited(status) => CommandEnd::Exited(status),
            End::Signaled(signal) => CommandEnd::Signaled(signal),
        };
        Ok(Finished { end, lost_output })
    }
}

impl CommandHandle {
    /// Sends a signal, by Linux number, to the command's process group. Does not wait, and means nothing once the
    /// command has ended.
    pub fn signal(&self, signal: u8) {
        self.tell(&ToGuest::Signal { command: self.id, signal });
    }

    /// Tells the command's terminal its new size. Does not wait.
    pub fn resize(&self, size: WindowSize) {
        self.tell(&ToGuest::Resize { command: self.id, size });
    }

    fn tell(&self, message: &ToGuest) {
        // Too small to be refused, and a broken connection shows in `wait`.
        let _ = self.link.send(self.link.id(), message);
    }
}
