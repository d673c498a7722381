//! The command in the guest: its kernel, identity, place, environment and exit code.

use crate::sandbox::{Sandbox, finish, stdout, text};
use crate::services::PYTHON;

#[test]
#[ignore = "needs a KVM that runs guests"]
fn it_runs_on_the_guest_kernel_as_the_caller_in_the_callers_directory() {
    let sandbox = Sandbox::new();
    let before = sandbox.listing();
    let out = sandbox.sh("uname -r; id -u; id -g; pwd; echo hi > made-in-guest; exit 7");
    assert_eq!(out.status.code(), Some(7), "{}", text(&out));
    let printed = stdout(&out);
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].ends_with("-pvisor"), "guest kernel release: {}", text(&out));
    assert_eq!(lines[1..3], ["0", "0"]);
    assert_eq!(lines[3], sandbox.project().to_str().unwrap());
    assert_eq!(sandbox.listing(), before, "the project was written");

    let review = finish(sandbox.pvisor(&["review", "last", "--diff"]));
    assert!(stdout(&review).contains("+hi"), "{}", text(&review));
    let apply = finish(sandbox.pvisor(&["apply", "last"]));
    assert!(apply.status.success(), "{}", text(&apply));
    assert_eq!(std::fs::read(sandbox.project().join("made-in-guest")).unwrap(), b"hi\n");
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn the_tools_of_the_host_are_there() {
    let sandbox = Sandbox::new();
    let git = |args: &[&str]| {
        let done = std::process::Command::new("git").args(args).current_dir(sandbox.project()).output().unwrap();
        assert!(done.status.success(), "{}", text(&done));
    };
    git(&["init", "-q"]);
    git(&["add", "README.md"]);
    let out = finish(sandbox.krun(&[], &[PYTHON, "-c", "import sys, json; print(json.dumps([1, 2]))"]));
    assert_eq!((out.status.code(), stdout(&out).trim()), (Some(0), "[1, 2]"), "{}", text(&out));
    let out = finish(sandbox.krun(&[], &["git", "status", "--porcelain"]));
    assert_eq!(out.status.code(), Some(0), "{}", text(&out));
    assert!(stdout(&out).contains("A  README.md") && stdout(&out).contains("?? src/"), "{}", text(&out));
    let out = finish(sandbox.krun(&["--env", "RUSTUP_TOOLCHAIN=stable"], &["cargo", "--version"]));
    assert_eq!(out.status.code(), Some(0), "{}", text(&out));
    assert!(stdout(&out).starts_with("cargo 1."), "{}", text(&out));
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn the_probe_finds_this_kvm_usable() {
    let sandbox = Sandbox::new();
    // The other tests keep the machine busy, and each try is cut off in under a second.
    let usable = (0..20).any(|_| {
        let out = finish(sandbox.pvisor(&["run", "--", "uname", "-r"]));
        stdout(&out).trim().ends_with("-pvisor")
    });
    assert!(usable, "{}", text(&finish(sandbox.pvisor(&["doctor"]))));
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn codes_of_the_shells_tell_what_went_wrong() {
    let sandbox = Sandbox::new();
    let out = finish(sandbox.krun(&[], &["no-such-program-here"]));
    assert_eq!(out.status.code(), Some(127), "{}", text(&out));
    let out = finish(sandbox.krun(&[], &["./README.md"]));
    assert_eq!(out.status.code(), Some(126), "{}", text(&out));
    let out = sandbox.sh("kill -TERM $$");
    assert_eq!(out.status.code(), Some(128 + 15), "{}", text(&out));
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn cpus_memory_and_a_large_environment_arrive() {
    let sandbox = Sandbox::new();
    let pairs: Vec<String> = (0..500).map(|i| format!("LONG_{i}={}", "x".repeat(200))).collect();
    let mut options = vec!["--cpus", "1", "--memory", "300M"];
    for pair in &pairs {
        options.extend(["--env", pair]);
    }
    let out = finish(
        sandbox
            .krun(&options, &["sh", "-c", "nproc; grep MemTotal /proc/meminfo; env | grep -c ^LONG_; echo $LONG_499"]),
    );
    assert_eq!(out.status.code(), Some(0), "{}", text(&out));
    let printed = stdout(&out);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[0], "1");
    let kib: u64 = lines[1].split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!((200_000..330_000).contains(&kib), "MemTotal {kib} KiB");
    assert_eq!(lines[2], "500");
    assert_eq!(lines[3].len(), 200);
    let out = finish(sandbox.krun(&["--cpus", "2"], &["nproc"]));
    assert_eq!(stdout(&out), "2\n", "{}", text(&out));
}
