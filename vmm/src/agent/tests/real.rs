//! The client against the real agent.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use pvisor_spec::CommandEnd;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::*;
use crate::agent::{Finished, GuestMount, Output, StartOptions, WindowSize};

/// Runs a command with this standard input; its output and how it ended.
fn run(client: &AgentClient, command: &CommandSpec, stdin: Vec<u8>) -> (Vec<u8>, Vec<u8>, Finished) {
    let (stdio, ends) = pipes();
    let running = client.start(command, &StartOptions::default(), stdio).unwrap();
    let (writer, stdout, stderr) = (write_all(ends.stdin, stdin), read_all(ends.stdout), read_all(ends.stderr));
    let finished = running.wait().unwrap();
    let outcome = (stdout.join().unwrap(), stderr.join().unwrap(), finished);
    writer.join().unwrap();
    outcome
}

#[test]
fn requests_and_commands_work_one_after_another() {
    let Some(guest) = Guest::boot() else { return };
    let client = guest.connect(&attachment()).unwrap();
    assert!(!client.kernel().is_empty());
    client.mount(&[GuestMount { tag: "root".into(), path: "/".into(), read_only: true }]).unwrap();
    client.set_clock().unwrap();
    client.reseed().unwrap();
    client.sync().unwrap();
    client.ping(PATIENCE).unwrap();
    let (out, err, finished) = run(&client, &sh("echo out; echo err >&2; cat; exit 7"), b"input".to_vec());
    assert_eq!((&*out, &*err, finished.end), (&b"out\ninput"[..], &b"err\n"[..], CommandEnd::Exited(7)));
    assert!(finished.lost_output.is_empty());
    let (.., finished) = run(&client, &sh("kill -TERM $$"), vec![]);
    assert_eq!(finished.end, CommandEnd::Signaled(15));
    for (argv, end) in [(["no-such-program"], CommandEnd::NotFound), (["/usr"], CommandEnd::NotExecutable)] {
        let error = client.start(&command(&argv), &StartOptions::default(), pipes().0).err().unwrap();
        assert_eq!(error.command_end(), Some(end), "{error}");
    }
    let mut nowhere = sh("true");
    nowhere.cwd = "/no/such/dir".into();
    let error = client.start(&nowhere, &StartOptions::default(), pipes().0).err().unwrap();
    assert_eq!(error.command_end(), None);
    let failure = pvisor_spec::WorkerFailure::from(error);
    assert!(failure.message.contains("working directory: No such file"), "{failure}");
    assert!(client.shutdown(PATIENCE));
}

#[test]
fn large_streams_arrive_unchanged_both_ways() {
    let Some(guest) = Guest::boot() else { return };
    let client = guest.connect(&attachment()).unwrap();
    let data: Vec<u8> = (0..4_000_000u64).flat_map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
    let (out, err, finished) = run(&client, &sh("tee /dev/stderr"), data.clone());
    assert_eq!(finished.end, CommandEnd::Exited(0));
    assert!(out == data && err == data, "{} and {} bytes of {}", out.len(), err.len(), data.len());
}

#[test]
fn an_idle_input_keeps_nothing_and_is_not_eaten() {
    let Some(guest) = Guest::boot() else { return };
    let client = guest.connect(&attachment()).unwrap();
    let (stdio, mut ends) = pipes();
    let input = stdio.stdin.try_clone().unwrap();
    let running = client.start(&command(&["echo", "hi"]), &StartOptions::default(), stdio).unwrap();
    assert_eq!(running.wait().unwrap().end, CommandEnd::Exited(0));
    assert_eq!(read_all(ends.stdout).join().unwrap(), b"hi\n");
    // What is typed afterwards is for whoever reads next, not for a command that has ended.
    thread::sleep(Duration::from_millis(50));
    ends.stdin.write_all(b"next").unwrap();
    drop(ends.stdin);
    thread::sleep(Duration::from_millis(50));
    let mut left = String::new();
    File::from(input).read_to_string(&mut left).unwrap();
    assert_eq!(left, "next");
}

#[test]
fn no_more_input_is_read_than_the_guest_takes() {
    let Some(guest) = Guest::boot() else { return };
    let client = guest.connect(&attachment()).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&vec![b'x'; 10 << 20]).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    let (mut stdio, _ends) = pipes();
    stdio.stdin = file.try_clone().unwrap().into();
    let running = client.start(&command(&["sleep", "1000"]), &StartOptions::default(), stdio).unwrap();
    thread::sleep(Duration::from_millis(300));
    let read = std::io::Seek::stream_position(&mut file).unwrap();
    // The window, and what the pipe in the guest holds.
    assert!(read <= 512 * 1024, "{read} bytes");
    running.handle().signal(9);
    assert_eq!(running.wait().unwrap().end, CommandEnd::Signaled(9));
}

