//! UDP and ping: associations between a port of the sandbox and a socket of the host.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::net::UdpSocket;
use mio::unix::SourceFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto};
use slab::Slab;

use super::asking::Held;
use super::core::{Core, Kind};
use super::guest::Unreachable;
use super::packet::{Datagram, Packet};
use super::waiting::Waiting;
use crate::dns::unspecified;
use crate::event::{Flow, FlowEnd, NetEvent, Protocol};
use crate::limit::Way;
use crate::policy::Reason;

/// How long an association lives without traffic: before the other end has answered, and after.
const ONE_WAY: Duration = Duration::from_secs(30);
const BOTH_WAYS: Duration = Duration::from_secs(180);
/// Datagrams taken from one socket in one turn.
const TURN: usize = 64;
/// An association that had traffic so recently does not make room for a new one.
const BUSY: Duration = Duration::from_secs(2);
/// Longest datagram in bytes.
const MAX_DATAGRAM: usize = 65_507;
/// Bytes of the header of an echo message.
const ECHO_HEADER: usize = 8;

/// What identifies an association: the other end, and the sandbox's port or the identifier of its echo requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    remote: SocketAddr,
    port: u16,
    echo: bool,
}

enum Socket {
    Udp(UdpSocket),
    /// A socket that may send echo requests and nothing else, without privileges.
    Echo(OwnedFd),
}

struct Association {
    key: Key,
    flow: Flow,
    socket: Socket,
    /// The start of the last packet from the sandbox, for error messages about it.
    last_packet: Vec<u8>,
    queued: bool,
    answered: bool,
    since: Instant,
    last: Instant,
    sent: u64,
    received: u64,
}

impl Association {
    fn ends_at(&self) -> Instant {
        self.last + if self.answered { BOTH_WAYS } else { ONE_WAY }
    }

    fn send(&self, data: &[u8]) -> io::Result<()> {
        match &self.socket {
            Socket::Udp(socket) => socket.send(data).map(drop),
            Socket::Echo(fd) => rustix::net::send(fd, data, SendFlags::empty()).map(drop).map_err(Into::into),
        }
    }

    fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.socket {
            Socket::Udp(socket) => socket.recv(buffer),
            Socket::Echo(fd) => Ok(rustix::net::recv(fd, buffer, RecvFlags::empty())?.1),
        }
    }
}

/// All associations.
pub(crate) struct Datagrams {
    table: Slab<Association>,
    keys: HashMap<Key, usize>,
    ready: VecDeque<usize>,
    blocked: Waiting,
    throttled: Waiting,
    /// No association ends before this.
    sweep: Option<Instant>,
    buffer: Vec<u8>,
}

impl Datagrams {
    pub(crate) fn new() -> Self {
        Self {
            table: Slab::new(),
            keys: HashMap::new(),
            ready: VecDeque::new(),
            blocked: Waiting::default(),
            throttled: Waiting::default(),
            sweep: None,
            buffer: vec![0; MAX_DATAGRAM],
        }
    }

    /// A datagram of the sandbox to somebody else.
    pub(crate) fn datagram(&mut self, core: &mut Core, packet: &Packet<'_>, datagram: &Datagram<'_>) {
        let remote = SocketAddr::new(packet.destination, datagram.destination);
        self.forward(core, Key { remote, port: datagram.source, echo: false }, packet, datagram.data);
    }

    /// An echo request of the sandbox to somebody else. `message`: the whole ICMP message.
    pub(crate) fn echo(&mut self, core: &mut Core, packet: &Packet<'_>, message: &[u8]) {
        let Some(&[high, low]) = message.get(4..6) else { return };
        let remote = SocketAddr::new(packet.destination, 0);
        self.forward(core, Key { remote, port: u16::from_be_bytes([high, low]), echo: true }, packet, message);
    }

