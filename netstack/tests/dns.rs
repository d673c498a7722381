//! Names: a guest asks, a fake name server on loopback answers, the policy stands in between.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod guest;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};

use guest::{Guest, echo, policy, serve};
use pvisor_netstack::{DefaultVerdict, NetEvent, Policy, Reason, StackConfig, Upstream};
use smoltcp::socket::tcp::State;
use smoltcp::wire::IpAddress;

const A: u16 = 1;
const TXT: u16 = 16;
const AAAA: u16 = 28;
const HTTPS: u16 = 65;
const ANY: u16 = 255;

/// What the fake server does with a question.
#[derive(Clone)]
enum Script {
    Addresses(Vec<IpAddr>),
    /// An alias to this name, which has these addresses.
    Alias(&'static str, Vec<IpAddr>),
    Text(&'static str),
    Code(u8),
    /// Truncated over UDP; over TCP this many addresses.
    Truncated(u8),
    /// Bytes that are no answer.
    Garbage,
    /// First an answer with another id, then one to another question, then the right one.
    Forged(IpAddr),
    Silence,
}

type Zone = Arc<dyn Fn(&str, u16) -> Script + Send + Sync>;

struct Server {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<(String, u16)>>>,
}

fn wire_name(text: &str) -> Vec<u8> {
    let mut wire = Vec::new();
    for label in text.split('.') {
        wire.push(label.len() as u8);
        wire.extend_from_slice(label.as_bytes());
    }
    wire.push(0);
    wire
}

/// Name, kind and end of the question.
fn question(query: &[u8]) -> (String, u16, usize) {
    let (mut at, mut labels) = (12, Vec::new());
    while query[at] != 0 {
        let end = at + 1 + query[at] as usize;
        labels.push(String::from_utf8_lossy(&query[at + 1..end]).into_owned());
        at = end;
    }
    (labels.join("."), u16::from_be_bytes([query[at + 1], query[at + 2]]), at + 5)
}

fn record(owner: &[u8], kind: u16, data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u16).to_be_bytes();
    [owner, &kind.to_be_bytes(), &[0, 1, 0, 0, 0, 30], &length, data].concat()
}

fn reply(query: &[u8], code: u8, truncated: bool, records: &[Vec<u8>]) -> Vec<u8> {
    let (_, _, end) = question(query);
    let mut message = query[..end].to_vec();
    message[2] = 0x81 | if truncated { 2 } else { 0 };
    message[3] = 0x80 | code;
    message[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
    message[8..12].fill(0);
    message.extend(records.concat());
    message
}

fn addresses(owner: &[u8], kind: u16, all: &[IpAddr]) -> Vec<Vec<u8>> {
    let data = |address: &IpAddr| match address {
        IpAddr::V4(a) if kind == A => Some(a.octets().to_vec()),
        IpAddr::V6(a) if kind == AAAA => Some(a.octets().to_vec()),
        _ => None,
    };
    all.iter().filter_map(data).map(|data| record(owner, kind, &data)).collect()
}

fn answers(query: &[u8], script: &Script, tcp: bool) -> Vec<Vec<u8>> {
    let (_, kind, _) = question(query);
    let own = [0xc0, 12];
    match script {
        Script::Addresses(all) => vec![reply(query, 0, false, &addresses(&own, kind, all))],
        Script::Alias(target, all) => {
            let target = wire_name(target);
            let mut records = vec![record(&own, 5, &target)];
            records.extend(addresses(&target, kind, all));
            vec![reply(query, 0, false, &records)]
        }
        Script::Text(text) => {
            let data = [&[text.len() as u8], text.as_bytes()].concat();
            vec![reply(query, 0, false, &[record(&own, TXT, &data)])]
        }
        Script::Code(code) => vec![reply(query, *code, false, &[])],
        Script::Truncated(_) if !tcp => vec![reply(query, 0, true, &[])],
        Script::Truncated(count) => {
            let all: Vec<IpAddr> = (0..*count).map(|i| IpAddr::from([8, 8, 4, i])).collect();
            vec![reply(query, 0, false, &addresses(&own, kind, &all))]
        }
        Script::Garbage => vec![vec![0xff; 40]],
        Script::Forged(address) => {
            let good = reply(query, 0, false, &addresses(&own, kind, &[*address]));
            let bad = reply(query, 0, false, &addresses(&own, kind, &[IpAddr::from([6, 6, 6, 6])]));
            let mut other_id = bad.clone();
            other_id[0] ^= 0xff;
            let mut other_name = bad;
            other_name[13] ^= 1;
            vec![other_id, other_name, good]
        }
        Script::Silence => Vec::new(),
    }
}

fn name_server(zone: Zone) -> Server {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = udp.local_addr().unwrap();
    let tcp = TcpListener::bind(address).unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (seen, zone_tcp) = (Arc::clone(&asked), Arc::clone(&zone));
    std::thread::spawn(move || {
        let mut query = [0; 4096];
        while let Ok((length, from)) = udp.recv_from(&mut query) {
            let (name, kind, _) = question(&query[..length]);
            seen.lock().unwrap().push((name.clone(), kind));
            for answer in answers(&query[..length], &zone(&name, kind), false) {
                udp.send_to(&answer, from).unwrap();
            }
        }
    });
    std::thread::spawn(move || {
        for mut stream in tcp.incoming().map_while(Result::ok) {
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let mut query = vec![0; u16::from_be_bytes(length) as usize];
            stream.read_exact(&mut query).unwrap();
            let (name, kind, _) = question(&query);
            for answer in answers(&query, &zone_tcp(&name, kind), true) {
                stream.write_all(&(answer.len() as u16).to_be_bytes()).unwrap();
                stream.write_all(&answer).unwrap();
            }
        }
    });
    Server { address, asked }
}

fn start(policy: Policy, zone: impl Fn(&str, u16) -> Script + Send + Sync + 'static) -> (Guest, Server) {
    let server = name_server(Arc::new(zone));
    let upstream = Upstream::Servers(vec![server.address]);
    (Guest::start(StackConfig { policy, upstream, ..StackConfig::default() }), server)
}

fn query(id: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut message = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    message[..2].copy_from_slice(&id.to_be_bytes());
    message.extend(wire_name(name));
    message.extend_from_slice(&kind.to_be_bytes());
    message.extend_from_slice(&[0, 1]);
    message
}

/// Code, truncation and the addresses of an answer.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    code: u8,
    truncated: bool,
    addresses: Vec<IpAddr>,
    bytes: Vec<u8>,
}

fn read_answer(bytes: &[u8]) -> Answer {
    let (_, _, mut at) = question(bytes);
    let mut found = Vec::new();
    for _ in 0..u16::from_be_bytes([bytes[6], bytes[7]]) {
        while bytes[at] != 0 && bytes[at] < 0xc0 {
            at += 1 + bytes[at] as usize;
        }
        at += if bytes[at] == 0 { 1 } else { 2 };
        let length = u16::from_be_bytes([bytes[at + 8], bytes[at + 9]]) as usize;
        let data = &bytes[at + 10..at + 10 + length];
        match u16::from_be_bytes([bytes[at], bytes[at + 1]]) {
            A => found.push(<[u8; 4]>::try_from(data).unwrap().into()),
            AAAA => found.push(<[u8; 16]>::try_from(data).unwrap().into()),
            _ => {}
        }
        at += 10 + length;
    }
    Answer { code: bytes[3] & 15, truncated: bytes[2] & 2 != 0, addresses: found, bytes: bytes.to_vec() }
}

#[track_caller]
fn ask_raw(guest: &mut Guest, to: SocketAddr, message: &[u8]) -> Vec<u8> {
    let handle = guest.bind_udp(5300);
    guest.udp(handle).send_slice(message, (IpAddress::from(to.ip()), to.port())).unwrap();
    guest.until("answer", |guest| guest.udp(handle).can_recv());
    let answer = guest.udp(handle).recv().unwrap().0.to_vec();
    guest.sockets.remove(handle);
    answer
}

#[track_caller]
fn ask(guest: &mut Guest, name: &str, kind: u16) -> Answer {
    let to = guest.gateway(53);
    let answer = ask_raw(guest, to, &query(77, name, kind));
    assert_eq!(answer[..2], 77u16.to_be_bytes());
    read_answer(&answer)
}

fn listed(allow: &[&str]) -> Policy {
    policy(DefaultVerdict::AllowList, allow, &[])
}

#[test]
fn an_allowed_name_opens_its_address_and_nothing_else_does() {
    // The address has to be one that we can serve, so the rule also names it; the port tells the two rules apart.
    let port = serve(echo);
    let rules = [format!("api.test:{port}"), "127.0.0.1:1".to_owned()];
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    let (mut guest, server) = start(listed(&rules), |_, _| Script::Addresses(vec![[93, 184, 216, 34].into()]));
    let direct = guest.connect(SocketAddr::from(([93, 184, 216, 34], port)));
    guest.event(
        "denied by number",
        |e| matches!(e, NetEvent::Denied { flow, .. } if flow.decided_by == Reason::NotListed && flow.name.is_none()),
    );
    guest.tcp(direct).abort();
    let answer = ask(&mut guest, "API.test", A);
    assert_eq!((answer.code, answer.addresses), (0, vec![IpAddr::from([93, 184, 216, 34])]));
    assert_eq!(server.asked.lock().unwrap()[..], [("API.test".to_owned(), A)]);
    // Nothing is sent to that address here, so only the refusal of another port can be looked at.
    guest.connect(SocketAddr::from(([93, 184, 216, 34], port ^ 1)));
    let denied =
        guest.event("another port", |e| matches!(e, NetEvent::Denied { flow, .. } if flow.port == Some(port ^ 1)));
    let NetEvent::Denied { flow, .. } = denied else { unreachable!() };
    assert_eq!(flow.name, Some("api.test".parse().unwrap()));
}

#[test]
fn what_is_not_listed_is_refused_and_logged_without_leaving() {
    let (mut guest, server) = start(listed(&["*.good.test"]), |_, _| Script::Addresses(vec![[1, 1, 1, 1].into()]));
    for (name, kind) in [
        ("evil.test", A),
        ("secret-data.evil.test", TXT),
        ("good.test", A),
        ("xgood.test", AAAA),
        ("a.good.test.evil.org", A),
    ] {
        let answer = ask(&mut guest, name, kind);
        assert_eq!((answer.code, answer.addresses.len()), (5, 0), "{name}");
        guest.event(
            "logged",
            |e| matches!(e, NetEvent::NameDenied { name: n, decided_by: Reason::NotListed, .. } if n == name),
        );
    }
    assert!(server.asked.lock().unwrap().is_empty());
    assert_eq!(ask(&mut guest, "a.good.test", A).code, 0);
    assert_eq!(server.asked.lock().unwrap().len(), 1);
}

#[test]
fn an_empty_list_and_deny_all_resolve_nothing() {
    for default in [DefaultVerdict::AllowList, DefaultVerdict::DenyAll] {
        let (mut guest, server) = start(policy(default, &[], &[]), |_, _| Script::Code(0));
        for name in ["example.test", "host.pvisor.internal"] {
            assert_eq!(ask(&mut guest, name, A).code, 5, "{name}");
        }
        assert!(server.asked.lock().unwrap().is_empty());
    }
}

#[test]
fn rebinding_is_taken_out_of_answers() {
    let hostile: Vec<IpAddr> =
        ["127.0.0.1", "169.254.169.254", "10.0.0.1", "0.0.0.0", "192.168.1.1", "100.100.100.200", "8.8.8.8"]
            .iter()
            .map(|a| a.parse().unwrap())
            .collect();
    let six: Vec<IpAddr> = ["::1", "fe80::1", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2606:4700::1111"]
        .iter()
        .map(|a| a.parse().unwrap())
        .collect();
    let all = [hostile.clone(), six].concat();
    let open = policy(DefaultVerdict::Public, &["intra.test"], &[]);
    let (mut guest, _server) = start(open, move |_, _| Script::Addresses(all.clone()));
    assert_eq!(ask(&mut guest, "evil.test", A).addresses, [IpAddr::from([8, 8, 8, 8])]);
    assert_eq!(ask(&mut guest, "evil.test", AAAA).addresses, ["2606:4700::1111".parse::<IpAddr>().unwrap()]);
    for dropped in &hostile[..6] {
        guest.event("reported", |e| matches!(e, NetEvent::AnswerDropped { address, .. } if address == dropped));
    }
    // A name that a rule spells out may be on the site's own network, never on the host or the metadata service.
    let intra = ask(&mut guest, "intra.test", A).addresses;
    assert_eq!(intra, [hostile[2], hostile[4], hostile[6]]);
}

#[test]
fn a_rebound_name_does_not_open_the_loopback() {
    let port = serve(echo);
    let rule = format!("evil.test:{port}");
    let (mut guest, _server) = start(listed(&[&rule]), |_, _| Script::Addresses(vec![[127, 0, 0, 1].into()]));
    assert!(ask(&mut guest, "evil.test", A).addresses.is_empty());
    let gateway = guest.gateway(port);
    for to in [SocketAddr::from(([127, 0, 0, 1], port)), gateway] {
        let handle = guest.connect(to);
        guest.event("denied", |e| matches!(e, NetEvent::Denied { flow, .. } if flow.address == to.ip()));
        guest.settle();
        assert_ne!(guest.tcp(handle).state(), State::Established, "{to}");
    }
}

#[test]
fn a_denied_alias_on_the_way_denies_the_name() {
    let zone = |_: &str, _| Script::Alias("cdn.bad.test", vec![[8, 8, 8, 8].into()]);
    let (mut guest, _server) = start(policy(DefaultVerdict::Public, &[], &["*.bad.test"]), zone);
    assert_eq!(ask(&mut guest, "innocent.test", A).code, 5);
    assert_eq!(ask(&mut guest, "cdn.bad.test", A).code, 5);
    let (mut guest, _server) = start(policy(DefaultVerdict::Public, &[], &[]), zone);
    assert_eq!(ask(&mut guest, "innocent.test", A).addresses, [IpAddr::from([8, 8, 8, 8])]);
}

#[test]
fn kinds_of_queries() {
    let zone = |_: &str, kind| match kind {
        TXT => Script::Text("hello"),
        _ => Script::Code(3),
    };
    let (mut guest, server) = start(listed(&["good.test"]), zone);
    let text = ask(&mut guest, "good.test", TXT);
    assert!(text.code == 0 && text.bytes.windows(5).any(|w| w == b"hello"), "a listed zone may have texts");
    assert_eq!(ask(&mut guest, "good.test", A).code, 3, "no such name");
    assert_eq!(ask(&mut guest, "good.test", ANY).code, 4);
    let https = ask(&mut guest, "good.test", HTTPS);
    assert_eq!((https.code, https.bytes[7]), (0, 0), "no record, so that addresses are asked for");
    assert_eq!(server.asked.lock().unwrap().len(), 2);
}

#[test]
fn broken_and_forged_upstream_answers() {
    let zone = |name: &str, _| match name {
        "garbage.test" => Script::Garbage,
        "silent.test" => Script::Silence,
        "refused.test" => Script::Code(5),
        _ => Script::Forged([8, 8, 8, 8].into()),
    };
    let (mut guest, _server) = start(listed(&["*.test"]), zone);
    assert_eq!(ask(&mut guest, "forged.test", A).addresses, [IpAddr::from([8, 8, 8, 8])]);
    assert_eq!(ask(&mut guest, "refused.test", A).code, 5);
    for name in ["garbage.test", "silent.test"] {
        assert_eq!(ask(&mut guest, name, A).code, 2, "{name}");
    }
}

#[test]
fn a_dead_server_is_passed_over() {
    let server = name_server(Arc::new(|_, _| Script::Addresses(vec![[8, 8, 8, 8].into()])));
    let dead = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let upstream = Upstream::Servers(vec![dead, server.address]);
    let mut guest = Guest::start(StackConfig { policy: listed(&["a.test"]), upstream, ..StackConfig::default() });
    assert_eq!(ask(&mut guest, "a.test", A).addresses, [IpAddr::from([8, 8, 8, 8])]);
}

#[test]
fn long_answers_come_by_tcp() {
    let (mut guest, _server) = start(listed(&["many.test"]), |_, _| Script::Truncated(100));
    let short = ask(&mut guest, "many.test", A);
    assert!(short.truncated && short.addresses.is_empty() && short.bytes.len() <= 512);
    let to = guest.gateway(53);
    let handle = guest.connected(to);
    let message = query(5, "many.test", A);
    // Two queries in one write, in pieces that fit nothing.
    let framed = [&(message.len() as u16).to_be_bytes()[..], &message].concat();
    let twice = [&framed[..], &framed].concat();
    let reply = guest.exchange(handle, &twice);
    let length = u16::from_be_bytes([reply[0], reply[1]]) as usize;
    assert_eq!(reply.len(), 2 * (2 + length));
    assert_eq!(read_answer(&reply[2..2 + length]).addresses.len(), 100);
}

#[test]
fn a_long_query_by_tcp_is_cut_off() {
    let (mut guest, _server) = start(listed(&["a.test"]), |_, _| Script::Code(0));
    let to = guest.gateway(53);
    let handle = guest.connected(to);
    guest.tcp(handle).send_slice(&[0xff; 100]).unwrap();
    guest.until("reset", |guest| guest.tcp(handle).state() == State::Closed);
}

#[test]
fn odd_names_and_messages() {
    let (mut guest, server) = start(policy(DefaultVerdict::Public, &[], &[]), |_, _| Script::Code(0));
    for name in ["127.1", "0x7f000001", "evil\0.allowed.test", "a b.test", "%41.test"] {
        assert_eq!(ask(&mut guest, name, A).code, 5, "{name:?}");
    }
    guest.event("escaped", |e| matches!(e, NetEvent::NameDenied { name, .. } if name == "evil\\000.allowed.test"));
    let to = guest.gateway(53);
    let cut = ask_raw(&mut guest, to, &query(1, "a.test", A)[..20]);
    assert_eq!(cut[3] & 15, 1);
    assert!(server.asked.lock().unwrap().is_empty());
}

#[test]
fn the_host_has_a_name_inside() {
    let (mut guest, _server) = start(listed(&["localhost:1"]), |_, _| Script::Code(3));
    let gateway = guest.config.gateway_v4;
    assert_eq!(ask(&mut guest, "host.pvisor.internal", A).addresses, [IpAddr::V4(gateway)]);
    assert_eq!(ask(&mut guest, "localhost", A).addresses, [IpAddr::from([127, 0, 0, 1])]);
}

#[test]
fn another_resolver_is_no_way_around() {
    let resolver = SocketAddr::from(([8, 8, 8, 8], 53));
    // Everything public allowed: our own server answers in its place, with the policy.
    let zone = |_: &str, _| Script::Addresses(vec![[9, 9, 9, 9].into()]);
    let (mut guest, server) = start(policy(DefaultVerdict::Public, &[], &["bad.test"]), zone);
    let refused = ask_raw(&mut guest, resolver, &query(1, "bad.test", A));
    assert_eq!(refused[3] & 15, 5);
    let good = ask_raw(&mut guest, resolver, &query(1, "good.test", A));
    assert_eq!(read_answer(&good).addresses, [IpAddr::from([9, 9, 9, 9])]);
    assert_eq!(server.asked.lock().unwrap().len(), 1);
    // Only what is named: it is refused like any address.
    let (mut guest, server) = start(listed(&["good.test"]), zone);
    let handle = guest.bind_udp(5300);
    guest.udp(handle).send_slice(&query(1, "good.test", A), (IpAddress::from(resolver.ip()), 53)).unwrap();
    guest.event("denied", |e| matches!(e, NetEvent::Denied { flow, .. } if flow.address == resolver.ip()));
    assert!(server.asked.lock().unwrap().is_empty());
}

#[test]
fn more_queries_than_may_wait_fail_at_once() {
    let server = name_server(Arc::new(|_, _| Script::Silence));
    let upstream = Upstream::Servers(vec![server.address]);
    let capacity = pvisor_netstack::Capacity { queries: 4, ..Default::default() };
    let mut guest =
        Guest::start(StackConfig { policy: listed(&["*.test"]), upstream, capacity, ..StackConfig::default() });
    let handle = guest.bind_udp(5300);
    let to = (IpAddress::from(guest.gateway(53).ip()), 53);
    for i in 0..5 {
        guest.udp(handle).send_slice(&query(i, &format!("n{i}.test"), A), to).unwrap();
        // The same query again is one query.
        guest.udp(handle).send_slice(&query(i, &format!("n{i}.test"), A), to).unwrap();
    }
    guest.until("failure", |guest| guest.udp(handle).can_recv());
    let answer = guest.udp(handle).recv().unwrap().0.to_vec();
    assert_eq!((answer[1], answer[3] & 15), (4, 2));
}

#[test]
fn a_fork_knows_where_names_led_its_origin() {
    let zone = |_: &str, _| Script::Addresses(vec![[93, 184, 216, 34].into()]);
    let rules = listed(&["api.test:443"]);
    let (mut guest, _server) = start(rules.clone(), zone);
    ask(&mut guest, "api.test", A);
    let bindings = guest.handle.as_ref().unwrap().bindings();
    assert_eq!(bindings.len(), 1);
    let mut fork = Guest::start(StackConfig { policy: rules, bindings, ..StackConfig::default() });
    fork.connect(SocketAddr::from(([93, 184, 216, 34], 80)));
    let event = fork.event("another port", |e| matches!(e, NetEvent::Denied { .. }));
    let NetEvent::Denied { flow, .. } = event else { unreachable!() };
    assert_eq!(flow.name, Some("api.test".parse().unwrap()));
    fork.handle.take().unwrap().stop();
}

/// A host with a neighbour at 10.77.0.2, both made of network namespaces: the calling thread becomes the host.
#[cfg(target_os = "linux")]
fn neighbour() -> Result<u16, String> {
    use std::process::Command;
    let ip = |args: &str| match Command::new("ip").args(args.split(' ')).output() {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(format!("ip {args}: {}", String::from_utf8_lossy(&done.stderr))),
        Err(error) => Err(format!("ip: {error}")),
    };
    let unshare = || nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).map_err(|e| format!("unshare: {e}"));
    unshare()?;
    ip("link set lo up")?;
    ip("link add v0 type veth peer name v1")?;
    let (tell_task, task) = std::sync::mpsc::channel();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        tell_task.send(unshare().map(|()| nix::unistd::gettid())).unwrap();
        if wait.recv().is_err() {
            return;
        }
        let up = ip("addr add 10.77.0.2/24 dev v1").and_then(|()| ip("link set v1 up"));
        tell.send(up.map(|()| guest::serve_at([10, 77, 0, 2].into(), echo))).unwrap();
    });
    let task = task.recv().map_err(|e| e.to_string())??;
    ip(&format!("link set v1 netns {task}"))?;
    ip("addr add 10.77.0.1/24 dev v0")?;
    ip("link set v0 up")?;
    go.send(()).map_err(|e| e.to_string())?;
    told.recv().map_err(|e| e.to_string())?
}

