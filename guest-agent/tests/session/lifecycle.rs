//! Handshake, requests, signals, and the end.

use std::time::Duration;

use pvisor_proto::{End, Key, NO_ID, Refused, ToGuest, ToHost};

use crate::harness::{Guest, KEY, Role, command, possible, sh};

#[test]
fn nothing_goes_before_the_handshake() {
    if !possible() {
        return;
    }
    let mut guest = Guest::unborn(Role::Rehearsal);
    guest.send(1, &ToGuest::Ping);
    assert_eq!(guest.next(), Some((NO_ID, ToHost::Refused(Refused::Order))));
    assert_eq!(guest.exit_code(), Some(12));
}

#[test]
fn another_key_is_refused() {
    if !possible() {
        return;
    }
    let mut guest = Guest::unborn(Role::Rehearsal);
    guest.send(1, &hello(Key::new([1; 32])));
    assert_eq!(guest.next(), Some((NO_ID, ToHost::Refused(Refused::Key))));
    assert_eq!(guest.exit_code(), Some(12));
}

#[test]
fn a_key_opens_one_handshake() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    // The next key works, and after it the first one does not any more.
    assert!(matches!(guest.hello(Key::new([8; 32]), Key::new([9; 32])), ToHost::Welcome(_)));
    guest.send(1, &hello(Key::new(KEY)));
    assert_eq!(guest.next(), Some((NO_ID, ToHost::Refused(Refused::Key))));
    assert_eq!(guest.exit_code(), Some(12));
}

fn hello(key: Key) -> ToGuest {
    let challenge = [5; 32];
    let proof = pvisor_proto::host_proof(&key, &challenge);
    ToGuest::Hello(pvisor_proto::Hello { minor: 0, challenge, proof, next_key: key })
}

#[test]
fn garbage_ends_the_guest_and_its_command() {
    if !possible() {
        return;
    }
    for garbage in [&b"GET / HTTP/1.0\r\n\r\n"[..], b"PVA\x02", b"PVA\x01\xff\xff\xff\xff0123456789ab"] {
        let mut guest = Guest::boot();
        guest.start(command(&["sleep", "1000"]));
        guest.send_raw(garbage);
        assert!(matches!(guest.next(), Some((NO_ID, ToHost::Error(_)))));
        assert_eq!(guest.exit_code(), Some(11));
    }
}

#[test]
fn a_host_that_goes_away_ends_everything() {
    if !possible() {
        return;
    }
    let marker = format!("{}", 100_000 + std::process::id());
    let mut guest = Guest::boot();
    guest.start(sh(&format!("setsid sleep {marker} & sleep {marker}")));
    guest.close();
    assert_eq!(guest.process.wait().unwrap().code(), Some(10));
    assert!(!is_running(&marker), "the command survived");
}

/// Whether some process of this machine has the argument.
fn is_running(argument: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        std::fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| line.split(|&b| b == 0).any(|word| word == argument.as_bytes()))
    })
}

#[test]
fn requests_are_answered() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    assert_eq!(guest.ask(&ToGuest::Ping), ToHost::Pong);
    assert_eq!(guest.ask(&ToGuest::Sync), ToHost::Done);
    assert_eq!(guest.ask(&ToGuest::SetClock { seconds: 1, nanos: 2 }), ToHost::Done);
    assert!(matches!(guest.ask(&ToGuest::SetClock { seconds: 1, nanos: u32::MAX }), ToHost::Failed(_)));
    assert_eq!(guest.ask(&ToGuest::Reseed(vec![1; 64].into())), ToHost::Done);
    for bad in [0, 513] {
        let reply = guest.ask(&ToGuest::Reseed(vec![1; bad].into()));
        assert!(matches!(reply, ToHost::Failed(f) if f.errno == libc::EINVAL));
    }
    assert_eq!(guest.ask(&ToGuest::Mounts(vec![])), ToHost::Done);
    assert!(matches!(guest.ask(&ToGuest::Mounts(vec![])), ToHost::Failed(f) if f.errno == libc::EALREADY));
    guest.shutdown();
}

