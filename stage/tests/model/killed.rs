//! A process that is killed while it writes a stage: what it left can be sealed, and the changes fit together.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use pvisor_stage::{Errno, Stage, StageOptions, load_changes, seal};

use crate::{naive, operation, plain, staged, tree};

/// Tells the second process where to work.
const AT: &str = "PVISOR_KILLED_TEST_DIR";

/// Works until it is killed. Does nothing unless another test started it.
#[test]
fn worker() {
    let Some(temp) = std::env::var_os(AT).map(PathBuf::from) else { return };
    let stage = Stage::create(&temp.join("stage"), &temp.join("lower"), StageOptions::default()).unwrap();
    let stage = staged::Staged::new(Arc::new(stage));
    let mut runner = TestRunner::default();
    loop {
        for operation in operation::long_operations().new_tree(&mut runner).unwrap().current() {
            assert_ne!(stage.run(&operation), Err(Errno::IO));
        }
        std::fs::write(temp.join("busy"), "").unwrap();
    }
}

fn round(wait: Duration) {
    let temp = tempfile::tempdir().unwrap();
    let [lower, target] = ["lower", "target"].map(|name| temp.path().join(name));
    plain::fill(&lower);
    plain::fill(&target);
    let original = tree::snapshot(&lower);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::worker", "--nocapture"])
        .env(AT, temp.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while !temp.path().join("busy").exists() {
        assert!(child.try_wait().unwrap().is_none(), "the worker ended by itself");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(wait);
    child.kill().unwrap();
    child.wait().unwrap();
    check(&temp.path().join("stage"), &target, &original);
    assert_eq!(tree::snapshot(&lower), original);
}

fn check(dir: &Path, target: &Path, original: &tree::Tree) {
    let sealed = seal(dir).unwrap();
    let changes = load_changes(dir).unwrap();
    assert_eq!(changes.changes.len() as u64, sealed.changes);
    naive::apply(&changes, dir, target);
    let applied = tree::snapshot(target);
    // Whatever the worker had come to, the changes lead there from the original.
    naive::check(&changes, original, &applied);
}

#[test]
fn killed_at_any_time() {
    for n in 0..12 {
        round(Duration::from_micros(n * 1700));
    }
}
