//! Preimages, and what the person does to the lower meanwhile.

use super::*;
use crate::{Before, Kind};

#[test]
fn a_file_that_the_person_changes_later_is_lost() {
    let f = Fixture::new(project);
    f.write("readme", 0, b"mine");
    f.unlink("src", "main").unwrap();
    fs::write(f.lower.join("readme"), "theirs").unwrap();
    fs::write(f.lower.join("src/main"), "theirs too").unwrap();
    let (_temp, changes) = f.seal();
    assert_eq!(summary(&changes), ["readme: ? > file 7", "src/main: ? > -"]);
}

#[test]
fn a_lost_preimage_matters_only_where_something_was_changed() {
    let f = Fixture::new(project);
    let time = SetAttr { mtime: Some(SetTime::At(5, 5)), ..Default::default() };
    f.stage.set_attr(f.node("readme").unwrap(), &time).unwrap();
    fs::write(f.lower.join("readme"), "theirs").unwrap();
    let (_temp, changes) = f.seal();
    assert!(changes.changes.is_empty());
}

#[test]
fn a_young_file_is_waited_for() {
    let f = Fixture::new(project);
    // Its ctime could stay the same through another write now.
    fs::write(f.lower.join("readme"), "young").unwrap();
    f.unlink("", "readme").unwrap();
    let (_temp, changes) = f.seal();
    let Before::Present(print) = &changes.changes[0].before else { panic!("{changes:?}") };
    assert_eq!(print.kind, Kind::File { size: 5, hash: *blake3::hash(b"young").as_bytes() });
}

#[test]
fn a_file_that_never_settles_is_hashed_at_once() {
    let f = Fixture::new(project);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let file = fs::File::options().write(true).open(f.lower.join("readme")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                std::os::unix::fs::FileExt::write_all_at(&file, b"busy", 0).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        f.unlink("", "readme").unwrap();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let (_temp, changes) = f.seal();
    // Either is right: which one depends on when the writer came in between.
    assert!(["readme: file 7 > -", "readme: ? > -"].contains(&summary(&changes)[0].as_str()));
}

#[test]
fn what_is_written_back_as_it_was_is_no_change() {
    let f = Fixture::new(project);
    f.write("readme", 0, b"READ");
    f.write("readme", 0, b"read");
    let mode = |m| SetAttr { mode: Some(m), ..Default::default() };
    let node = f.node("src").unwrap();
    let old = f.stage.attr(node).unwrap().mode;
    f.stage.set_attr(node, &mode(0o700)).unwrap();
    f.stage.set_attr(node, &mode(old)).unwrap();
    let (_temp, changes) = f.seal();
    assert!(changes.changes.is_empty(), "{:?}", summary(&changes));
}

#[test]
fn only_metadata_changed_needs_no_content() {
    let f = Fixture::new(project);
    f.stage.set_attr(f.node("readme").unwrap(), &SetAttr { mode: Some(0o600), ..Default::default() }).unwrap();
    let (temp, changes) = f.seal();
    let after = changes.changes[0].after.as_ref().unwrap();
    assert_eq!((after.object, after.print.meta.mode, after.link_group), (None, 0o600, None));
    assert_eq!(after.print.kind, Kind::File { size: 7, hash: *blake3::hash(b"read me").as_bytes() });
    assert_eq!(fs::read_dir(temp.path().join("stage/upper")).unwrap().count(), 0);
}

#[test]
fn every_name_of_a_changed_hard_link_is_listed() {
    let fill = |lower: &Path| {
        project(lower);
        fs::create_dir(lower.join("never/seen").parent().unwrap()).unwrap();
        fs::hard_link(lower.join("readme"), lower.join("never/seen")).unwrap();
    };
    let f = Fixture::new(fill);
    f.write("readme", 0, b"R");
    assert_eq!(f.read("never/seen"), b"Read me");
    let (_temp, changes) = f.seal();
    assert_eq!(summary(&changes), ["never/seen: file 7 > file 7", "readme: file 7 > file 7"]);
    let groups: Vec<_> = changes.changes.iter().map(|c| c.after.as_ref().unwrap().link_group).collect();
    assert!(groups[0].is_some() && groups[0] == groups[1], "{groups:?}");
}

#[test]
fn a_new_name_of_an_untouched_file_brings_that_file_along() {
    let f = Fixture::new(project);
    f.stage.link(f.node("readme").unwrap(), f.node("src").unwrap(), b"again").unwrap();
    let (_temp, changes) = f.seal();
    assert_eq!(summary(&changes), ["readme: file 7 > file 7", "src/again: - > file 7"]);
    let [old, new] = [0, 1].map(|n| changes.changes[n].after.clone().unwrap());
    assert_eq!((old.object, old.link_group), (None, new.link_group));
    assert!(new.object.is_some() && new.link_group.is_some());
}

#[test]
fn deleted_trees_list_what_was_in_them() {
    let f = Fixture::new(project);
    f.unlink("src/deep", "leaf").unwrap();
    let src = f.node("src").unwrap();
    f.stage.rmdir(src, b"deep").unwrap();
    f.unlink("src", "main").unwrap();
    f.stage.rmdir(NodeId::ROOT, b"src").unwrap();
    let Attr { mode, uid, gid, .. } = f.stage.attr(src).unwrap();
    f.stage.make_dir(NodeId::ROOT, b"src", &NewNode { mode, uid, gid }).unwrap();
    let (_temp, changes) = f.seal();
    assert_eq!(summary(&changes), ["src/deep: directory > -", "src/deep/leaf: file 4 > -", "src/main: file 4 > -"]);
}

#[test]
fn strict_stages_work_alike() {
    let strict = |_: &Path| StageOptions { durability: Durability::Strict, ..Default::default() };
    let f = Fixture::with(project, strict);
    f.write("readme", 0, b"R");
    f.unlink("src", "main").unwrap();
    let (_temp, changes) = f.seal();
    assert_eq!(summary(&changes), ["readme: file 7 > file 7", "src/main: file 4 > -"]);
}

#[test]
fn a_stage_that_is_thrown_away_keeps_no_journal() {
    let away = |_: &Path| StageOptions { keep: Keep::ThrowAway, ..Default::default() };
    let f = Fixture::with(project, away);
    f.write("readme", 0, b"R");
    f.rename("", "src", "", "lib").unwrap();
    f.unlink("lib", "main").unwrap();
    f.stage.set_xattr(f.node("lib").unwrap(), b"user.x", b"1", rustix::fs::XattrFlags::empty()).unwrap();
    f.open("readme", Access::Read).unwrap().sync(false).unwrap();
    assert_eq!((f.read("readme"), f.names("lib")), (b"Read me".to_vec(), vec!["deep".to_owned()]));
    assert!(!f.dir().join("journal").exists());
    let error = seal(&f.dir()).unwrap_err();
    assert!(matches!(error, crate::SealError::Load(crate::LoadError::NotAStage(_))), "{error}");
}
