//! Standard input and output between the person's shell and the guest.

use std::process::Stdio;

use crate::sandbox::{Sandbox, feed, finish, spawn, stdout, text, wait};
use crate::services::PYTHON;

#[test]
#[ignore = "needs a KVM that runs guests"]
fn input_reaches_the_command_and_ends() {
    let sandbox = Sandbox::new();
    let out = feed(sandbox.krun(&[], &["cat"]), b"data\n".to_vec());
    assert_eq!((out.status.code(), stdout(&out).as_str()), (Some(0), "data\n"), "{}", text(&out));
    // More than any buffer on the way.
    let big: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let out = feed(sandbox.krun(&[], &["cat"]), big.clone());
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(out.stdout == big, "{} bytes of {} came back", out.stdout.len(), big.len());
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn a_hundred_mebibytes_come_out_unchanged() {
    let sandbox = Sandbox::new();
    // The same bytes are made here and there from a counter.
    let script = "import sys\nblock = bytes(range(256)) * 4096\nfor i in range(100):\n    sys.stdout.buffer.write(bytes([i]) + block[1:])";
    let out = finish(sandbox.krun(&[], &[PYTHON, "-c", script]));
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    let mut expected = blake3::Hasher::new();
    let mut block: Vec<u8> = (0..1 << 20).map(|i: u32| (i % 256) as u8).collect();
    for i in 0..100 {
        block[0] = i;
        expected.update(&block);
    }
    assert_eq!(out.stdout.len(), 100 << 20);
    assert_eq!(blake3::hash(&out.stdout), expected.finalize());
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn a_reader_that_leaves_ends_the_command() {
    let sandbox = Sandbox::new();
    let mut child = spawn(sandbox.krun(&[], &["yes"]));
    let mut reader = child.stdout.take().unwrap();
    let mut first = [0; 2];
    std::io::Read::read_exact(&mut reader, &mut first).unwrap();
    assert_eq!(&first, b"y\n");
    drop(reader);
    let out = wait(child);
    assert_eq!(out.status.code(), Some(128 + 13), "{}", text(&out));
    sandbox.assert_nothing_left();
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn an_open_input_does_not_keep_a_finished_run_alive() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.krun(&[], &["echo", "done"]);
    command.stdin(Stdio::piped());
    let mut child = spawn(command);
    let held = child.stdin.take();
    let out = wait(child);
    drop(held);
    assert_eq!((out.status.code(), stdout(&out).as_str()), (Some(0), "done\n"), "{}", text(&out));
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn errors_go_to_standard_error_only() {
    let sandbox = Sandbox::new();
    let out = sandbox.sh("echo out; echo err >&2");
    assert_eq!(stdout(&out), "out\n");
    assert!(String::from_utf8_lossy(&out.stderr).contains("err\n"), "{}", text(&out));
}
