//! Destinations that somebody is asked about: what the guest sent waits for the answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod guest;

use std::net::SocketAddr;
use std::time::Duration;

use guest::{Guest, echo, serve};
use pvisor_netstack::{DefaultVerdict, NetEvent, Policy, Reason, Rule, StackConfig};
use smoltcp::socket::tcp::State;

fn start() -> Guest {
    let policy = Policy { default: DefaultVerdict::AllowList, ask: true, ..Policy::default() };
    Guest::start(StackConfig { policy, ..StackConfig::default() })
}

/// Waits for a question about the host's port.
#[track_caller]
fn asked(guest: &mut Guest, port: u16) -> Rule {
    let wanted: Rule = format!("host.pvisor.internal:{port}").parse().unwrap();
    guest.event("asked", |e| matches!(e, NetEvent::Asked { rule } if *rule == wanted));
    wanted
}

fn questions(guest: &Guest) -> usize {
    guest.events().iter().filter(|e| matches!(e, NetEvent::Asked { .. })).count()
}

#[test]
fn a_connection_waits_for_yes() {
    let mut guest = start();
    let port = serve(echo);
    let to = guest.gateway(port);
    let (first, second) = (guest.connect(to), guest.connect(to));
    let rule = asked(&mut guest, port);
    guest.settle();
    assert_eq!(guest.tcp(first).state(), State::SynSent, "nothing is answered before somebody said so");
    assert!(!guest.events().iter().any(|e| matches!(e, NetEvent::Opened { .. })));
    guest.handle.as_ref().unwrap().answer(rule, true);
    for handle in [first, second] {
        guest.until("established", |guest| guest.tcp(handle).may_send());
        assert_eq!(guest.exchange(handle, b"hello"), b"hello");
    }
    guest.connected(to);
    assert_eq!(questions(&guest), 1, "asked once, however many wait");
}

#[test]
fn no_ends_what_waits_and_what_comes_later() {
    let mut guest = start();
    let port = serve(echo);
    let to = guest.gateway(port);
    let first = guest.connect(to);
    let rule = asked(&mut guest, port);
    guest.handle.as_ref().unwrap().answer(rule, false);
    guest.event("denied", |e| matches!(e, NetEvent::Denied { flow, .. } if flow.decided_by == Reason::Refused));
    let second = guest.connect(to);
    guest.settle();
    for handle in [first, second] {
        assert!(!guest.tcp(handle).may_send());
    }
    assert_eq!(questions(&guest), 1, "who said no is not asked again");
}

#[test]
fn other_traffic_goes_on_while_a_question_is_open() {
    let (asked_for, open) = (serve(echo), serve(echo));
    let policy = Policy {
        default: DefaultVerdict::AllowList,
        ask: true,
        allow: vec![format!("localhost:{open}").parse().unwrap()],
        ..Policy::default()
    };
    let mut guest = Guest::start(StackConfig { policy, ..StackConfig::default() });
    let waiting = guest.gateway(asked_for);
    guest.connect(waiting);
    asked(&mut guest, asked_for);
    let to = guest.gateway(open);
    let handle = guest.connected(to);
    assert_eq!(guest.exchange(handle, b"meanwhile"), b"meanwhile");
}

#[test]
fn what_nobody_is_asked_about_is_denied_at_once() {
    let mut guest = start();
    let metadata = SocketAddr::from(([169, 254, 169, 254], 80));
    guest.connect(metadata);
    guest.event("denied", |e| matches!(e, NetEvent::Denied { flow, .. } if flow.address == metadata.ip()));
    assert_eq!(questions(&guest), 0);
}

#[test]
fn an_open_question_does_not_keep_the_network_awake() {
    let mut guest = start();
    let to = guest.gateway(serve(echo));
    guest.connect(to);
    asked(&mut guest, to.port());
    guest.settle();
    let before = guest.wakes();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(guest.wakes(), before);
}
