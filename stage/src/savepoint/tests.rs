//! Savepoints of stages that were really written.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::*;
use crate::apply::ApplyOptions;
use crate::{Access, ChangeSet, NewNode, NodeId, Stage, StageOptions, discard, load_changes, seal, status};

const NEW: NewNode = NewNode { mode: 0o644, uid: 0, gid: 0 };

struct Fixture {
    _temp: tempfile::TempDir,
    lower: PathBuf,
    dir: PathBuf,
}

impl Fixture {
    /// A stage with a changed, a new, a moved and a removed file, not sealed.
    fn broken_off() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let (lower, dir) = (temp.path().join("lower"), temp.path().join("stage"));
        fs::create_dir_all(lower.join("d")).unwrap();
        for name in ["changed", "moved", "removed", "d/inner"] {
            fs::write(lower.join(name), format!("{name} of the lower")).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(60));
        let stage = Stage::create(&dir, &lower, StageOptions::default()).unwrap();
        let changed = stage.lookup(NodeId::ROOT, b"changed").unwrap().node;
        stage.open(changed, Access::Write, false).unwrap().write_at(b"CHANGED", 0).unwrap();
        write(&stage, b"new", &[5; 100_000]);
        stage.rename(NodeId::ROOT, b"moved", NodeId::ROOT, b"elsewhere", crate::RenameFlags::empty()).unwrap();
        stage.rename(NodeId::ROOT, b"d", NodeId::ROOT, b"e", crate::RenameFlags::empty()).unwrap();
        stage.unlink(NodeId::ROOT, b"removed").unwrap();
        drop(stage);
        Self { _temp: temp, lower, dir }
    }

    fn sealed() -> (Self, ChangeSet) {
        let f = Self::broken_off();
        seal(&f.dir).unwrap();
        let set = load_changes(&f.dir).unwrap();
        (f, set)
    }
}

fn write(stage: &Stage, name: &[u8], content: &[u8]) {
    let node = stage.create_file(NodeId::ROOT, name, &NEW).unwrap().node;
    stage.open(node, Access::Write, false).unwrap().write_at(content, 0).unwrap();
}

/// Number of files below a directory, with their bytes.
fn contents(dir: &Path) -> Vec<(u64, u64)> {
    let mut all: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().metadata().unwrap()).map(|m| (m.ino(), m.len())).collect();
    all.sort_unstable();
    all
}

#[test]
fn a_sealed_stage_is_saved_without_a_copy_and_listed() {
    let (f, set) = Fixture::sealed();
    let one = create_savepoint(&f.dir, None, 100).unwrap();
    let two = create_savepoint(&f.dir, Some("before-lunch"), 200).unwrap();
    assert_eq!((&*one.name, one.seal), ("1", Some((set.seal, set.changes.len() as u64))));
    assert_eq!(savepoints(&f.dir).unwrap().0, [one.clone(), two.clone()]);
    assert_eq!(savepoint(&f.dir, "before-lunch").unwrap(), two);
    assert_eq!(create_savepoint(&f.dir, None, 300).unwrap().name, "2");
    assert!(matches!(create_savepoint(&f.dir, Some("1"), 0), Err(SavepointError::Exists(_))));
    for bad in ["", ".", "..", ".new-x", "a/b", "-x", &"x".repeat(65)] {
        assert!(matches!(create_savepoint(&f.dir, Some(bad), 0), Err(SavepointError::Name(_))), "{bad:?}");
    }
    let shared = contents(&f.dir.join("upper")) == contents(&f.dir.join("savepoints/1/upper"));
    let reflinked = fs::metadata(f.dir.join("savepoints/1/upper")).is_ok() && !shared;
    assert!(shared || reflinked, "the very files, where blocks can't be shared");
    verify_savepoint(&f.dir, "1").unwrap();
    assert!(matches!(savepoint(&f.dir, "nothing"), Err(SavepointError::Unknown(_))));
    delete_savepoint(&f.dir, "1").unwrap();
    assert!(matches!(delete_savepoint(&f.dir, "1"), Err(SavepointError::Unknown(_))));
    assert_eq!(savepoints(&f.dir).unwrap().0.len(), 2);
    assert_eq!(load_changes(&f.dir).unwrap(), set);
}

