//! Bad input: one paragraph that names the thing and the way out; nothing lost, nothing half done.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;

use crate::world::{Done, World, finish, start_until, wait};

/// A user without rights.
const NOBODY: u32 = 65534;

fn refused(world: &World, args: &[&str], parts: &[&str]) -> Done {
    let before = world.listing();
    let done = world.pvisor(args).expect(125);
    done.says(parts);
    assert_eq!(world.listing(), before, "the project was changed");
    done
}

#[test]
fn no_command() {
    let world = World::new();
    for args in [&["run"][..], &["run", "--"]] {
        world.pvisor(args).expect(2).says(&["no command", "pvisor run -- "]);
    }
    assert!(!world.runs().exists());
}

#[test]
fn an_unknown_run() {
    let world = World::new();
    for command in ["status", "review", "apply", "discard", "kill", "logs"] {
        for name in ["nothing-here", "last", "run-", "/nowhere", "run-00000000-0000-7000-8000-000000000000"] {
            let done = world.pvisor(&[command, name]).expect(4);
            done.says(&["no run"]);
        }
    }
    assert!(!world.runs().exists());
    world.pvisor(&world.host_args(&[], "true")).expect(0);
    world.pvisor(&["status", "nothing-here"]).expect(4).says(&["\"nothing-here\"", "pvisor list"]);
}

#[test]
fn a_stage_inside_its_own_project() {
    let world = World::new();
    symlink(world.project(), world.path().join("link")).unwrap();
    for stage in ["stage", "src/stage", "../link/stage"] {
        refused(&world, &["run", "--stage", stage, "--", "true"], &["inside its own project", "--stage ../stage"]);
    }
}

#[test]
fn a_project_inside_its_own_stage() {
    let world = World::new();
    for stage in ["..", "/", "."] {
        refused(&world, &["run", "--stage", stage, "--", "true"], &["inside its own stage"]);
    }
}

#[test]
fn a_project_that_contains_the_runs() {
    let world = World::new();
    let top = world.path().to_str().unwrap().to_owned();
    let args = ["run", "--project", &top, "--", "true"];
    refused(&world, &args, &["inside its own project", "PVISOR_RUN_HOME", "--project"]);
    refused(&world, &["run", "--project", "/", "--", "true"], &["inside its own project"]);
}

#[test]
fn a_stage_directory_that_is_taken() {
    let world = World::new();
    let full = world.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("mine"), "mine").unwrap();
    refused(&world, &["run", "--executor", "host", "--stage", "../full", "--", "true"], &["not empty", "full"]);
    assert_eq!(fs::read(full.join("mine")).unwrap(), b"mine");
    world.staged("echo x > new").expect(0);
    let stage = world.stage();
    let args = ["run", "--executor", "host", "--stage", &stage, "--", "true"];
    refused(&world, &args, &["earlier run", "pvisor discard", &stage]);
    // The refusal did not take the stage's name away from the run that made it.
    world.pvisor(&["review", &stage]).expect(0);
    let missing = ["run", "--executor", "host", "--stage", "../no/such/place", "--", "true"];
    refused(&world, &missing, &["no/such/place"]);
    let file = ["run", "--executor", "host", "--stage", "../full/mine", "--", "true"];
    refused(&world, &file, &["full/mine"]);
}

#[test]
fn a_stage_in_use() {
    let world = World::new();
    let stage = world.stage();
    let going = start_until(world.std_command(&world.host_args(&["--stage", &stage], "echo ready; cat")), "ready");
    let running =
        start_until(world.std_command(&world.host_args(&["--stage", "../other"], "echo ready; sleep 1000")), "ready");
    let other = world.path().join("other");
    let other = other.to_str().unwrap();
    refused(&world, &["run", "--executor", "host", "--stage", other, "--", "true"], &["in use", other]);
    for command in ["review", "apply", "discard"] {
        world.pvisor(&[command, other]).expect(5).says(&["still going on", "pvisor kill"]);
    }
    world.pvisor(&["kill", other]).expect(0);
    wait(running).expect(128 + 15);
    wait(going);
}

#[test]
fn a_project_that_is_no_readable_directory() {
    let world = World::new();
    for project in ["missing", "README.md"] {
        refused(&world, &["run", "--project", project, "--", "true"], &["project", project, "--project DIR"]);
    }
    let closed = world.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = world.std_command(&["run", "--project", closed.to_str().unwrap(), "--", "true"]);
    command.uid(NOBODY).gid(NOBODY).env("PVISOR_RUN_HOME", "/tmp/pvisor-e2e-nobody");
    let done = finish(command).expect(125);
    done.says(&["closed", "Permission denied"]);
    refused(&world, &["run", "--cwd", "missing", "--", "true"], &["missing", "--cwd"]);
    refused(&world, &["run", "--rootfs", "missing", "--", "true"], &["missing", "--rootfs"]);
}

