//! The engine: one thread that turns frames into flows and flows into frames.

mod asking;
mod core;
mod datagram;
mod endpoint;
mod fragments;
mod guest;
mod judge;
mod names;
mod packet;
mod port;
mod splice;
#[cfg(target_os = "linux")]
mod tap;
mod tcp;
mod waiting;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use smoltcp::wire::IpProtocol;

use self::asking::Asking;
pub(crate) use self::asking::Held;
pub(crate) use self::core::{Core, Kind};
use self::datagram::{Datagrams, echo_reply};
use self::fragments::Fragments;
use self::guest::{Frame, GuestSide};
pub(crate) use self::judge::DNS_PORT;
use self::judge::Judge;
use self::packet::{Packet, Parsed};
pub(crate) use self::port::{Port, poll_timeout};
#[cfg(target_os = "linux")]
pub(crate) use self::tap::TapPort;
use self::tcp::TcpTable;
use crate::dns::{NameServer, ReplyTo};
use crate::event::{EventSink, Reporter};
use crate::limit::Limiter;
use crate::{Binding, Rule, StackConfig};

/// Frames of the sandbox that are looked at before its flows get their turn.
const FRAMES: usize = 256;
/// Connections accepted at one published port in one turn.
const ACCEPTS: usize = 64;
/// How long a published port rests when the system can't accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A published port.
struct Published {
    listener: TcpListener,
    guest_port: u16,
    ready: bool,
    rests_until: Option<Instant>,
}

/// What to do until the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The next turn at once.
    Now,
    /// Sleep until something happens, or until this time.
    Sleep(Option<Instant>),
    /// The sandbox's side is gone.
    Over,
}

/// All of the network's state.
pub(crate) struct Engine {
    core: Core,
    tcp: TcpTable,
    datagrams: Datagrams,
    names: NameServer,
    fragments: Fragments,
    published: Vec<Published>,
    /// Who comes first where the link has little room alternates.
    datagrams_first: bool,
}

impl Engine {
    /// `seed` must be unpredictable.
    pub(crate) fn new(
        config: StackConfig,
        port: Port,
        registry: mio::Registry,
        sink: EventSink,
        seed: u64,
        now: Instant,
    ) -> Self {
        let core = Core {
            judge: Judge::new(config.policy.clone(), &config.link),
            asking: Asking::new(&config.policy.refused),
            guest: GuestSide::new(port, config.link, seed, now),
            limiter: Limiter::new(config.policy.limit, now),
            reporter: Reporter::new(sink, now),
            capacity: config.capacity,
            registry,
            now,
        };
        let mut engine = Self {
            core,
            tcp: TcpTable::new(config.capacity.buffers),
            datagrams: Datagrams::new(),
            names: NameServer::new(config.upstream),
            fragments: Fragments::default(),
            published: Vec::new(),
            datagrams_first: false,
        };
        engine.core.judge.bindings.import(&config.bindings, now);
        engine.names.refresh(&mut engine.core);
        engine
    }

    /// Offers a port of the sandbox through a listening socket.
    ///
    /// # Errors
    /// It can't be watched.
    pub(crate) fn publish(&mut self, mut listener: TcpListener, guest_port: u16) -> std::io::Result<()> {
        self.core.watch(&mut listener, Kind::Listener, self.published.len())?;
        self.published.push(Published { listener, guest_port, ready: true, rests_until: None });
        Ok(())
    }

    /// A descriptor became ready.
    pub(crate) fn on_event(&mut self, event: &mio::event::Event) {
        let (kind, index) = Kind::of(event.token());
        match kind {
            Kind::Waker => {}
            Kind::Tap =>
            {
                #[cfg(target_os = "linux")]
                if let Port::Tap(port) = &mut self.core.guest.port {
                    port.on_event(event);
                }
            }
            Kind::Tcp => self.tcp.on_event(index, event),
            Kind::Listener => {
                if let Some(published) = self.published.get_mut(index) {
                    published.ready = true;
                }
            }
            Kind::Datagram => self.datagrams.on_event(index),
            Kind::Query => self.names.on_event(index),
        }
    }