#[test]
fn a_stage_that_broke_off_is_usable_from_its_savepoint() {
    let f = Fixture::broken_off();
    let saved = create_savepoint(&f.dir, None, 1).unwrap();
    assert_eq!(saved.seal, None);
    assert_eq!(status(&f.dir).unwrap(), crate::StageStatus::Unsealed);
    // What comes afterwards is lost with the stage's own files.
    fs::write(f.dir.join("journal"), "garbage").unwrap();
    for entry in fs::read_dir(f.dir.join("upper")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert!(seal(&f.dir).is_err());
    // A journal that is no journal makes the directory no stage; an empty one is one that broke off early.
    fs::write(f.dir.join("journal"), "").unwrap();
    let (name, sealed) = restore_savepoint(&f.dir, None).unwrap();
    assert_eq!(name, "1");
    let set = load_changes(&f.dir).unwrap();
    assert_eq!((set.seal, set.changes.len() as u64), (sealed.digest, sealed.changes));
    let applied = crate::apply(&f.dir, &ApplyOptions::default()).unwrap();
    assert_eq!(applied.written, sealed.changes);
    assert_eq!(fs::read(f.lower.join("changed")).unwrap(), b"CHANGED of the lower");
    assert_eq!(fs::read(f.lower.join("elsewhere")).unwrap(), b"moved of the lower");
    assert_eq!(fs::read(f.lower.join("e/inner")).unwrap(), b"d/inner of the lower");
    assert!(!f.lower.join("removed").exists());
    // What is applied now is not what the savepoint, which has no seal, can vouch for.
    assert!(matches!(restore_savepoint(&f.dir, None), Err(SavepointError::Applied)));
    assert!(discard(&f.dir).unwrap().directory);
}

#[test]
fn a_damaged_content_is_mended_from_a_savepoint() {
    let (f, set) = Fixture::sealed();
    create_savepoint(&f.dir, None, 1).unwrap();
    let object = set.changes.iter().find_map(|c| c.after.as_ref()?.object).unwrap();
    let path = f.dir.join(format!("upper/{:x}", object.0));
    // Another file of that name: the shared one is the savepoint's too.
    let content = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, vec![0; content.len()]).unwrap();
    assert!(matches!(crate::apply(&f.dir, &ApplyOptions::default()), Err(crate::ApplyError::Damaged(_))));
    let (_, sealed) = restore_savepoint(&f.dir, Some("1")).unwrap();
    assert_eq!(sealed.digest, set.seal);
    assert_eq!(load_changes(&f.dir).unwrap(), set);
    crate::apply(&f.dir, &ApplyOptions::default()).unwrap();
    // The same seal: restoring it changes nothing of what is applied.
    restore_savepoint(&f.dir, None).unwrap();
    assert_eq!(crate::apply(&f.dir, &ApplyOptions::default()).unwrap().left, 0);
}

#[test]
fn every_changed_byte_is_noticed_and_nothing_is_restored() {
    let f = Fixture::broken_off();
    create_savepoint(&f.dir, None, 1).unwrap();
    let at = f.dir.join("savepoints/1");
    let upper = fs::read_dir(at.join("upper")).unwrap().map(|e| e.unwrap().path());
    let files: Vec<PathBuf> = upper.chain([at.join("journal"), at.join("manifest")]).collect();
    for path in files {
        let whole = fs::read(&path).unwrap();
        for byte in (0..whole.len()).step_by(whole.len().div_ceil(40)) {
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&[whole[byte] ^ 1], byte as u64).unwrap();
            assert!(verify_savepoint(&f.dir, "1").is_err(), "{path:?} byte {byte}");
            assert!(restore_savepoint(&f.dir, Some("1")).is_err(), "{path:?} byte {byte}");
            assert_eq!(status(&f.dir).unwrap(), crate::StageStatus::Unsealed);
            file.write_all_at(&whole[byte..=byte], byte as u64).unwrap();
        }
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(whole.len() as u64 - 1).unwrap();
        assert!(verify_savepoint(&f.dir, "1").is_err(), "{path:?} cut");
        file.write_all_at(&whole, 0).unwrap();
    }
    fs::write(at.join("seal"), "").unwrap();
    assert!(verify_savepoint(&f.dir, "1").is_err());
    fs::remove_file(at.join("seal")).unwrap();
    verify_savepoint(&f.dir, "1").unwrap();
    // A manifest under another name is not that savepoint's.
    fs::rename(&at, f.dir.join("savepoints/2")).unwrap();
    assert!(matches!(savepoint(&f.dir, "2"), Err(SavepointError::Damaged { .. })));
    assert_eq!(savepoints(&f.dir).unwrap().1.len(), 1);
}