    fn forward(&mut self, core: &mut Core, key: Key, packet: &Packet<'_>, data: &[u8]) {
        let index = match self.keys.get(&key) {
            Some(&index) => index,
            None => match self.open(core, key, packet) {
                Some(index) => index,
                None => return,
            },
        };
        let Some(association) = self.table.get_mut(index) else { return };
        association.last = core.now;
        association.last_packet.clear();
        association.last_packet.extend_from_slice(&packet.whole[..packet.whole.len().min(128)]);
        if core.limiter.left(Way::Up, core.now) == 0 {
            return; // lost, as on any line that is full
        }
        let sent = match association.send(data) {
            // An error of an earlier datagram, told now; this one was not sent.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                core.guest.send_unreachable(key.remote.ip(), packet.whole, Unreachable::Port);
                association.send(data)
            }
            other => other,
        };
        match sent {
            Ok(()) => {
                association.sent += data.len() as u64;
                core.limiter.spend(Way::Up, data.len());
            }
            Err(error) => {
                if matches!(Errno::from_io_error(&error), Some(Errno::NETUNREACH | Errno::HOSTUNREACH)) {
                    core.guest.send_unreachable(key.remote.ip(), packet.whole, Unreachable::Host);
                }
            }
        }
    }

    fn open(&mut self, core: &mut Core, key: Key, packet: &Packet<'_>) -> Option<usize> {
        let address = key.remote.ip();
        let (protocol, port) = if key.echo { (Protocol::Icmp, None) } else { (Protocol::Udp, Some(key.remote.port())) };
        let mut decision = core.judge.decide(protocol, address, port, core.now);
        if !decision.allowed {
            if let Some(rule) = decision.question {
                match core.hold(rule, Held::Packet(packet.whole.to_vec())) {
                    Ok(()) => return None,
                    Err(reason) => decision.flow.decided_by = reason,
                }
            }
            core.report(NetEvent::Denied { flow: decision.flow, count: 1 });
            core.guest.send_unreachable(address, packet.whole, Unreachable::Prohibited);
            return None;
        }
        if self.table.len() >= core.capacity.datagrams && !self.make_room(core) {
            let flow = Flow { decided_by: Reason::Capacity, ..decision.flow };
            core.report(NetEvent::Denied { flow, count: 1 });
            core.guest.send_unreachable(address, packet.whole, Unreachable::Prohibited);
            return None;
        }
        let target = SocketAddr::new(decision.target, key.remote.port());
        let entry = self.table.vacant_entry();
        let index = entry.key();
        let socket = match connect(core, key.echo, target, index) {
            Ok(socket) => socket,
            Err(error) => {
                core.report(NetEvent::Unreachable { flow: decision.flow, error: error.to_string() });
                core.guest.send_unreachable(address, packet.whole, Unreachable::Host);
                return None;
            }
        };
        core.report(NetEvent::Opened { flow: decision.flow.clone() });
        entry.insert(Association {
            key,
            flow: decision.flow,
            socket,
            last_packet: Vec::new(),
            queued: false,
            answered: false,
            since: core.now,
            last: core.now,
            sent: 0,
            received: 0,
        });
        self.keys.insert(key, index);
        self.sweep = super::port::earlier(self.sweep, Some(core.now + ONE_WAY));
        Some(index)
    }

    /// Ends the association that was silent for the longest time.
    fn make_room(&mut self, core: &mut Core) -> bool {
        let Some((index, association)) = self.table.iter().min_by_key(|(_, a)| a.last) else { return false };
        if association.last + BUSY > core.now {
            return false;
        }
        self.remove(core, index, FlowEnd::Idle);
        true
    }

    /// A socket of the host became ready.
    pub(crate) fn on_event(&mut self, index: usize) {
        if let Some(association) = self.table.get_mut(index)
            && !association.queued
        {
            association.queued = true;
            self.ready.push_back(index);
        }
    }

    /// Takes what has arrived, a bounded number from each socket.
    pub(crate) fn run(&mut self, core: &mut Core) {
        if core.guest.port.has_room() {
            self.blocked.resume(&mut self.ready);
        }
        if core.limiter.is_open() {
            self.throttled.resume(&mut self.ready);
        }
        for _ in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front() else { break };
            if let Some(association) = self.table.get_mut(index) {
                association.queued = false;
                self.take(core, index);
            }
        }
        if self.sweep.is_some_and(|at| at <= core.now) {
            let over: Vec<usize> =
                self.table.iter().filter(|(_, a)| a.ends_at() <= core.now).map(|(index, _)| index).collect();
            for index in over {
                self.remove(core, index, FlowEnd::Idle);
            }
            self.sweep = self.table.iter().map(|(_, a)| a.ends_at()).min();
        }
    }

    fn take(&mut self, core: &mut Core, index: usize) {
        for taken in 0..TURN {
            let Some(association) = self.table.get_mut(index) else { return };
            if !core.guest.port.has_room() {
                return self.blocked.add(index, taken > 0);
            }
            if core.limiter.available(Way::Down, core.now) == 0 {
                return self.throttled.add(index, taken > 0);
            }
            match association.recv(&mut self.buffer) {
                Ok(length) => {
                    association.last = core.now;
                    association.answered = true;
                    association.received += length as u64;
                    core.limiter.spend(Way::Down, length);
                    if let Some(data) = self.buffer.get(..length) {
                        deliver(core, &association.key, data);
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::ConnectionRefused => {
                        let (to, packet) = (association.key.remote.ip(), &association.last_packet);
                        core.guest.send_unreachable(to, packet, Unreachable::Port);
                    }
                    _ => {}
                },
            }
        }
        self.on_event(index);
    }

    fn remove(&mut self, core: &mut Core, index: usize, end: FlowEnd) {
        let Some(mut association) = self.table.try_remove(index) else { return };
        self.keys.remove(&association.key);
        match &mut association.socket {
            Socket::Udp(socket) => core.forget(socket),
            Socket::Echo(fd) => core.forget(&mut SourceFd(&fd.as_raw_fd())),
        }
        let Association { flow, sent, received, since, .. } = association;
        let millis = u64::try_from(core.now.saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX);
        core.report(NetEvent::Closed { flow, sent, received, millis, end });
    }

    /// Ends all associations.
    pub(crate) fn stop(&mut self, core: &mut Core) {
        let all: Vec<usize> = self.table.iter().map(|(index, _)| index).collect();
        for index in all {
            self.remove(core, index, FlowEnd::Stopped);
        }
    }

    /// Whether some socket has more to take at once.
    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether some socket waits for the run's limit.
    pub(crate) fn is_throttled(&self) -> bool {
        !self.throttled.is_empty()
    }

    /// Whether some socket waits for room on the link.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// When there is something to do again.
    pub(crate) fn deadline(&self, core: &Core) -> Option<Instant> {
        let limit = if self.throttled.is_empty() { None } else { core.limiter.refilled_at() };
        super::port::earlier(limit, self.sweep)
    }
}

