//! One session: the conversation with the host from the first byte to the end of the machine.
//!
//! One thread, one loop, and nothing in it waits but the loop itself, apart from the steps before the command runs.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use pvisor_proto::{
    CreditError, Failure, FrameError, Hello, Key, MINOR, NO_ID, Output, Refused, Start, StartFailed, ToGuest, ToHost,
    Welcome, guest_proof, host_proof,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::command::Command;
use crate::console::report;
use crate::port::Port;
use crate::reaper::Reaper;
use crate::spawn;
use crate::system::{System, failure};

/// Longest time that killed processes get to disappear.
const KILL: Duration = Duration::from_secs(10);

/// Longest time that the last words to the host may take.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Replies that may wait while the host wants quiet.
const DEFERRED: usize = 1024;

/// Why a session ended.
#[derive(Debug)]
pub enum Ended {
    /// The host asked for it. Everything is killed and written back.
    Shutdown,
    /// The port is at its end.
    HostGone(Option<io::Error>),
    /// The host broke the protocol.
    Protocol(String),
    /// The handshake failed.
    Refused(Refused),
}

/// Serves one session on a port, with the key that its first handshake needs, until it ends. Every process is dead
/// then, if this is process 1.
///
/// # Errors
/// The port or the signals could not be set up.
pub fn serve(port: OwnedFd, key: Key, system: &mut dyn System) -> io::Result<Ended> {
    let mut session = Session {
        port: Port::new(port)?,
        key,
        welcomed: false,
        reaper: Reaper::install()?,
        system,
        command: None,
        mounted: false,
        quiet: false,
        deferred: Vec::new(),
    };
    Ok(session.run())
}

struct Session<'a> {
    port: Port,
    key: Key,
    welcomed: bool,
    reaper: Reaper,
    system: &'a mut dyn System,
    command: Option<Command>,
    mounted: bool,
    /// The host wants to hear nothing now.
    quiet: bool,
    deferred: Vec<(u64, ToHost)>,
}

/// What there is to do.
#[derive(Default)]
struct Ready {
    port: bool,
    children: bool,
    input: Option<PollFlags>,
    outputs: [bool; 2],
}

