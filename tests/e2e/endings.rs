//! Every way a run can end but by itself: each leaves a readable record and nothing else.

use std::io::Read as _;
use std::process::{Command, Stdio};

use crate::world::{World, signal, start_until, until, wait, worker_of};

/// A staged run that has written something and goes on.
fn going(world: &World, options: &[&str], script: &str) -> std::process::Child {
    let stage = world.stage();
    let options = [&["--stage", &stage], options].concat();
    start_until(world.std_command(&world.host_args(&options, script)), "ready")
}

#[test]
fn an_interrupt_reaches_the_command_once() {
    let world = World::new();
    let child = going(&world, &[], "trap 'echo x >> count; exit 5' INT; echo ready; while :; do sleep 0.05; done");
    signal(child.id(), "INT");
    wait(child).expect(5);
    world.pvisor(&["apply", "last"]).expect(0);
    assert_eq!(std::fs::read_to_string(world.project().join("count")).unwrap(), "x\n");
    world.assert_nothing_left();
}

#[test]
fn an_interrupt_ends_a_command_that_does_not_care() {
    let world = World::new();
    let child = going(&world, &[], "echo x > new; echo ready; exec sleep 1000");
    signal(child.id(), "INT");
    wait(child).expect(128 + 2);
    assert_eq!(world.status()["stage"]["state"], "sealed");
    world.assert_nothing_left();
}