#[test]
fn a_state_directory_that_cannot_be_written() {
    let world = World::new();
    let file = world.path().join("file");
    fs::write(&file, "").unwrap();
    let unwritable = world.path().join("unwritable");
    fs::create_dir(&unwritable).unwrap();
    fs::set_permissions(&unwritable, fs::Permissions::from_mode(0o555)).unwrap();
    for (home, user) in [(file.join("runs"), None), (unwritable.join("runs"), Some(NOBODY))] {
        let mut command = world.std_command(&["run", "--executor", "host", "--", "touch", "started"]);
        command.env("PVISOR_RUN_HOME", &home);
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        finish(command).expect(125).says(&["runs can't be kept", home.to_str().unwrap(), "PVISOR_RUN_HOME"]);
    }
    assert!(!world.project().join("started").exists());
    let mut command = world.std_command(&["run", "--", "true"]);
    command.env_clear().env("PATH", "/usr/bin:/bin");
    finish(command).expect(125).says(&["PVISOR_RUN_HOME", "HOME"]);
}

#[test]
fn a_run_home_of_somebody_else() {
    let world = World::new();
    fs::create_dir(world.runs()).unwrap();
    fs::set_permissions(world.runs(), fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = world.std_command(&["run", "--executor", "host", "--", "true"]);
    command.uid(NOBODY).gid(NOBODY);
    finish(command).expect(125).says(&["belongs to user 0", "PVISOR_RUN_HOME"]);
}

#[test]
fn a_corrupt_journal() {
    let world = World::new();
    world.staged("echo x > new; echo y >> README.md").expect(0);
    let before = world.listing();
    let journal = Path::new(&world.stage()).join("journal");
    let good = fs::read(&journal).unwrap();
    for at in [0, 9, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 0x55;
        fs::write(&journal, &bad).unwrap();
        for args in [&["review", "last"][..], &["review", "last", "--diff"], &["apply", "last"]] {
            world.pvisor(args).expect(1).says(&["pvisor discard"]);
        }
    }
    fs::write(&journal, &good[..good.len() - 3]).unwrap();
    world.pvisor(&["apply", "last"]).expect(1).says(&["pvisor discard"]);
    assert_eq!(world.listing(), before);
    world.pvisor(&["discard", "last"]).expect(0);
}

#[test]
fn an_executor_that_is_not_there() {
    let world = World::new();
    refused(&world, &["run", "--executor", "oci", "--", "true"], &["not in this version", "--executor krun"]);
    assert!(world.status()["outcome"]["refused"].is_object());
    for option in ["--access=*.pem:deny", "--mount=/usr:read"] {
        let bare = ["run", "--executor", "host", option, "--", "true"];
        world.pvisor(&bare).expect(2).says(&["needs a sandbox", "--filesystem sandbox"]);
    }
    for option in ["--access=*.pem:ask", "--mount=/usr:stage"] {
        let later = ["run", "--executor", "host", "--filesystem", "sandbox", option, "--", "true"];
        world.pvisor(&later).expect(6).says(&["not in this version"]);
    }
    let rootfs = ["run", "--executor", "host", "--rootfs", "/usr", "--", "true"];
    refused(&world, &rootfs, &["root filesystem", "--executor krun"]);
    refused(&world, &["run", "--executor", "host", "--tty", "always", "--", "true"], &["terminal", "--tty"]);
}

#[test]
fn a_kvm_that_does_not_run_guests() {
    let world = World::new();
    let doctor = world.pvisor(&["doctor", "--json"]).expect(0).json();
    let kvm = doctor["capabilities"].as_array().unwrap().iter().find(|c| c["name"] == "kvm").unwrap().clone();
    if kvm["state"] == "usable" {
        return eprintln!("not tried: KVM runs guests here");
    }
    let done = refused(&world, &["run", "--executor", "krun", "--", "true"], &["krun", "/dev/kvm", "--executor host"]);
    assert!(world.status()["outcome"]["refused"]["kind"] == "krun", "{done}");
    // And what falls back says why, in one line.
    let done = world.pvisor(&["run", "--", "sh", "-c", "echo x > new"]).expect(0);
    let stderr = done.stderr();
    let told: Vec<&str> = stderr.lines().filter(|l| l.contains("/dev/kvm")).collect();
    assert!(told.len() == 1 && told[0].contains("on the host"), "{done}");
    assert!(!world.project().join("new").exists(), "auto must stage");
    assert_eq!(world.status()["stage"]["state"], "sealed");
}

#[test]
fn a_missing_kernel_and_no_tools_to_build_one() {
    let world = World::new();
    let mut command = world.std_command(&["run", "--executor", "krun", "--force-slow-kvm", "--", "true"]);
    command.env("PVISOR_IMAGES", world.path().join("images")).env("PATH", "/nonexistent");
    let done = finish(command).expect(125);
    if done.stderr().contains("/dev/kvm: ") {
        return eprintln!("not tried: there is no KVM here");
    }
    done.says(&["no guest kernel yet", "Debian package flex", "apt-get install", "pvisor image kernel"]);
    assert_eq!(world.status()["outcome"]["refused"]["kind"], "kernel");
    let mut command = world.std_command(&["image", "kernel", "--json"]);
    command.env("PVISOR_IMAGES", world.path().join("images")).env("PATH", "/nonexistent");
    assert_eq!(finish(command).expect(1).json()["kind"], "kernel");
}