#[test]
#[cfg(target_os = "linux")]
fn an_allowed_name_opens_its_address_until_it_is_not_allowed() {
    let run = || {
        let port = match neighbour() {
            Ok(port) => port,
            Err(reason) => return eprintln!("not run: {reason}"),
        };
        let rule = format!("intra.test:{port}");
        let zone = |_: &str, _| Script::Alias("host.intra.test", vec![[10, 77, 0, 2].into()]);
        let (mut guest, _server) = start(listed(&[&rule, "*.wild.test"]), zone);
        let to = SocketAddr::from(([10, 77, 0, 2], port));
        let denied = |guest: &mut Guest| {
            let handle = guest.connect(to);
            guest.settle();
            assert_ne!(guest.tcp(handle).state(), State::Established);
            guest.tcp(handle).abort();
        };
        denied(&mut guest);
        assert!(ask(&mut guest, "a.wild.test", A).addresses.is_empty(), "a wildcard leads to no private address");
        denied(&mut guest);
        assert_eq!(ask(&mut guest, "intra.test", A).addresses, [to.ip()]);
        let handle = guest.connected(to);
        assert_eq!(guest.exchange(handle, b"through"), b"through");
        let opened = guest.event("opened", |e| matches!(e, NetEvent::Opened { .. }));
        let NetEvent::Opened { flow } = opened else { unreachable!() };
        assert_eq!((flow.name, flow.address), (Some("intra.test".parse().unwrap()), to.ip()));
        assert_eq!(flow.decided_by, Reason::AllowRule(rule.parse().unwrap()));
        // The same address for a run that denies the name.
        let bindings = guest.handle.as_ref().unwrap().bindings();
        let policy = policy(DefaultVerdict::AllowList, &[&rule], &["intra.test"]);
        let mut guest = Guest::start(StackConfig { policy, bindings, ..StackConfig::default() });
        denied(&mut guest);
        guest.event(
            "by the deny rule",
            |e| matches!(e, NetEvent::Denied { flow, .. } if matches!(flow.decided_by, Reason::DenyRule(_))),
        );
    };
    std::thread::spawn(run).join().unwrap();
}