#[test]
fn three_interrupts_end_anything() {
    let world = World::new();
    let script = "trap '' INT TERM; echo ready; while :; do sleep 1; done";
    let child = going(&world, &["--grace", "1h"], script);
    for _ in 0..3 {
        signal(child.id(), "INT");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    let done = wait(child);
    assert!([125, 128 + 2, 128 + 9].contains(&done.code()), "{done}");
    assert_eq!(world.status()["state"], "ended");
    world.assert_nothing_left();
}

#[test]
fn other_signals_are_passed_on() {
    let world = World::new();
    for (name, code) in [("USR1", 11), ("USR2", 12), ("HUP", 13), ("TERM", 14), ("QUIT", 15)] {
        let script = format!("trap 'exit {code}' {name}; echo ready; while :; do sleep 0.05; done");
        let child = start_until(world.std_command(&world.host_args(&[], &script)), "ready");
        signal(child.id(), name);
        wait(child).expect(code);
    }
}

#[test]
fn a_killed_worker_is_an_interrupted_run() {
    let world = World::new();
    let before = world.listing();
    let child = going(&world, &[], "echo x > new; echo ready; sleep 1000");
    signal(worker_of(child.id()), "KILL");
    let done = wait(child).expect(125);
    assert!(done.stderr().contains("SIGKILL") && done.stderr().contains("pvisor discard"), "{done}");
    let status = world.status();
    assert!(status["outcome"]["interrupted"].is_object(), "{status:#}");
    assert_eq!(status["stage"]["state"], "unsealed");
    for command in ["apply", "review"] {
        world.pvisor(&[command, "last"]).expect(5).says(&["not sealed", "pvisor discard"]);
    }
    world.pvisor(&["discard", "last"]).expect(0);
    assert_eq!(world.listing(), before);
    world.assert_nothing_left();
}

#[test]
fn a_killed_supervisor_takes_everything_with_it() {
    let world = World::new();
    let before = world.listing();
    let child = going(&world, &[], "echo x > new; echo ready; setsid sleep 1000 & sleep 1000");
    until("the record says so", || world.status()["state"] == "running");
    signal(child.id(), "KILL");
    let _ = wait(child);
    let status = world.status();
    assert_eq!(status["outcome"]["interrupted"]["kind"], "supervisor_lost", "{status:#}");
    assert_eq!(status["stage"]["state"], "unsealed");
    assert!(!status["receipts"].as_array().unwrap().is_empty(), "what was known is kept: {status:#}");
    assert_eq!(status["bundle_intact"], true);
    world.pvisor(&["apply", "last"]).expect(5);
    assert_eq!(world.listing(), before);
    world.pvisor(&["discard", "last"]).expect(0);
    world.assert_nothing_left();
}

#[test]
fn a_killed_supervisor_is_settled_once_by_many_readers() {
    let world = World::new();
    let child = going(&world, &[], "echo ready; sleep 1000");
    signal(child.id(), "KILL");
    let _ = wait(child);
    let readers: Vec<_> = (0..8).map(|_| world.std_command(&["status", "--json"])).collect();
    let readers: Vec<_> =
        readers.into_iter().map(|mut c| c.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()).collect();
    let endings: Vec<String> = readers.into_iter().map(|r| wait(r).expect(0).json()["ended_ms"].to_string()).collect();
    assert!(endings.iter().all(|e| *e == endings[0] && e != "null"), "{endings:?}");
}

#[test]
fn kill_ends_a_run() {
    let world = World::new();
    let child = going(&world, &[], "echo x > new; echo ready; exec sleep 1000");
    let told = world.pvisor(&["kill", "last"]).expect(0);
    assert!(told.stdout().contains("ended"), "{told}");
    wait(child).expect(128 + 15);
    assert_eq!(world.status()["stage"]["state"], "sealed");
    assert!(world.pvisor(&["kill", "last"]).expect(0).stdout().contains("over already"));
    world.assert_nothing_left();
}

#[test]
fn kill_ends_a_run_that_does_not_want_to_end() {
    let world = World::new();
    let script = "trap '' INT TERM HUP; echo ready; while :; do sleep 1; done";
    let child = going(&world, &["--grace", "500ms"], script);
    let told = world.pvisor(&["kill", "last", "--json"]).expect(0).json();
    assert_eq!(told["forced"], true);
    wait(child);
    assert_eq!(world.status()["state"], "ended");
    world.assert_nothing_left();
}

#[test]
fn kill_ends_a_run_whose_processes_are_stopped() {
    let world = World::new();
    let child = going(&world, &["--grace", "200ms"], "echo ready; exec sleep 1000");
    let worker = worker_of(child.id());
    until("the record says so", || world.status()["state"] == "running");
    signal(worker, "STOP");
    // Whoever asks is answered all the same.
    assert_eq!(world.pvisor(&["list", "--json"]).expect(0).json()["runs"][0]["state"], "running");
    assert_eq!(world.status()["state"], "running");
    signal(child.id(), "STOP");
    assert_eq!(world.status()["state"], "running");
    let told = world.pvisor(&["kill", "last", "--json"]).expect(0).json();
    assert_eq!(told["forced"], false, "what is stopped is let go on, so that it can end in good order");
    wait(child).expect(128 + 15);
    assert_eq!(world.status()["stage"]["state"], "sealed");
    world.assert_nothing_left();
}

#[test]
fn kill_works_where_the_worker_is_dead_and_the_supervisor_stopped() {
    let world = World::new();
    let child = going(&world, &["--grace", "200ms"], "echo ready; exec sleep 1000");
    let worker = worker_of(child.id());
    signal(child.id(), "STOP");
    signal(worker, "KILL");
    world.pvisor(&["kill", "last"]).expect(0);
    wait(child).expect(125);
    assert!(world.status()["outcome"]["interrupted"].is_object());
    world.pvisor(&["discard", "last"]).expect(0);
    world.assert_nothing_left();
}

#[test]
fn a_reader_that_leaves_ends_the_command_and_nothing_else() {
    let world = World::new();
    let stage = world.stage();
    let mut child = world
        .std_command(&["run", "--executor", "host", "--stage", &stage, "--", "yes"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = child.stdout.take().unwrap();
    let mut first = [0; 2];
    reader.read_exact(&mut first).unwrap();
    drop(reader);
    wait(child).expect(128 + 13);
    assert_eq!(world.status()["stage"]["state"], "sealed");
}

#[test]
fn closed_standard_streams_do_no_harm() {
    let world = World::new();
    let pvisor = env!("CARGO_BIN_EXE_pvisor");
    for (closed, code) in [("<&-", 7), (">&-", 7), ("2>&-", 7), ("<&- >&- 2>&-", 7)] {
        let script = format!("{pvisor} run --executor host -- sh -c 'exit 7' {closed}");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(world.project()).env("PVISOR_RUN_HOME", world.runs());
        crate::world::finish(command).expect(code);
    }
    // A reader of standard error that left.
    let script = format!(
        "{pvisor} run --executor host -- sh -c 'sleep 0.2; exit 7' 2>&1 >/dev/null | true; exit ${{PIPESTATUS[0]}}"
    );
    let mut command = Command::new("bash");
    command.args(["-c", &script]).current_dir(world.project()).env("PVISOR_RUN_HOME", world.runs());
    crate::world::finish(command).expect(7);
    assert_eq!(world.status()["exit_code"], 7);
    // Answers to nobody.
    for args in ["list", "status", "doctor", "man", "--help", "run --help"] {
        let script = format!("{pvisor} {args} | true; exit ${{PIPESTATUS[0]}}");
        let mut command = Command::new("bash");
        command.args(["-c", &script]).current_dir(world.project()).env("PVISOR_RUN_HOME", world.runs());
        crate::world::finish(command).expect(0);
    }
}

#[test]
fn a_supervisor_that_dies_at_any_time_leaves_a_readable_run() {
    let world = World::new();
    for step in 0..20 {
        let mut child = world
            .std_command(&[
                "run",
                "--executor",
                "host",
                "--stage",
                &format!("../s{step}"),
                "--",
                "sh",
                "-c",
                "echo x > new",
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(step * 4));
        let _ = child.kill();
        child.wait().unwrap();
    }
    let list = world.pvisor(&["list", "--json"]).expect(0).json();
    assert_eq!(list["unreadable"], serde_json::json!([]));
    let runs = list["runs"].as_array().unwrap();
    assert!(runs.iter().all(|r| r["state"] == "ended" && r["outcome"].is_object()), "{list:#}");
    until("nothing is left", || world.pvisor(&["list"]).code() == 0);
    world.assert_nothing_left();
    assert!(!world.project().join("new").exists());
}

#[test]
fn a_stage_that_could_not_be_sealed_is_sealed_later() {
    let world = World::new();
    let child = going(&world, &[], "echo x > new; trap 'exit 3' USR1; echo ready; while :; do sleep 0.05; done");
    // Another directory stands where the project was, so nobody knows what the changes are changes of.
    let aside = world.path().join("aside");
    std::fs::rename(world.project(), &aside).unwrap();
    std::fs::create_dir(world.project()).unwrap();
    signal(child.id(), "USR1");
    let done = wait(child).expect(125);
    assert!(done.stderr().contains("can't be sealed") && done.stderr().contains("pvisor review"), "{done}");
    let review = world.pvisor(&["review", "last"]).expect(5);
    review.says(&["can't be sealed"]);
    std::fs::remove_dir(world.project()).unwrap();
    std::fs::rename(&aside, world.project()).unwrap();
    assert_eq!(world.status()["stage"]["state"], "unsealed");
    assert!(world.pvisor(&["review", "last"]).expect(0).stdout().contains("new"));
    let status = world.status();
    assert_eq!((&status["stage"]["state"], &status["stage"]["changes"]), (&"sealed".into(), &1.into()), "{status:#}");
    assert_eq!(status["outcome"]["interrupted"]["kind"], "seal");
    assert_eq!(status["bundle_intact"], true);
    world.pvisor(&["apply", "last"]).expect(0);
    assert!(world.project().join("new").exists());
}
