//! Sealing under adverse conditions.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use crate::private_mounts::{mount_tmpfs, with_private_mounts};
use crate::{Access, Before, Keep, NewNode, NodeId, Stage, StageOptions, StageStatus, load_changes, status};

const NEW: NewNode = NewNode { mode: 0o644, uid: 0, gid: 0 };

fn stage(temp: &Path, fill: impl FnOnce(&Path)) -> (PathBuf, PathBuf, Stage) {
    let (lower, dir) = (temp.join("lower"), temp.join("stage"));
    fs::create_dir(&lower).unwrap();
    fill(&lower);
    std::thread::sleep(Duration::from_millis(60));
    let stage = Stage::create(&dir, &lower, StageOptions::default()).unwrap();
    (lower, dir, stage)
}

fn write(stage: &Stage, name: &[u8], bytes: &[u8]) {
    let node = match stage.lookup(NodeId::ROOT, name) {
        Ok(attr) => attr.node,
        Err(_) => stage.create_file(NodeId::ROOT, name, &NEW).unwrap().node,
    };
    let file = stage.open(node, Access::Write, false).unwrap();
    assert_eq!(file.write_at(bytes, 0), Ok(bytes.len()));
}

#[test]
fn nobody_seals_what_is_in_use() {
    let temp = tempfile::tempdir().unwrap();
    let (_, dir, stage) = stage(temp.path(), |_| ());
    write(&stage, b"new", b"1");
    assert!(matches!(seal(&dir), Err(SealError::InUse(_))));
    let open = stage.open(stage.lookup(NodeId::ROOT, b"new").unwrap().node, Access::Write, false).unwrap();
    drop(stage);
    assert!(matches!(seal(&dir), Err(SealError::InUse(_))));
    drop(open);
    let sealed = seal(&dir).unwrap();
    assert_eq!((sealed.changes, seal(&dir).unwrap()), (1, sealed));
    assert!(fs::read_dir(dir.join("work")).unwrap().next().is_none());
}

#[test]
fn a_cut_journal_says_what_was_acknowledged_before() {
    let temp = tempfile::tempdir().unwrap();
    let (_, dir, stage) = stage(temp.path(), |_| ());
    write(&stage, b"first", b"1");
    let whole = fs::metadata(dir.join("journal")).unwrap().len();
    write(&stage, b"second", b"2");
    drop(stage);
    let file = fs::File::options().write(true).open(dir.join("journal")).unwrap();
    file.set_len(whole + 5).unwrap();
    seal(&dir).unwrap();
    let changes = load_changes(&dir).unwrap();
    assert_eq!(changes.changes.len(), 1);
    assert_eq!(changes.changes[0].path.as_bytes(), b"first");
    assert_eq!(fs::read_dir(dir.join("upper")).unwrap().count(), 1, "the other content is no part of it");
}

#[test]
fn contents_of_files_that_were_deleted_while_open_go() {
    let temp = tempfile::tempdir().unwrap();
    let (_, dir, stage) = stage(temp.path(), |_| ());
    write(&stage, b"temp", b"1");
    let node = stage.lookup(NodeId::ROOT, b"temp").unwrap().node;
    let open = stage.open(node, Access::Read, false).unwrap();
    stage.unlink(NodeId::ROOT, b"temp").unwrap();
    // As if the process had been killed.
    let content = dir.join(format!("upper/{:x}", node.0));
    assert!(content.exists());
    fs::copy(&content, temp.path().join("saved")).unwrap();
    drop((open, stage));
    fs::copy(temp.path().join("saved"), &content).unwrap();
    seal(&dir).unwrap();
    assert!(!content.exists());
}

#[test]
fn a_damaged_journal_is_not_sealed() {
    let temp = tempfile::tempdir().unwrap();
    let (_, dir, stage) = stage(temp.path(), |_| ());
    for name in [&b"a"[..], b"b", b"c"] {
        write(&stage, name, b"1");
    }
    drop(stage);
    let path = dir.join("journal");
    let whole = fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(7) {
        let mut broken = whole.clone();
        broken[at] ^= 0x10;
        fs::write(&path, broken).unwrap();
        // A length that reaches past the end looks like a torn tail: what was cut off is not there, nothing worse.
        match seal(&dir) {
            Err(SealError::Load(_)) => assert_eq!(status(&dir).unwrap(), StageStatus::Unsealed),
            Ok(sealed) => {
                assert!(sealed.changes < 3, "byte {at}");
                return;
            }
            Err(e) => panic!("byte {at}: {e}"),
        }
    }
}

#[test]
fn another_boot_or_another_lower() {
    let temp = tempfile::tempdir().unwrap();
    let (lower, dir, stage) = stage(temp.path(), |_| ());
    write(&stage, b"new", b"1");
    drop(stage);
    fs::rename(&lower, temp.path().join("moved")).unwrap();
    assert!(matches!(seal(&dir), Err(SealError::Io { .. })));
    fs::create_dir(&lower).unwrap();
    assert!(matches!(seal(&dir), Err(SealError::LowerReplaced(_))));
    fs::remove_dir(&lower).unwrap();
    fs::rename(temp.path().join("moved"), &lower).unwrap();
    seal(&dir).unwrap();
}