impl Session<'_> {
    fn run(&mut self) -> Ended {
        let ended = loop {
            if let Err(ended) = self.turn() {
                break ended;
            }
        };
        self.command = None;
        let last = match &ended {
            Ended::Refused(refused) => Some(ToHost::Refused(*refused)),
            Ended::Protocol(text) => Some(ToHost::Error(text.clone())),
            Ended::Shutdown | Ended::HostGone(_) => None,
        };
        if let Some(message) = last {
            self.port.send(NO_ID, &message);
            self.port.flush_within(LAST_WORDS);
        }
        self.kill_all();
        if matches!(ended, Ended::Shutdown) {
            self.system.sync();
        }
        ended
    }

    /// One round of the loop.
    fn turn(&mut self) -> Result<(), Ended> {
        let ready = self.wait().map_err(|e| Ended::HostGone(Some(e.into())))?;
        if ready.children {
            self.reap();
        }
        if ready.port {
            self.listen()?;
        }
        self.relay(&ready);
        self.finish();
        self.port.flush().map_err(|e| Ended::HostGone(Some(e)))
    }

    /// Waits until something can be done.
    fn wait(&mut self) -> Result<Ready, Errno> {
        let may_send = !self.quiet && !self.port.is_full();
        let deadline = self.command.as_mut().filter(|_| !self.quiet).and_then(Command::deadline);
        let mut port_events = if self.port.is_full() { PollFlags::empty() } else { PollFlags::IN };
        if self.port.has_backlog() {
            port_events |= PollFlags::OUT;
        }
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.port.fd(), port_events),
            PollFd::from_borrowed_fd(self.reaper.fd(), PollFlags::IN),
        ];
        let (mut input_at, mut output_at) = (None, [None; 2]);
        if let Some(command) = self.command.as_ref().filter(|_| may_send) {
            if let Some((fd, room)) = command.watch_input() {
                input_at = Some(fds.len());
                fds.push(PollFd::from_borrowed_fd(fd, if room { PollFlags::OUT } else { PollFlags::empty() }));
            }
            for kind in [Output::Stdout, Output::Stderr] {
                if let Some(fd) = command.watch_output(kind) {
                    output_at[kind as usize] = Some(fds.len());
                    fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
                }
            }
        }
        let timeout = deadline.map(|d| {
            let left = d.saturating_duration_since(Instant::now());
            Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() }
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let events = |at: Option<usize>| at.and_then(|at| fds.get(at)).map(PollFd::revents).filter(|e| !e.is_empty());
        let idle = PollFlags::OUT;
        Ok(Ready {
            port: events(Some(0)).is_some_and(|e| e != idle),
            children: events(Some(1)).is_some(),
            input: events(input_at),
            outputs: output_at.map(|at| events(at).is_some()),
        })
    }

    /// Buries the dead.
    fn reap(&mut self) {
        self.reaper.acknowledge();
        while let Some((pid, end)) = self.reaper.next() {
            if let Some(command) = self.command.as_mut().filter(|c| c.pid() == pid) {
                command.set_end(end);
            }
        }
    }

    /// Takes in what the host says.
    fn listen(&mut self) -> Result<(), Ended> {
        if !self.port.fill().map_err(|e| Ended::HostGone(Some(e)))? {
            return Err(Ended::HostGone(None));
        }
        while let Some((id, message)) = self.port.next().map_err(|e: FrameError| protocol(&e))? {
            self.obey(id, message)?;
        }
        Ok(())
    }

    /// Passes on what the command's streams have.
    fn relay(&mut self, ready: &Ready) {
        let Some(command) = &mut self.command else { return };
        for kind in [Output::Stdout, Output::Stderr] {
            if ready.outputs[kind as usize] && !self.quiet {
                command.pump_output(kind, &mut self.port);
            }
        }
        if let Some(events) = ready.input.filter(|_| !self.quiet) {
            command.pump_input(events.intersects(PollFlags::ERR | PollFlags::HUP), &mut self.port);
        }
    }

    /// Reports the command's end when it is due.
    fn finish(&mut self) {
        if self.quiet {
            return;
        }
        let Some(command) = &mut self.command else { return };
        let Some(end) = command.finished() else { return };
        let id = command.id();
        self.command = None;
        self.kill_all();
        self.system.sync();
        self.port.send(id, &ToHost::Exited(end));
    }

    fn kill_all(&self) {
        if !self.reaper.kill_all(KILL) {
            report(format_args!("processes are left that do not end"));
        }
    }

    fn reply(&mut self, id: u64, message: ToHost) -> Result<(), Ended> {
        if !self.quiet {
            self.port.send(id, &message);
        } else if self.deferred.len() < DEFERRED {
            self.deferred.push((id, message));
        } else {
            return Err(Ended::Protocol("too many requests while it wants quiet".to_owned()));
        }
        Ok(())
    }

    fn reply_result(&mut self, id: u64, result: Result<(), Failure>) -> Result<(), Ended> {
        self.reply(id, result.map_or_else(ToHost::Failed, |()| ToHost::Done))
    }

    /// Does what one message asks for.
    fn obey(&mut self, id: u64, message: ToGuest) -> Result<(), Ended> {
        match message {
            ToGuest::Hello(hello) => return self.welcome(id, hello),
            _ if !self.welcomed => return Err(Ended::Refused(Refused::Order)),
            ToGuest::Mounts(mounts) => {
                let result = if self.mounted {
                    Err(failure(Errno::ALREADY, "mounts"))
                } else {
                    self.mounted = true;
                    self.system.mount(&mounts)
                };
                return self.reply_result(id, result);
            }
            ToGuest::Start(start) => return self.start(id, &start),
            ToGuest::SetClock { seconds, nanos } => {
                let result = self.system.set_clock(seconds, nanos);
                return self.reply_result(id, result);
            }
            ToGuest::Reseed(entropy) => {
                let result = self.system.reseed(&entropy.0);
                return self.reply_result(id, result);
            }
            ToGuest::Network(network) => {
                let result = self.system.configure_network(&network);
                return self.reply_result(id, result);
            }
            ToGuest::Sync => {
                self.system.sync();
                return self.reply(id, ToHost::Done);
            }
            ToGuest::Ping => return self.reply(id, ToHost::Pong),
            ToGuest::Quiet => {
                self.reply(id, ToHost::Quieted)?;
                self.quiet = true;
            }
            ToGuest::Wake => {
                self.quiet = false;
                for (id, message) in std::mem::take(&mut self.deferred) {
                    self.port.send(id, &message);
                }
                return self.reply(id, ToHost::Done);
            }
            ToGuest::Shutdown => return Err(Ended::Shutdown),
            ToGuest::Signal { command, signal } => {
                let result = self.command_of(command).ok_or(Errno::SRCH).and_then(|c| c.signal(signal));
                return self.reply_result(id, result.map_err(|e| failure(e, "signal")));
            }
            ToGuest::Resize { command, size } => {
                let result = self.command_of(command).ok_or(Errno::SRCH).and_then(|c| c.resize(size));
                return self.reply_result(id, result.map_err(|e| failure(e, "resize")));
            }
            ToGuest::Stdin(_) | ToGuest::StdinClose | ToGuest::Credit { .. } | ToGuest::OutputClose(_) => {
                self.stream(id, message).map_err(|e| protocol(&e))?;
            }
        }
        Ok(())
    }

    /// What concerns a stream of the command; nothing where that command is gone.
    fn stream(&mut self, id: u64, message: ToGuest) -> Result<(), CreditError> {
        let Some(command) = self.command.as_mut().filter(|c| c.id() == id) else { return Ok(()) };
        match message {
            ToGuest::Stdin(bytes) => command.take_input(&bytes.0, &mut self.port)?,
            ToGuest::StdinClose => command.end_input(&mut self.port),
            ToGuest::Credit { stream, bytes } => command.add_credit(stream, bytes)?,
            ToGuest::OutputClose(kind) => command.close_output(kind),
            _ => {}
        }
        Ok(())
    }

    fn command_of(&self, id: u64) -> Option<&Command> {
        self.command.as_ref().filter(|c| c.id() == id)
    }

    fn welcome(&mut self, id: u64, hello: Hello) -> Result<(), Ended> {
        if hello.proof != host_proof(&self.key, &hello.challenge) {
            return Err(Ended::Refused(Refused::Key));
        }
        let proof = guest_proof(&self.key, &hello.challenge);
        self.key = hello.next_key;
        self.welcomed = true;
        self.quiet = false;
        self.deferred.clear();
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let running = self.command.as_mut().map(Command::reattach);
        self.port.send(id, &ToHost::Welcome(Welcome { minor: MINOR, proof, kernel, running }));
        Ok(())
    }

    fn start(&mut self, id: u64, start: &Start) -> Result<(), Ended> {
        let started = if self.command.is_some() {
            Err(StartFailed::Other(failure(Errno::BUSY, "another command runs")))
        } else if !start.hostname.is_empty() {
            self.system.set_hostname(&start.hostname).map_err(StartFailed::Other).and_then(|()| spawn::spawn(start))
        } else {
            spawn::spawn(start)
        };
        match started {
            Ok(spawned) => {
                self.reply(id, ToHost::Started)?;
                self.command = Some(Command::new(id, spawned));
                Ok(())
            }
            Err(failed) => self.reply(id, ToHost::StartFailed(failed)),
        }
    }
}

fn protocol(error: &dyn std::error::Error) -> Ended {
    Ended::Protocol(error.to_string())
}