fn connect(core: &Core, echo: bool, target: SocketAddr, index: usize) -> io::Result<Socket> {
    if !echo {
        let mut socket = UdpSocket::bind(unspecified(target))?;
        socket.connect(target)?;
        core.watch(&mut socket, Kind::Datagram, index)?;
        return Ok(Socket::Udp(socket));
    }
    let (family, protocol) =
        if target.is_ipv4() { (AddressFamily::INET, ipproto::ICMP) } else { (AddressFamily::INET6, ipproto::ICMPV6) };
    // Flags of the call itself are not on every system.
    let fd = rustix::net::socket(family, SocketType::DGRAM, Some(protocol))?;
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&fd, true)?;
    rustix::net::connect(&fd, &target)?;
    core.watch(&mut SourceFd(&fd.as_raw_fd()), Kind::Datagram, index)?;
    Ok(Socket::Echo(fd))
}

fn deliver(core: &mut Core, key: &Key, data: &[u8]) {
    if key.echo {
        // Some systems put the IPv4 header in front; a message of ours never starts like one.
        let header = data.first().filter(|first| key.remote.is_ipv4() && **first >> 4 == 4);
        let message = header.map_or(Some(data), |first| data.get(usize::from(first & 15) * 4..));
        if let Some(reply) = message.and_then(|message| echo_reply(key.remote.ip(), message, key.port)) {
            core.guest.send_icmp(key.remote.ip(), reply);
        }
    } else {
        core.guest.send_udp(key.remote, key.port, data);
    }
}

/// Turns an echo message, a request of the sandbox or what a ping socket received, into a reply with this identifier.
pub(crate) fn echo_reply(remote: IpAddr, message: &[u8], ident: u16) -> Option<Vec<u8>> {
    let mut reply = message.get(..).filter(|m| m.len() >= ECHO_HEADER)?.to_vec();
    reply[0] = if remote.is_ipv4() { 0 } else { 129 };
    reply[1] = 0;
    reply[4..6].copy_from_slice(&ident.to_be_bytes());
    Some(reply)
}
