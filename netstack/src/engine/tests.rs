//! Hostile frames against the whole engine, without a thread: time is passed in.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use smoltcp::wire::IpProtocol;

use super::packet::{pieces, udp};
use super::*;
use crate::event::NetEvent;
use crate::link::link;
use crate::{Capacity, DefaultVerdict, Link, LinkConfig, Policy, SendError, Upstream};

const CAPACITY: Capacity = Capacity { tcp: 32, datagrams: 16, queries: 8, buffers: 64 << 20 };

struct Bench {
    engine: Engine,
    link: Link,
    poll: mio::Poll,
    events: Arc<Mutex<Vec<NetEvent>>>,
    now: Instant,
}

impl Bench {
    fn new(default: DefaultVerdict, allow: &[&str]) -> Self {
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(mio::Waker::new(poll.registry(), Kind::Waker.token(0)).unwrap());
        let (link, port) = link(waker).unwrap();
        let allow = allow.iter().map(|r| r.parse().unwrap()).collect();
        let config = StackConfig {
            policy: Policy { default, allow, ..Policy::default() },
            // Nobody listens at the discard port of the loopback: questions fail at once.
            upstream: Upstream::Servers(vec!["127.0.0.1:9".parse().unwrap()]),
            capacity: CAPACITY,
            ..StackConfig::default()
        };
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&events);
        let now = Instant::now();
        let sink: EventSink = Arc::new(move |event| sink.lock().unwrap().push(event));
        let engine = Engine::new(config, Port::Queue(port), poll.registry().try_clone().unwrap(), sink, 7, now);
        Self { engine, link, poll, events, now }
    }

    fn send(&mut self, frame: &[u8]) {
        if self.link.send(frame) == Err(SendError::Full) {
            self.turns();
            self.link.send(frame).unwrap();
        }
    }

    /// Turns until there is nothing to do; gives what comes out.
    fn turns(&mut self) -> Vec<Vec<u8>> {
        let mut events = mio::Events::with_capacity(64);
        let (mut out, mut frame) = (Vec::new(), [0; 1514]);
        for _ in 0..1000 {
            self.poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
            for event in &events {
                self.engine.on_event(event);
            }
            let next = self.engine.turn(self.now);
            while let Some(length) = self.link.recv(&mut frame) {
                out.push(frame[..length].to_vec());
            }
            if matches!(next, Next::Sleep(_)) {
                return out;
            }
        }
        panic!("never idle");
    }

    /// The gateway still answers: a ping in, a ping out.
    fn check_alive(&mut self) {
        self.turns();
        let link = LinkConfig::default();
        let echo = [8, 0, 0, 0, 1, 2, 3, 4];
        self.send(&ip_frame(&link, link.guest_v4.into(), link.gateway_v4.into(), IpProtocol::Icmp, &echo));
        let out = self.turns();
        assert!(
            out.iter().any(|f| f.get(34) == Some(&0) && f.get(38..42) == Some(&[1, 2, 3, 4])),
            "no answer: {out:?}"
        );
    }
}

fn frame(link: &LinkConfig, kind: u16, payload: &[u8]) -> Vec<u8> {
    [&link.gateway_mac[..], &link.guest_mac, &kind.to_be_bytes(), payload].concat()
}

fn ip_frame(link: &LinkConfig, source: IpAddr, to: IpAddr, protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let piece = &pieces(source, to, protocol, payload.len(), 65_535, 1)[0];
    let kind = if source.is_ipv4() { 0x0800 } else { 0x86dd };
    frame(link, kind, &[&piece.header[..], payload].concat())
}

fn tcp_segment(from: u16, to: u16, sequence: u32, ack: u32, flags: u8, window: u16, data: &[u8]) -> Vec<u8> {
    let mut segment = [from.to_be_bytes(), to.to_be_bytes()].concat();
    segment.extend([sequence.to_be_bytes(), ack.to_be_bytes()].concat());
    segment.extend([0x50, flags]);
    segment.extend([window.to_be_bytes(), [0, 0], [0, 0]].concat());
    segment.extend_from_slice(data);
    segment
}

