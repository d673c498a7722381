//! Whatever happens, `--json` answers with JSON.

use std::fs;

use serde_json::Value;

use crate::world::World;

/// A failure has these three fields and an exit code other than 0.
fn assert_failure(value: &Value, code: i32, what: &str) {
    assert!(
        value["kind"].is_string() && value["message"].is_string() && value["hints"].is_array(),
        "{what}: {value:#}"
    );
    assert_ne!(code, 0, "{what}");
}

#[test]
fn every_command_answers_in_json() {
    let world = World::new();
    world.staged("echo x > new").expect(0);
    for args in [
        &["list"][..],
        &["status"],
        &["status", "--review"],
        &["review"],
        &["apply", "last", "--dry-run"],
        &["apply", "last"],
        &["apply", "last"],
        &["kill", "last"],
        &["discard", "last"],
        &["discard", "last"],
        &["doctor"],
        &["image", "list"],
        &["profile", "list"],
        &["profile", "show", "codex"],
    ] {
        let done = world.pvisor(&[args, &["--json"]].concat()).expect(0);
        assert!(done.json().is_object(), "{args:?}");
        assert_eq!(done.stderr(), "", "{args:?}");
    }
}

#[test]
fn every_failure_answers_in_json() {
    let world = World::new();
    for (args, code) in [
        (&["status", "nope"][..], 4),
        (&["review", "nope"], 4),
        (&["apply", "nope"], 4),
        (&["discard", "nope"], 4),
        (&["kill", "nope"], 4),
        (&["list", "--nope"], 2),
        (&["apply"], 2),
        (&["nope"], 2),
        (&["image", "rm", "nope"], 1),
        (&["profile", "show", "nope"], 1),
    ] {
        let done = world.pvisor(&[args, &["--json"]].concat()).expect(code);
        assert_failure(&done.json(), code, &format!("{args:?}"));
        assert_eq!(done.stderr(), "", "{args:?}");
    }
    fs::write(world.path().join("file"), "").unwrap();
    let mut command = world.std_command(&["list", "--json"]);
    command.env("PVISOR_RUN_HOME", world.path().join("loop"));
    std::os::unix::fs::symlink("loop", world.path().join("loop")).unwrap();
    let done = crate::world::finish(command).expect(1);
    assert_failure(&done.json(), 1, "a run home that is a loop");
}

#[test]
fn a_run_reports_on_standard_error() {
    let world = World::new();
    let stage = world.stage();
    let done = world
        .pvisor(&[
            "run",
            "--json",
            "--executor",
            "host",
            "--stage",
            &stage,
            "--",
            "sh",
            "-c",
            "echo out; echo x > new; exit 7",
        ])
        .expect(7);
    assert_eq!(done.stdout(), "out\n");
    let report: Value = serde_json::from_str(&done.stderr()).unwrap_or_else(|e| panic!("{e}: {done}"));
    assert_eq!((&report["exit_code"], &report["stage"]["changes"]), (&7.into(), &1.into()), "{report:#}");
    for args in [
        &["run", "--json", "--executor", "oci", "--", "true"][..],
        &["run", "--json", "--stage", "inside", "--", "true"],
        &["run", "--json", "--project", "missing", "--", "true"],
        &["run", "--json", "--executor", "host", "--stage", &stage, "--", "true"],
    ] {
        let done = world.pvisor(args).expect(125);
        assert_eq!(done.stdout(), "", "{args:?}");
        let told: Value = serde_json::from_str(&done.stderr()).unwrap_or_else(|e| panic!("{args:?}: {e}: {done}"));
        assert_failure(&told, 125, &format!("{args:?}"));
    }
    let done = world.pvisor(&["run", "--json"]).expect(2);
    assert_failure(&serde_json::from_str(&done.stderr()).unwrap(), 2, "no command");
}

#[test]
fn names_that_are_not_utf8_do_not_break_it() {
    use std::os::unix::ffi::OsStrExt as _;
    let world = World::new();
    let name = std::ffi::OsStr::from_bytes(b"odd\xff");
    let mut command = world.std_command(&["run", "--executor", "host", "--stage", &world.stage(), "--", "touch"]);
    command.arg(name);
    crate::world::finish(command).expect(0);
    for args in [
        &["list", "--json"][..],
        &["status", "--review", "--json"],
        &["review", "--json"],
        &["apply", "last", "--json"],
    ] {
        assert!(world.pvisor(args).expect(0).json().is_object());
    }
    assert!(world.project().join(name).exists());
}