#[test]
fn a_seal_that_was_cut_off_is_finished() {
    let temp = tempfile::tempdir().unwrap();
    let fill = |lower: &Path| {
        fs::create_dir(lower.join("d")).unwrap();
        for n in 0..5 {
            fs::write(lower.join(format!("d/{n}")), format!("{n}")).unwrap();
        }
    };
    let (_, dir, stage) = stage(temp.path(), fill);
    stage.rename(NodeId::ROOT, b"d", NodeId::ROOT, b"e", crate::RenameFlags::empty()).unwrap();
    drop(stage);
    let before = fs::read(dir.join("journal")).unwrap();
    let first = seal(&dir).unwrap();
    let sealed = fs::read(dir.join("journal")).unwrap();
    let expected = load_changes(&dir).unwrap();
    // As if it had stopped anywhere while it wrote the journal: what it copied may be there or not.
    for cut in (before.len()..=sealed.len()).step_by(23) {
        fs::remove_file(dir.join("seal")).unwrap();
        fs::write(dir.join("journal"), &sealed[..cut]).unwrap();
        seal(&dir).unwrap();
        let again = load_changes(&dir).unwrap();
        let digests = |c: &crate::ChangeSet| -> Vec<_> {
            c.changes.iter().map(|c| (c.path.clone(), c.before.clone(), c.after.clone().map(|a| a.print))).collect()
        };
        assert_eq!(digests(&again), digests(&expected), "cut at {cut}");
        assert_eq!(fs::read_dir(dir.join("upper")).unwrap().count(), 5);
    }
    assert_eq!(first.changes, 12);
}

#[test]
fn a_file_that_cannot_be_read_is_lost_and_nothing_else() {
    if rustix::process::geteuid().is_root() {
        return eprintln!("skipped: root reads everything");
    }
    let temp = tempfile::tempdir().unwrap();
    let fill = |lower: &Path| {
        fs::write(lower.join("closed"), "x").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o0);
        fs::set_permissions(lower.join("closed"), mode).unwrap();
    };
    let (_, dir, stage) = stage(temp.path(), fill);
    stage.unlink(NodeId::ROOT, b"closed").unwrap();
    drop(stage);
    seal(&dir).unwrap();
    assert_eq!(load_changes(&dir).unwrap().changes[0].before, Before::Lost);
}

#[test]
fn thrown_away_stages_are_no_stages() {
    let temp = tempfile::tempdir().unwrap();
    let options = StageOptions { keep: Keep::ThrowAway, ..Default::default() };
    fs::create_dir(temp.path().join("lower")).unwrap();
    drop(Stage::create(&temp.path().join("stage"), &temp.path().join("lower"), options).unwrap());
    assert!(matches!(seal(&temp.path().join("stage")), Err(SealError::Load(LoadError::NotAStage(_)))));
}

#[test]
fn a_full_disk_stops_writers_and_nothing_else() {
    with_private_mounts(full_disk);
}

fn full_disk() {
    let temp = tempfile::tempdir().unwrap();
    let lower = temp.path().join("lower");
    fs::create_dir_all(&lower).unwrap();
    fs::create_dir(temp.path().join("disk")).unwrap();
    fs::write(lower.join("big"), vec![3; 8 << 20]).unwrap();
    fs::write(lower.join("small"), "s").unwrap();
    std::thread::sleep(Duration::from_millis(60));
    mount_tmpfs(&temp.path().join("disk"), "size=6m");
    let dir = temp.path().join("disk/stage");
    let stage = Stage::create(&dir, &lower, StageOptions::default()).unwrap();
    write(&stage, b"before", b"kept");
    let big = stage.lookup(NodeId::ROOT, b"big").unwrap().node;
    assert_eq!(stage.open(big, Access::Write, false).unwrap_err(), Errno::NOSPC);
    assert_eq!(stage.attr(big).unwrap().size, 8 << 20);
    let filler = stage.create_file(NodeId::ROOT, b"filler", &NEW).unwrap().node;
    let file = stage.open(filler, Access::Write, false).unwrap();
    let mut at = 0;
    let full = loop {
        match file.write_at(&[9; 65536], at) {
            Ok(n) => at += n as u64,
            Err(e) => break e,
        }
    };
    assert_eq!(full, Errno::NOSPC);
    // Names come from space that the journal took ahead, until that is used up.
    let mut made = 0_u64;
    let full = loop {
        match stage.make_dir(NodeId::ROOT, format!("d{made:0>200}").as_bytes(), &NEW) {
            Ok(_) => made += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(full, Errno::NOSPC);
    assert!(made > 100, "{made}");
    let listed = stage.read_dir(NodeId::ROOT).unwrap().len() as u64;
    assert_eq!(listed, made + 4, "what was refused is not there");
    drop((file, stage));
    let sealed = seal(&dir).unwrap();
    let changes = load_changes(&dir).unwrap();
    assert_eq!((sealed.changes, changes.changes.len() as u64), (made + 2, made + 2));
}

#[test]
fn deleting_makes_room_again() {
    with_private_mounts(room_again);
}

fn room_again() {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir(temp.path().join("lower")).unwrap();
    fs::create_dir(temp.path().join("disk")).unwrap();
    mount_tmpfs(&temp.path().join("disk"), "size=6m");
    let dir = temp.path().join("disk/stage");
    let stage = Stage::create(&dir, &temp.path().join("lower"), StageOptions::default()).unwrap();
    for round in 0..20 {
        let name = format!("filler{round}");
        let node = stage.create_file(NodeId::ROOT, name.as_bytes(), &NEW).unwrap().node;
        let file = stage.open(node, Access::Write, false).unwrap();
        let mut at = 0;
        while let Ok(n) = file.write_at(&[9; 65536], at) {
            at += n as u64;
        }
        assert!(at > 1 << 20, "{at}");
        stage.unlink(NodeId::ROOT, name.as_bytes()).unwrap();
        stage.forget(node, 1);
    }
}