#[test]
fn arp_and_neighbour_discovery_answer_for_the_gateway_only() {
    let mut bench = Bench::new(DefaultVerdict::AllowList, &[]);
    let link = LinkConfig::default();
    let ask = |target: [u8; 4]| {
        let head = [0, 1, 8, 0, 6, 4, 0, 1];
        frame(&link, 0x0806, &[&head[..], &link.guest_mac, &link.guest_v4.octets(), &[0; 6], &target].concat())
    };
    bench.send(&ask(link.gateway_v4.octets()));
    let out = bench.turns();
    assert_eq!(out.len(), 1);
    assert_eq!((&out[0][20..22], &out[0][22..28]), (&[0, 2][..], &link.gateway_mac[..]));
    bench.send(&ask(link.guest_v4.octets()));
    bench.send(&ask([10, 0, 0, 1]));
    assert!(bench.turns().is_empty());
    let group: std::net::Ipv6Addr = "ff02::1:ff00:1".parse().unwrap();
    for (target, answers) in [(link.gateway_v6, 1), (link.guest_v6, 0)] {
        let solicitation = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat();
        bench.send(&ip_frame(&link, link.guest_v6.into(), group.into(), IpProtocol::Icmpv6, &solicitation));
        let out = bench.turns();
        assert_eq!(out.len(), answers);
        if let Some(reply) = out.first() {
            assert_eq!((reply[54], reply[21], &reply[80..86]), (136, 255, &link.gateway_mac[..]));
        }
    }
}

