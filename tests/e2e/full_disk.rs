//! Runs on a disk that is full. Each disk is a small one of its own, in a mount namespace of its own.

use std::fs;
use std::process::Command;

use crate::world::{World, finish};

/// A shell script in a mount namespace where `../small` is a disk of `size`.
fn on_small_disk(world: &World, size: &str, script: &str) -> crate::world::Done {
    fs::create_dir_all(world.path().join("small")).unwrap();
    let script = format!("set -e; mount -t tmpfs -o size={size} small ../small; set +e; {script}");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).current_dir(world.project());
    command.env("PVISOR_RUN_HOME", world.runs()).env("PVISOR", env!("CARGO_BIN_EXE_pvisor"));
    finish(command)
}

#[test]
fn a_full_stage_is_the_commands_problem_and_the_changes_can_be_had() {
    let world = World::new();
    let done = on_small_disk(
        &world,
        "4m",
        "$PVISOR run --executor host --stage ../small/stage -- sh -c 'echo kept > kept; dd if=/dev/zero of=big bs=65536 count=200; echo dd=$?; rm big'
         echo code=$?; $PVISOR review last; $PVISOR apply last; echo applied=$?",
    );
    assert!(done.stderr().contains("No space left on device"), "{done}");
    for part in ["dd=1", "code=0", "kept", "applied=0"] {
        assert!(done.stdout().contains(part), "{part}: {done}");
    }
    assert!(world.project().join("kept").exists());
}

#[test]
fn a_full_state_directory_is_said_and_nothing_starts() {
    let world = World::new();
    let done = on_small_disk(
        &world,
        "64k",
        "dd if=/dev/zero of=../small/fill bs=4096 2>/dev/null
         PVISOR_RUN_HOME=../small/runs $PVISOR run --executor host -- touch started; echo code=$?; ls -A ../small/runs 2>/dev/null",
    );
    assert!(done.stdout().contains("code=125"), "{done}");
    assert!(done.stderr().contains("No space left on device") && done.stderr().contains("PVISOR_RUN_HOME"), "{done}");
    assert!(!done.stdout().contains("run-") && !world.project().join("started").exists(), "{done}");
}
