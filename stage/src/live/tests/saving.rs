//! Savepoints of a stage that goes on being written.

use std::time::{Duration, Instant};

use super::*;
use crate::{RenameFlags, Savepoint, SavepointError, Time, fork, savepoints, verify_savepoint};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn save(stage: &Stage, name: Option<&str>) -> Savepoint {
    stage.prepare_savepoint(name, 7).unwrap().take(soon()).unwrap().finish().unwrap()
}

/// Every way to change a content, on a file of its own each.
const WAYS: usize = 8;

fn change(f: &Fixture, way: usize, open: &OpenFile, other: &OpenFile) {
    let node = open.node();
    let set = |change| f.stage.set_attr(node, &change).map(drop).unwrap();
    match way {
        0 => assert_eq!(open.write_at(b"W", 1), Ok(1)),
        1 => assert_eq!(open.write_at(b"longer than before", 5), Ok(18)),
        2 => drop(f.stage.open(node, Access::Write, true).unwrap()),
        3 => set(SetAttr { size: Some(3), ..Default::default() }),
        4 => set(SetAttr { size: Some(70_000), ..Default::default() }),
        5 => open.allocate(rustix::fs::FallocateFlags::empty(), 0, 70_000).unwrap(),
        6 => assert_eq!(other.copy_range(0, open, 2, 4), Ok(4)),
        _ => set(SetAttr { mtime: Some(SetTime::At(5, 5)), ..Default::default() }),
    }
}

#[test]
fn what_is_written_afterwards_shows_in_the_stage_and_not_in_the_savepoint() {
    let f = Fixture::new(project);
    let nodes: Vec<NodeId> = (0..WAYS).map(|n| f.create("", &format!("n{n}"), b"0123456789")).collect();
    let other = f.stage.open(f.create("", "other", b"abcdefgh"), Access::ReadWrite, false).unwrap();
    f.write("readme", 0, b"R");
    let opened: Vec<OpenFile> = nodes.iter().map(|n| f.stage.open(*n, Access::ReadWrite, false).unwrap()).collect();
    let readers: Vec<OpenFile> = nodes.iter().map(|n| f.stage.open(*n, Access::Read, false).unwrap()).collect();
    let before: Vec<(Vec<u8>, Time)> =
        nodes.iter().zip(&readers).map(|(n, r)| (read(r), f.stage.attr(*n).unwrap().mtime)).collect();
    let saved = save(&f.stage, None);
    assert_eq!((&*saved.name, saved.seal, saved.contents), ("1", None, WAYS as u64 + 2));
    for (way, open) in opened.iter().enumerate() {
        change(&f, way, open, &other);
        assert_eq!(read(open), read(&readers[way]), "way {way}: an open file sees what is written");
        assert_eq!(read(open), f.read(&format!("n{way}")), "way {way}");
        let attr = f.stage.attr(nodes[way]).unwrap();
        assert!((read(open), attr.mtime) != before[way], "way {way} changes something");
        verify_savepoint(&f.dir(), "1").unwrap_or_else(|e| panic!("way {way}: {e}"));
    }
    f.unlink("", "n0").unwrap();
    f.rename("", "n1", "", "moved").unwrap();
    let second = save(&f.stage, Some("later"));
    assert_eq!(second.contents, WAYS as u64 + 1);
    assert_eq!(opened[0].write_at(b"gone", 0), Ok(4), "a file without a name is in no savepoint");
    // As long as one is open, the stage is in use.
    drop((opened, readers, other));
    let (temp, _) = f.seal();
    let dir = temp.path().join("stage");
    assert_eq!(savepoints(&dir).unwrap().0.len(), 2);
    fork(&dir, Some("1"), &temp.path().join("fork")).unwrap();
    crate::apply(&temp.path().join("fork"), &crate::ApplyOptions::default()).unwrap();
    let applied = |name: &str| temp.path().join("lower").join(name);
    for (way, (content, mtime)) in before.iter().enumerate() {
        let meta = fs::metadata(applied(&format!("n{way}"))).unwrap();
        assert_eq!(&fs::read(applied(&format!("n{way}"))).unwrap(), content, "way {way}");
        let found = (std::os::unix::fs::MetadataExt::mtime(&meta), std::os::unix::fs::MetadataExt::mtime_nsec(&meta));
        assert_eq!(found, (mtime.0, i64::from(mtime.1)), "way {way}");
    }
    assert_eq!(fs::read(applied("readme")).unwrap(), b"Read me");
}

