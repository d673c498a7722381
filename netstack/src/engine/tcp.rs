//! TCP: the table of connections, how they begin and how they end.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use rustix::io::Errno;
use slab::Slab;
use smoltcp::iface::SocketSet;
use smoltcp::socket::tcp::State;

use super::asking::Held;
use super::core::{Core, Kind};
use super::endpoint::{Endpoint, EndpointPool};
use super::guest::Unreachable;
use super::names::NameChannel;
use super::packet::{Packet, Segment, parse_tcp};
use super::splice::{Outcome, Splice};
use super::waiting::Waiting;
use crate::event::{Direction, Flow, FlowEnd, NetEvent, Protocol};
use crate::policy::Reason;

/// How long a connection of the host may take to come about.
const CONNECT_PATIENCE: Duration = Duration::from_secs(60);
/// How long the sandbox may take for its part of the handshake.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(20);
/// How long the acknowledgement of our last word may take, once all data is acknowledged.
const LINGER: Duration = Duration::from_secs(60);
/// First of the ports that connections through published ports seem to come from.
const FIRST_EPHEMERAL: u16 = 32_768;

/// The two ends of a connection as the sandbox sees it; its own address follows from the other's family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    remote: SocketAddr,
    guest_port: u16,
}

/// Who is at the other end.
enum Host {
    /// Somebody on the network or this host.
    Stream(TcpStream),
    /// Our own name server.
    Names(NameChannel),
}

enum Stage {
    /// Waits for the host's connection; the sandbox's first segment is answered after that.
    Connecting {
        syn: Vec<u8>,
        sequence: u32,
    },
    /// Waits for the sandbox's part of the handshake.
    Greeting,
    Open,
}

struct TcpFlow {
    key: Key,
    flow: Flow,
    stage: Stage,
    host: Host,
    endpoint: Option<Endpoint>,
    splice: Splice,
    /// Distinguishes this connection from others that had the same place in the table.
    serial: u64,
    since: Instant,
    announced: bool,
    queued: bool,
    timer: Option<Instant>,
    patience: Option<Instant>,
}

/// All connections.
pub(crate) struct TcpTable {
    flows: Slab<TcpFlow>,
    keys: HashMap<Key, usize>,
    ready: VecDeque<usize>,
    /// Have something for the sandbox, but the link is full.
    blocked: Waiting,
    /// Wait for the run's limit.
    throttled: Waiting,
    timers: BTreeSet<(Instant, usize)>,
    /// Name queries that came over connections, with the connection's place and serial number.
    pub(crate) queries: Vec<(usize, u64, Vec<u8>)>,
    nobody: SocketSet<'static>,
    pool: EndpointPool,
    next_serial: u64,
    next_port: u16,
}

impl TcpTable {
    pub(crate) fn new(buffers: usize) -> Self {
        Self {
            flows: Slab::new(),
            keys: HashMap::new(),
            ready: VecDeque::new(),
            blocked: Waiting::default(),
            throttled: Waiting::default(),
            timers: BTreeSet::new(),
            queries: Vec::new(),
            nobody: SocketSet::new(Vec::new()),
            pool: EndpointPool::new(buffers),
            next_serial: 0,
            next_port: FIRST_EPHEMERAL,
        }
    }

    /// A segment of the sandbox.
    pub(crate) fn segment(&mut self, core: &mut Core, packet: &Packet<'_>) {
        let Some(segment) = parse_tcp(packet.payload) else { return };
        let key = Key { remote: SocketAddr::new(packet.destination, segment.destination), guest_port: segment.source };
        match self.keys.get(&key) {
            Some(&index) => self.continue_with(core, index, packet, &segment),
            None if segment.opens => self.open(core, key, packet, &segment),
            // Left over from a connection that has ended, or that another process had before a restore.
            None => self.refuse(core, packet.whole, packet.destination),
        }
    }

    fn continue_with(&mut self, core: &mut Core, index: usize, packet: &Packet<'_>, segment: &Segment) {
        let Some(flow) = self.flows.get_mut(index) else { return };
        if let Stage::Connecting { syn, sequence } = &mut flow.stage {
            if segment.reset {
                self.remove(core, index, FlowEnd::Reset);
            } else if segment.opens && segment.sequence != *sequence {
                // The sandbox gave up and tries again from the same port.
                *sequence = segment.sequence;
                syn.clear();
                syn.extend_from_slice(packet.whole);
            }
            return;
        }
        if let Some(endpoint) = &mut flow.endpoint {
            core.guest.feed(&mut endpoint.set, packet.whole, packet.destination.is_ipv4(), core.now);
            let state = endpoint.socket().state();
            if matches!(flow.stage, Stage::Greeting) && matches!(state, State::Established | State::CloseWait) {
                flow.stage = Stage::Open;
                flow.patience = None;
                self.announce(core, index);
            }
        }
        self.queue(index);
    }

