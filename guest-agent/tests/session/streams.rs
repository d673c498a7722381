//! Standard input, output and error.

use std::time::{Duration, Instant};

use pvisor_proto::{End, Output, ToGuest, ToHost, WINDOW};

use crate::harness::{Guest, Outcome, command, possible, sh};

/// Bytes that depend on their place.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64 / 8).flat_map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

#[test]
fn output_and_errors_stay_apart() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let outcome = guest.shell("echo out; echo err >&2; printf more", b"");
    assert_eq!((outcome.text().as_str(), outcome.errors().as_str()), ("out\nmore", "err\n"));
    guest.shutdown();
}

#[test]
fn a_hundred_mebibytes_of_output_arrive_unchanged() {
    if !possible() {
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let data = pattern(100 << 20);
    std::fs::write(file.path(), &data).unwrap();
    let mut guest = Guest::boot();
    let outcome = guest.run(command(&["cat", file.path().to_str().unwrap()]), b"");
    assert_eq!(outcome.stdout.len(), data.len());
    assert_eq!(blake3::hash(&outcome.stdout), blake3::hash(&data));
    assert_eq!(outcome.end, Some(End::Exited(0)));
    guest.shutdown();
}

#[test]
fn ten_mebibytes_of_input_come_back() {
    if !possible() {
        return;
    }
    let data = pattern(10 << 20);
    let mut guest = Guest::boot();
    let outcome = guest.run(command(&["cat"]), &data);
    assert_eq!(blake3::hash(&outcome.stdout), blake3::hash(&data));
    assert_eq!(guest.run(command(&["wc", "-c"]), &data).text().trim(), data.len().to_string());
    guest.shutdown();
}

#[test]
fn the_end_of_input_is_passed_on() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let outcome = guest.run(command(&["cat"]), b"");
    assert_eq!((outcome.end, outcome.stdout), (Some(End::Exited(0)), vec![]));
    assert_eq!(guest.run(command(&["cat"]), b"last line without newline").text(), "last line without newline");
    guest.shutdown();
}

#[test]
fn a_command_ends_while_its_input_stays_open() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let id = guest.start(command(&["echo", "hi"]));
    let outcome = guest.finish(id, None);
    assert_eq!((outcome.text().as_str(), outcome.end), ("hi\n", Some(End::Exited(0))));
    guest.shutdown();
}

#[test]
fn a_command_that_closes_its_input_is_noticed() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    // Nothing is sent: the guest sees it all the same.
    let id = guest.start(sh("exec <&-; sleep 1000"));
    assert_eq!(guest.next(), Some((id, ToHost::StdinClosed)));
    // More of it is thrown away, and costs no memory: it can't be more than the window.
    guest.send(id, &ToGuest::Stdin(vec![0; 1000].into()));
    assert_eq!(guest.ask(&ToGuest::Signal { command: id, signal: 15 }), ToHost::Done);
    assert_eq!(guest.finish(id, None).end, Some(End::Signaled(15)));
    // Half of the input is read.
    let outcome = guest.shell("head -c 5", &pattern(1 << 20));
    assert_eq!((outcome.stdout.len(), outcome.end), (5, Some(End::Exited(0))));
    guest.shutdown();
}

#[test]
fn a_command_that_ignores_its_input_blocks_nothing_else() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let id = guest.start(sh("trap 'echo got it; exit 9' USR1; echo ready; while :; do sleep 0.05; done"));
    let mut outcome = Outcome::default();
    guest.finish_into(id, &pattern(1 << 20), false, &mut outcome, &mut |guest, bytes| {
        if bytes == b"ready\n" {
            guest.send(99, &ToGuest::Signal { command: id, signal: 10 });
        }
    });
    assert_eq!((outcome.text().as_str(), outcome.end), ("ready\ngot it\n", Some(End::Exited(9))));
    guest.shutdown();
}

