//! The sandbox's side of the engine: Ethernet, ARP and neighbour discovery, and the TCP state machine's way in and out.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Instant;

use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{HardwareAddress, IpProtocol};

use super::packet::{self, header_len, icmp_checksum};
use super::port::Port;
use crate::config::{ETHERNET_HEADER, LinkConfig};

const ETHERTYPE_V4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_V6: u16 = 0x86dd;

/// What a frame turned out to be, after the link's own business is done.
pub(crate) enum Frame<'a> {
    /// An IPv4 packet for somebody.
    V4(&'a [u8]),
    /// An IPv6 packet for somebody.
    V6(&'a [u8]),
    /// Dealt with, or nothing that we take.
    Done,
}

/// Why a packet can't be delivered, as ICMP says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreachable {
    /// The host, or the way there.
    Host,
    /// Nobody listens at the port.
    Port,
    /// The policy says no.
    Prohibited,
}

/// The link, seen from us.
pub(crate) struct GuestSide {
    pub(crate) port: Port,
    pub(crate) link: LinkConfig,
    iface: Interface,
    epoch: Instant,
    guest_mac: [u8; 6],
    next_ident: u32,
}

impl GuestSide {
    pub(crate) fn new(port: Port, link: LinkConfig, seed: u64, now: Instant) -> Self {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut probe =
            Device { port: None, rx: None, header: [0; ETHERNET_HEADER], mtu: usize::from(link.mtu), sent: 0 };
        let mut iface = Interface::new(config, &mut probe, StackInstant::ZERO);
        // Every address is ours: the engine decides what reaches the state machine.
        iface.set_any_ip(true);
        let guest_mac = link.guest_mac;
        Self { port, link, iface, epoch: now, guest_mac, next_ident: (seed >> 32) as u32 }
    }

    fn stack_time(&self, now: Instant) -> StackInstant {
        let micros = now.saturating_duration_since(self.epoch).as_micros();
        StackInstant::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }

    fn std_time(&self, at: StackInstant) -> Instant {
        self.epoch + std::time::Duration::from_micros(u64::try_from(at.total_micros()).unwrap_or(0))
    }

