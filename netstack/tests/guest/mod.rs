//! A guest in the test's own process: a second TCP/IP stack at the other end of the link.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pvisor_netstack::{DefaultVerdict, Handle, Link, LinkConfig, NetEvent, NetStack, Policy, StackConfig};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::{icmp, tcp, udp};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, Icmpv4Packet, Icmpv4Repr, IpAddress, IpCidr};

/// A condition that is not there after this long will not come: the test hangs.
const HANG: Duration = Duration::from_secs(120);

/// The running network and the guest.
pub struct Guest {
    pub link: LinkEnd,
    pub iface: Interface,
    pub sockets: SocketSet<'static>,
    pub config: LinkConfig,
    pub handle: Option<Handle>,
    events: Arc<Mutex<Vec<NetEvent>>>,
    epoch: Instant,
    next_port: u16,
    pinger: Option<SocketHandle>,
}

/// The link as the guest's network device.
pub struct LinkEnd {
    pub link: Link,
    mtu: usize,
    /// Keeps a copy of every frame that the guest got.
    pub seen: Option<Vec<Vec<u8>>>,
}

pub fn policy(default: DefaultVerdict, allow: &[&str], deny: &[&str]) -> Policy {
    let rules = |texts: &[&str]| texts.iter().map(|t| t.parse().unwrap()).collect();
    Policy { default, allow: rules(allow), deny: rules(deny), ..Policy::default() }
}

/// A policy under which the guest reaches servers of the test on the host's loopback, through the gateway.
pub fn localhost() -> StackConfig {
    StackConfig { policy: policy(DefaultVerdict::AllowList, &["localhost"], &[]), ..StackConfig::default() }
}

