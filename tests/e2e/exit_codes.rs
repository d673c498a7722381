//! The exit code of a run is its command's, or tells why there is none.

use crate::world::World;

#[test]
fn the_commands_own_code_passes_through() {
    let world = World::new();
    for code in [0, 1, 3, 7, 124, 125, 255] {
        let done = world.pvisor(&world.host_args(&[], &format!("exit {code}")));
        assert_eq!(done.code(), code, "{done}");
    }
}

#[test]
fn a_signal_is_128_and_its_number() {
    let world = World::new();
    world.pvisor(&world.host_args(&[], "kill -TERM $$")).expect(128 + 15);
    world.pvisor(&world.host_args(&[], "kill -KILL $$")).expect(128 + 9);
}

#[test]
fn what_cannot_be_executed_is_126_and_what_is_not_there_127() {
    let world = World::new();
    world.pvisor(&["run", "--executor", "host", "--", "no-such-program-here"]).expect(127);
    world.pvisor(&["run", "--executor", "host", "--", "./README.md"]).expect(126);
    let stage = world.stage();
    world.pvisor(&["run", "--executor", "host", "--stage", &stage, "--", "no-such-program-here"]).expect(127);
    assert_eq!(world.status()["outcome"]["completed"], "not_found");
}

#[test]
fn a_time_limit_is_124() {
    let world = World::new();
    world.pvisor(&world.host_args(&["--timeout", "300ms"], "sleep 1000")).expect(124);
    let deaf = "trap '' TERM; while :; do sleep 1; done";
    world.pvisor(&world.host_args(&["--timeout", "300ms", "--grace", "300ms"], deaf)).expect(124);
    assert_eq!(world.status()["outcome"]["completed"], "timed_out");
    world.assert_nothing_left();
}

#[test]
fn a_plain_user_runs_commands_too() {
    use std::os::unix::process::CommandExt as _;
    let world = World::new();
    let home = world.path().join("home");
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(65534), Some(65534)).unwrap();
    let run = |options: &[&str], script: &str| {
        let mut command = world.std_command(&world.host_args(options, script));
        command.uid(65534).gid(65534).env("PVISOR_RUN_HOME", home.join("runs"));
        crate::world::finish(command)
    };
    let done = run(&[], "id -u; exit 7").expect(7);
    assert_eq!(done.stdout(), "65534\n");
    // Staged runs need /dev/fuse, which is not every user's; then that is what is said.
    let stage = home.join("stage");
    let done = run(&["--stage", stage.to_str().unwrap()], "echo x > new 2>/dev/null; exit 7");
    match done.code() {
        7 => assert!(!world.project().join("new").exists()),
        _ => done.expect(125).says(&["fuse"]),
    }
}

#[test]
fn usage_errors_are_2() {
    let world = World::new();
    for args in [
        &["run", "--no-such-option", "--", "true"][..],
        &["run", "--executor", "vm", "--", "true"],
        &["run", "--timeout", "soon", "--", "true"],
        &["run", "--memory", "1", "--", "true"],
        &["run", "true"],
        &["no-such-command"],
        &["apply"],
        &[],
    ] {
        world.pvisor(args).expect(2);
    }
    assert!(!world.runs().exists());
}