    /// Answers with a reset, unless the packet is one.
    fn refuse(&mut self, core: &mut Core, whole: &[u8], destination: IpAddr) {
        core.guest.feed(&mut self.nobody, whole, destination.is_ipv4(), core.now);
    }

    fn open(&mut self, core: &mut Core, key: Key, packet: &Packet<'_>, segment: &Segment) {
        let (address, port) = (key.remote.ip(), key.remote.port());
        let service = core.judge.is_name_service(address, port, core.now);
        let mut decision = core.judge.decide(Protocol::Tcp, address, Some(port), core.now);
        let full = self.flows.len() >= core.capacity.tcp;
        if full {
            let flow = Flow { decided_by: Reason::Capacity, ..decision.flow };
            core.report(NetEvent::Denied { flow, count: 1 });
            return self.refuse(core, packet.whole, address);
        }
        let stage = Stage::Connecting { syn: packet.whole.to_vec(), sequence: segment.sequence };
        if service {
            let index = self.insert(core, key, decision.flow, Host::Names(NameChannel::default()), stage);
            return self.establish(core, index);
        }
        if !decision.allowed {
            if let Some(rule) = decision.question {
                match core.hold(rule, Held::Packet(packet.whole.to_vec())) {
                    Ok(()) => return,
                    Err(reason) => decision.flow.decided_by = reason,
                }
            }
            core.report(NetEvent::Denied { flow: decision.flow, count: 1 });
            return core.guest.send_unreachable(address, packet.whole, Unreachable::Prohibited);
        }
        match TcpStream::connect(SocketAddr::new(decision.target, port)) {
            Ok(stream) => {
                let index = self.insert(core, key, decision.flow, Host::Stream(stream), stage);
                if let Err(error) = self.watch(core, index) {
                    self.fail(core, index, &error);
                }
            }
            Err(error) => self.report_unreachable(core, decision.flow, packet.whole, &error),
        }
    }

    /// A connection to a published port.
    pub(crate) fn publish(&mut self, core: &mut Core, stream: TcpStream, guest_port: u16) {
        if self.flows.len() >= core.capacity.tcp {
            return reset(&stream);
        }
        let gateway = IpAddr::V4(core.guest.link.gateway_v4);
        let Some(key) = self.free_key(gateway, guest_port) else { return reset(&stream) };
        let flow = Flow {
            direction: Direction::Inbound,
            protocol: Protocol::Tcp,
            address: stream.peer_addr().map_or(gateway, |peer| peer.ip()),
            port: Some(guest_port),
            name: None,
            decided_by: Reason::Published,
        };
        let index = self.insert(core, key, flow, Host::Stream(stream), Stage::Greeting);
        if let Err(error) = self.watch(core, index) {
            tracing::warn!(%error, "can't watch a connection to a published port");
            return self.remove(core, index, FlowEnd::Reset);
        }
        let mut endpoint = self.pool.take();
        let to = SocketAddr::new(core.guest.link.guest(gateway), guest_port);
        let opened = endpoint.socket().connect(core.guest.context(), to, key.remote).is_ok();
        if let Some(flow) = self.flows.get_mut(index) {
            flow.endpoint = Some(endpoint);
            flow.patience = Some(core.now + HANDSHAKE_PATIENCE);
        }
        if opened { self.queue(index) } else { self.remove(core, index, FlowEnd::Reset) }
    }

