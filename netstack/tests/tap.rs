//! The kernel's own network stack as the guest: a network namespace behind a TAP device.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod guest;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use guest::{echo, localhost, noise, policy, serve, serve_at};
use pvisor_netstack::{
    Configured, DefaultVerdict, Handle, LinkConfig, NetEvent, NetStack, Publish, StackConfig, Tap, bring_loopback_up,
    configure_interface,
};

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own, whose only way out is the network under test.
struct Sandbox {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    handle: Handle,
    link: LinkConfig,
    ipv6: bool,
    events: Arc<Mutex<Vec<NetEvent>>>,
}

impl Sandbox {
    /// `None`, with the reason on stderr, where namespaces or TAP devices can't be made.
    fn start(mut config: StackConfig, mtu: u16) -> Option<Self> {
        pvisor_netstack::raise_descriptor_limit().unwrap();
        config.link.mtu = mtu;
        let link = config.link.clone();
        let (jobs, work) = mpsc::channel::<Job>();
        let (tell, told) = mpsc::channel();
        let inside = link.clone();
        let thread = std::thread::spawn(move || {
            let made = enter(&inside);
            let usable = made.is_ok();
            tell.send(made).unwrap();
            if usable {
                work.iter().for_each(|job| job());
            }
        });
        let (tap, Configured { ipv6 }) = match told.recv().unwrap() {
            Ok(made) => made,
            Err(error) => {
                eprintln!("not run: {error}");
                return None;
            }
        };
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&events);
        let sink = Arc::new(move |event| sink.lock().unwrap().push(event));
        let handle = NetStack::start_on_tap(config, tap, sink).unwrap();
        Some(Self { jobs: Some(jobs), thread: Some(thread), handle, link, ipv6, events })
    }

    /// Runs something inside and waits for its result.
    fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = mpsc::channel();
        let job = Box::new(move || tell.send(job()).unwrap());
        self.jobs.as_ref().unwrap().send(job).unwrap();
        told.recv().unwrap()
    }

    fn gateway(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.link.gateway_v4.into(), port)
    }

    fn event(&self, what: &str, matches: impl Fn(&NetEvent) -> bool) {
        let start = Instant::now();
        while !self.events.lock().unwrap().iter().any(&matches) {
            assert!(start.elapsed() < Duration::from_secs(60), "never: {what}: {:?}", self.events.lock().unwrap());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn enter(link: &LinkConfig) -> Result<(Tap, Configured), Box<dyn std::error::Error + Send + Sync>> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
    let tap = Tap::create("pv0")?;
    bring_loopback_up()?;
    let configured = configure_interface("pv0", link)?;
    Ok((tap, configured))
}

fn exchange(to: SocketAddr, data: Vec<u8>) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(to)?;
    let mut writer = stream.try_clone()?;
    let sender = std::thread::spawn(move || {
        writer.write_all(&data)?;
        writer.shutdown(std::net::Shutdown::Write)
    });
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    sender.join().unwrap()?;
    Ok(all)
}

#[test]
fn bulk_tcp_with_small_and_large_packets() {
    for mtu in [1500, LinkConfig::TAP_MTU] {
        let Some(sandbox) = Sandbox::start(localhost(), mtu) else { return };
        let port = serve(echo);
        let (to, data) = (sandbox.gateway(port), noise(1, 16 << 20));
        let expected = blake3::hash(&data);
        let back = sandbox.run(move || exchange(to, data)).unwrap();
        assert_eq!(blake3::hash(&back), expected, "mtu {mtu}");
    }
}