#[test]
fn a_savepoint_of_a_stage_in_use_can_be_forked_while_it_is() {
    let f = Fixture::new(project);
    let node = f.create("", "new", b"first");
    save(&f.stage, Some("a"));
    f.write("new", 0, b"SECOND");
    fork(&f.dir(), Some("a"), &f.temp.path().join("fork")).unwrap();
    assert!(matches!(fork(&f.dir(), None, &f.temp.path().join("x")), Err(SavepointError::Home(_))));
    assert_eq!(read(&f.stage.open(node, Access::Read, false).unwrap()), b"SECOND");
    let set = load_changes(&f.temp.path().join("fork")).unwrap();
    assert_eq!(summary(&set), ["new: - > file 5"]);
}

#[test]
fn what_fails_or_is_given_up_leaves_nothing() {
    let f = Fixture::new(project);
    f.create("", "new", b"x");
    save(&f.stage, Some("a"));
    assert!(matches!(f.stage.prepare_savepoint(Some("a"), 0), Err(SavepointError::Exists(_))));
    assert!(matches!(f.stage.prepare_savepoint(Some("../a"), 0), Err(SavepointError::Name(_))));
    let late = f.stage.prepare_savepoint(Some("b"), 0).unwrap().take(Instant::now());
    assert!(matches!(late, Err(SavepointError::Overdue)), "{late:?}");
    drop(late);
    drop(f.stage.prepare_savepoint(Some("b"), 0).unwrap().take(soon()).unwrap());
    let names = |dir: &Path| fs::read_dir(dir.join("savepoints")).unwrap().count();
    assert_eq!(names(&f.dir()), 1);
    // One whose process was killed is in nobody's way.
    fs::create_dir_all(f.dir().join("savepoints/.new-b/upper")).unwrap();
    save(&f.stage, Some("b"));
    assert_eq!(names(&f.dir()), 2);
    let thrown_away = Fixture::with(project, |_| StageOptions { keep: Keep::ThrowAway, ..StageOptions::default() });
    assert!(matches!(thrown_away.stage.prepare_savepoint(None, 0), Err(SavepointError::ThrownAway)));
}

#[test]
fn a_content_that_nobody_shares_any_more_is_written_in_place() {
    let f = Fixture::new(project);
    let node = f.create("", "new", b"x");
    save(&f.stage, Some("a"));
    fs::remove_dir_all(f.dir().join("savepoints/a")).unwrap();
    let place = f.dir().join(format!("upper/{:x}", node.0));
    let ino = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let before = ino(&place);
    f.write("new", 0, b"y");
    assert_eq!(ino(&place), before);
    assert_eq!(f.read("new"), b"y");
}

#[test]
fn the_limit_holds_with_savepoints_too() {
    let limit = 1 << 20;
    let options = |_: &Path| StageOptions { max_bytes: Some(limit), ..StageOptions::default() };
    let f = Fixture::with(project, options);
    f.create("", "new", &[1; 600_000]);
    for n in 0..4 {
        save(&f.stage, None);
        f.write("new", n, b"changed");
    }
    let more = f.stage.create_file(NodeId::ROOT, b"more", &NEW).unwrap().node;
    let more = f.stage.open(more, Access::Write, false).unwrap();
    assert_eq!(more.write_at(&[2; 600_000], 0), Err(Errno::DQUOT));
    assert_eq!(more.write_at(&[2; 300_000], 0), Ok(300_000));
    f.stage.rename(NodeId::ROOT, b"new", NodeId::ROOT, b"newer", RenameFlags::empty()).unwrap();
    assert_eq!(savepoints(&f.dir()).unwrap().0.len(), 4);
}