#[test]
fn a_fork_is_a_stage_of_its_own() {
    let (f, set) = Fixture::sealed();
    let to = f.dir.with_file_name("fork");
    let sealed = fork(&f.dir, None, &to).unwrap();
    assert_eq!(sealed.digest, set.seal);
    assert!(matches!(fork(&f.dir, None, &to), Err(SavepointError::Occupied(_))));
    crate::apply(&f.dir, &ApplyOptions::default()).unwrap();
    assert!(discard(&f.dir).unwrap().directory);
    // It lives on without the other, and nothing of it counts as applied.
    assert_eq!(load_changes(&to).unwrap(), set);
    assert!(crate::review(&to, &crate::Selection::default()).unwrap().applied == 0);
    let applied = crate::apply(&to, &ApplyOptions::default()).unwrap();
    assert_eq!((applied.written, applied.same, applied.left), (0, set.changes.len() as u64, 0));
}

#[test]
fn a_fork_of_a_run_that_broke_off_needs_a_savepoint() {
    let f = Fixture::broken_off();
    let to = f.dir.with_file_name("fork");
    let failed = fork(&f.dir, None, &to);
    assert!(matches!(failed, Err(SavepointError::Load(crate::LoadError::NotSealed(_)))), "{failed:?}");
    create_savepoint(&f.dir, Some("s"), 1).unwrap();
    let sealed = fork(&f.dir, Some("s"), &to).unwrap();
    assert_eq!(load_changes(&to).unwrap().changes.len() as u64, sealed.changes);
    verify_savepoint(&f.dir, "s").unwrap();
    assert_eq!(status(&f.dir).unwrap(), crate::StageStatus::Unsealed);
    crate::apply(&to, &ApplyOptions::default()).unwrap();
    assert_eq!(fs::read(f.lower.join("new")).unwrap(), [5; 100_000]);
}

#[test]
fn a_stage_in_use_has_no_savepoint_made() {
    let f = Fixture::broken_off();
    let other = f.dir.with_file_name("other");
    let stage = Stage::create(&other, &f.lower, StageOptions::default()).unwrap();
    let failed = create_savepoint(&other, None, 1);
    assert!(matches!(failed, Err(SavepointError::Home(crate::HomeError::Locked(_)))), "{failed:?}");
    drop(stage);
    create_savepoint(&other, None, 1).unwrap();
}

#[test]
fn what_is_half_made_or_half_removed_is_collected() {
    let (f, set) = Fixture::sealed();
    create_savepoint(&f.dir, None, 1).unwrap();
    for name in [".new-7", ".old-8"] {
        fs::create_dir_all(f.dir.join("savepoints").join(name).join("upper")).unwrap();
        fs::write(f.dir.join("savepoints").join(name).join("upper/2"), "x").unwrap();
    }
    fs::create_dir(f.dir.join("work/restore")).unwrap();
    assert_eq!(savepoints(&f.dir).unwrap().0.len(), 1);
    assert_eq!(collect_savepoints(&f.dir).unwrap().savepoints, 2);
    assert_eq!(fs::read_dir(f.dir.join("savepoints")).unwrap().count(), 1);
    assert!(!f.dir.join("work/restore").exists());
    assert_eq!(load_changes(&f.dir).unwrap(), set);
}

#[test]
fn a_restore_that_was_cut_off_is_done_again_and_nothing_else() {
    let f = Fixture::broken_off();
    create_savepoint(&f.dir, Some("a"), 1).unwrap();
    fs::write(f.dir.join(RESTORING), "a").unwrap();
    fs::rename(f.dir.join("upper"), f.dir.join("work/gone")).unwrap();
    fs::create_dir(f.dir.join("upper")).unwrap();
    assert!(matches!(seal(&f.dir), Err(crate::SealError::Restoring(_))));
    assert!(matches!(create_savepoint(&f.dir, Some("b"), 2), Err(SavepointError::Restoring(_))));
    assert!(matches!(delete_savepoint(&f.dir, "a"), Err(SavepointError::Restoring(_))));
    let (name, _) = restore_savepoint(&f.dir, None).unwrap();
    assert_eq!(name, "a");
    assert!(!f.dir.join(RESTORING).exists());
    load_changes(&f.dir).unwrap();
}
