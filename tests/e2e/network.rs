//! A network of the command's own on the host: what the policy opens works, and nothing else does.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use crate::services::{PROBE, PYTHON, datagrams, service};
use crate::world::{World, wait};

/// Runs the probe on the host with these options; standard output.
fn probe(world: &World, options: &[&str], targets: &[(&str, &str, u16)]) -> String {
    let ports: Vec<String> = targets.iter().map(|target| target.2.to_string()).collect();
    let mut args = vec!["run", "--executor", "host"];
    args.extend(options);
    args.extend(["--", PYTHON, "-ISc", PROBE]);
    for ((kind, host, _), port) in targets.iter().zip(&ports) {
        args.extend([*kind, *host, port.as_str()]);
    }
    world.pvisor(&args).expect(0).stdout()
}

#[test]
fn what_is_allowed_is_reached_and_nothing_else_is() {
    let world = World::new();
    let (open, shut) = (service("127.0.0.1:0").port(), service("127.0.0.1:0").port());
    let six = service("[::1]:0").port();
    let udp = datagrams();
    let rules = [open, six, udp].map(|port| format!("localhost:{port}"));
    let mut options = Vec::new();
    for rule in &rules {
        options.extend(["--overlaynet-allow", rule]);
    }
    let gateway = "198.18.92.1";
    for preset in [&[][..], &["--filesystem", "sandbox"], &["--safe"]] {
        let told = probe(
            &world,
            &[&options, preset].concat(),
            &[
                ("tcp", "host.pvisor.internal", open),
                ("tcp", gateway, open),
                ("tcp", "fd70:7669:736f:7200::1", six),
                ("udp", gateway, udp),
                ("tcp", "127.0.0.1", open),
                ("tcp", gateway, shut),
                ("tcp", "fd70:7669:736f:7200::1", shut),
                ("udp", gateway, shut),
                ("tcp", "169.254.169.254", 80),
                ("tcp", "1.1.1.1", 443),
                ("udp", "8.8.8.8", 53),
                ("tcp", "example.com", 443),
            ],
        );
        assert_eq!((told.matches("heard ping").count(), told.matches("failed").count()), (4, 8), "{preset:?}: {told}");
        let sandboxed = !preset.is_empty();
        let status = world.status();
        assert_eq!(status["safety"]["network_non_bypassable"], sandboxed, "{status:#}");
        let log = world.pvisor(&["logs", "--network"]).expect(0).stdout();
        for line in [
            format!("opened tcp to host.pvisor.internal {gateway}:{open}: allowed by localhost:{open}"),
            format!("{gateway}:{udp}: "),
            "denied tcp to 169.254.169.254:80: ".to_owned(),
            "denied name example.com (A): not in the allow list".to_owned(),
        ] {
            assert!(log.contains(&line), "{line} is not in\n{log}");
        }
    }
    world.assert_nothing_left();
}

#[test]
fn deny_beats_allow_and_a_limit_holds() {
    let world = World::new();
    let (one, two) = (service("127.0.0.1:0").port(), service("127.0.0.1:0").port());
    let deny = format!("localhost:{two}");
    let options = ["--overlaynet-allow", "localhost", "--overlaynet-deny", &deny, "--overlaynet-limit", "1M"];
    let told = probe(&world, &options, &[("tcp", "198.18.92.1", one), ("tcp", "198.18.92.1", two)]);
    assert_eq!((told.matches("heard ping").count(), told.matches("failed").count()), (1, 1), "{told}");
    let receipts = world.status()["receipts"].to_string();
    assert!(receipts.contains(&format!("denied: {deny}; 1048576 bytes a second")), "{receipts}");
}

/// A resolver of the caller's choice, a raw socket, another address of its own, a new network namespace.
#[test]
fn the_policy_can_not_be_walked_around() {
    let world = World::new();
    let spy = UdpSocket::bind("0.0.0.0:0").unwrap();
    spy.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let port = spy.local_addr().unwrap().port();
    let script = format!(
        r#"
import ctypes, socket
def attempt(what, do):
    try: do(); print(what, 'worked')
    except OSError as e: print(what, 'refused')
def send(host):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'leak', (host, {port})); s.settimeout(0.3); s.recv(1)
attempt('own address', lambda: socket.socket().bind(('10.1.2.3', 0)))
attempt('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt('vsock', lambda: socket.socket(40, socket.SOCK_STREAM).connect((2, 1)))
attempt('namespace', lambda: ctypes.CDLL(None).unshare(0x40000000) and (_ for _ in ()).throw(OSError()))
attempt('gateway', lambda: send('198.18.92.1'))
attempt('host', lambda: send('127.0.0.1'))
attempt('broadcast', lambda: send('255.255.255.255'))
"#
    );
    let args = ["run", "--executor", "host", "--overlaynet-allow", "crates.io", "--", PYTHON, "-c", &script];
    let told = world.pvisor(&args).expect(0).stdout();
    assert_eq!((told.matches("refused").count(), told.contains("worked")), (8, false), "{told}");
    assert!(spy.recv(&mut [0; 8]).is_err(), "a datagram reached the host");
}

#[test]
fn a_published_port_leads_into_the_run() {
    let world = World::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let script = "import socket; s = socket.create_server(('', 80 + 8000)); c, _ = s.accept(); c.sendall(b'from inside: ' + c.recv(9)); c.close()";
    let publish = format!("{port}:8080");
    let args = ["run", "--executor", "host", "--publish", &publish, "--", PYTHON, "-c", script];
    let child = world.std_command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut answer = String::new();
    for _ in 0..500 {
        // Until somebody listens inside, the connection is refused or broken off.
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port))
            && stream.write_all(b"hello").is_ok()
            && stream.read_to_string(&mut answer).is_ok()
            && !answer.is_empty()
        {
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    let done = wait(child).expect(0);
    assert_eq!(answer, "from inside: hello", "{done}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let publish = format!("{}:80", taken.local_addr().unwrap().port());
    let args = ["run", "--executor", "host", "--publish", &publish, "--", "true"];
    world.pvisor(&args).expect(125).says(&["publish 127.0.0.1", "in use", "another port"]);
}

#[test]
fn bad_rules_are_refused_by_name() {
    let world = World::new();
    for (option, bad) in [
        ("--overlaynet-allow", "http://x.org"),
        ("--overlaynet-deny", "x.org:0"),
        ("--overlaynet-allow", "10.0.0.0/33"),
    ] {
        world.pvisor(&world.host_args(&[option, bad], "true")).expect(2).says(&[option, bad, "NAME"]);
    }
    let both = ["--overlaynet-deny-all", "--overlaynet-allow", "x.org"];
    world.pvisor(&world.host_args(&both, "true")).expect(2);
}

/// What a run asks of the network must not depend on how many others there are.
#[test]
fn many_networks_at_once() {
    let world = World::new();
    let port = service("127.0.0.1:0").port();
    let rule = format!("localhost:{port}");
    let target = [("tcp", "198.18.92.1", port)];
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let told = probe(&world, &["--overlaynet-allow", &rule], &target);
                assert!(told.contains("heard ping"), "{told}");
            });
        }
    });
    world.assert_nothing_left();
}