    /// Does a bounded amount of everything there is to do.
    pub(crate) fn turn(&mut self, now: Instant) -> Next {
        self.core.now = now;
        self.core.guest.port.flush();
        self.core.limiter.begin_turn(self.tcp.is_throttled() || self.datagrams.is_throttled(), now);
        for rule in self.core.asking.overdue(now) {
            self.settle(&rule, false);
        }
        let drained = self.take_frames();
        self.accept();
        self.names.run(&mut self.core);
        self.datagrams_first = !self.datagrams_first;
        if self.datagrams_first {
            self.datagrams.run(&mut self.core);
            self.tcp.run(&mut self.core);
        } else {
            self.tcp.run(&mut self.core);
            self.datagrams.run(&mut self.core);
        }
        self.exchange_names();
        self.core.reporter.tick(now);
        self.core.guest.port.flush();
        if self.core.guest.port.is_closed() {
            return Next::Over;
        }
        let flows = self.tcp.is_ready() || self.datagrams.is_ready();
        if !drained || flows || self.published.iter().any(|p| p.ready && p.rests_until.is_none()) {
            return Next::Now;
        }
        if !self.core.guest.port.prepare_sleep(self.tcp.is_blocked() || self.datagrams.is_blocked()) {
            return Next::Now;
        }
        Next::Sleep(self.deadline())
    }

    fn deadline(&self) -> Option<Instant> {
        let rests = self.published.iter().filter_map(|p| p.rests_until);
        let own = [
            self.tcp.deadline(&self.core),
            self.datagrams.deadline(&self.core),
            self.names.deadline(),
            self.core.reporter.deadline(),
            self.core.asking.deadline(),
        ];
        own.into_iter().flatten().chain(rests).min()
    }

    /// Whether all waiting frames were taken.
    fn take_frames(&mut self) -> bool {
        for _ in 0..FRAMES {
            let Some(frame) = self.core.guest.port.receive() else { return true };
            self.frame(&frame);
            self.core.guest.port.recycle(frame);
        }
        false
    }

    fn frame(&mut self, frame: &[u8]) {
        if frame.len() > self.core.guest.link.max_frame() {
            return;
        }
        let parsed = match self.core.guest.open(frame) {
            Frame::V4(bytes) => packet::parse_v4(bytes),
            Frame::V6(bytes) => packet::parse_v6(bytes),
            Frame::Done => return,
        };
        match parsed {
            Some(Parsed::Whole(packet)) => self.packet(&packet),
            Some(Parsed::Part(part)) if part.key.source == self.core.guest.link.guest(part.key.destination) => {
                if let Some(bytes) = self.fragments.add(&part, self.core.now) {
                    let parsed =
                        if part.key.source.is_ipv4() { packet::parse_v4(&bytes) } else { packet::parse_v6(&bytes) };
                    if let Some(Parsed::Whole(packet)) = parsed {
                        self.packet(&packet);
                    }
                }
            }
            _ => {}
        }
    }

    fn packet(&mut self, packet: &Packet<'_>) {
        const NEIGHBOUR_SOLICITATION: u8 = 135;
        if packet.protocol == IpProtocol::Icmpv6 && packet.payload.first() == Some(&NEIGHBOUR_SOLICITATION) {
            return self.core.guest.answer_solicitation(packet.source, packet.payload);
        }
        // One address of each family lives here: whatever comes from another is forged or not for us.
        if packet.source != self.core.guest.link.guest(packet.destination) || !packet::is_unicast(packet.destination) {
            return;
        }
        match packet.protocol {
            IpProtocol::Tcp => self.tcp.segment(&mut self.core, packet),
            IpProtocol::Udp => self.datagram(packet),
            IpProtocol::Icmp | IpProtocol::Icmpv6 => self.icmp(packet),
            // SCTP, GRE, IGMP …: nothing of the kind gets out.
            _ => {}
        }
    }

