//! Name queries over TCP.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use smoltcp::socket::tcp::State;

use super::core::Core;
use super::endpoint::Endpoint;
use super::splice::Outcome;
use crate::dns::MAX_QUERY;
use crate::event::FlowEnd;

/// Queries of one connection that wait for an answer at once; further ones stay unread.
const MAX_WAITING: usize = 16;
/// How long a connection may be silent.
const PATIENCE: Duration = Duration::from_secs(15);

/// One such connection: messages with two bytes of length in front, each way.
#[derive(Debug, Default)]
pub(crate) struct NameChannel {
    input: Vec<u8>,
    /// Whole queries, to be taken by the name server.
    pub(crate) queries: Vec<Vec<u8>>,
    waiting: usize,
    output: VecDeque<u8>,
    last: Option<Instant>,
}

impl NameChannel {
    /// Queues an answer.
    pub(crate) fn reply(&mut self, answer: &[u8]) {
        self.waiting = self.waiting.saturating_sub(1);
        let Ok(length) = u16::try_from(answer.len()) else { return };
        self.output.extend(length.to_be_bytes());
        self.output.extend(answer);
    }

    /// Reads queries and writes answers, as far as possible.
    pub(crate) fn turn(&mut self, endpoint: &mut Endpoint, core: &mut Core, v4: bool) -> Outcome {
        let moved = self.read(endpoint) | self.write(endpoint);
        let socket = endpoint.socket();
        let last = if moved { core.now } else { self.last.unwrap_or(core.now) };
        self.last = Some(last);
        if last + PATIENCE <= core.now || self.oversized() {
            socket.abort();
        } else if socket.state() == State::CloseWait
            && self.waiting == 0
            && self.output.is_empty()
            && !socket.can_recv()
        {
            socket.close();
        }
        let served = core.guest.drain(&mut endpoint.set, v4, usize::MAX, core.now);
        let room = core.guest.port.has_room();
        let socket = endpoint.socket();
        match socket.state() {
            State::TimeWait if room => return Outcome::Ended(FlowEnd::Finished),
            State::Closed if socket.remote_endpoint().is_none() => return Outcome::Ended(FlowEnd::Finished),
            _ if !room => return Outcome::Blocked { served },
            _ => {}
        }
        let next = core.guest.deadline(&endpoint.set, core.now).filter(|at| *at > core.now);
        Outcome::Waits(super::port::earlier(next, Some(last + PATIENCE)))
    }

    /// The length that the next query claims.
    fn length(&self) -> Option<usize> {
        let [high, low, ..] = self.input[..] else { return None };
        Some(usize::from(u16::from_be_bytes([high, low])))
    }

    fn oversized(&self) -> bool {
        self.length().is_some_and(|length| length > MAX_QUERY)
    }

    fn read(&mut self, endpoint: &mut Endpoint) -> bool {
        let mut moved = false;
        let socket = endpoint.socket();
        loop {
            while let Some(length) = self.length()
                && self.input.len() >= 2 + length
                && self.waiting < MAX_WAITING
            {
                let rest = self.input.split_off(2 + length);
                let mut query = std::mem::replace(&mut self.input, rest);
                query.drain(..2);
                self.queries.push(query);
                self.waiting += 1;
            }
            let free = (2 + MAX_QUERY).saturating_sub(self.input.len());
            if !socket.can_recv() || free == 0 || self.waiting >= MAX_WAITING || self.oversized() {
                return moved;
            }
            let taken = socket.recv(|data| {
                let part = &data[..data.len().min(free)];
                self.input.extend_from_slice(part);
                (part.len(), part.len())
            });
            if taken.is_err() {
                return moved;
            }
            moved = true;
        }
    }

    fn write(&mut self, endpoint: &mut Endpoint) -> bool {
        let socket = endpoint.socket();
        let mut moved = false;
        while socket.can_send() && !self.output.is_empty() {
            let (front, _) = self.output.as_slices();
            match socket.send_slice(front) {
                Ok(n) if n > 0 => {
                    self.output.drain(..n);
                    moved = true;
                }
                _ => break,
            }
        }
        moved
    }
}
