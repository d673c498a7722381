//! Savepoints and forks from outside.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::undo::repository;
use crate::world::{World, signal, start_until, wait, worker_of};

fn names(world: &World) -> Vec<String> {
    let list = world.pvisor(&["checkpoint", "list", "last", "--json"]).expect(0).json();
    let names = list["savepoints"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap().to_owned());
    names.collect()
}

#[test]
fn a_savepoint_is_made_shown_verified_and_deleted() {
    let world = repository();
    world.staged("echo changed > src/lib.rs; head -c 100000 /dev/zero > new").expect(0);
    assert!(world.pvisor(&["checkpoint", "list", "last"]).expect(0).stdout().contains("no savepoints"));
    let made = world.pvisor(&["checkpoint", "create", "last", "--json"]).expect(0).json();
    assert_eq!((made["name"].as_str(), made["changes"].as_u64()), (Some("1"), Some(2)));
    assert_eq!(made["seal"], world.status()["stage"]["seal"]);
    world.pvisor(&["checkpoint", "create", "last", "--name", "again"]).expect(0);
    world.pvisor(&["checkpoint", "create", "last", "--name", "again"]).expect(1).says(&["already"]);
    world.pvisor(&["checkpoint", "create", "last", "--name", "../x"]).expect(2).says(&["can't be a savepoint's name"]);
    assert_eq!(names(&world), ["1", "again"]);
    assert!(world.pvisor(&["checkpoint", "show", "last", "1"]).expect(0).stdout().contains("2 changes"));
    // No copy: the stage and both savepoints together are hardly larger than one of them.
    let upper = fs::read_dir(Path::new(&world.stage()).join("upper")).unwrap().map(|e| e.unwrap().metadata().unwrap());
    assert!(upper.into_iter().all(|m| m.nlink() == 3 || m.nlink() == 1));
    world.pvisor(&["checkpoint", "verify", "last", "1"]).expect(0);
    fs::write(Path::new(&world.stage()).join("savepoints/1/journal"), "x").unwrap();
    world.pvisor(&["checkpoint", "verify", "last", "1"]).expect(1).says(&["damaged", "journal"]);
    world.pvisor(&["checkpoint", "restore", "last", "1"]).expect(1).says(&["damaged"]);
    world.pvisor(&["checkpoint", "delete", "last", "1"]).expect(0);
    world.pvisor(&["checkpoint", "delete", "last", "1"]).expect(1).says(&["no savepoint"]);
    assert_eq!(names(&world), ["again"]);
    world.pvisor(&["checkpoint", "gc"]).expect(0);
    world.pvisor(&["checkpoint", "restore", "last"]).expect(0);
    world.pvisor(&["apply", "last"]).expect(0);
    assert_eq!(fs::read_to_string(world.project().join("src/lib.rs")).unwrap(), "changed\n");
}

#[test]
fn a_run_that_goes_on_has_none_restored_and_one_that_broke_off_is_saved_by_it() {
    let world = repository();
    let stage = world.stage();
    let script = "echo changed > src/lib.rs; git add -A; git commit -qm half; echo ready; sleep 1000";
    let child = start_until(world.std_command(&world.host_args(&["--stage", &stage], script)), "ready");
    for change in [&["restore", "last"][..], &["delete", "last", "1"], &["gc", "last"]] {
        world.pvisor(&[&["checkpoint"], change].concat()).expect(6).says(&["still going on", "pvisor kill"]);
    }
    signal(worker_of(child.id()), "KILL");
    wait(child).expect(125);
    world.pvisor(&["apply", "last"]).expect(5).says(&["pvisor checkpoint"]);
    world.pvisor(&["fork", "last"]).expect(5);
    world.pvisor(&["checkpoint", "restore", "last"]).expect(1).says(&["no savepoint"]);
    let made = world.pvisor(&["checkpoint", "create", "last", "--json"]).expect(0).json();
    assert!(made["seal"].is_null());
    let fork = world.pvisor(&["fork", "last", "--savepoint", "1", "--json"]).expect(0).json();
    assert_eq!(fork["forks"].as_array().unwrap().len(), 1);
    let of = fork["of"].as_str().unwrap();
    assert_eq!(world.pvisor(&["status", of, "--json"]).expect(0).json()["stage"]["state"], "unsealed");
    world.pvisor(&["checkpoint", "restore", of]).expect(0);
    let status = world.pvisor(&["status", of, "--json"]).expect(0).json();
    assert_eq!(status["stage"]["state"], "sealed");
    assert!(status["outcome"]["interrupted"].is_object(), "what became of the run stays said: {status:#}");
    world.pvisor(&["review", of]).expect(0);
    world.pvisor(&["apply", of]).expect(0);
    let log =
        std::process::Command::new("git").args(["log", "--oneline"]).current_dir(world.project()).output().unwrap();
    assert!(String::from_utf8_lossy(&log.stdout).contains("half"));
}