    /// Looks at a frame: answers ARP, remembers the sender, hands IP packets on.
    pub(crate) fn open<'a>(&mut self, frame: &'a [u8]) -> Frame<'a> {
        let Some((header, payload)) = frame.split_at_checked(ETHERNET_HEADER) else { return Frame::Done };
        let (to, from) = (&header[0..6], &header[6..12]);
        let ours = to == self.link.gateway_mac || to[0] & 1 == 1;
        if !ours || from[0] & 1 == 1 || from == self.link.gateway_mac {
            return Frame::Done;
        }
        self.guest_mac.copy_from_slice(from);
        match u16::from_be_bytes([header[12], header[13]]) {
            ETHERTYPE_ARP => {
                self.answer_arp(payload);
                Frame::Done
            }
            ETHERTYPE_V4 => Frame::V4(payload),
            ETHERTYPE_V6 => Frame::V6(payload),
            _ => Frame::Done,
        }
    }

    fn answer_arp(&mut self, request: &[u8]) {
        const ETHERNET_IPV4_REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
        let Some(request) = request.get(..28) else { return };
        let (sender, target) = (&request[8..18], &request[24..28]);
        if request[..8] != ETHERNET_IPV4_REQUEST || target != self.link.gateway_v4.octets() {
            return;
        }
        // A probe for a duplicate address has no sender address; ours is taken, so it is answered like any other.
        let mut reply = [0; 28];
        reply[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 2]);
        reply[8..14].copy_from_slice(&self.link.gateway_mac);
        reply[14..18].copy_from_slice(target);
        reply[18..28].copy_from_slice(sender);
        let header = self.ethernet(ETHERTYPE_ARP);
        let mut frame = self.port.buffer();
        frame.extend_from_slice(&header);
        frame.extend_from_slice(&reply);
        self.port.transmit(frame);
    }

    /// Answers a neighbour solicitation for one of our addresses. `message` is the ICMPv6 message.
    pub(crate) fn answer_solicitation(&mut self, source: IpAddr, message: &[u8]) {
        let Some(target) = message.get(8..24).and_then(|t| <[u8; 16]>::try_from(t).ok()).map(Ipv6Addr::from) else {
            return;
        };
        let IpAddr::V6(asker) = source else { return };
        if target != self.link.gateway_v6 {
            return;
        }
        let probe = asker.is_unspecified();
        let to = if probe { Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1) } else { asker };
        let (solicited, overriding, router) = (0x40, 0x20, 0x80);
        let mut reply = vec![136, 0, 0, 0, router | overriding | if probe { 0 } else { solicited }, 0, 0, 0];
        reply.extend_from_slice(&target.octets());
        reply.extend_from_slice(&[2, 1]);
        reply.extend_from_slice(&self.link.gateway_mac);
        let (from, to) = (IpAddr::V6(target), IpAddr::V6(to));
        let sum = icmp_checksum(from, to, &reply);
        reply[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut header = vec![0; packet::V6_HEADER];
        if packet::write_header(&mut header, from, to, IpProtocol::Icmpv6, reply.len()).is_none() {
            return;
        }
        // Neighbour discovery is only valid with the highest hop limit: it proves that no router was passed.
        header[7] = 255;
        self.send_frame(from, &header, &reply);
    }

    fn ethernet(&self, ethertype: u16) -> [u8; ETHERNET_HEADER] {
        let mut header = [0; ETHERNET_HEADER];
        header[0..6].copy_from_slice(&self.guest_mac);
        header[6..12].copy_from_slice(&self.link.gateway_mac);
        header[12..14].copy_from_slice(&ethertype.to_be_bytes());
        header
    }

    fn send_frame(&mut self, source: IpAddr, ip_header: &[u8], payload: &[u8]) {
        let header = self.ethernet(if source.is_ipv4() { ETHERTYPE_V4 } else { ETHERTYPE_V6 });
        let mut frame = self.port.buffer();
        frame.extend_from_slice(&header);
        frame.extend_from_slice(ip_header);
        frame.extend_from_slice(payload);
        self.port.transmit(frame);
    }

    /// Sends a payload to the sandbox, in pieces if it is longer than the MTU.
    pub(crate) fn send_ip(&mut self, source: IpAddr, protocol: IpProtocol, payload: &[u8]) {
        self.next_ident = self.next_ident.wrapping_add(1);
        let (to, mtu) = (self.link.guest(source), usize::from(self.link.mtu));
        for piece in packet::pieces(source, to, protocol, payload.len(), mtu, self.next_ident) {
            if let Some(data) = payload.get(piece.range) {
                self.send_frame(source, &piece.header, data);
            }
        }
    }

    /// Sends a datagram to a port of the sandbox.
    pub(crate) fn send_udp(&mut self, source: SocketAddr, port: u16, data: &[u8]) {
        let to = self.link.guest(source.ip());
        if let Some(body) = packet::udp((source.ip(), source.port()), (to, port), data) {
            self.send_ip(source.ip(), IpProtocol::Udp, &body);
        }
    }

    /// Sends an ICMP message from `source`; the checksum is filled in.
    pub(crate) fn send_icmp(&mut self, source: IpAddr, mut message: Vec<u8>) {
        if message.len() < 8 {
            return;
        }
        message[2..4].fill(0);
        let sum = icmp_checksum(source, self.link.guest(source), &message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let protocol = if source.is_ipv4() { IpProtocol::Icmp } else { IpProtocol::Icmpv6 };
        self.send_ip(source, protocol, &message);
    }

    /// Tells the sandbox that a packet of it could not be delivered. `whole`: that packet, from its IP header on.
    pub(crate) fn send_unreachable(&mut self, destination: IpAddr, whole: &[u8], why: Unreachable) {
        let v4 = destination.is_ipv4();
        let (kind, code) = match (v4, why) {
            (true, Unreachable::Host) => (3, 1),
            (true, Unreachable::Port) => (3, 3),
            (true, Unreachable::Prohibited) => (3, 13),
            (false, Unreachable::Host) => (1, 3),
            (false, Unreachable::Port) => (1, 4),
            (false, Unreachable::Prohibited) => (1, 1),
        };
        let room = if v4 { 576 } else { 1280 } - header_len(destination) - 8;
        let mut message = vec![kind, code, 0, 0, 0, 0, 0, 0];
        message.extend_from_slice(&whole[..whole.len().min(room)]);
        // The gateway speaks for what is beyond it, except for a port, which only the host itself can miss.
        let source = match why {
            Unreachable::Port => destination,
            _ if v4 => IpAddr::V4(self.link.gateway_v4),
            _ => IpAddr::V6(self.link.gateway_v6),
        };
        self.send_icmp(source, message);
    }

    /// Hands a TCP packet to the socket in `set`, or has it reset if there is none.
    pub(crate) fn feed(&mut self, set: &mut SocketSet<'static>, whole: &[u8], v4: bool, now: Instant) {
        let time = self.stack_time(now);
        let (iface, mut device) = self.device(Some(whole), v4);
        iface.poll_ingress_single(time, &mut device, set);
    }

    /// Sends what the socket in `set` has to say, up to `limit` bytes. Gives whether anything was sent.
    pub(crate) fn drain(&mut self, set: &mut SocketSet<'static>, v4: bool, limit: usize, now: Instant) -> bool {
        let time = self.stack_time(now);
        let (iface, mut device) = self.device(None, v4);
        // One segment at a time, and none is begun without room: a state machine whose segment is refused has forgotten
        // by then that it wanted to repeat it, and the connection would stand still for ever.
        while device.has_room() && device.sent < limit {
            let before = device.sent;
            iface.poll_egress(time, &mut device, set);
            if device.sent == before {
                break;
            }
        }
        device.sent > 0
    }

    /// When the socket in `set` has something to do by itself.
    pub(crate) fn deadline(&mut self, set: &SocketSet<'static>, now: Instant) -> Option<Instant> {
        let time = self.stack_time(now);
        self.iface.poll_at(time, set).map(|at| self.std_time(at))
    }

    /// What a socket needs to open a connection by itself.
    pub(crate) fn context(&mut self) -> &mut smoltcp::iface::Context {
        self.iface.context()
    }

    fn device<'a>(&'a mut self, rx: Option<&'a [u8]>, v4: bool) -> (&'a mut Interface, Device<'a>) {
        let header = self.ethernet(if v4 { ETHERTYPE_V4 } else { ETHERTYPE_V6 });
        let mtu = usize::from(self.link.mtu);
        (&mut self.iface, Device { port: Some(&mut self.port), rx, header, mtu, sent: 0 })
    }
}

