//! Sealed stages that somebody tampered with.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use crate::journal::{FreshKind, Record};
use crate::{Access, NewNode, NodeId, Seal, Stage, StageOptions, seal};

/// A small sealed stage with a bit of everything.
fn sealed(temp: &Path) -> (PathBuf, Seal) {
    let (lower, dir) = (temp.join("lower"), temp.join("stage"));
    fs::create_dir_all(lower.join("d")).unwrap();
    fs::write(lower.join("d/f"), "f").unwrap();
    fs::write(lower.join("g"), "g").unwrap();
    std::thread::sleep(Duration::from_millis(60));
    let stage = Stage::create(&dir, &lower, StageOptions::default()).unwrap();
    let new = NewNode { mode: 0o644, uid: 0, gid: 0 };
    stage.make_symlink(NodeId::ROOT, b"l", b"to", &new).unwrap();
    let file = stage.lookup(NodeId::ROOT, b"g").unwrap().node;
    stage.open(file, Access::Write, false).unwrap().write_at(b"changed", 0).unwrap();
    stage.set_xattr(file, b"user.x", b"v", crate::XattrFlags::empty()).unwrap();
    stage.rename(NodeId::ROOT, b"d", NodeId::ROOT, b"e", crate::RenameFlags::empty()).unwrap();
    drop(stage);
    let seal = seal(&dir).unwrap();
    (dir, seal)
}

#[test]
fn every_changed_byte_of_journal_and_seal_is_noticed() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, _) = sealed(temp.path());
    assert!(load_changes(&dir).is_ok());
    for name in ["journal", "seal"] {
        let path = dir.join(name);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut broken = whole.clone();
            broken[at] ^= 1 << (at % 8);
            fs::write(&path, &broken).unwrap();
            assert!(load_changes(&dir).is_err(), "{name}: byte {at}");
        }
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            assert!(load_changes(&dir).is_err(), "{name}: cut at {cut}");
        }
        fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert!(load_changes(&dir).is_err(), "{name}: longer");
        fs::write(&path, &whole).unwrap();
    }
    assert!(load_changes(&dir).is_ok());
}

#[test]
fn contents_must_be_there_with_their_sizes() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, _) = sealed(temp.path());
    for entry in fs::read_dir(dir.join("upper")).unwrap() {
        let path = entry.unwrap().path();
        let content = fs::read(&path).unwrap();
        fs::write(&path, [&content[..], b"x"].concat()).unwrap();
        assert!(matches!(load_changes(&dir), Err(LoadError::Damaged { .. })));
        fs::remove_file(&path).unwrap();
        assert!(matches!(load_changes(&dir), Err(LoadError::Damaged { .. })));
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(matches!(load_changes(&dir), Err(LoadError::Damaged { .. })));
        fs::remove_file(&path).unwrap();
        fs::write(&path, &content).unwrap();
    }
    assert!(load_changes(&dir).is_ok());
}

#[test]
fn the_state_of_a_stage() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, seal) = sealed(temp.path());
    assert_eq!(status(&dir).unwrap(), StageStatus::Sealed { digest: seal.digest, changes: seal.changes });
    assert_eq!(load_changes(&dir).unwrap().seal, seal.digest);
    assert!(matches!(status(temp.path()), Err(LoadError::NotAStage(_))));
    assert!(matches!(load_changes(&temp.path().join("nowhere")), Err(LoadError::NotAStage(_))));
    let (other, lower) = (temp.path().join("other"), temp.path().join("lower"));
    let stage = Stage::create(&other, &lower, StageOptions::default()).unwrap();
    assert_eq!(status(&other).unwrap(), StageStatus::InUse);
    drop(stage);
    assert_eq!(status(&other).unwrap(), StageStatus::Unsealed);
    assert!(matches!(load_changes(&other), Err(LoadError::NotSealed(_))));
}

/// Seals a stage whose journal has the records behind its own.
fn forged(records: &[Record]) -> Result<Seal, crate::SealError> {
    let temp = tempfile::tempdir().unwrap();
    let (lower, dir) = (temp.path().join("lower"), temp.path().join("stage"));
    fs::create_dir(&lower).unwrap();
    drop(Stage::create(&dir, &lower, StageOptions::default()).unwrap());
    let end = fs::metadata(dir.join("journal")).unwrap().len();
    let mut journal = Journal::resume(&dir, end).unwrap();
    records.iter().for_each(|r| journal.append(r).unwrap());
    seal(&dir)
}

fn create(node: u64, parent: u64, name: &[u8], kind: FreshKind) -> Record {
    Record::Create { node, parent, name: name.to_vec(), kind, mode: 0o644, uid: 0, gid: 0, at: (0, 0) }
}

#[test]
fn journals_that_contradict_themselves_are_refused() {
    let dir = |node, parent, name: &[u8]| create(node, parent, name, FreshKind::Directory);
    let rename = |from, name: &[u8], to, new_name: &[u8]| Record::Rename {
        from,
        name: name.to_vec(),
        to,
        new_name: new_name.to_vec(),
        exchange: false,
        at: (0, 0),
    };
    assert!(forged(&[dir(2, 1, b"a"), dir(3, 2, b"b")]).is_ok());
    let bad: &[&[Record]] = &[
        &[dir(2, 1, b"..")],
        &[dir(2, 1, b"a/b")],
        &[dir(2, 1, b"")],
        &[dir(2, 7, b"a")],
        &[dir(1, 1, b"a")],
        &[dir(0, 1, b"a")],
        &[dir(u64::MAX, 1, b"a")],
        &[dir(2, 1, b"a"), dir(2, 1, b"b")],
        &[dir(2, 1, b"a"), dir(3, 1, b"a")],
        &[dir(2, 1, b"a"), dir(3, 2, b"b"), rename(1, b"a", 3, b"c")],
        &[dir(2, 1, b"a"), dir(3, 2, b"b"), rename(2, b"b", 1, b"a")],
        &[dir(2, 1, b"a"), dir(3, 2, b"b"), Record::Remove { parent: 1, name: b"a".to_vec(), at: (0, 0) }],
        &[Record::Remove { parent: 1, name: b"a".to_vec(), at: (0, 0) }],
        &[Record::Content { node: 1 }],
        &[Record::Hash { node: 1, hash: crate::journal::HashState::Lost }],
        &[dir(2, 1, b"a"), Record::Link { node: 2, parent: 1, name: b"b".to_vec(), at: (0, 0) }],
        &[Record::SetXattr { node: 1, name: b"trusted.x".to_vec(), value: vec![], at: (0, 0) }],
        &[create(2, 1, b"l", FreshKind::Symlink(vec![]))],
        // Said to be in upper, but there is no such file.
        &[create(2, 1, b"f", FreshKind::File)],
    ];
    for records in bad {
        assert!(forged(records).is_err(), "{records:?}");
    }
}