#[test]
fn forks_are_runs_of_their_own() {
    let world = repository();
    world.staged("echo changed > src/lib.rs; mkdir new; echo x > new/x; ln README.md hard").expect(0);
    let of = world.status()["id"].as_str().unwrap().to_owned();
    let answer = world.pvisor(&["fork", &of, "--count", "3", "--json"]).expect(0).json();
    let forks: Vec<String> =
        answer["forks"].as_array().unwrap().iter().map(|f| f["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(forks.len(), 3);
    let status = world.pvisor(&["status", &forks[0], "--json"]).expect(0).json();
    assert_eq!(status["forked_from"], of.as_str());
    assert_eq!((status["stage"]["state"].as_str(), status["bundle_intact"].as_bool()), (Some("sealed"), Some(true)));
    assert_eq!(world.pvisor(&["list", "--json"]).expect(0).json()["runs"].as_array().unwrap().len(), 4);
    // One is applied, one thrown away, the first goes: the last one has everything still.
    world.pvisor(&["discard", &of]).expect(0);
    world.pvisor(&["apply", &forks[0], "--path", "src"]).expect(0);
    world.pvisor(&["undo", &forks[0]]).expect(0);
    world.pvisor(&["discard", &forks[0]]).expect(0);
    world.pvisor(&["discard", &forks[1]]).expect(0);
    world.pvisor(&["apply", &forks[2]]).expect(0);
    assert_eq!(fs::read_to_string(world.project().join("new/x")).unwrap(), "x\n");
    assert_eq!(fs::metadata(world.project().join("hard")).unwrap().nlink(), 2);
    world.pvisor(&["fork", "run-0"]).expect(4);
}

#[test]
fn a_command_in_a_fork_goes_on_where_the_other_ended() {
    let world = repository();
    let script = "echo one > src/lib.rs; echo new > new; mv README.md moved; [ -z \"$PVISOR_E2E\" ] || exit 9";
    world.staged(script).expect(0);
    let of = world.status()["id"].as_str().unwrap().to_owned();
    world.pvisor(&["checkpoint", "create", &of, "--name", "here"]).expect(0);
    let before = world.listing();
    let args = ["fork", &of, "--env", "PVISOR_E2E=x", "--", "sh", "-c"];
    let script = "cat src/lib.rs moved; [ ! -e README.md ] && echo two >> src/lib.rs; echo $PVISOR_E2E > new; exit 7";
    let ran = world.pvisor(&[&args[..], &[script]].concat()).expect(7);
    assert_eq!(ran.stdout(), "one\na project\n");
    assert!(ran.stderr().contains("changes staged"), "{ran}");
    let status = world.status();
    assert_eq!((status["forked_from"].as_str(), status["exit_code"].as_u64()), (Some(&*of), Some(7)));
    assert_eq!(status["stage"]["state"], "sealed");
    let fork = status["id"].as_str().unwrap().to_owned();
    assert_eq!(world.listing(), before);
    // From a savepoint, in the middle of a third generation.
    let args = ["fork", &fork, "--", "sh", "-c", "echo three >> src/lib.rs; rm new"];
    world.pvisor(&args).expect(0);
    let third = world.status()["id"].as_str().unwrap().to_owned();
    world.pvisor(&["fork", &of, "--savepoint", "here", "--", "sh", "-c", "grep -q one src/lib.rs && rm new"]).expect(0);
    world.pvisor(&["discard", "last"]).expect(0);
    world.pvisor(&["discard", &fork]).expect(0);
    world.pvisor(&["apply", &third]).expect(0);
    assert_eq!(fs::read_to_string(world.project().join("src/lib.rs")).unwrap(), "one\ntwo\nthree\n");
    assert!(!world.project().join("new").exists() && world.project().join("moved").exists());
    // The run that all of it began with still has its own.
    assert_eq!(world.pvisor(&["status", &of, "--json"]).expect(0).json()["stage"]["changes"], 4);
    world.assert_nothing_left();
}

#[test]
fn a_fork_whose_command_can_not_begin_says_so_as_a_run_does() {
    let world = repository();
    world.staged("echo one > src/lib.rs").expect(0);
    let of = world.status()["id"].as_str().unwrap().to_owned();
    world.pvisor(&["fork", &of, "--", "no-such-program"]).expect(127);
    world.pvisor(&["fork", &of, "--savepoint", "none", "--", "true"]).expect(125).says(&["no savepoint"]);
    world.pvisor(&["fork", "run-0", "--", "true"]).expect(125);
    world.pvisor(&["fork", &of, "--count", "2", "--", "true"]).expect(2);
    let fails = world.pvisor(&["fork", &of, "--json", "--savepoint", "none", "--", "true"]).expect(125);
    assert!(fails.stderr().contains("\"kind\""), "{fails}");
    assert_eq!(world.pvisor(&["status", &of, "--json"]).expect(0).json()["stage"]["changes"], 1);
}
