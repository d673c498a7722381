//! Going on where another stage ended.

use super::*;
use crate::{ApplyOptions, apply, fork};

/// A sealed stage with a change of each kind, and a fork of it.
fn forked() -> (TempDir, PathBuf, PathBuf) {
    let f = Fixture::new(project);
    f.write("readme", 0, b"READ");
    f.create("", "new", b"0123456789");
    f.create("", "gone", b"x");
    f.unlink("", "gone").unwrap();
    f.unlink("src", "main").unwrap();
    f.rename("src", "deep", "", "moved").unwrap();
    let lower = f.lower.clone();
    let (temp, _) = f.seal();
    let to = temp.path().join("fork");
    fork(&temp.path().join("stage"), None, &to).unwrap();
    (temp, lower, to)
}

fn resumed(temp: TempDir, lower: &Path, to: &Path) -> Fixture {
    let stage = Stage::resume(to, lower, &StageOptions::default()).unwrap();
    Fixture { temp, lower: lower.to_owned(), stage }
}

#[test]
fn a_fork_goes_on_with_the_changes_and_the_other_stage_keeps_its_own() {
    let (temp, lower, to) = forked();
    let first = load_changes(&temp.path().join("stage")).unwrap();
    let f = resumed(temp, &lower, &to);
    assert_eq!(f.names(""), ["link", "moved", "new", "readme", "src"]);
    assert_eq!(
        (f.read("readme"), f.read("new"), f.read("moved/leaf")),
        (b"READ me".to_vec(), b"0123456789".to_vec(), b"leaf".to_vec())
    );
    assert_eq!(f.node("src/main"), Err(Errno::NOENT));
    f.write("new", 0, b"ABC");
    f.write("moved/leaf", 0, b"L");
    f.create("src", "main", b"again");
    f.rename("", "readme", "src", "readme").unwrap();
    f.create("", "late", b"late");
    assert_eq!((f.read("new"), f.read("src/readme")), (b"ABC3456789".to_vec(), b"READ me".to_vec()));
    let Fixture { temp, stage, .. } = f;
    drop(stage);
    seal(&to).unwrap();
    assert_eq!(load_changes(&temp.path().join("stage")).unwrap(), first);
    let other = temp.path().join("other");
    fs::create_dir(&other).unwrap();
    project(&other);
    apply(&temp.path().join("stage"), &ApplyOptions { target: Some(other.clone()), ..ApplyOptions::default() })
        .unwrap();
    assert_eq!(fs::read(other.join("new")).unwrap(), b"0123456789");
    assert_eq!(fs::read(other.join("moved/leaf")).unwrap(), b"leaf");
    apply(&to, &ApplyOptions::default()).unwrap();
    let read = |name: &str| fs::read_to_string(lower.join(name)).unwrap();
    assert_eq!((&*read("new"), &*read("moved/leaf"), &*read("src/main")), ("ABC3456789", "Leaf", "again"));
    assert_eq!((&*read("src/readme"), &*read("late")), ("READ me", "late"));
    assert!(!lower.join("readme").exists() && !lower.join("src/deep").exists());
}

#[test]
fn what_cannot_go_on_stays_as_it_is() {
    let (temp, lower, to) = forked();
    let options = StageOptions::default();
    let other = temp.path().join("other");
    fs::create_dir(&other).unwrap();
    assert!(matches!(Stage::resume(&to, &other, &options), Err(OpenError::Unfit { .. })));
    assert!(matches!(Stage::resume(&other, &lower, &options), Err(OpenError::Load(_))));
    let first = Stage::resume(&to, &lower, &options).unwrap();
    assert!(matches!(Stage::resume(&to, &lower, &options), Err(OpenError::InUse(_))));
    drop(first);
    assert!(matches!(Stage::resume(&to, &lower, &options), Err(OpenError::Load(crate::LoadError::NotSealed(_)))));
    let from = temp.path().join("stage");
    apply(&from, &ApplyOptions::default()).unwrap();
    assert!(matches!(Stage::resume(&from, &lower, &options), Err(OpenError::Unfit { .. })));
    load_changes(&from).unwrap();
}

#[test]
fn the_limit_counts_what_is_there_already() {
    let (temp, lower, to) = forked();
    let options = StageOptions { max_bytes: Some(64 * 1024), ..StageOptions::default() };
    let stage = Stage::resume(&to, &lower, &options).unwrap();
    let held = crate::held_bytes(&to).unwrap();
    let free = stage.statfs().unwrap();
    assert!(free.blocks_free * free.fragment_size <= 64 * 1024 - 3 * 4096, "{free:?} of {held}");
    drop((stage, temp));
}