#[test]
fn signals_reach_the_process_group_while_it_lives() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let id = guest.start(command(&["sleep", "1000"]));
    assert_eq!(guest.ask(&ToGuest::Signal { command: id, signal: 2 }), ToHost::Done);
    assert_eq!(guest.finish(id, None).end, Some(End::Signaled(2)));
    // The shell's child is in the group as well.
    let id = guest.start(sh("sleep 1000; echo never"));
    assert!(guest.is_silent(Duration::from_millis(100)));
    guest.send(50, &ToGuest::Signal { command: id, signal: 15 });
    let outcome = guest.finish(id, None);
    assert_eq!((outcome.end, outcome.stdout), (Some(End::Signaled(15)), vec![]));
    for (command, signal, errno) in [(id, 15, libc::ESRCH), (12345, 15, libc::ESRCH)] {
        let reply = guest.ask(&ToGuest::Signal { command, signal });
        assert!(matches!(&reply, ToHost::Failed(f) if f.errno == errno), "{reply:?}");
    }
    let id = guest.start(command(&["sleep", "1000"]));
    for signal in [0, 65, 255] {
        let reply = guest.ask(&ToGuest::Signal { command: id, signal });
        assert!(matches!(&reply, ToHost::Failed(f) if f.errno == libc::EINVAL), "{reply:?}");
    }
    guest.shutdown();
}

#[test]
fn nothing_outlives_the_command() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let script = "trap '' TERM HUP INT; (setsid sh -c 'trap \"\" TERM; sleep 1000' &) ; setsid sleep 1001 & \
                  (sleep 1002 &) ; exit 0";
    assert_eq!(guest.shell(script, b"").end, Some(End::Exited(0)));
    // Numbers and the shell's own are all there is.
    let outcome = guest.shell("ls /proc | grep -c '^[0-9]'; cat /proc/1/oom_score_adj", b"");
    let count: u32 = outcome.text().lines().next().unwrap().parse().unwrap();
    assert!(count <= 4, "{}", outcome.text());
    guest.shutdown();
}

#[test]
fn orphans_are_buried() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let script = "for i in $(seq 100); do (sh -c 'exit 1' &) ; done; sleep 0.5; \
                  grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l";
    assert_eq!(guest.shell(script, b"").text().trim(), "0");
    guest.shutdown();
}

#[test]
fn process_one_cannot_be_killed_from_inside() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let outcome = guest.shell("for s in TERM INT KILL STOP SEGV PIPE CHLD; do kill -$s 1; done; echo alive", b"");
    assert_eq!((outcome.text().as_str(), outcome.end), ("alive\n", Some(End::Exited(0))));
    assert_eq!(guest.ask(&ToGuest::Ping), ToHost::Pong);
    guest.shutdown();
}

#[test]
fn a_quiet_guest_says_nothing_and_loses_nothing() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let id = guest.start(sh("echo one; read x; echo two; exit 8"));
    assert_eq!(guest.next(), Some((id, ToHost::Stdout("one\n".into()))));
    assert_eq!(guest.ask(&ToGuest::Quiet), ToHost::Quieted);
    guest.send(id, &ToGuest::Stdin("\n".into()));
    guest.send(70, &ToGuest::Ping);
    assert!(guest.is_silent(Duration::from_millis(400)));
    guest.send(71, &ToGuest::Wake);
    assert_eq!(guest.next(), Some((70, ToHost::Pong)));
    assert_eq!(guest.next(), Some((71, ToHost::Done)));
    let outcome = guest.finish(id, None);
    assert_eq!((outcome.text().as_str(), outcome.end), ("two\n", Some(End::Exited(8))));
    guest.shutdown();
}

#[test]
fn a_new_host_process_takes_a_quiet_guest_over() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let id = guest.start(sh("read x; echo \"$x\"; exit 8"));
    guest.send(id, &ToGuest::Stdin("abc".into()));
    assert_eq!(guest.ask(&ToGuest::Quiet), ToHost::Quieted);
    guest.send(70, &ToGuest::Ping);
    let welcome = guest.hello(Key::new([8; 32]), Key::new([9; 32]));
    let ToHost::Welcome(welcome) = welcome else { panic!("{welcome:?}") };
    let running = welcome.running.unwrap();
    assert_eq!(running.command, id);
    assert_eq!(running.stdin, Some(pvisor_proto::WINDOW - 3));
    // The old process's request is forgotten.
    guest.send(id, &ToGuest::Stdin("def\n".into()));
    assert_eq!(guest.next(), Some((id, ToHost::Stdout("abcdef\n".into()))));
    assert_eq!(guest.finish(id, None).end, Some(End::Exited(8)));
    guest.shutdown();
}

#[test]
fn the_program_does_nothing_unless_it_is_process_one() {
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_pvisor-guest-agent")).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn the_host_name_is_set_and_cut() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let mut start = sh("uname -n");
    start.hostname = "x".repeat(100);
    assert_eq!(guest.run(start, b"").text().trim(), "x".repeat(64));
    guest.shutdown();
}
