//! Commands with a terminal.

use pvisor_proto::{End, Start, ToGuest, ToHost, WindowSize};

use crate::harness::{Guest, Outcome, possible, sh};

fn in_terminal(script: &str) -> Start {
    Start { tty: Some(WindowSize { rows: 33, columns: 101 }), ..sh(script) }
}

#[test]
fn the_command_has_a_terminal_of_its_size() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let mut start =
        in_terminal("stty size; test -t 0 && test -t 1 && test -t 2 && echo all; echo x > /dev/tty; tty; id -u");
    start.uid = 65534;
    let id = guest.start(start);
    let text = guest.finish(id, None).text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..3], ["33 101", "all", "x"]);
    assert!(lines[3].starts_with("/dev/pts/"), "{text:?}");
    assert_eq!(lines[4], "65534");
    guest.shutdown();
}

#[test]
fn a_new_size_is_told() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let id = guest.start(in_terminal("trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done"));
    let mut outcome = Outcome::default();
    guest.finish_into(id, b"", false, &mut outcome, &mut |guest, bytes| {
        if bytes.starts_with(b"ready") {
            let size = WindowSize { rows: 40, columns: 80 };
            guest.send(77, &ToGuest::Resize { command: id, size });
        }
    });
    assert_eq!(outcome.text(), "ready\r\n40 80\r\n");
    // Without a terminal there is nothing to resize.
    let id = guest.start(sh("read x"));
    let size = WindowSize { rows: 1, columns: 1 };
    let reply = guest.ask(&ToGuest::Resize { command: id, size });
    assert!(matches!(&reply, ToHost::Failed(f) if f.errno == libc::ENOTTY), "{reply:?}");
    guest.finish(id, Some(b"\n"));
    guest.shutdown();
}

#[test]
fn keys_reach_the_command() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    // Ctrl-C is a key like any other here; the terminal in the guest makes the signal of it.
    let id = guest
        .start(in_terminal("trap 'echo stopped; exit 3' INT; stty -echo; echo ready; while :; do sleep 0.05; done"));
    let mut outcome = Outcome::default();
    guest.finish_into(id, b"", false, &mut outcome, &mut |guest, bytes| {
        if bytes.starts_with(b"ready") {
            guest.send(id, &ToGuest::Stdin([3].as_slice().into()));
        }
    });
    assert_eq!((outcome.text().as_str(), outcome.end), ("ready\r\nstopped\r\n", Some(End::Exited(3))));
    guest.shutdown();
}

#[test]
fn the_end_of_input_ends_a_read_wherever_the_line_stands() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    for input in [&b""[..], b"line\n", b"half a line"] {
        let outcome = guest.run(in_terminal("stty -echo; cat; echo end"), input);
        assert_eq!(outcome.end, Some(End::Exited(0)));
        assert!(outcome.text().ends_with("end\r\n"), "{:?}", outcome.text());
    }
    guest.shutdown();
}

#[test]
fn a_descendant_that_keeps_the_terminal_does_not_keep_the_command() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let outcome =
        guest.run(in_terminal("nohup sleep 1000 </dev/tty >/dev/tty 2>&1 & sleep 0.1; echo last; exit 2"), b"");
    assert_eq!(outcome.end, Some(End::Exited(2)));
    assert!(outcome.text().ends_with("last\r\n"), "{:?}", outcome.text());
    guest.shutdown();
}
