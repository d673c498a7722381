//! Random operations on a stage, sealed, reviewed and applied to a copy of the original: the copy becomes what the stage
//! showed, in one go or in parts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "model/operation.rs"]
#[allow(dead_code, reason = "shared with the test of the live view")]
mod operation;
#[path = "model/plain.rs"]
#[allow(dead_code, reason = "shared with the test of the live view")]
mod plain;
#[path = "model/staged.rs"]
#[allow(dead_code, reason = "shared with the test of the live view")]
mod staged;
#[path = "model/tree.rs"]
#[allow(dead_code, reason = "shared with the test of the live view")]
mod tree;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use pvisor_stage::{
    ApplyError, ApplyOptions, Binaries, Recovery, Selection, Stage, StageOptions, apply, discard, load_changes,
    recover, review, seal,
};

use operation::{Operation, long_operations};
use staged::Staged;
use tree::snapshot;

struct Sealed {
    temp: tempfile::TempDir,
    stage: PathBuf,
    lower: PathBuf,
    /// What the stage showed.
    expected: tree::Tree,
}

impl Sealed {
    fn after(operations: &[Operation]) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let [lower, stage] = ["lower", "stage"].map(|name| temp.path().join(name));
        plain::fill(&lower);
        let live = Staged::new(Arc::new(Stage::create(&stage, &lower, StageOptions::default()).unwrap()));
        for operation in operations {
            let _ = live.run(operation);
        }
        let expected = live.snapshot();
        drop(live);
        seal(&stage).unwrap();
        Self { temp, stage, lower, expected }
    }

    fn copy(&self) -> PathBuf {
        let copy = self.temp.path().join("copy");
        plain::fill(&copy);
        copy
    }

    fn names(&self, dir: &Path) -> usize {
        std::fs::read_dir(dir).unwrap().count()
    }
}

/// Bits of modes among it.
fn anything() -> ApplyOptions {
    ApplyOptions { allow_exec_sinks: true, ..ApplyOptions::default() }
}

fn to(target: &Path) -> ApplyOptions {
    ApplyOptions { target: Some(target.to_owned()), ..anything() }
}

/// As many as the environment asks for.
fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(64), max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_project_becomes_what_the_stage_showed(operations in long_operations()) {
        let sealed = Sealed::after(&operations);
        let copy = sealed.copy();
        let original = snapshot(&sealed.lower);
        let changes = load_changes(&sealed.stage).unwrap().changes.len() as u64;
        let applied = apply(&sealed.stage, &to(&copy)).unwrap();
        prop_assert_eq!((applied.written + applied.same, applied.left), (changes, 0));
        prop_assert!(applied.not_appliable.is_empty());
        tree::assert_applied(&snapshot(&copy), &sealed.expected);
        // The lower is another target: it was left alone, and is all to be reviewed still.
        prop_assert_eq!(snapshot(&sealed.lower), original);
        let reviewed = review(&sealed.stage, &Selection::default()).unwrap();
        prop_assert_eq!(reviewed.applied, 0);
        reviewed.write_diff(Binaries::Whole, &mut Vec::new()).unwrap();
        reviewed.write_summary(&mut Vec::new()).unwrap();
        apply(&sealed.stage, &anything()).unwrap();
        tree::assert_applied(&snapshot(&sealed.lower), &sealed.expected);
        prop_assert!(review(&sealed.stage, &Selection::default()).unwrap().entries.is_empty());
        prop_assert_eq!(apply(&sealed.stage, &anything()).unwrap().left, 0);
        prop_assert_eq!(recover(&sealed.stage).unwrap(), Recovery::Nothing);
        prop_assert!(discard(&sealed.stage).unwrap().directory);
        prop_assert_eq!(sealed.names(sealed.temp.path()), 2);
    }

    #[test]
    fn parts_come_to_the_same(
        operations in long_operations(),
        parts in prop::collection::vec(any::<prop::sample::Index>(), 1..5),
    ) {
        let sealed = Sealed::after(&operations);
        let copy = sealed.copy();
        let changes = load_changes(&sealed.stage).unwrap().changes;
        prop_assume!(!changes.is_empty());
        let mut written = 0;
        for part in parts {
            let selection = Selection { paths: vec![part.get(&changes).path.clone()], ..Selection::default() };
            let applied = apply(&sealed.stage, &ApplyOptions { selection, ..to(&copy) }).unwrap();
            written += applied.written + applied.same;
            prop_assert_eq!(applied.left, changes.len() as u64 - written);
        }
        let applied = apply(&sealed.stage, &to(&copy)).unwrap();
        prop_assert_eq!(written + applied.written + applied.same, changes.len() as u64);
        tree::assert_applied(&snapshot(&copy), &sealed.expected);
    }
}

#[test]
fn an_unsealed_stage_can_only_be_discarded() {
    let temp = tempfile::tempdir().unwrap();
    let [lower, stage] = ["lower", "stage"].map(|name| temp.path().join(name));
    plain::fill(&lower);
    let live = Stage::create(&stage, &lower, StageOptions::default()).unwrap();
    assert!(matches!(discard(&stage), Err(pvisor_stage::DiscardError::Home(pvisor_stage::HomeError::Locked(_)))));
    assert!(matches!(apply(&stage, &anything()), Err(ApplyError::Home(_))));
    assert!(matches!(
        review(&stage, &Selection::default()),
        Err(pvisor_stage::ReviewError::Load(pvisor_stage::LoadError::NotSealed(_)))
    ));
    drop(live);
    let failed = apply(&stage, &anything());
    assert!(matches!(failed, Err(ApplyError::Load(pvisor_stage::LoadError::NotSealed(_)))), "{failed:?}");
    assert!(discard(&stage).unwrap().directory);
}