#[test]
fn a_flood_of_first_segments_is_bounded_and_passes() {
    let mut bench = Bench::new(DefaultVerdict::AllowList, &["localhost"]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let link = LinkConfig::default();
    for i in 0..5000u32 {
        let syn = tcp_segment(1024 + (i % 60_000) as u16, port, i, 0, 2, 1000, &[]);
        bench.send(&ip_frame(&link, link.guest_v4.into(), link.gateway_v4.into(), IpProtocol::Tcp, &syn));
        if i % 100 == 0 {
            bench.turns();
        }
    }
    bench.check_alive();
    let opened = bench.events.lock().unwrap().iter().filter(|e| matches!(e, NetEvent::Opened { .. })).count();
    assert!(opened <= CAPACITY.tcp, "{opened}");
    // Nobody ever acknowledges: the half-open ones end by themselves.
    for _ in 0..400 {
        bench.now += Duration::from_secs(1);
        bench.turns();
    }
    let closed = bench.events.lock().unwrap().iter().filter(|e| matches!(e, NetEvent::Closed { .. })).count();
    assert_eq!(closed, opened, "half-open connections stay for ever");
}

#[test]
fn other_senders_and_receivers_are_ignored() {
    let mut bench = Bench::new(DefaultVerdict::Public, &["localhost"]);
    let link = LinkConfig::default();
    let data = udp((link.guest_v4.into(), 5000), (link.gateway_v4.into(), 53), b"x").unwrap();
    for source in ["198.18.92.9", "127.0.0.1", "0.0.0.0", "255.255.255.255"] {
        bench.send(&ip_frame(&link, source.parse().unwrap(), link.gateway_v4.into(), IpProtocol::Udp, &data));
    }
    for to in ["224.0.0.251", "255.255.255.255", "0.0.0.0"] {
        bench.send(&ip_frame(&link, link.guest_v4.into(), to.parse().unwrap(), IpProtocol::Udp, &data));
    }
    let good = ip_frame(&link, link.guest_v4.into(), link.gateway_v4.into(), IpProtocol::Udp, &data);
    let mut elsewhere = good.clone();
    elsewhere[..6].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
    bench.send(&elsewhere);
    let mut damaged = good;
    damaged[14 + 8] ^= 1;
    bench.send(&damaged);
    assert!(bench.turns().is_empty() && bench.events.lock().unwrap().is_empty());
    bench.check_alive();
}

/// Frames that get past the first checks, with everything behind them arbitrary.
fn plausible_frame() -> impl Strategy<Value = Vec<u8>> {
    let link = LinkConfig::default();
    let ends = prop_oneof![
        4 => Just((IpAddr::V4(link.guest_v4), IpAddr::V4(link.gateway_v4))),
        2 => Just((IpAddr::V6(link.guest_v6), IpAddr::V6(link.gateway_v6))),
        1 => Just((IpAddr::V4(link.guest_v4), IpAddr::from([127, 0, 0, 1]))),
        1 => Just((IpAddr::V6(link.guest_v6), IpAddr::V6("ff02::1".parse().unwrap()))),
    ];
    let protocol = prop_oneof![
        4 => Just(IpProtocol::Tcp),
        2 => Just(IpProtocol::Udp),
        2 => Just(IpProtocol::Icmp),
        2 => Just(IpProtocol::Icmpv6),
        1 => Just(IpProtocol::Ipv6Frag),
        1 => any::<u8>().prop_map(IpProtocol::from),
    ];
    let port = prop_oneof![Just(53u16), Just(9u16), Just(5000u16), any::<u16>()];
    let bytes = proptest::collection::vec(any::<u8>(), 0..80);
    (ends, protocol, port, bytes, any::<u8>()).prop_map(move |((from, to), protocol, port, mut bytes, flags)| {
        if bytes.len() >= 20 && protocol == IpProtocol::Tcp {
            bytes[0..4].copy_from_slice(&[0x13, 0x88, (port >> 8) as u8, port as u8]);
            bytes[12] = 0x50 | bytes[12] & 0x20;
            bytes[13] = flags & 0x1f;
        } else if bytes.len() >= 8 && protocol == IpProtocol::Udp {
            bytes[2..4].copy_from_slice(&port.to_be_bytes());
            let length = bytes.len() as u16;
            bytes[4..6].copy_from_slice(&length.to_be_bytes());
        }
        ip_frame(&link, from, to, protocol, &bytes)
    })
}

/// A conversation on one connection in which every number may be a bit off.
fn segments() -> impl Strategy<Value = Vec<(u8, i32, i32, u16, usize)>> {
    let offset = prop_oneof![Just(0i32), -3i32..3, any::<i32>()];
    let window = prop_oneof![Just(0u16), Just(65_535), any::<u16>()];
    proptest::collection::vec((0u8..32, offset.clone(), offset, window, 0usize..1400), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn no_frames_break_the_engine(
        frames in proptest::collection::vec(
            prop_oneof![
                3 => plausible_frame(),
                1 => proptest::collection::vec(any::<u8>(), 0..120),
                1 => (any::<u16>(), proptest::collection::vec(any::<u8>(), 0..100))
                    .prop_map(|(kind, payload)| frame(&LinkConfig::default(), kind, &payload)),
            ],
            1..60,
        )
    ) {
        let mut bench = Bench::new(DefaultVerdict::AllowList, &["localhost"]);
        for frame in &frames {
            bench.send(frame);
        }
        bench.turns();
        bench.now += Duration::from_secs(3);
        bench.check_alive();
    }

    #[test]
    fn no_conversation_breaks_a_connection_for_others(all in segments()) {
        let mut bench = Bench::new(DefaultVerdict::AllowList, &["localhost"]);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let link = LinkConfig::default();
        let send = |bench: &mut Bench, segment: &[u8]| {
            let (from, to) = (link.guest_v4.into(), link.gateway_v4.into());
            bench.send(&ip_frame(&link, from, to, IpProtocol::Tcp, segment));
        };
        send(&mut bench, &tcp_segment(5000, port, 99, 0, 2, 60_000, &[]));
        let mut answer = None;
        for _ in 0..500 {
            if let Some(frame) = bench.turns().iter().find(|f| f.get(47) == Some(&0x12)) {
                answer = Some(u32::from_be_bytes([frame[38], frame[39], frame[40], frame[41]]));
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let (mut server, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut server, &[5; 20_000]).unwrap();
        let (mut sequence, acknowledged) = (100u32, answer.unwrap().wrapping_add(1));
        send(&mut bench, &tcp_segment(5000, port, sequence, acknowledged, 0x10, 60_000, &[]));
        for (flags, off, ack_off, window, length) in all {
            let data = vec![7; length];
            let (s, a) = (sequence.wrapping_add_signed(off), acknowledged.wrapping_add_signed(ack_off));
            send(&mut bench, &tcp_segment(5000, port, s, a, flags, window, &data));
            bench.turns();
            if off == 0 {
                sequence = sequence.wrapping_add(length as u32);
            }
            if length % 3 == 0 {
                bench.now += Duration::from_millis(400);
                bench.turns();
            }
        }
        bench.check_alive();
    }
}

/// A segment that was to be repeated while the link was full was never repeated: the connection stood still for ever.
#[test]
fn a_segment_that_is_lost_is_repeated_though_the_link_was_full_when_that_was_noticed() {
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    const WINDOW: u16 = 60_000;
    let mut bench = Bench::new(DefaultVerdict::AllowList, &["localhost"]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || while std::io::Write::write_all(&mut stream, &[7; 4096]).is_ok() {});
        }
    });
    let link = LinkConfig::default();
    let segment = |from: u16, sequence: u32, ack: u32, flags: u8| {
        let data = tcp_segment(from, port, sequence, ack, flags, WINDOW, &[]);
        ip_frame(&link, link.guest_v4.into(), link.gateway_v4.into(), IpProtocol::Tcp, &data)
    };
    let number = |frame: &[u8]| u32::from_be_bytes(frame[38..42].try_into().unwrap());
    let is_for = |frame: &[u8], port: u16| frame[36..38] == port.to_be_bytes();
    let connect = |bench: &mut Bench, from: u16| {
        bench.send(&segment(from, 100, 0, SYN));
        for _ in 0..1000 {
            if let Some(reply) = bench.turns().iter().find(|f| is_for(f, from)) {
                return number(reply).wrapping_add(1);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("no answer");
    };
    // More than the link has room for.
    let others: Vec<_> = (2000..2024).map(|from| (from, connect(&mut bench, from))).collect();
    let first = connect(&mut bench, 1000);
    bench.send(&segment(1000, 101, first, ACK));
    let mut got = 0;
    for _ in 0..1000 {
        got += bench.turns().iter().filter(|f| is_for(f, 1000)).map(|f| f.len() - 54).sum::<usize>();
        if got >= usize::from(WINDOW) {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(got, usize::from(WINDOW), "all that the window allows");
    let mut events = mio::Events::with_capacity(64);
    for (from, first) in others {
        bench.send(&segment(from, 101, first, ACK));
    }
    for _ in 0..100 {
        bench.poll.poll(&mut events, Some(Duration::from_millis(1))).unwrap();
        events.iter().for_each(|event| bench.engine.on_event(event));
        bench.engine.turn(bench.now);
    }
    assert!(!bench.engine.core.guest.port.has_room(), "the link is full");
    for _ in 0..4 {
        bench.link.send(&segment(1000, 101, first, ACK)).unwrap();
        bench.engine.turn(bench.now);
    }
    let mut repeated = false;
    for _ in 0..3 {
        repeated |= bench.turns().iter().any(|f| is_for(f, 1000) && f.len() > 54 && number(f) == first);
        bench.now += Duration::from_secs(3);
    }
    assert!(repeated);
}