#[test]
fn ipv6_and_large_datagrams_in_fragments() {
    let Some(sandbox) = Sandbox::start(localhost(), 1500) else { return };
    let mut ends = vec![(sandbox.link.gateway_v4.into(), IpAddr::from([127, 0, 0, 1]))];
    if sandbox.ipv6 {
        ends.push((sandbox.link.gateway_v6.into(), IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)));
    }
    for (gateway, server) in ends {
        let port = serve_at(server, echo);
        let to = SocketAddr::new(gateway, port);
        assert_eq!(sandbox.run(move || exchange(to, vec![6; 100_000])).unwrap(), [6; 100_000]);
        let socket = UdpSocket::bind((server, 0)).unwrap();
        let to = SocketAddr::new(gateway, socket.local_addr().unwrap().port());
        std::thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while let Ok((n, from)) = socket.recv_from(&mut buffer) {
                socket.send_to(&buffer[..n], from).unwrap();
            }
        });
        for length in [100, 1472, 1473, 5000, 60_000] {
            let back = sandbox.run(move || {
                let any: IpAddr =
                    if to.is_ipv4() { [0, 0, 0, 0].into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
                let socket = UdpSocket::bind((any, 0)).unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                socket.connect(to).unwrap();
                socket.send(&noise(7, length)).unwrap();
                let mut buffer = vec![0; 65_536];
                let n = socket.recv(&mut buffer).unwrap();
                buffer[..n].to_vec()
            });
            assert!(back == noise(7, length), "{to} {length}");
        }
    }
}

#[test]
fn errors_are_what_programs_know() {
    let Some(sandbox) = Sandbox::start(localhost(), 1500) else { return };
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let to = sandbox.gateway(closed);
    let refused = sandbox.run(move || TcpStream::connect(to).unwrap_err().kind());
    assert_eq!(refused, ErrorKind::ConnectionRefused);
    let refused = sandbox.run(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.send(b"x").unwrap();
        socket.recv(&mut [0; 1]).unwrap_err().kind()
    });
    assert_eq!(refused, ErrorKind::ConnectionRefused);
    // Denied at once, not after a time-out: EHOSTUNREACH, and EACCES over IPv6.
    let denied = sandbox.run(|| TcpStream::connect(("8.8.8.8", 443)).unwrap_err().kind());
    assert_eq!(denied, ErrorKind::HostUnreachable);
    if sandbox.ipv6 {
        let denied = sandbox.run(|| TcpStream::connect(("2606:4700::1111", 443)).unwrap_err().kind());
        assert_eq!(denied, ErrorKind::PermissionDenied);
    }
    let denied = sandbox.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect(("8.8.8.8", 443)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.send(b"quic").unwrap();
        socket.recv(&mut [0; 1]).unwrap_err().kind()
    });
    assert_eq!(denied, ErrorKind::HostUnreachable);
    sandbox.event("logged", |e| matches!(e, NetEvent::Denied { flow, .. } if flow.port == Some(443)));
}

#[test]
fn the_hosts_loopback_is_closed_unless_named() {
    let config = StackConfig { policy: policy(DefaultVerdict::Public, &["*"], &[]), ..StackConfig::default() };
    let Some(sandbox) = Sandbox::start(config, 1500) else { return };
    let port = serve(echo);
    for address in
        [sandbox.link.gateway_v4.to_string(), "10.0.2.2".into(), "169.254.1.1".into(), "169.254.169.254".into()]
    {
        let to = SocketAddr::new(address.parse().unwrap(), port);
        let result = sandbox.run(move || TcpStream::connect(to).map(drop).map_err(|e| e.kind()));
        assert_eq!(result, Err(ErrorKind::HostUnreachable), "{to}");
    }
}

#[test]
fn published_ports() {
    let publish = vec![
        Publish { host: "127.0.0.1:0".parse().unwrap(), guest_port: 8080 },
        Publish { host: "127.0.0.1:0".parse().unwrap(), guest_port: 8081 },
    ];
    let Some(sandbox) = Sandbox::start(StackConfig { publish, ..localhost() }, 1500) else { return };
    let (open, closed) = (sandbox.handle.published()[0], sandbox.handle.published()[1]);
    sandbox.run(|| {
        let listener = TcpListener::bind("0.0.0.0:8080").unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || echo(stream));
            }
        });
    });
    let clients: Vec<_> =
        (0..200u64).map(|i| std::thread::spawn(move || (i, exchange(open, noise(i, 2000))))).collect();
    for client in clients {
        let (i, back) = client.join().unwrap();
        assert!(back.unwrap() == noise(i, 2000), "{i}");
    }
    sandbox.event(
        "reported",
        |e| matches!(e, NetEvent::Closed { flow, sent: 2000, received: 2000, .. } if flow.port == Some(8080)),
    );
    // Nobody listens inside: the connection is broken off.
    let mut stream = TcpStream::connect(closed).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).map_err(|e| e.kind()), Err(ErrorKind::ConnectionReset));
}