#[test]
fn a_name_that_nobody_named_is_asked_for_before_it_is_resolved() {
    let policy = Policy { default: DefaultVerdict::AllowList, ask: true, ..Policy::default() };
    let (mut guest, server) = start(policy, |_, _| Script::Addresses(vec![[8, 8, 4, 4].into()]));
    let to = guest.gateway(53);
    let handle = guest.bind_udp(5300);
    for kind in [A, AAAA] {
        guest.udp(handle).send_slice(&query(kind, "new.example", kind), (IpAddress::from(to.ip()), 53)).unwrap();
    }
    let rule: pvisor_netstack::Rule = "new.example".parse().unwrap();
    guest.event("asked", |e| matches!(e, NetEvent::Asked { rule: asked } if *asked == rule));
    guest.settle();
    assert!(server.asked.lock().unwrap().is_empty(), "the question itself would tell the name");
    guest.handle.as_ref().unwrap().answer(rule, true);
    guest.until("answer", |guest| guest.udp(handle).can_recv());
    let answer = read_answer(guest.udp(handle).recv().unwrap().0);
    assert_eq!(answer.code, 0);
    guest.sockets.remove(handle);
    assert_eq!(ask(&mut guest, "new.example", A).addresses, [IpAddr::from([8, 8, 4, 4])]);
    // Other kinds of query are not worth a question.
    assert_eq!(ask(&mut guest, "other.example", TXT).code, 5);
    assert_eq!(ask(&mut guest, "4.4.8.8.in-addr.arpa", A).code, 5);
    assert_eq!(guest.events().iter().filter(|e| matches!(e, NetEvent::Asked { .. })).count(), 1);
}