    fn datagram(&mut self, packet: &Packet<'_>) {
        let Some(datagram) = packet::parse_udp(packet.payload) else { return };
        if self.core.judge.is_name_service(packet.destination, datagram.destination, self.core.now) {
            let service = SocketAddr::new(packet.destination, datagram.destination);
            let to = ReplyTo::Datagram { service, port: datagram.source };
            return self.names.query(&mut self.core, datagram.data, to);
        }
        self.datagrams.datagram(&mut self.core, packet, &datagram);
    }

    fn icmp(&mut self, packet: &Packet<'_>) {
        let v4 = packet.destination.is_ipv4();
        let request = if v4 { (IpProtocol::Icmp, 8) } else { (IpProtocol::Icmpv6, 128) };
        let [kind, 0, _, _, high, low, ..] = *packet.payload else { return };
        if (packet.protocol, kind) != request {
            return;
        }
        if !self.core.guest.link.is_gateway(packet.destination) {
            return self.datagrams.echo(&mut self.core, packet, packet.payload);
        }
        if let Some(reply) = echo_reply(packet.destination, packet.payload, u16::from_be_bytes([high, low])) {
            self.core.guest.send_icmp(packet.destination, reply);
        }
    }

    /// Carries queries of connections to the name server, and its answers back.
    fn exchange_names(&mut self) {
        for (index, serial, query) in std::mem::take(&mut self.tcp.queries) {
            self.names.query(&mut self.core, &query, ReplyTo::Connection { index, serial });
        }
        for (index, serial, answer) in std::mem::take(&mut self.names.replies) {
            self.tcp.reply(index, serial, &answer);
        }
    }

    fn accept(&mut self) {
        for published in &mut self.published {
            if published.rests_until.is_some_and(|at| at <= self.core.now) {
                published.rests_until = None;
            }
            if !published.ready || published.rests_until.is_some() {
                continue;
            }
            for _ in 0..ACCEPTS {
                match published.listener.accept() {
                    Ok((stream, _)) => self.tcp.publish(&mut self.core, stream, published.guest_port),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        published.ready = false;
                        break;
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                    Err(error) => {
                        tracing::warn!(%error, "can't accept at a published port");
                        published.rests_until = Some(self.core.now + ACCEPT_PAUSE);
                        break;
                    }
                }
            }
        }
    }

    /// Takes in an answer to the question whether this rule is to hold.
    pub(crate) fn answer(&mut self, rule: Rule, allowed: bool, now: Instant) {
        self.core.now = now;
        if allowed && !self.core.judge.policy.allow.contains(&rule) {
            self.core.judge.policy.allow.push(rule.clone());
        }
        self.settle(&rule, allowed);
    }

    /// What waited for an answer is taken as if it came now.
    fn settle(&mut self, rule: &Rule, allowed: bool) {
        for held in self.core.asking.settle(rule, allowed) {
            match held {
                Held::Query { message, to } => self.names.query(&mut self.core, &message, to),
                Held::Packet(bytes) => {
                    let v4 = bytes.first().is_some_and(|first| first >> 4 == 4);
                    let parsed = if v4 { packet::parse_v4(&bytes) } else { packet::parse_v6(&bytes) };
                    if let Some(Parsed::Whole(packet)) = parsed {
                        self.packet(&packet);
                    }
                }
            }
        }
    }

    /// Which names led the sandbox where.
    pub(crate) fn bindings(&self, now: Instant) -> Vec<Binding> {
        self.core.judge.bindings.export(now)
    }

    /// Ends every flow and reports it.
    pub(crate) fn stop(&mut self, now: Instant) {
        self.core.now = now;
        self.tcp.stop(&mut self.core);
        self.datagrams.stop(&mut self.core);
        self.core.reporter.finish(now);
    }
}

#[cfg(test)]
mod tests;
