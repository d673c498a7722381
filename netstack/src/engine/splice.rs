//! Moves bytes between a connection of the host and its half in the sandbox.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use smoltcp::socket::tcp::State;

use super::core::Core;
use super::endpoint::Endpoint;
use crate::event::FlowEnd;
use crate::limit::Way;

/// Bytes that a connection may move each way in one turn.
const TURN: usize = 256 << 10;
/// A state machine that asks to be called at once but then says nothing is called again after this.
const PAUSE: Duration = Duration::from_millis(10);

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Over; the connection can be forgotten.
    Ended(FlowEnd),
    /// There is more to do at once.
    More,
    /// There is more for the sandbox, once the link has room. `served`: it got some of the room in this turn.
    Blocked { served: bool },
    /// There is more, once the run's limit allows it; or at the time `next`. `served`: it got some in this turn.
    Throttled { served: bool, next: Option<Instant> },
    /// Nothing to do until something happens, or until this time.
    Waits(Option<Instant>),
}

/// Where a connection stands.
#[derive(Debug, Default)]
pub(crate) struct Splice {
    /// The host's socket may have something to read, or may take something: unknown until tried.
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The host's end has said everything.
    host_done: bool,
    /// The sandbox has said everything, and the host's end knows.
    guest_done: bool,
    /// The host's end is broken: what it still said is delivered, then the sandbox's end is broken too.
    broken: bool,
    sent: u64,
    received: u64,
}

impl Splice {
    /// Whether both ends have said everything, so that only acknowledgements are missing.
    fn is_over(&self) -> bool {
        self.host_done && (self.guest_done || self.broken)
    }

    /// Payload bytes from and to the sandbox.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.sent, self.received)
    }

    /// Moves what can be moved.
    pub(crate) fn turn(
        &mut self,
        stream: &mut TcpStream,
        endpoint: &mut Endpoint,
        core: &mut Core,
        v4: bool,
    ) -> Outcome {
        let before = self.bytes();
        let up = self.move_up(stream, endpoint, core);
        let down = self.move_down(stream, endpoint, core);
        if self.broken && self.host_done && endpoint.socket().send_queue() == 0 {
            endpoint.socket().abort();
        }
        let said = core.guest.drain(&mut endpoint.set, v4, TURN, core.now);
        let room = core.guest.port.has_room();
        if let Some(end) = self.end(endpoint, room) {
            return Outcome::Ended(end);
        }
        let next = core.guest.deadline(&endpoint.set, core.now);
        let due = next.is_some_and(|at| at <= core.now);
        if due && !room {
            return Outcome::Blocked { served: said };
        }
        // A limit in one direction must not hold back the other.
        if up == Step::Again || down == Step::Again || (due && said) {
            return Outcome::More;
        }
        let next = if due { Some(core.now + PAUSE) } else { next };
        if up == Step::Limited || down == Step::Limited {
            Outcome::Throttled { served: self.bytes() != before, next }
        } else {
            Outcome::Waits(next)
        }
    }

    fn end(&self, endpoint: &mut Endpoint, room: bool) -> Option<FlowEnd> {
        let socket = endpoint.socket();
        match socket.state() {
            // Our last acknowledgement is on its way: the link loses nothing, so there is no need to wait here.
            State::TimeWait if room && self.is_over() => Some(FlowEnd::Finished),
            State::Closed if socket.remote_endpoint().is_none() => {
                let finished = self.host_done && self.guest_done && !self.broken;
                Some(if finished { FlowEnd::Finished } else { FlowEnd::Reset })
            }
            _ => None,
        }
    }

    fn move_up(&mut self, stream: &mut TcpStream, endpoint: &mut Endpoint, core: &mut Core) -> Step {
        let socket = endpoint.socket();
        let mut budget = TURN;
        while socket.can_recv() {
            if self.broken {
                // Nobody wants it any more, but the sandbox must be able to get rid of it.
                let _ = socket.recv(|data| (data.len(), ()));
                continue;
            }
            if !self.writable {
                return Step::Waits;
            }
            if budget == 0 {
                return Step::Again;
            }
            let allowed = core.limiter.available(Way::Up, core.now).min(budget);
            if allowed == 0 {
                return Step::Limited;
            }
            let written = socket.recv(|data| {
                let part = &data[..data.len().min(allowed)];
                match stream.write(part) {
                    Ok(n) => (n, Ok((n, part.len()))),
                    Err(error) => (0, Err(error)),
                }
            });
            match written {
                Ok(Ok((n, tried))) => {
                    self.sent += n as u64;
                    budget -= n;
                    core.limiter.spend(Way::Up, n);
                    self.writable &= n == tried;
                }
                Ok(Err(error)) => self.note_write(&error),
                Err(_) => break,
            }
        }
        let fin = matches!(socket.state(), State::CloseWait | State::LastAck | State::Closing | State::TimeWait);
        if fin && !self.guest_done && !socket.can_recv() {
            self.guest_done = true;
            if !self.broken && stream.shutdown(std::net::Shutdown::Write).is_err() {
                self.broken = true;
            }
        }
        Step::Waits
    }

    fn note_write(&mut self, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => self.writable = false,
            _ => {
                self.broken = true;
                self.readable = true;
            }
        }
    }

    fn move_down(&mut self, stream: &mut TcpStream, endpoint: &mut Endpoint, core: &mut Core) -> Step {
        let socket = endpoint.socket();
        let mut budget = TURN;
        while self.readable && !self.host_done {
            // At the end of the stream there is nothing to make room for, but it can't be seen before.
            if !socket.can_send() {
                return Step::Waits;
            }
            if budget == 0 {
                return Step::Again;
            }
            let allowed = core.limiter.available(Way::Down, core.now).min(budget);
            if allowed == 0 {
                return Step::Limited;
            }
            let read = socket.send(|room| {
                let length = room.len().min(allowed);
                match stream.read(&mut room[..length]) {
                    Ok(n) => (n, Ok((n, length))),
                    Err(error) => (0, Err(error)),
                }
            });
            match read {
                Ok(Ok((0, _))) => {
                    self.host_done = true;
                    if !self.broken {
                        socket.close();
                    }
                }
                Ok(Ok((n, _))) => {
                    self.received += n as u64;
                    budget -= n;
                    core.limiter.spend(Way::Down, n);
                }
                Ok(Err(error)) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => self.readable = false,
                    _ => {
                        self.broken = true;
                        self.host_done = true;
                    }
                },
                Err(_) => break,
            }
        }
        Step::Waits
    }
}

/// How far one direction got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Waits,
    Again,
    Limited,
}
