//! The connection: one thread reads, one writes, callers wait for the replies to their requests.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pvisor_proto::{Decoder, ToGuest, ToHost, Welcome, encode};

use super::command::CommandState;
use super::error::AgentError;

/// Bytes per read of the port.
const READ: usize = 64 * 1024;

/// The two ends of the port, shared by everyone who talks to the guest.
pub(super) struct Link {
    state: Mutex<State>,
    changed: Condvar,
    /// To the writing thread. Holds little: standard input is bounded by its window, requests by their callers.
    outgoing: Mutex<Sender<Vec<u8>>>,
}

#[derive(Default)]
struct State {
    last_id: u64,
    /// Requests that wait, with the reply once it is here.
    requests: HashMap<u64, Option<ToHost>>,
    /// Commands by the id of their start.
    commands: HashMap<u64, Arc<CommandState>>,
    broken: Option<AgentError>,
}

impl Link {
    /// Starts the two threads over the ends of the port. They end when the port does.
    pub(super) fn open(
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
    ) -> Result<Arc<Self>, AgentError> {
        let (sender, receiver) = channel();
        let link = Arc::new(Self { state: Mutex::default(), changed: Condvar::new(), outgoing: Mutex::new(sender) });
        // The writing thread holds the link weakly: it ends when the last caller and the reading thread have gone.
        let weak = Arc::downgrade(&link);
        spawn("agent-write", move || {
            if let Err(error) = write_all_of(&receiver, writer)
                && let Some(link) = weak.upgrade()
            {
                link.fail(AgentError::Lost(Some(Arc::new(error))));
            }
        })?;
        let reading = Arc::clone(&link);
        spawn("agent-read", move || {
            let error = reading.read_to_end(reader);
            reading.fail(error);
        })?;
        Ok(link)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A fresh id.
    pub(super) fn id(&self) -> u64 {
        let mut state = self.state();
        state.last_id += 1;
        state.last_id
    }

    /// Lets the ids go on after this one; returns a fresh one.
    pub(super) fn seed_ids(&self, last: u64) -> u64 {
        self.state().last_id = last;
        self.id()
    }

    /// Hands a message to the writing thread; never blocks. What a broken connection swallows, its error tells.
    pub(super) fn send(&self, id: u64, message: &ToGuest) -> Result<(), AgentError> {
        let mut frame = Vec::new();
        encode(id, message, &mut frame).map_err(AgentError::TooLarge)?;
        let _ = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner).send(frame);
        Ok(())
    }

    /// Sends a request and waits for its reply.
    pub(super) fn request(
        &self,
        id: u64,
        name: &'static str,
        message: &ToGuest,
        timeout: Duration,
    ) -> Result<ToHost, AgentError> {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.state();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        self.send(id, message)?;
        state.requests.insert(id, None);
        let result = loop {
            if let Some(reply) = state.requests.get_mut(&id).and_then(Option::take) {
                break Ok(reply);
            }
            if let Some(error) = &state.broken {
                break Err(error.clone());
            }
            let left = deadline.map_or(Duration::from_secs(3600), |d| d.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break Err(AgentError::Timeout { request: name, after: timeout });
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        state.requests.remove(&id);
        result
    }

    /// From now on messages with this id go to this command.
    pub(super) fn register(&self, id: u64, command: Arc<CommandState>) -> Result<(), AgentError> {
        let mut state = self.state();
        match &state.broken {
            Some(error) => Err(error.clone()),
            None => {
                state.commands.insert(id, command);
                Ok(())
            }
        }
    }

    /// The command with this id.
    pub(super) fn command(&self, id: u64) -> Option<Arc<CommandState>> {
        self.state().commands.get(&id).cloned()
    }

    /// Messages with this id mean nothing any more.
    pub(super) fn forget(&self, id: u64) {
        self.state().commands.remove(&id);
    }

    /// Waits until the port has closed; false: it has not, in this time.
    pub(super) fn wait_closed(&self, timeout: Duration) -> bool {
        let state = self.state();
        let (state, _) = self
            .changed
            .wait_timeout_while(state, timeout, |state| state.broken.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        state.broken.is_some()
    }

    /// The connection is at its end; everyone who waits learns why. The first reason stands.
    pub(super) fn fail(&self, error: AgentError) {
        let mut state = self.state();
        if state.broken.is_some() {
            return;
        }
        for command in state.commands.values() {
            command.fail(&error);
        }
        state.commands.clear();
        state.broken = Some(error);
        drop(state);
        self.changed.notify_all();
    }

    fn read_to_end(&self, mut reader: impl Read) -> AgentError {
        let mut decoder = Decoder::new();
        let mut buffer = vec![0; READ];
        loop {
            let length = match reader.read(&mut buffer) {
                Ok(0) => return AgentError::Lost(None),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return AgentError::Lost(Some(Arc::new(error))),
            };
            decoder.feed(&buffer[..length]);
            loop {
                match decoder.next::<ToHost>() {
                    Ok(None) => break,
                    Ok(Some((id, message))) => {
                        if let Err(error) = self.receive(id, message) {
                            return error;
                        }
                    }
                    Err(error) => return error.into(),
                }
            }
        }
    }

    /// Takes one message. Ids that nobody knows are those of a captured process before this one, or of requests whose
    /// caller has stopped waiting: they are ignored.
    fn receive(&self, id: u64, message: ToHost) -> Result<(), AgentError> {
        match message {
            ToHost::Error(text) => return Err(AgentError::GaveUp(printable(&text))),
            ToHost::Refused(refused) => return Err(AgentError::Refused(refused)),
            ToHost::Stdout(_)
            | ToHost::Stderr(_)
            | ToHost::StdinCredit(_)
            | ToHost::StdinClosed
            | ToHost::Exited(_) => {
                let command = self.state().commands.get(&id).cloned();
                if let Some(command) = command {
                    command.receive(message)?;
                }
            }
            reply => {
                let mut state = self.state();
                if !state.requests.contains_key(&id) {
                    return Ok(());
                }
                if let ToHost::Welcome(Welcome { running: Some(running), .. }) = &reply {
                    // Its output may be right behind.
                    let adopted = Arc::new(CommandState::adopted(running.stdin));
                    state.commands.insert(running.command, adopted);
                }
                state.requests.insert(id, Some(reply));
                drop(state);
                self.changed.notify_all();
            }
        }
        Ok(())
    }
}

/// Text from the guest as it may stand on a terminal.
fn printable(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn write_all_of(frames: &Receiver<Vec<u8>>, mut writer: impl Write) -> io::Result<()> {
    for frame in frames {
        writer.write_all(&frame)?;
        writer.flush()?;
    }
    Ok(())
}

/// Starts a thread of the relay.
pub(super) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<thread::JoinHandle<T>, AgentError> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map_err(AgentError::local)
}
