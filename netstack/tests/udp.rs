//! UDP, ping, and what the policy says by number.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod guest;

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use guest::{Guest, localhost, noise, policy};
use pvisor_netstack::{AddressClass, DefaultVerdict, LinkConfig, NetEvent, Protocol, Reason, StackConfig};
use smoltcp::socket::tcp::State;
use smoltcp::wire::IpAddress;

fn udp_echo(address: IpAddr) -> u16 {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    port
}

fn endpoint(to: SocketAddr) -> (IpAddress, u16) {
    (IpAddress::from(to.ip()), to.port())
}

#[test]
fn datagrams_come_back_over_both_families() {
    let mut guest = Guest::start(localhost());
    let four = guest.gateway(udp_echo([127, 0, 0, 1].into()));
    let six = SocketAddr::new(guest.config.gateway_v6.into(), udp_echo(Ipv6Addr::LOCALHOST.into()));
    let handle = guest.bind_udp(7000);
    for to in [four, six] {
        for length in [0, 1, 1000, 1400] {
            let data = noise(length as u64, length);
            guest.udp(handle).send_slice(&data, endpoint(to)).unwrap();
            guest.until("echo", |guest| guest.udp(handle).can_recv());
            let (back, meta) = guest.udp(handle).recv().unwrap();
            assert_eq!((back, meta.endpoint), (&data[..], endpoint(to).into()));
        }
    }
    assert_eq!(guest.events().iter().filter(|e| matches!(e, NetEvent::Opened { .. })).count(), 2);
}

#[test]
fn large_datagrams_on_a_large_link() {
    let mut config = localhost();
    config.link.mtu = LinkConfig::TAP_MTU;
    let mut guest = Guest::start(config);
    let to = guest.gateway(udp_echo([127, 0, 0, 1].into()));
    let handle = guest.bind_udp(7000);
    let data = noise(1, 65_000);
    guest.udp(handle).send_slice(&data, endpoint(to)).unwrap();
    guest.until("echo", |guest| guest.udp(handle).can_recv());
    assert_eq!(guest.udp(handle).recv().unwrap().0, data);
}

#[test]
fn a_closed_port_is_told() {
    let mut guest = Guest::start(localhost());
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let to = guest.gateway(port);
    let handle = guest.bind_udp(7000);
    guest.link.seen = Some(Vec::new());
    guest.udp(handle).send_slice(b"x", endpoint(to)).unwrap();
    // Ethernet, IPv4, ICMP destination unreachable, port.
    guest.until("unreachable", |guest| {
        guest.link.seen.iter().flatten().any(|f| f.get(23) == Some(&1) && f.get(34..36) == Some(&[3, 3]))
    });
}

#[test]
fn many_ports_make_room_for_each_other() {
    let capacity = pvisor_netstack::Capacity { datagrams: 8, ..Default::default() };
    let mut guest = Guest::start(StackConfig { capacity, ..localhost() });
    let to = guest.gateway(udp_echo([127, 0, 0, 1].into()));
    for port in 0..8 {
        let handle = guest.bind_udp(7000 + port);
        guest.udp(handle).send_slice(b"x", endpoint(to)).unwrap();
        guest.until("echo", |guest| guest.udp(handle).can_recv());
    }
    let ninth = guest.bind_udp(7100);
    guest.udp(ninth).send_slice(b"x", endpoint(to)).unwrap();
    guest.event(
        "refused while all are busy",
        |e| matches!(e, NetEvent::Denied { flow, .. } if flow.decided_by == Reason::Capacity),
    );
    std::thread::sleep(Duration::from_millis(2100));
    guest.udp(ninth).send_slice(b"x", endpoint(to)).unwrap();
    guest.until("a silent one made room", |guest| guest.udp(ninth).can_recv());
}

#[test]
fn addresses_that_no_rule_names_are_denied_by_every_protocol() {
    let open = StackConfig { policy: policy(DefaultVerdict::Public, &[], &[]), ..StackConfig::default() };
    let mut guest = Guest::start(open);
    let gateway = guest.gateway(1).ip();
    let udp = guest.bind_udp(7000);
    for (address, class) in [
        ("127.0.0.1", AddressClass::Loopback),
        ("10.0.2.2", AddressClass::Private),
        ("169.254.169.254", AddressClass::Metadata),
        ("169.254.1.1", AddressClass::LinkLocal),
        ("192.168.0.1", AddressClass::Private),
        ("::ffff:127.0.0.1", AddressClass::Loopback),
        ("fd00::5", AddressClass::Private),
    ] {
        let to = SocketAddr::new(address.parse().unwrap(), 80);
        check_denied(&mut guest, udp, to, class);
    }
    check_denied(&mut guest, udp, SocketAddr::new(gateway, 80), AddressClass::Loopback);
}

#[track_caller]
fn check_denied(guest: &mut Guest, udp: smoltcp::iface::SocketHandle, to: SocketAddr, class: AddressClass) {
    let tcp = guest.connect(to);
    guest.udp(udp).send_slice(b"x", endpoint(to)).unwrap();
    for wanted in [Protocol::Tcp, Protocol::Udp] {
        guest.event("denied", |e| {
            matches!(e, NetEvent::Denied { flow, .. }
                if flow.protocol == wanted && flow.address == to.ip() && flow.decided_by == Reason::Special(class))
        });
    }
    assert_ne!(guest.tcp(tcp).state(), State::Established);
    guest.sockets.remove(tcp);
}

#[test]
fn the_hosts_own_addresses_are_denied_too() {
    let open = StackConfig { policy: policy(DefaultVerdict::Public, &["*"], &[]), ..StackConfig::default() };
    let mut guest = Guest::start(open);
    let own: Vec<IpAddr> = nix::ifaddrs::getifaddrs()
        .unwrap()
        .filter_map(|i| i.address.and_then(|a| a.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()))))
        .collect();
    assert!(!own.is_empty());
    for address in own {
        let tcp = guest.connect(SocketAddr::new(address, 80));
        guest.event("denied", |e| {
            matches!(e, NetEvent::Denied { flow, .. }
                if flow.address == address && flow.decided_by == Reason::Special(AddressClass::Loopback))
        });
        guest.sockets.remove(tcp);
    }
}

#[test]
fn the_gateway_answers_ping() {
    let mut guest = Guest::start(localhost());
    let gateway = guest.config.gateway_v4.octets();
    guest.ping(gateway);
    guest.until("reply", |guest| guest.pinged(gateway));
}

#[test]
fn a_limit_holds_in_both_directions() {
    use std::time::Instant;
    let mut config = localhost();
    config.policy.limit = std::num::NonZeroU64::new(4 << 20);
    let mut guest = Guest::start(config);
    let port = guest::serve(guest::echo);
    let to = guest.gateway(port);
    let handle = guest.connected(to);
    let start = Instant::now();
    let data = noise(3, 3 << 20);
    assert!(guest.exchange(handle, &data) == data);
    // 3 MiB less the burst of 1 MiB at 4 MiB a second: by no schedule faster than this.
    assert!(start.elapsed() >= Duration::from_millis(480), "{:?}", start.elapsed());
}