#[test]
fn an_idle_network_on_a_tap_does_not_wake() {
    let Some(sandbox) = Sandbox::start(localhost(), 1500) else { return };
    let port = serve(echo);
    let to = sandbox.gateway(port);
    let stream = sandbox.run(move || {
        let mut stream = TcpStream::connect(to).unwrap();
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0; 1]).unwrap();
        stream
    });
    // The kernel itself still says a few things about a new interface.
    std::thread::sleep(Duration::from_millis(1500));
    let before = sandbox.handle.wakes();
    std::thread::sleep(Duration::from_secs(2));
    assert!(sandbox.handle.wakes() - before <= 4, "{} wakes in two seconds", sandbox.handle.wakes() - before);
    drop(stream);
}

#[test]
fn forged_sources_and_other_protocols_get_nowhere() {
    let Some(sandbox) = Sandbox::start(localhost(), 1500) else { return };
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let port = server.local_addr().unwrap().port();
    let (us, gateway) = (sandbox.link.guest_v4.octets(), sandbox.link.gateway_v4.octets());
    let sent = sandbox.run(move || {
        use rustix::net::{AddressFamily, Protocol, RawProtocol, SendFlags, SocketType, sendto, socket};
        let raw = RawProtocol::new(255).map(Protocol::from_raw);
        let socket = socket(AddressFamily::INET, SocketType::RAW, raw)?;
        let to = SocketAddr::new(gateway.into(), 0);
        // UDP from somebody else, then SCTP, GRE and IPv6 in IPv4 from us, then UDP from us.
        let mut other = us;
        other[0] = 9;
        for (source, protocol, text) in
            [(other, 17, b"one"), (us, 132, b"two"), (us, 47, b"thr"), (us, 41, b"fou"), (us, 17, b"fiv")]
        {
            let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
            packet.extend([source, gateway].concat());
            packet.extend([5000u16.to_be_bytes(), port.to_be_bytes(), 11u16.to_be_bytes(), [0, 0]].concat());
            packet.extend_from_slice(text);
            sendto(&socket, &packet, SendFlags::empty(), &to)?;
        }
        Ok::<(), rustix::io::Errno>(())
    });
    sent.unwrap();
    let mut buffer = [0; 16];
    let n = server.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..n], b"fiv", "only the last one may arrive");
    assert_eq!(sandbox.events.lock().unwrap().len(), 1);
}

#[test]
fn ping_goes_out_where_the_system_lets_it() {
    // A second namespace stands for the host, since it has a switch of its own for unprivileged ping.
    let outer = std::thread::spawn(|| {
        if let Err(error) = enter(&LinkConfig::default()) {
            return eprintln!("not run: {error}");
        }
        let allowed = |groups: &str| std::fs::write("/proc/sys/net/ipv4/ping_group_range", groups).is_ok();
        if !allowed("0 0") {
            return eprintln!("not run: ping_group_range can't be written");
        }
        let config = StackConfig {
            policy: policy(DefaultVerdict::AllowList, &["127.0.0.1", "127.0.0.9:80"], &[]),
            ..StackConfig::default()
        };
        let mut guest = guest::Guest::start(config);
        let denied = |e: &NetEvent| matches!(e, NetEvent::Denied { flow, .. } if flow.port.is_none());
        guest.ping([127, 0, 0, 1]);
        guest.until("reply", |guest| guest.pinged([127, 0, 0, 1]));
        guest.ping([127, 0, 0, 9]);
        guest.event("a rule about a port is not about ping", denied);
        assert!(allowed("1 0"));
        let mut guest = guest::Guest::start(localhost_by_number());
        guest.ping([127, 0, 0, 1]);
        guest.event("not possible here", |e| matches!(e, NetEvent::Unreachable { .. }));
    });
    outer.join().unwrap();
}

fn localhost_by_number() -> StackConfig {
    StackConfig { policy: policy(DefaultVerdict::AllowList, &["127.0.0.1"], &[]), ..StackConfig::default() }
}
