//! The same random operations on a stage and on a plain directory: both give the same errors and the same tree after
//! each step, and the sealed changes, put on a copy of the original, give the plain directory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "model/killed.rs"]
mod killed;
#[path = "model/naive.rs"]
mod naive;
#[path = "model/operation.rs"]
mod operation;
#[path = "model/plain.rs"]
mod plain;
#[path = "model/staged.rs"]
mod staged;
#[path = "model/tree.rs"]
mod tree;

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use pvisor_stage::{Stage, StageOptions, StageStatus, load_changes, seal, status};

use operation::{Operation, long_operations, operations};
use plain::Plain;
use staged::Staged;
use tree::snapshot;

fn run(operations: &[Operation]) {
    let temp = tempfile::tempdir().unwrap();
    let [lower, twin, target] = ["lower", "twin", "target"].map(|name| temp.path().join(name));
    for dir in [&lower, &twin, &target] {
        plain::fill(dir);
    }
    let original = snapshot(&lower);
    tree::assert_same(&original, &snapshot(&twin), "before the start");
    let dir = temp.path().join("stage");
    let stage = Staged::new(Arc::new(Stage::create(&dir, &lower, StageOptions::default()).unwrap()));
    let twin = Plain::new(&twin);
    compare(&stage, &twin, "at the start");
    for (step, operation) in operations.iter().enumerate() {
        let (ours, theirs) = (stage.run(operation), twin.run(operation));
        assert_eq!(ours, theirs, "step {step}: {operation:?}");
        compare(&stage, &twin, &format!("after step {step}: {operation:?}"));
    }
    assert_eq!(snapshot(&lower), original, "the lower was changed");
    let expected = stage.snapshot();
    drop(stage);
    check_sealed(&dir, &target, &expected, &original);
    assert_eq!(snapshot(&lower), original, "the lower was changed by the seal");
}

fn compare(stage: &Staged, twin: &Plain, when: &str) {
    let (ours, theirs) = (stage.snapshot(), snapshot(twin.path()));
    tree::assert_same(&ours, &theirs, when);
}

fn check_sealed(dir: &Path, target: &Path, expected: &tree::Tree, original: &tree::Tree) {
    assert_eq!(status(dir).unwrap(), StageStatus::Unsealed);
    let sealed = seal(dir).unwrap();
    assert_eq!(seal(dir).unwrap(), sealed, "sealed twice");
    let changes = load_changes(dir).unwrap();
    assert_eq!(changes.seal, sealed.digest);
    assert_eq!(changes.changes.len() as u64, sealed.changes);
    naive::check(&changes, original, expected);
    naive::apply(&changes, dir, target);
    let applied = snapshot(target);
    tree::assert_applied(&applied, expected);
}

/// As many as the environment asks for.
fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// Threads that get in each other's way leave a tree that holds together, and the seal says the same.
fn run_at_once(crew: &[Vec<Operation>]) {
    let temp = tempfile::tempdir().unwrap();
    let [lower, target] = ["lower", "target"].map(|name| temp.path().join(name));
    plain::fill(&lower);
    plain::fill(&target);
    let original = snapshot(&lower);
    let dir = temp.path().join("stage");
    let stage = Arc::new(Stage::create(&dir, &lower, StageOptions::default()).unwrap());
    std::thread::scope(|scope| {
        for operations in crew {
            let stage = Arc::clone(&stage);
            scope.spawn(move || {
                let stage = Staged::new(stage);
                for operation in operations {
                    let result = stage.run(operation);
                    assert_ne!(result, Err(pvisor_stage::Errno::IO), "{operation:?}");
                }
                stage.run(&Operation::Forget).unwrap();
            });
        }
    });
    let stage = Staged::new(stage);
    let expected = stage.snapshot();
    drop(stage);
    assert_eq!(snapshot(&lower), original, "the lower was changed");
    check_sealed(&dir, &target, &expected, &original);
}

/// A person who changes the project while the command runs never breaks the stage.
fn run_with_person(ours: &[Operation], theirs: &[Operation]) {
    let temp = tempfile::tempdir().unwrap();
    let lower = temp.path().join("lower");
    plain::fill(&lower);
    let dir = temp.path().join("stage");
    let stage = Staged::new(Arc::new(Stage::create(&dir, &lower, StageOptions::default()).unwrap()));
    let person = Plain::new(&lower);
    let mut theirs = theirs.iter();
    for (step, operation) in ours.iter().enumerate() {
        let result = stage.run(operation);
        assert_ne!(result, Err(pvisor_stage::Errno::IO), "step {step}: {operation:?}");
        let edits: Vec<_> = theirs.by_ref().take(step % 3).map(|o| (o, person.run(o))).collect();
        let view = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stage.snapshot()));
        assert!(view.is_ok(), "step {step}: {operation:?}, then by the person {edits:?}");
    }
    drop((stage, person));
    let sealed = seal(&dir).unwrap();
    let changes = load_changes(&dir).unwrap();
    assert_eq!(changes.changes.len() as u64, sealed.changes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(96), max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_stage_is_a_directory(operations in operations()) {
        run(&operations);
    }

    #[test]
    fn the_person_works_too(ours in operations(), theirs in operations()) {
        run_with_person(&ours, &theirs);
    }

    #[test]
    fn threads_at_once(crew in prop::collection::vec(long_operations(), 4)) {
        run_at_once(&crew);
    }
}

mod cases {
    use super::operation::Operation::*;
    use super::run;

    fn p(path: &str) -> Vec<String> {
        path.split('/').map(str::to_owned).collect()
    }

    #[test]
    fn nothing_at_all() {
        run(&[]);
    }

    #[test]
    fn a_populated_directory_moves_away_and_back() {
        run(&[Rename(p("a"), p("z"), 0), Write(p("z/b/deep"), 3, vec![9; 10]), Rename(p("z"), p("a"), 0)]);
        run(&[Rename(p("a"), p("z"), 0), Rename(p("z/b"), p("y"), 0), Unlink(p("y/deep")), RemoveAll(p("z"))]);
        run(&[Rename(p("a"), p("z"), 0), Mkdir(p("a"), 0o755), Rename(p("z/b"), p("a/b"), 0)]);
    }

    #[test]
    fn hard_links_of_the_lower_stay_one_file() {
        run(&[Write(p("a/h1"), 0, b"changed".to_vec())]);
        run(&[Unlink(p("h2")), Write(p("a/h1"), 0, b"changed".to_vec())]);
        run(&[Rename(p("a/h1"), p("h3"), 0)]);
        run(&[Rename(p("a"), p("z"), 0)]);
        run(&[Link(p("f"), p("a/g")), Chmod(p("h2"), 0o600)]);
        run(&[RemoveAll(p("a"))]);
        run(&[Rename(p("a/h1"), p("h2"), 0), Chmod(p("h2"), 0o600)]);
    }

    #[test]
    fn removed_and_made_again() {
        run(&[RemoveAll(p("a")), Mkdir(p("a"), 0o755), Create(p("a/f"), 0o644), Rename(p("f"), p("a/t"), 1)]);
        run(&[RemoveAll(p("a")), Mkdir(p("a"), 0o755), Symlink(p("a/b"), "x".into()), Rename(p("a/b"), p("l"), 0)]);
    }

    #[test]
    fn exchange() {
        run(&[Rename(p("a"), p("f"), 2), Rename(p("e"), p("f/b"), 2), Write(p("f/b"), 0, vec![1])]);
    }
}
