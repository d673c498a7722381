//! The guest's network: what the policy opens works, and nothing else does.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::sandbox::{PATIENCE, Sandbox, finish, spawn, stdout, text, wait};
use crate::services::{PROBE, PYTHON, datagrams, service};

fn probe(sandbox: &Sandbox, options: &[&str], targets: &[(&str, &str, u16)]) -> String {
    let mut command: Vec<String> = [PYTHON, "-ISc", PROBE].map(String::from).to_vec();
    for (kind, host, port) in targets {
        command.extend([(*kind).to_owned(), (*host).to_owned(), port.to_string()]);
    }
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let out = finish(sandbox.krun(options, &command));
    assert!(out.status.success(), "{}", text(&out));
    stdout(&out)
}

/// The flows that the run logged.
fn flows(sandbox: &Sandbox) -> Vec<Value> {
    let id = sandbox.status()["id"].as_str().unwrap().to_owned();
    let log = fs::read_to_string(sandbox.path().join("runs").join(id).join("events.jsonl")).unwrap_or_default();
    log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn nothing_of_the_host_or_its_networks_is_reached_unasked() {
    let sandbox = Sandbox::new();
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let hosts = ["127.0.0.1", "198.18.92.1", "10.0.2.2", "169.254.169.254", "192.168.127.1", "fd70:7669:736f:7200::1"];
    let targets: Vec<_> = hosts.iter().map(|host| ("tcp", *host, port)).collect();
    let told = probe(&sandbox, &[], &targets);
    assert_eq!(told.matches("failed").count(), hosts.len(), "{told}");
    assert_eq!(sandbox.status()["safety"]["network_non_bypassable"], true);
    let denied = flows(&sandbox).iter().filter(|flow| flow["event"] == "denied").count();
    // All but the guest's own loopback came to the policy.
    assert_eq!(denied, hosts.len() - 1, "{:#?}", flows(&sandbox));
    let told = probe(&sandbox, &["--overlaynet-deny-all"], &targets);
    assert_eq!(told.matches("failed").count(), hosts.len(), "{told}");
    assert_eq!(sandbox.status()["safety"]["network_non_bypassable"], true);
    assert!(listener.accept().is_err(), "something reached the host");
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn what_is_allowed_is_reached_by_name_and_by_address_and_nothing_else_is() {
    let sandbox = Sandbox::new();
    let (open, shut) = (service("127.0.0.1:0").port(), service("127.0.0.1:0").port());
    let udp = datagrams();
    let allow = [format!("localhost:{open}"), format!("localhost:{udp}")];
    let told = probe(
        &sandbox,
        &["--overlaynet-allow", &allow[0], "--overlaynet-allow", &allow[1]],
        &[
            ("tcp", "host.pvisor.internal", open),
            ("tcp", "198.18.92.1", open),
            ("udp", "198.18.92.1", udp),
            ("tcp", "198.18.92.1", shut),
            ("tcp", "host.pvisor.internal", shut),
            ("udp", "198.18.92.1", shut),
            ("tcp", "example.com", 80),
            ("udp", "8.8.8.8", 53),
        ],
    );
    assert_eq!(told.matches("heard ping").count(), 3, "{told}");
    assert_eq!(told.matches("failed").count(), 5, "{told}");
    let flows = flows(&sandbox);
    let by_name = flows.iter().find(|flow| flow["event"] == "closed" && flow["flow"]["name"] == "host.pvisor.internal");
    assert_eq!(by_name.map(|flow| (flow["sent"].as_u64(), flow["received"].as_u64())), Some((Some(4), Some(10))));
    assert!(flows.iter().any(|flow| flow["event"] == "name_denied" && flow["name"] == "example.com"), "{flows:#?}");
    let receipts = sandbox.status()["receipts"].to_string();
    assert!(receipts.contains(&format!("allowed: localhost:{open}")), "{receipts}");
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn a_published_port_leads_into_the_guest() {
    let sandbox = Sandbox::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let script = "import _socket as k\ns = k.socket(k.AF_INET, k.SOCK_STREAM); s.bind(('', 8080)); s.listen()\nc = k.socket(fileno=s._accept()[0])\nc.send(b'from the guest: ' + c.recv(100)); c.close()";
    let publish = format!("{port}:8080");
    let child = spawn(sandbox.krun(&["--publish", &publish], &[PYTHON, "-ISc", script]));
    let asked = thread::spawn(move || {
        let mut answer = String::new();
        let deadline = Instant::now() + PATIENCE;
        while answer.is_empty() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(200));
            // Until the guest listens, the connection is taken and broken off again.
            if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let _ = stream.write_all(b"hello").and_then(|()| stream.read_to_string(&mut answer));
            }
        }
        answer
    });
    let out = wait(child);
    // Without the run nobody answers any more, or at once.
    assert!(out.status.success(), "{}", text(&out));
    assert_eq!(asked.join().unwrap(), "from the guest: hello", "{}", text(&out));
}