#[test]
fn input_beyond_the_credit_ends_the_guest() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let id = guest.start(command(&["sleep", "1000"]));
    // The pipe takes some, but gives credit for it only in pieces that were not waited for.
    for _ in 0..12 {
        guest.send(id, &ToGuest::Stdin(vec![b'x'; 32 * 1024].into()));
    }
    loop {
        match guest.next() {
            Some((_, ToHost::Error(text))) => break assert!(text.contains("credit"), "{text}"),
            Some((_, ToHost::StdinCredit(_))) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(guest.exit_code(), Some(11));
}

#[test]
fn a_host_that_does_not_read_stops_the_command() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let id = guest.start(command(&["yes"]));
    let mut seen = 0;
    while seen < WINDOW as usize {
        match guest.next() {
            Some((_, ToHost::Stdout(bytes))) => seen += bytes.0.len(),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, WINDOW as usize);
    assert!(guest.is_silent(Duration::from_millis(300)), "more than the window was sent");
    // Requests are answered all the same, and credit makes it go on.
    assert_eq!(guest.ask(&ToGuest::Ping), ToHost::Pong);
    guest.send(id, &ToGuest::Credit { stream: Output::Stdout, bytes: 10 });
    let mut seen = 0;
    while seen < 10 {
        match guest.next() {
            Some((_, ToHost::Stdout(bytes))) => seen += bytes.0.len(),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, 10);
    assert!(guest.is_silent(Duration::from_millis(100)));
    // A closed output is a broken pipe for the command.
    guest.send(id, &ToGuest::OutputClose(Output::Stdout));
    assert_eq!(guest.finish(id, None).end, Some(End::Signaled(13)));
    guest.shutdown();
}

#[test]
fn a_full_error_stream_does_not_hold_up_output() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let id = guest.start(sh("yes >&2 & echo through; wait"));
    let (mut out, mut err) = (Vec::new(), 0);
    while out != b"through\n" || err < WINDOW as usize {
        match guest.next() {
            Some((_, ToHost::Stdout(bytes))) => out.extend(bytes.0),
            Some((_, ToHost::Stderr(bytes))) => err += bytes.0.len(),
            other => panic!("{other:?}"),
        }
    }
    guest.send(98, &ToGuest::Signal { command: id, signal: 9 });
    guest.send(id, &ToGuest::Credit { stream: Output::Stderr, bytes: WINDOW });
    assert_eq!(guest.finish(id, None).end, Some(End::Signaled(9)));
    guest.shutdown();
}

#[test]
fn too_much_credit_ends_the_guest() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let id = guest.start(command(&["sleep", "1000"]));
    guest.send(id, &ToGuest::Credit { stream: Output::Stdout, bytes: 1 });
    assert!(matches!(guest.next(), Some((_, ToHost::Error(_)))));
    assert_eq!(guest.exit_code(), Some(11));
}

#[test]
fn a_descendant_that_keeps_the_output_open_does_not_keep_the_command() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let before = Instant::now();
    let outcome = guest.shell("sleep 1000 & echo done; exit 5", b"");
    assert_eq!((outcome.text().as_str(), outcome.end), ("done\n", Some(End::Exited(5))));
    assert!(before.elapsed() < Duration::from_secs(500));
    // One that writes on and on is cut off too.
    let outcome = guest.shell("yes & exit 6", b"");
    assert_eq!(outcome.end, Some(End::Exited(6)));
    // One that says its last word soon after is heard.
    let outcome = guest.shell("(sleep 0.02; echo late) & exit 0", b"");
    assert_eq!(outcome.text(), "late\n");
    guest.shutdown();
}

#[test]
fn what_the_command_wrote_before_its_end_is_sent_however_slow_the_host_is() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    // The pipe is full when the shell ends, and a descendant keeps it open.
    let script = "head -c 300000 /dev/zero & wait $!; sleep 1000 & exec head -c 60000 /dev/zero";
    let id = guest.start(sh(script));
    let mut seen = 0;
    while seen < WINDOW as usize {
        match guest.next() {
            Some((_, ToHost::Stdout(bytes))) => seen += bytes.0.len(),
            other => panic!("{other:?}"),
        }
    }
    // Far beyond the time that counts as idle.
    assert!(guest.is_silent(Duration::from_millis(1500)));
    guest.send(id, &ToGuest::Credit { stream: Output::Stdout, bytes: WINDOW });
    let outcome = guest.finish(id, None);
    assert_eq!(seen + outcome.stdout.len(), 360_000);
    guest.shutdown();
}