#[test]
fn a_reader_that_goes_away_breaks_the_commands_pipe() {
    let Some(guest) = Guest::boot() else { return };
    let client = guest.connect(&attachment()).unwrap();
    let (stdio, mut ends) = pipes();
    let running = client.start(&command(&["yes"]), &StartOptions::default(), stdio).unwrap();
    let mut first = [0; 2];
    ends.stdout.read_exact(&mut first).unwrap();
    drop(ends.stdout);
    let finished = running.wait().unwrap();
    assert_eq!(finished.end, CommandEnd::Signaled(13));
    let [(Output::Stdout, error)] = &*finished.lost_output else { panic!("{finished:?}") };
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[test]
fn a_full_disk_is_told() {
    let Some(guest) = Guest::boot() else { return };
    let client = guest.connect(&attachment()).unwrap();
    let (mut stdio, ends) = pipes();
    stdio.stdout = File::options().write(true).open("/dev/full").unwrap().into();
    let running = client.start(&sh("echo lost; echo kept >&2; exit 3"), &StartOptions::default(), stdio).unwrap();
    let finished = running.wait().unwrap();
    assert_eq!(finished.end, CommandEnd::Exited(3));
    let [(Output::Stdout, error)] = &*finished.lost_output else { panic!("{finished:?}") };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(read_all(ends.stderr).join().unwrap(), b"kept\n");
}

#[test]
fn descriptors_that_someone_else_made_non_blocking_work_and_stay_so() {
    let Some(guest) = Guest::boot() else { return };
    let client = guest.connect(&attachment()).unwrap();
    let (stdio, ends) = pipes();
    let watch = stdio.stdout.try_clone().unwrap();
    for fd in [&stdio.stdin, &stdio.stdout] {
        fcntl_setfl(fd, fcntl_getfl(fd).unwrap() | OFlags::NONBLOCK).unwrap();
    }
    let running = client.start(&sh("read x; head -c 1000000 /dev/zero"), &StartOptions::default(), stdio).unwrap();
    thread::sleep(Duration::from_millis(50));
    let writer = write_all(ends.stdin, b"go\n".to_vec());
    thread::sleep(Duration::from_millis(50));
    assert_eq!(read_all_of(&ends.stdout, 1_000_000), 1_000_000);
    assert!(running.wait().unwrap().lost_output.is_empty());
    assert!(fcntl_getfl(&watch).unwrap().contains(OFlags::NONBLOCK));
    writer.join().unwrap();
}

fn read_all_of(mut file: &File, length: usize) -> usize {
    let mut all = vec![0; length];
    file.read_exact(&mut all).unwrap();
    all.len()
}

#[test]
fn flags_of_shared_descriptors_are_left_alone() {
    let Some(guest) = Guest::boot() else { return };
    let client = guest.connect(&attachment()).unwrap();
    let (stdio, _ends) = pipes();
    let copies = [&stdio.stdin, &stdio.stdout, &stdio.stderr].map(|fd| fd.try_clone().unwrap());
    let before = copies.each_ref().map(|fd| fcntl_getfl(fd).unwrap());
    let running = client.start(&command(&["sleep", "1000"]), &StartOptions::default(), stdio).unwrap();
    assert_eq!(copies.each_ref().map(|fd| fcntl_getfl(fd).unwrap()), before);
    running.handle().signal(15);
    running.wait().unwrap();
    assert_eq!(copies.each_ref().map(|fd| fcntl_getfl(fd).unwrap()), before);
}

#[test]
fn a_terminal_has_its_size_and_takes_a_new_one() {
    let Some(guest) = Guest::boot() else { return };
    let client = guest.connect(&attachment()).unwrap();
    let (stdio, mut ends) = pipes();
    let options = StartOptions { tty: Some(WindowSize { rows: 20, columns: 50 }), ..StartOptions::default() };
    let script = "stty size; trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done";
    let running = client.start(&sh(script), &options, stdio).unwrap();
    let expected = b"20 50\r\nready\r\n";
    let mut text = vec![0; expected.len()];
    ends.stdout.read_exact(&mut text).unwrap();
    assert_eq!(text, expected);
    running.handle().resize(WindowSize { rows: 21, columns: 51 });
    assert_eq!(running.wait().unwrap().end, CommandEnd::Exited(0));
    assert_eq!(read_all(ends.stdout).join().unwrap(), b"21 51\r\n");
}

#[test]
fn a_command_too_large_for_a_message_is_refused_and_harms_nothing() {
    let Some(guest) = Guest::boot() else { return };
    let client = guest.connect(&attachment()).unwrap();
    let mut huge = sh("true");
    huge.argv.extend((0..100).map(|_| "x".repeat(100_000).as_str().into()));
    let error = client.start(&huge, &StartOptions::default(), pipes().0).err().unwrap();
    assert!(matches!(error, AgentError::TooLarge(_)), "{error}");
    assert_eq!(run(&client, &sh("exit 1"), vec![]).2.end, CommandEnd::Exited(1));
}

#[test]
fn a_guest_that_dies_is_lost_and_its_output_is_kept() {
    let Some(mut guest) = Guest::boot() else { return };
    let client = guest.connect(&attachment()).unwrap();
    let (stdio, mut ends) = pipes();
    let running = client.start(&sh("echo before; sleep 1000"), &StartOptions::default(), stdio).unwrap();
    let mut first = [0; 7];
    ends.stdout.read_exact(&mut first).unwrap();
    guest.process.kill().unwrap();
    let error = running.wait().unwrap_err();
    assert!(matches!(error, AgentError::Lost(_)), "{error}");
    assert_eq!(error.kind(), "guest_lost");
    // Everything after says the same at once.
    assert!(matches!(client.sync(), Err(AgentError::Lost(_))));
    assert!(client.start(&sh("true"), &StartOptions::default(), pipes().0).is_err());
}

#[test]
fn another_key_is_refused() {
    let Some(guest) = Guest::boot() else { return };
    let wrong = Attachment { key: Key::new([8; 32]), ..attachment() };
    let error = guest.connect(&wrong).err().unwrap();
    assert!(matches!(error, AgentError::Refused(_)), "{error}");
    assert_eq!(error.kind(), "handshake");
}

/// A restored machine keeps its port while the process at the other end is another one.
#[test]
fn another_process_takes_over_the_guest_and_its_command() {
    let Some(guest) = Guest::boot() else { return };
    // Stands between the guest and whichever process is attached to it.
    let (first_end, first) = UnixStream::pair().unwrap();
    let attached = Arc::new(Mutex::new(first_end));
    let (to_guest, from_guest) = (guest.port.try_clone().unwrap(), guest.port.try_clone().unwrap());
    let current = Arc::clone(&attached);
    thread::spawn(move || {
        let (mut from_guest, mut buffer) = (from_guest, vec![0; 65536]);
        while let Ok(length @ 1..) = from_guest.read(&mut buffer) {
            current.lock().unwrap().write_all(&buffer[..length]).unwrap();
        }
    });
    let client = AgentClient::connect(first, to_guest.try_clone().unwrap(), &attachment()).unwrap();
    let (stdio, mut ends) = pipes();
    let script = "read a; echo \"$a\"; read b; echo \"$b\"; cat; exit 9";
    let running = client.start(&sh(script), &StartOptions::default(), stdio).unwrap();
    ends.stdin.write_all(b"one\ntw").unwrap();
    let mut line = [0; 4];
    ends.stdout.read_exact(&mut line).unwrap();
    client.quiet().unwrap();

    let (second_end, second) = UnixStream::pair().unwrap();
    *attached.lock().unwrap() = second_end;
    let next = Attachment { key: client.next_key().clone(), ..attachment() };
    let mut heir = AgentClient::connect(second, to_guest, &next).unwrap();
    let (stdio, mut heir_ends) = pipes();
    let adopted = heir.adopt(stdio).unwrap().unwrap();
    heir_ends.stdin.write_all(b"o\n").unwrap();
    let input = write_all(heir_ends.stdin, vec![b'z'; 1_000_000]);
    let output = read_all(heir_ends.stdout);
    assert_eq!(adopted.wait().unwrap().end, CommandEnd::Exited(9));
    let output = output.join().unwrap();
    assert!(output.starts_with(b"two\nzzz") && output.len() == 1_000_004, "{} bytes", output.len());
    input.join().unwrap();
    assert!(heir.adopt(pipes().0).unwrap().is_none());
    drop((running, client));
}

#[test]
fn a_raw_terminal_is_restored() {
    let master = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
    let mode = || rustix::termios::tcgetattr(&slave).unwrap().local_modes;
    let before = mode();
    let raw = crate::agent::RawTerminal::enter(slave.as_fd()).unwrap().unwrap();
    assert!(!mode().contains(rustix::termios::LocalModes::ISIG));
    drop(raw);
    assert_eq!(mode(), before);
    assert!(crate::agent::RawTerminal::enter(pipes().0.stdin.as_fd()).unwrap().is_none());
    assert_eq!(crate::agent::terminal_size(slave.as_fd()), None);
}