/// What the TCP state machine sees of the link: at most one packet in, any number out.
struct Device<'a> {
    port: Option<&'a mut Port>,
    rx: Option<&'a [u8]>,
    header: [u8; ETHERNET_HEADER],
    mtu: usize,
    sent: usize,
}

struct Rx<'a>(&'a [u8]);

struct Tx<'a> {
    port: Option<&'a mut Port>,
    header: &'a [u8; ETHERNET_HEADER],
    sent: &'a mut usize,
}

impl Device<'_> {
    fn has_room(&self) -> bool {
        self.port.as_ref().is_some_and(|port| port.has_room())
    }
}

impl phy::Device for Device<'_> {
    type RxToken<'a>
        = Rx<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Tx<'a>
    where
        Self: 'a;

    fn receive(&mut self, _now: StackInstant) -> Option<(Rx<'_>, Tx<'_>)> {
        let packet = self.rx.take()?;
        // Answers to a packet are small and are sent even where the link is full.
        Some((Rx(packet), Tx { port: self.port.as_deref_mut(), header: &self.header, sent: &mut self.sent }))
    }

    fn transmit(&mut self, _now: StackInstant) -> Option<Tx<'_>> {
        Some(Tx { port: self.port.as_deref_mut(), header: &self.header, sent: &mut self.sent })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        // The link is memory: nothing can damage a packet on it but the sandbox itself.
        let mut checksum = ChecksumCapabilities::default();
        checksum.tcp = Checksum::Tx;
        checksum.ipv4 = Checksum::Tx;
        capabilities.checksum = checksum;
        capabilities
    }
}

impl phy::RxToken for Rx<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

impl phy::TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let Some(port) = self.port else { return write(&mut vec![0; length]) };
        let mut frame = port.buffer();
        frame.extend_from_slice(self.header);
        frame.resize(ETHERNET_HEADER + length, 0);
        let result = write(&mut frame[ETHERNET_HEADER..]);
        *self.sent += length;
        port.transmit(frame);
        result
    }
}
