//! Every way a run can end but by itself: each leaves a readable record and nothing else.

use std::time::Duration;

use crate::sandbox::{Sandbox, finish, signal, start_until, text, wait, worker_of};

#[test]
#[ignore = "needs a KVM that runs guests"]
fn an_interrupt_ends_the_guests_command() {
    let sandbox = Sandbox::new();
    let child = start_until(sandbox.krun(&[], &["sh", "-c", "echo ready; exec sleep 1000"]), "ready");
    signal(child.id(), "INT");
    let out = wait(child);
    assert_eq!(out.status.code(), Some(128 + 2), "{}", text(&out));
    assert_eq!(sandbox.status()["stage"]["state"], "sealed");
    sandbox.assert_nothing_left();
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn a_second_interrupt_ends_a_command_that_ignores_the_first() {
    let sandbox = Sandbox::new();
    let script = "trap '' INT TERM; echo ready; while :; do sleep 1; done";
    let child = start_until(sandbox.krun(&["--grace", "1s"], &["sh", "-c", script]), "ready");
    signal(child.id(), "INT");
    std::thread::sleep(Duration::from_secs(3));
    signal(child.id(), "INT");
    let out = wait(child);
    assert_eq!(out.status.code(), Some(128 + 9), "{}", text(&out));
    sandbox.assert_nothing_left();
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn the_time_limit_ends_the_command() {
    let sandbox = Sandbox::new();
    let out = finish(sandbox.krun(&["--timeout", "5s"], &["sleep", "100"]));
    assert_eq!(out.status.code(), Some(124), "{}", text(&out));
    sandbox.assert_nothing_left();
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn a_killed_worker_is_an_interrupted_run() {
    let sandbox = Sandbox::new();
    let before = sandbox.listing();
    let child = start_until(sandbox.krun(&[], &["sh", "-c", "echo x > new; echo ready; sleep 1000"]), "ready");
    signal(worker_of(child.id()), "KILL");
    let out = wait(child);
    assert_eq!(out.status.code(), Some(125), "{}", text(&out));
    let status = sandbox.status();
    assert!(status["outcome"]["interrupted"].is_object(), "{status:#}");
    assert_eq!(status["stage"]["state"], "unsealed", "{status:#}");
    let apply = finish(sandbox.pvisor(&["apply", "last"]));
    assert_eq!(apply.status.code(), Some(5), "an unsealed stage was applied: {}", text(&apply));
    assert_eq!(sandbox.listing(), before);
    sandbox.assert_nothing_left();
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn a_killed_supervisor_takes_the_guest_with_it() {
    let sandbox = Sandbox::new();
    let child = start_until(sandbox.krun(&[], &["sh", "-c", "echo ready; sleep 1000"]), "ready");
    signal(child.id(), "KILL");
    let _ = wait(child);
    let status = sandbox.status();
    assert!(status["outcome"]["interrupted"].is_object(), "{status:#}");
    sandbox.assert_nothing_left();
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn a_guest_panic_is_a_failed_run() {
    let sandbox = Sandbox::new();
    let out = sandbox.sh("echo c > /proc/sysrq-trigger; sleep 1000");
    assert_eq!(out.status.code(), Some(125), "{}", text(&out));
    let status = sandbox.status();
    let interrupted = &status["outcome"]["interrupted"];
    assert!(interrupted["message"].as_str().is_some_and(|m| m.contains("panic")), "{status:#}");
    sandbox.assert_nothing_left();
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn a_full_disk_is_the_commands_problem_and_the_stage_stays_whole() {
    let sandbox = Sandbox::new();
    let small = sandbox.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let mount =
        std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "small"]).arg(&small).status();
    assert!(mount.unwrap().success());
    let stage = small.join("stage");
    let script = "dd if=/dev/zero of=big bs=65536 count=400; echo dd=$?; echo kept > kept";
    let out = finish(sandbox.krun(&["--stage", stage.to_str().unwrap()], &["sh", "-c", script]));
    assert!(text(&out).contains("No space left on device"), "{}", text(&out));
    assert!(text(&out).contains("dd=1"), "{}", text(&out));
    let review = finish(sandbox.pvisor(&["review", stage.to_str().unwrap()]));
    assert!(text(&review).contains("big"), "{}", text(&review));
    let discard = finish(sandbox.pvisor(&["discard", stage.to_str().unwrap()]));
    assert!(discard.status.success(), "{}", text(&discard));
    assert!(std::process::Command::new("umount").arg(&small).status().unwrap().success());
}
