//! The way of a change: run, review, apply.

use std::fs;
use std::process::Command;

use crate::world::{World, finish};

fn git(world: &World, args: &[&str]) -> String {
    let identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"];
    let done = Command::new("git").args(identity).args(args).current_dir(world.project()).output().unwrap();
    assert!(done.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

const SCRIPT: &str = "sed -i s/a/b/ README.md; rm -r src; mkdir new; echo x > new/f";

#[test]
fn changes_are_staged_reviewed_and_applied() {
    let world = World::new();
    git(&world, &["init", "-q"]);
    git(&world, &["add", "."]);
    git(&world, &["commit", "-qm", "one"]);
    let before = world.listing();
    let run = world.pvisor(&world.host_args(&["--stage", "../s1"], SCRIPT)).expect(0);
    assert!(run.stderr().contains("pvisor review --diff") && run.stderr().contains("pvisor apply"), "{run}");
    assert_eq!(git(&world, &["status", "--porcelain"]), "");
    assert_eq!(world.listing(), before);

    let diff = world.pvisor(&["review", "--diff", "../s1"]).expect(0);
    for line in ["-a project", "+b project", "-pub fn f() {}", "+x", "b/new/f"] {
        assert!(diff.stdout().contains(line), "{line}: {diff}");
    }
    let summary = world.pvisor(&["review", "../s1"]).expect(0);
    assert!(summary.stdout().contains("README.md"), "{summary}");
    let json = world.pvisor(&["review", "../s1", "--json"]).expect(0).json();
    assert!(json["changes"].as_array().is_some_and(|c| !c.is_empty()), "{json:#}");

    let dry = world.pvisor(&["apply", "../s1", "--dry-run"]).expect(0);
    assert!(dry.stdout().contains("nothing was written"), "{dry}");
    assert_eq!(world.listing(), before);
    world.pvisor(&["apply", "../s1"]).expect(0);
    assert_eq!(fs::read_to_string(world.project().join("README.md")).unwrap(), "b project\n");
    assert_eq!(fs::read_to_string(world.project().join("new/f")).unwrap(), "x\n");
    assert!(!world.project().join("src").exists());
    let again = world.pvisor(&["apply", "../s1"]).expect(0);
    assert!(again.stdout().contains("nothing left"), "{again}");
    assert!(world.status()["stage"]["applied_ms"].is_u64());
}

#[test]
fn the_diff_is_one_that_git_takes() {
    let world = World::new();
    git(&world, &["init", "-q"]);
    world.staged(SCRIPT).expect(0);
    let diff = world.pvisor(&["review", "--diff"]).expect(0);
    let patch = world.path().join("patch");
    fs::write(&patch, &diff.0.stdout).unwrap();
    git(&world, &["apply", patch.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(world.project().join("README.md")).unwrap(), "b project\n");
    // What was applied by other means is not applied twice, and is no conflict.
    world.pvisor(&["apply", "last"]).expect(0);
}

#[test]
fn an_edit_of_the_person_is_a_conflict() {
    let world = World::new();
    world.staged(SCRIPT).expect(0);
    fs::write(world.project().join("README.md"), "edited by the person\n").unwrap();
    let before = world.listing();
    let apply = world.pvisor(&["apply", "last"]).expect(3);
    assert!(apply.stderr().contains("README.md"), "{apply}");
    assert_eq!(world.listing(), before);
    let json = world.pvisor(&["apply", "last", "--json"]).expect(3).json();
    assert_eq!(json["kind"], "conflict");
    assert_eq!(json["conflicts"][0]["path"], "README.md");
    // The rest can be had without it.
    let rest = world.pvisor(&["apply", "last", "--exclude", "README.md"]).expect(0);
    assert!(rest.stdout().contains("1 change left"), "{rest}");
    assert!(world.project().join("new/f").exists());
    assert_eq!(fs::read_to_string(world.project().join("README.md")).unwrap(), "edited by the person\n");
}

#[test]
fn parts_are_applied_by_path_and_pattern() {
    let world = World::new();
    world.staged("mkdir -p a/b; echo 1 > a/b/one.txt; echo 2 > a/two.rs; echo 3 > three.txt").expect(0);
    let project = world.project();
    world.pvisor(&["apply", "last", "--path", "a/b"]).expect(0);
    assert!(project.join("a/b/one.txt").exists() && !project.join("a/two.rs").exists());
    let absolute = project.join("a/two.rs");
    world.pvisor(&["apply", "last", "--path", absolute.to_str().unwrap(), "--exclude", "*.rs"]).expect(0);
    assert!(!project.join("a/two.rs").exists());
    world.pvisor(&["apply", "last", "--include", "*.rs"]).expect(0);
    assert!(project.join("a/two.rs").exists() && !project.join("three.txt").exists());
    world.pvisor(&["apply", "last", "--path", "../outside"]).expect(2).says(&["--path", "relative to the project"]);
    world.pvisor(&["apply", "last", "--path", "README.md"]).expect(2).says(&["README.md"]);
    let elsewhere = world.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    world.pvisor(&["apply", "last", "--target", "../elsewhere", "--include", "three.txt"]).expect(0);
    assert!(elsewhere.join("three.txt").exists() && !project.join("three.txt").exists());
}

#[test]
fn discarded_changes_are_gone() {
    let world = World::new();
    let before = world.listing();
    world.staged(SCRIPT).expect(0);
    world.pvisor(&["discard", "last"]).expect(0);
    assert!(!world.path().join("stage").exists());
    assert_eq!(world.listing(), before);
    assert_eq!(world.status()["stage"]["state"], "discarded");
    assert!(world.pvisor(&["discard", "last"]).expect(0).stdout().contains("nothing left"));
    world.pvisor(&["apply", "last"]).expect(1).says(&["discarded"]);
    // The place is free again.
    world.staged("echo again > again").expect(0);
    assert_eq!(world.status()["stage"]["changes"], 1);
}

#[test]
fn a_stage_without_a_record_can_still_be_used() {
    let world = World::new();
    world.staged(SCRIPT).expect(0);
    fs::remove_dir_all(world.runs()).unwrap();
    let stage = world.stage();
    assert!(world.pvisor(&["review", &stage]).expect(0).stdout().contains("README.md"));
    world.pvisor(&["apply", &stage]).expect(0);
    assert!(world.project().join("new/f").exists());
    world.pvisor(&["discard", &stage]).expect(0);
    assert!(!world.path().join("stage").exists());
}

#[test]
fn without_a_stage_the_project_is_written_and_that_is_said() {
    let world = World::new();
    let done = world.pvisor(&world.host_args(&[], "echo x > direct")).expect(0);
    assert!(world.project().join("direct").exists());
    assert!(done.stderr().lines().next().is_some_and(|l| l.contains("directly")), "{done}");
    let status = world.status();
    assert_eq!(status["stage"]["state"], "none");
    assert_eq!(status["safety"]["filesystem_write_non_bypassable"], false);
    world.pvisor(&["apply", "last"]).expect(1).says(&["no stage", "directly"]);
}

#[test]
fn the_default_stage_is_with_the_run() {
    let world = World::new();
    let done = world.pvisor(&["run", "--", "sh", "-c", "echo x > new"]).expect(0);
    assert!(!world.project().join("new").exists(), "{done}");
    world.pvisor(&["apply", "last"]).expect(0);
    assert!(world.project().join("new").exists());
}

#[test]
fn input_output_and_descriptors_are_the_commands_own() {
    let world = World::new();
    let mut command = Command::new("sh");
    let script = format!(
        "exec 9</etc/passwd; echo data | {} run --executor host -- sh -c 'cat; ls /proc/self/fd; echo err >&2'",
        env!("CARGO_BIN_EXE_pvisor")
    );
    command.args(["-c", &script]).current_dir(world.project()).env("PVISOR_RUN_HOME", world.runs());
    let done = finish(command).expect(0);
    // `ls` itself has the directory open as 3.
    assert_eq!(done.stdout(), "data\n0\n1\n2\n3\n", "{done}");
    assert!(done.stderr().contains("err\n"), "{done}");
}

#[test]
fn the_command_starts_in_the_callers_directory() {
    let world = World::new();
    let mut command =
        world.std_command(&["run", "--executor", "host", "--project", "..", "--stage", "../../s", "--", "pwd"]);
    command.current_dir(world.project().join("src"));
    let done = finish(command).expect(0);
    assert_eq!(done.stdout().trim(), world.project().join("src").to_str().unwrap(), "{done}");
    let done = world.pvisor(&["run", "--executor", "host", "--cwd", "src", "--", "pwd"]).expect(0);
    assert_eq!(done.stdout().trim(), world.project().join("src").to_str().unwrap());
}

#[test]
fn denied_network_is_denied_and_known() {
    let world = World::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
    let args = ["run", "--executor", "host", "--overlaynet-deny-all", "--", "bash", "-c", &script];
    assert_ne!(world.pvisor(&args).code(), 0);
    assert!(listener.accept().is_err(), "the command reached the host");
    let status = world.status();
    // Services of the host that listen at a path could still be asked to.
    assert_eq!(status["safety"]["network_non_bypassable"], false);
    assert_eq!(status["observations"][2]["level"], "cooperative", "{status:#}");
    assert_eq!(status["observations"][2]["need"], "required");
    let sandboxed = [&args[..3], &["--filesystem", "sandbox"], &args[3..]].concat();
    assert_ne!(world.pvisor(&sandboxed).code(), 0);
    assert!(listener.accept().is_err(), "the command reached the host");
    let status = world.status();
    assert_eq!(status["safety"]["network_non_bypassable"], true);
    assert_eq!(status["observations"][2]["level"], "enforced", "{status:#}");
    world.pvisor(&["run", "--executor", "host", "--", "bash", "-c", &script]).expect(0);
    assert!(listener.accept().is_ok());
    assert_eq!(world.status()["safety"]["network_non_bypassable"], false);
}

#[test]
fn the_first_thing_that_a_command_makes_in_a_project_just_made_is_never_denied() {
    // What is told of the project's own making crosses the first question for its attributes.
    for _ in 0..40 {
        let world = World::new();
        let done = world.staged("echo x > new").expect(0);
        assert!(!done.stderr().contains("denied"), "{done}");
    }
}