impl Guest {
    pub fn start(config: StackConfig) -> Self {
        pvisor_netstack::raise_descriptor_limit().unwrap();
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&events);
        let link_config = config.link.clone();
        let (link, handle) = NetStack::start(config, Arc::new(move |event| sink.lock().unwrap().push(event))).unwrap();
        let mut device = LinkEnd { link, mtu: link_config.max_frame(), seen: None };
        let hardware = HardwareAddress::Ethernet(EthernetAddress(link_config.guest_mac));
        let mut config = Config::new(hardware);
        config.random_seed = u64::from(std::process::id());
        let mut iface = Interface::new(config, &mut device, StackInstant::ZERO);
        iface.update_ip_addrs(|addrs| {
            addrs.push(IpCidr::new(IpAddr::V4(link_config.guest_v4).into(), link_config.prefix_v4)).unwrap();
            addrs.push(IpCidr::new(IpAddr::V6(link_config.guest_v6).into(), link_config.prefix_v6)).unwrap();
        });
        iface.routes_mut().add_default_ipv4_route(link_config.gateway_v4).unwrap();
        iface.routes_mut().add_default_ipv6_route(link_config.gateway_v6).unwrap();
        let sockets = SocketSet::new(Vec::new());
        let epoch = Instant::now();
        Self {
            link: device,
            iface,
            sockets,
            config: link_config,
            handle: Some(handle),
            events,
            epoch,
            next_port: 40_000,
            pinger: None,
        }
    }

    pub fn now(&self) -> StackInstant {
        StackInstant::from_micros(self.epoch.elapsed().as_micros() as i64)
    }

    pub fn gateway(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.config.gateway_v4.into(), port)
    }

    /// One round of the guest's stack; sleeps until something arrives if there was nothing to do.
    pub fn step(&mut self) {
        let now = self.now();
        self.iface.poll(now, &mut self.link, &mut self.sockets);
        let longest = smoltcp::time::Duration::from_millis(200);
        let wait = self.iface.poll_delay(self.now(), &self.sockets).unwrap_or(longest).min(longest);
        let wait = Timespec { tv_sec: 0, tv_nsec: (wait.total_micros() * 1000) as _ };
        let mut fds = [PollFd::new(&self.link.link, PollFlags::IN)];
        poll(&mut fds, Some(&wait)).unwrap();
    }

    /// Runs the guest until the condition holds.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < HANG, "never: {what}; events: {:?}", self.events());
            self.step();
        }
    }

    /// Runs the guest for a while, to see that something does not happen.
    pub fn settle(&mut self) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(150) {
            self.step();
        }
    }

    pub fn connect_from(&mut self, buffer: usize, to: SocketAddr, port: u16) -> SocketHandle {
        let ring = || tcp::SocketBuffer::new(vec![0; buffer]);
        let mut socket = tcp::Socket::new(ring(), ring());
        socket.set_ack_delay(None);
        socket.connect(self.iface.context(), (IpAddress::from(to.ip()), to.port()), port).unwrap();
        self.sockets.add(socket)
    }

    /// Begins a connection.
    pub fn connect(&mut self, to: SocketAddr) -> SocketHandle {
        self.next_port += 1;
        self.connect_from(256 << 10, to, self.next_port)
    }

    /// Makes a connection and waits for it.
    #[track_caller]
    pub fn connected(&mut self, to: SocketAddr) -> SocketHandle {
        let handle = self.connect(to);
        self.until("established", |guest| guest.tcp(handle).may_send());
        handle
    }

    pub fn tcp(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    pub fn bind_udp(&mut self, port: u16) -> SocketHandle {
        let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 64], vec![0; 256 << 10]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        socket.bind(port).unwrap();
        self.sockets.add(socket)
    }

    pub fn udp(&mut self, handle: SocketHandle) -> &mut udp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    fn pinger(&mut self) -> &mut icmp::Socket<'static> {
        let handle = *self.pinger.get_or_insert_with(|| {
            let buffer = || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 8], vec![0; 4096]);
            let mut socket = icmp::Socket::new(buffer(), buffer());
            socket.bind(icmp::Endpoint::Ident(0x77)).unwrap();
            self.sockets.add(socket)
        });
        self.sockets.get_mut(handle)
    }

    /// Sends an echo request.
    pub fn ping(&mut self, to: [u8; 4]) {
        let request = Icmpv4Repr::EchoRequest { ident: 0x77, seq_no: 3, data: b"ping data" };
        let place = self.pinger().send(request.buffer_len(), IpAddress::from(IpAddr::from(to))).unwrap();
        request.emit(&mut Icmpv4Packet::new_unchecked(place), &ChecksumCapabilities::default());
    }

    /// Whether the reply to it has come.
    pub fn pinged(&mut self, by: [u8; 4]) -> bool {
        let Ok((reply, from)) = self.pinger().recv() else { return false };
        assert_eq!(from, IpAddress::from(IpAddr::from(by)));
        let packet = Icmpv4Packet::new_checked(reply).unwrap();
        let reply = Icmpv4Repr::parse(&packet, &ChecksumCapabilities::default()).unwrap();
        assert_eq!(reply, Icmpv4Repr::EchoReply { ident: 0x77, seq_no: 3, data: b"ping data" });
        true
    }

    /// Sends all and reads until the other end has closed.
    #[track_caller]
    pub fn exchange(&mut self, handle: SocketHandle, request: &[u8]) -> Vec<u8> {
        let (mut sent, mut reply) = (0, Vec::new());
        self.until("exchange", |guest| {
            let socket = guest.tcp(handle);
            if sent < request.len() && socket.can_send() {
                sent += socket.send_slice(&request[sent..]).unwrap();
                if sent == request.len() {
                    socket.close();
                }
            }
            while socket.can_recv() {
                socket.recv(|data| (data.len(), reply.extend_from_slice(data))).unwrap();
            }
            sent == request.len() && !socket.may_recv()
        });
        reply
    }

    pub fn events(&self) -> Vec<NetEvent> {
        self.events.lock().unwrap().clone()
    }

    /// Waits for an event.
    #[track_caller]
    pub fn event(&mut self, what: &str, matches: impl Fn(&NetEvent) -> bool) -> NetEvent {
        let mut found = None;
        self.until(what, |guest| {
            found = guest.events().into_iter().find(&matches);
            found.is_some()
        });
        found.unwrap()
    }

    pub fn wakes(&self) -> u64 {
        self.handle.as_ref().unwrap().wakes()
    }
}

impl Device for LinkEnd {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _now: StackInstant) -> Option<(Rx, Tx<'_>)> {
        let mut frame = vec![0; self.mtu];
        let length = self.link.recv(&mut frame)?;
        frame.truncate(length);
        if let Some(seen) = &mut self.seen {
            seen.push(frame.clone());
        }
        Some((Rx(frame), Tx(&self.link)))
    }

    fn transmit(&mut self, _now: StackInstant) -> Option<Tx<'_>> {
        Some(Tx(&self.link))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

pub struct Rx(Vec<u8>);
pub struct Tx<'a>(&'a Link);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let mut frame = vec![0; length];
        let result = write(&mut frame);
        while self.0.send(&frame) == Err(pvisor_netstack::SendError::Full) {
            std::thread::yield_now();
        }
        result
    }
}

/// Listens on the host's loopback and serves each connection in a thread of its own.
pub fn serve(service: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    serve_at(Ipv4Addr::LOCALHOST.into(), service)
}

pub fn serve_at(address: IpAddr, service: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let service = Arc::new(service);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let service = Arc::clone(&service);
            std::thread::spawn(move || service(stream));
        }
    });
    port
}

/// Sends back what it gets.
pub fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..n]).is_err() {
            return;
        }
    }
}

/// Bytes that differ everywhere, the same for the same seed.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let key = *blake3::hash(&seed.to_le_bytes()).as_bytes();
    blake3::Hasher::new_keyed(&key).finalize_xof().fill(&mut bytes);
    bytes
}