    fn free_key(&mut self, remote: IpAddr, guest_port: u16) -> Option<Key> {
        for _ in 0..=u16::MAX - FIRST_EPHEMERAL {
            let key = Key { remote: SocketAddr::new(remote, self.next_port), guest_port };
            self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_EPHEMERAL);
            if !self.keys.contains_key(&key) {
                return Some(key);
            }
        }
        None
    }

    fn insert(&mut self, core: &Core, key: Key, flow: Flow, host: Host, stage: Stage) -> usize {
        self.next_serial += 1;
        let index = self.flows.insert(TcpFlow {
            key,
            flow,
            stage,
            host,
            endpoint: None,
            splice: Splice::default(),
            serial: self.next_serial,
            since: core.now,
            announced: false,
            queued: false,
            timer: None,
            patience: Some(core.now + CONNECT_PATIENCE),
        });
        self.keys.insert(key, index);
        self.set_timer(index, Some(core.now + CONNECT_PATIENCE));
        index
    }

    fn watch(&mut self, core: &Core, index: usize) -> io::Result<()> {
        match self.flows.get_mut(index).map(|flow| &mut flow.host) {
            Some(Host::Stream(stream)) => {
                // Small writes of the sandbox leave at once, as it sent them.
                let _ = stream.set_nodelay(true);
                let _ = rustix::net::sockopt::set_socket_keepalive(&*stream, true);
                core.watch(stream, Kind::Tcp, index)
            }
            _ => Ok(()),
        }
    }

    /// A socket of the host became ready.
    pub(crate) fn on_event(&mut self, index: usize, event: &mio::event::Event) {
        if let Some(flow) = self.flows.get_mut(index) {
            flow.splice.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
            flow.splice.writable |= event.is_writable() || event.is_write_closed() || event.is_error();
            self.queue(index);
        }
    }

    /// Puts a connection on the list of those that are looked at in this turn or the next.
    pub(crate) fn queue(&mut self, index: usize) {
        if let Some(flow) = self.flows.get_mut(index)
            && !flow.queued
        {
            flow.queued = true;
            self.ready.push_back(index);
        }
    }

    /// Gives every connection that is ready its turn; each moves a bounded number of bytes.
    pub(crate) fn run(&mut self, core: &mut Core) {
        if core.guest.port.has_room() {
            self.blocked.resume(&mut self.ready);
        }
        if core.limiter.is_open() {
            self.throttled.resume(&mut self.ready);
        }
        while let Some(&(at, index)) = self.timers.first()
            && at <= core.now
        {
            self.timers.pop_first();
            if let Some(flow) = self.flows.get_mut(index) {
                flow.timer = None;
            }
            self.queue(index);
        }
        for _ in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front() else { break };
            if let Some(flow) = self.flows.get_mut(index) {
                flow.queued = false;
                self.run_one(core, index);
            }
        }
    }

    fn run_one(&mut self, core: &mut Core, index: usize) {
        let Some(flow) = self.flows.get_mut(index) else { return };
        let patient = flow.patience.is_none_or(|until| until > core.now);
        match flow.stage {
            Stage::Connecting { .. } if !patient => self.fail(core, index, &Errno::TIMEDOUT.into()),
            Stage::Connecting { .. } => self.check_connect(core, index),
            _ if !patient => self.abort(core, index),
            _ => self.move_bytes(core, index),
        }
    }

    fn check_connect(&mut self, core: &mut Core, index: usize) {
        let Some(flow) = self.flows.get_mut(index) else { return };
        let Host::Stream(stream) = &flow.host else { return };
        let result = match stream.take_error() {
            Ok(None) => stream.peer_addr().map(drop),
            Ok(Some(error)) | Err(error) => Err(error),
        };
        match result {
            Ok(()) => self.establish(core, index),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                let until = flow.patience;
                self.set_timer(index, until);
            }
            Err(error) => self.fail(core, index, &error),
        }
    }

    /// The other end has answered: now the sandbox gets its answer.
    fn establish(&mut self, core: &mut Core, index: usize) {
        let mut endpoint = self.pool.take();
        let Some(flow) = self.flows.get_mut(index) else { return self.pool.put(endpoint) };
        let Stage::Connecting { syn, .. } = std::mem::replace(&mut flow.stage, Stage::Greeting) else { return };
        let remote = flow.key.remote;
        flow.patience = Some(core.now + HANDSHAKE_PATIENCE);
        let listens = endpoint.socket().listen(remote).is_ok();
        core.guest.feed(&mut endpoint.set, &syn, remote.is_ipv4(), core.now);
        let answered = listens && endpoint.socket().state() == State::SynReceived;
        flow.endpoint = Some(endpoint);
        if !answered {
            // The state machine found the first segment malformed.
            return self.remove(core, index, FlowEnd::Reset);
        }
        self.announce(core, index);
        self.move_bytes(core, index);
    }

    fn announce(&mut self, core: &mut Core, index: usize) {
        if let Some(flow) = self.flows.get_mut(index)
            && !flow.announced
            && matches!(flow.host, Host::Stream(_))
        {
            flow.announced = true;
            core.report(NetEvent::Opened { flow: flow.flow.clone() });
        }
    }

    fn move_bytes(&mut self, core: &mut Core, index: usize) {
        let Some(flow) = self.flows.get_mut(index) else { return };
        let Some(endpoint) = &mut flow.endpoint else { return };
        let v4 = flow.key.remote.is_ipv4();
        let outcome = match &mut flow.host {
            Host::Stream(stream) => flow.splice.turn(stream, endpoint, core, v4),
            Host::Names(channel) => {
                let outcome = channel.turn(endpoint, core, v4);
                let serial = flow.serial;
                self.queries.extend(channel.queries.drain(..).map(|query| (index, serial, query)));
                outcome
            }
        };
        match outcome {
            Outcome::Ended(end) => self.remove(core, index, end),
            Outcome::More => {
                self.queue(index);
                self.reset_timer(core, index, None);
            }
            Outcome::Blocked { served } => self.blocked.add(index, served),
            Outcome::Throttled { served, next } => {
                self.throttled.add(index, served);
                self.reset_timer(core, index, next);
            }
            Outcome::Waits(next) => self.reset_timer(core, index, next),
        }
    }

    fn reset_timer(&mut self, core: &Core, index: usize, next: Option<Instant>) {
        let Some(flow) = self.flows.get_mut(index) else { return };
        if let (Stage::Open, Some(endpoint)) = (&flow.stage, &mut flow.endpoint) {
            let socket = endpoint.socket();
            // A slow reader that has data outstanding is given all the time it wants.
            let last = matches!(socket.state(), State::FinWait1 | State::Closing | State::LastAck);
            let owes = last && socket.send_queue() == 0;
            flow.patience = if owes { flow.patience.or(Some(core.now + LINGER)) } else { None };
        }
        let at = super::port::earlier(next, flow.patience);
        self.set_timer(index, at);
    }

    fn set_timer(&mut self, index: usize, at: Option<Instant>) {
        let Some(flow) = self.flows.get_mut(index) else { return };
        if flow.timer == at {
            return;
        }
        if let Some(old) = std::mem::replace(&mut flow.timer, at) {
            self.timers.remove(&(old, index));
        }
        if let Some(at) = at {
            self.timers.insert((at, index));
        }
    }

    /// The host's connection did not come about.
    fn fail(&mut self, core: &mut Core, index: usize, error: &io::Error) {
        let Some(flow) = self.flows.get_mut(index) else { return };
        let Stage::Connecting { syn, .. } = &mut flow.stage else { return };
        let (syn, event) = (std::mem::take(syn), flow.flow.clone());
        self.remove(core, index, FlowEnd::Reset);
        self.report_unreachable(core, event, &syn, error);
    }

    fn report_unreachable(&mut self, core: &mut Core, flow: Flow, syn: &[u8], error: &io::Error) {
        let destination = flow.address;
        let errno = Errno::from_io_error(error);
        core.report(NetEvent::Unreachable { flow, error: error.to_string() });
        let gone =
            matches!(errno, Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::TIMEDOUT | Errno::ADDRNOTAVAIL));
        if gone {
            core.guest.send_unreachable(destination, syn, Unreachable::Host);
        } else {
            self.refuse(core, syn, destination);
        }
    }

    /// Breaks a connection off at both ends.
    fn abort(&mut self, core: &mut Core, index: usize) {
        let Some(flow) = self.flows.get_mut(index) else { return };
        if let Some(endpoint) = &mut flow.endpoint {
            endpoint.socket().abort();
            core.guest.drain(&mut endpoint.set, flow.key.remote.is_ipv4(), usize::MAX, core.now);
        }
        self.remove(core, index, FlowEnd::Reset);
    }

    fn remove(&mut self, core: &mut Core, index: usize, end: FlowEnd) {
        let Some(mut flow) = self.flows.try_remove(index) else { return };
        self.keys.remove(&flow.key);
        if let Some(at) = flow.timer {
            self.timers.remove(&(at, index));
        }
        if let Host::Stream(stream) = &mut flow.host {
            if end != FlowEnd::Finished {
                reset(stream);
            }
            core.forget(stream);
        }
        if let Some(endpoint) = flow.endpoint {
            self.pool.put(endpoint);
        }
        if flow.announced {
            let (sent, received) = flow.splice.bytes();
            let millis = u64::try_from(core.now.saturating_duration_since(flow.since).as_millis()).unwrap_or(u64::MAX);
            core.report(NetEvent::Closed { flow: flow.flow, sent, received, millis, end });
        }
    }

    /// An answer to a name query that came over a connection.
    pub(crate) fn reply(&mut self, index: usize, serial: u64, answer: &[u8]) {
        if let Some(flow) = self.flows.get_mut(index)
            && flow.serial == serial
            && let Host::Names(channel) = &mut flow.host
        {
            channel.reply(answer);
            self.queue(index);
        }
    }

    /// Ends all connections.
    pub(crate) fn stop(&mut self, core: &mut Core) {
        let all: Vec<usize> = self.flows.iter().map(|(index, _)| index).collect();
        for index in all {
            self.remove(core, index, FlowEnd::Stopped);
        }
    }

    /// Whether some connection wants its turn at once.
    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether some connection waits for the run's limit.
    pub(crate) fn is_throttled(&self) -> bool {
        !self.throttled.is_empty()
    }

    /// Whether some connection waits for room on the link.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// When the next connection wants its turn.
    pub(crate) fn deadline(&self, core: &Core) -> Option<Instant> {
        let limit = if self.throttled.is_empty() { None } else { core.limiter.refilled_at() };
        super::port::earlier(limit, self.timers.first().map(|(at, _)| *at))
    }
}

/// Makes the close that follows a reset instead of a polite end.
fn reset(stream: &TcpStream) {
    // If it fails, the other end gets the polite end: it still ends.
    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}
