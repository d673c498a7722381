//! Defaults from a file.

use std::fs;

use crate::world::World;

#[test]
fn the_file_fills_in_what_the_arguments_leave_open() {
    let world = World::new();
    fs::create_dir_all(world.path().join("config/pvisor")).unwrap();
    let file = world.path().join("config/pvisor/config.toml");
    fs::write(&file, "[run]\nexecutor = \"host\"\ntimeout = \"300ms\"\n").unwrap();
    world.pvisor(&["run", "--", "sleep", "1000"]).expect(124);
    assert_eq!(world.status()["executor"], "host");
    let dry = world.pvisor(&["run", "--timeout", "1h", "--dry-run", "--", "true"]).expect(0).json();
    assert_eq!(dry["timeout_ms"], 3_600_000);
    fs::write(&file, "[run]\nexekutor = \"host\"\n").unwrap();
    world.pvisor(&["run", "--", "true"]).expect(125).says(&["config.toml", "exekutor"]);
}

#[test]
fn a_dry_run_leaves_nothing() {
    let world = World::new();
    let dry = world.pvisor(&["run", "--dry-run", "--env", "SECRET=hidden", "--", "true"]).expect(0);
    assert_eq!(dry.json()["command"]["argv"][0], "true");
    assert!(dry.stdout().contains("SECRET") && !dry.stdout().contains("hidden"), "{dry}");
    assert!(!world.runs().exists());
}
