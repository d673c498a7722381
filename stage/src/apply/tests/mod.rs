//! Apply as a whole: trees before and after, stops at every effect, other people's hands in between.

mod conflicts;
mod crash;
pub(crate) mod model;
mod property;
mod undo;
mod user;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use model::{Bench, Node, Tree, file};

use super::{ApplyError, ApplyOptions, Recovery, Selection, apply_changes, discard, recover};
use crate::RelPath;

fn rel(text: &str) -> RelPath {
    RelPath::new(text.as_bytes().to_vec()).unwrap()
}

fn selecting(paths: &[&str]) -> ApplyOptions {
    let selection = Selection { paths: paths.iter().map(|p| rel(p)).collect(), ..Selection::default() };
    ApplyOptions { selection, ..ApplyOptions::default() }
}

fn small() -> (Tree, Tree) {
    let before = Tree::from([
        ("README", file("hello\n")),
        ("run.sh", file("#!/bin/sh\n").mode(0o644)),
        ("src", Node::dir()),
        ("src/a", file("a")),
        ("src/b", file("b")),
        ("swap", file("was a file")),
    ]);
    let after = Tree::from([
        ("README", file("hello, world\n")),
        ("run.sh", file("#!/bin/sh\n").mode(0o755)),
        ("new", Node::dir().mode(0o750)),
        ("new/f", file("x\n")),
        ("new/link", Node::symlink("../README")),
        ("new/pipe", Node::fifo()),
        ("swap", Node::dir()),
        ("swap/inner", file("now inside")),
    ]);
    (before, after)
}

#[test]
fn every_class_of_change_arrives_and_a_second_apply_has_nothing_left() {
    let (before, after) = small();
    let bench = Bench::new(&before, &after);
    let dry = ApplyOptions { dry_run: true, ..ApplyOptions::default() };
    let planned = apply_changes(&bench.stage, &bench.set, &dry).unwrap();
    bench.assert_target(&before);
    let applied = apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
    assert_eq!(applied, planned);
    assert_eq!((applied.written, applied.same, applied.left), (bench.set.changes.len() as u64, 0, 0));
    assert!(applied.not_appliable.is_empty());
    bench.assert_target(&after);
    bench.assert_no_leftovers();
    let again = apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
    assert_eq!((again.written, again.same, again.left), (0, 0, 0));
}

#[test]
fn what_is_there_already_is_not_written_again() {
    let (before, after) = small();
    let bench = Bench::new(&before, &after);
    fs::write(bench.target.join("README"), "hello, world\n").unwrap();
    let ino = fs::metadata(bench.target.join("README")).unwrap().ino();
    let applied = apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
    assert_eq!((applied.same, applied.written), (1, bench.set.changes.len() as u64 - 1));
    assert_eq!(fs::metadata(bench.target.join("README")).unwrap().ino(), ino);
}

#[test]
fn parts_can_be_applied_one_after_another() {
    let (before, after) = small();
    let bench = Bench::new(&before, &after);
    let total = bench.set.changes.len() as u64;
    let first = apply_changes(&bench.stage, &bench.set, &selecting(&["new/f"])).unwrap();
    assert_eq!((first.written, first.left), (2, total - 2));
    assert!(bench.target.join("new/f").exists() && !bench.target.join("new/pipe").exists());
    assert!(bench.target.join("src/a").exists());
    let second = apply_changes(&bench.stage, &bench.set, &selecting(&["src"])).unwrap();
    assert_eq!((second.written, second.left), (3, total - 5));
    let rest = apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
    assert_eq!((rest.written, rest.left), (total - 5, 0));
    bench.assert_target_but_directory_times(&after);
    bench.assert_no_leftovers();
}

#[test]
fn another_target_has_a_count_of_its_own() {
    let (before, after) = small();
    let bench = Bench::new(&before, &after);
    let other = bench.base.path().join("other");
    before.write(&other);
    let options = ApplyOptions { target: Some(other.clone()), ..ApplyOptions::default() };
    apply_changes(&bench.stage, &bench.set, &options).unwrap();
    bench.assert_target(&before);
    assert_eq!(Tree::read(&other), after);
    let applied = apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
    assert_eq!(applied.written, bench.set.changes.len() as u64);
    bench.assert_target(&after);
    let inside = ApplyOptions { target: Some(bench.stage.join("upper")), ..ApplyOptions::default() };
    assert!(matches!(apply_changes(&bench.stage, &bench.set, &inside), Err(ApplyError::TargetInStage(_))));
}

#[test]
fn a_damaged_content_writes_nothing() {
    let (before, after) = small();
    let bench = Bench::new(&before, &after);
    let change = bench.set.changes.iter().find(|c| c.path == rel("new/f")).unwrap();
    let object = change.after.as_ref().unwrap().object.unwrap();
    fs::write(bench.stage.join(format!("upper/{:x}", object.0)), "y\n").unwrap();
    let failed = apply_changes(&bench.stage, &bench.set, &ApplyOptions::default());
    assert!(matches!(failed, Err(ApplyError::Damaged(path)) if path == rel("new/f")));
    bench.assert_target(&before);
    bench.assert_no_leftovers();
}

#[test]
fn any_changed_byte_of_the_ledger_is_noticed_and_stops_everything() {
    let (before, after) = small();
    let bench = Bench::new(&before, &after);
    apply_changes(&bench.stage, &bench.set, &selecting(&["README"])).unwrap();
    let now = Tree::read(&bench.target);
    let path = bench.stage.join("ledger");
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        // A newer minor version is no damage, but the checksum covers it too.
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let failed = apply_changes(&bench.stage, &bench.set, &ApplyOptions::default());
        assert!(matches!(failed, Err(ApplyError::Ledger(_))), "byte {at}: {failed:?}");
        assert!(recover(&bench.stage).is_err(), "byte {at}");
        assert!(discard(&bench.stage).is_err(), "byte {at}");
    }
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        assert!(recover(&bench.stage).is_err(), "cut at {length}");
    }
    assert_eq!(Tree::read(&bench.target), now);
    fs::write(&path, &whole).unwrap();
    assert_eq!(recover(&bench.stage).unwrap(), Recovery::Nothing);
    apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
    bench.assert_target(&after);
}

#[test]
fn sets_that_no_stage_can_have_made_are_refused() {
    let (before, after) = small();
    let bench = Bench::new(&before, &after);
    let mut backwards = bench.set.clone();
    backwards.changes.reverse();
    let mut hollow = bench.set.clone();
    for change in &mut hollow.changes {
        change.after.iter_mut().for_each(|a| a.object = None);
    }
    let mut all_gone = bench.set.clone();
    all_gone.changes.truncate(1);
    (all_gone.changes[0].path, all_gone.changes[0].after) = (RelPath::default(), None);
    for set in [backwards, hollow, all_gone] {
        let failed = apply_changes(&bench.stage, &set, &ApplyOptions::default());
        assert!(matches!(failed, Err(ApplyError::Malformed { .. })), "{failed:?}");
    }
    bench.assert_target(&before);
}

#[test]
fn a_stage_in_use_is_left_alone() {
    let (before, after) = small();
    let bench = Bench::new(&before, &after);
    let lock = crate::layout::Lock::take(&bench.stage).unwrap().unwrap();
    let failed = apply_changes(&bench.stage, &bench.set, &ApplyOptions::default());
    assert!(matches!(failed, Err(ApplyError::Home(super::HomeError::Locked(_)))));
    assert!(matches!(discard(&bench.stage), Err(super::DiscardError::Home(super::HomeError::Locked(_)))));
    drop(lock);
    bench.assert_target(&before);
}

#[test]
fn hard_links_arrive_as_hard_links() {
    let before =
        Tree::from([("one", file("shared").linked(1)), ("two", file("shared").linked(1)), ("solo", file("solo"))]);
    let after = Tree::from([
        ("one", file("written through one").linked(1)),
        ("two", file("written through one").linked(1)),
        ("three", file("written through one").linked(1)),
        ("solo", file("solo").linked(2)),
        ("solo2", file("solo").linked(2)),
    ]);
    let bench = Bench::new(&before, &after);
    apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
    bench.assert_target(&after);
    let nlink = |name: &str| fs::metadata(bench.target.join(name)).unwrap().nlink();
    assert_eq!((nlink("one"), nlink("three"), nlink("solo2")), (3, 3, 2));
    bench.assert_no_leftovers();
}

#[test]
fn a_file_with_names_outside_of_the_plan_is_not_changed_under_them() {
    let before = Tree::from([("tool", file("#!/bin/sh\n"))]);
    let after = Tree::from([("tool", file("#!/bin/sh\n").mode(0o755))]);
    let bench = Bench::new(&before, &after);
    let outside = bench.base.path().join("outside");
    fs::hard_link(bench.target.join("tool"), &outside).unwrap();
    apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
    bench.assert_target(&after);
    assert_eq!(fs::metadata(&outside).unwrap().permissions().mode() & 0o777, 0o644);
}

#[test]
fn a_thousand_files_cost_a_handful_of_syncs() {
    let before = Tree::from([("d", Node::dir())]);
    let mut after = before.clone();
    for n in 0..1000 {
        after.insert(&format!("d/{n}"), file(&format!("content {n}")));
    }
    let bench = Bench::new(&before, &after);
    let counter = model::Counter::default();
    super::apply_interruptible(&bench.stage, &bench.set, &ApplyOptions::default(), &counter).unwrap();
    bench.assert_target(&after);
    // Two of whole filesystems, and a file and a directory for each of the ledger's three states.
    assert_eq!(counter.count(super::fault::Effect::Sync), 8);
}

#[test]
fn without_a_place_outside_the_staging_directory_is_inside_and_goes_again() {
    let (before, after) = small();
    let bench = Bench::on_another_mount(&before, &after);
    let Some(bench) = bench else { return };
    apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
    bench.assert_target(&after);
    bench.assert_no_leftovers();
}

#[test]
fn a_project_on_an_overlay_of_two_filesystems_is_applied_to() {
    let (before, after) = small();
    let Ok(lower) = tempfile::Builder::new().tempdir_in("/dev/shm") else { return };
    let base = tempfile::tempdir().unwrap();
    before.write(lower.path());
    let [upper, work, target] = ["upper", "work", "project"].map(|name| base.path().join(name));
    for dir in [&upper, &work, &target] {
        fs::create_dir(dir).unwrap();
    }
    let layers = [("lowerdir", lower.path()), ("upperdir", &upper), ("workdir", &work)];
    let layers = layers.map(|(name, dir)| format!("{name}={}", dir.display())).join(",");
    let layers = std::ffi::CString::new(layers).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    if rustix::mount::mount("overlay", &target, "overlay", flags, &*layers).is_err() {
        return;
    }
    let bench = Bench::around(base, &before, &after, target.clone());
    let done = apply_changes(&bench.stage, &bench.set, &ApplyOptions::default());
    let now = Tree::read(&target).without_directory_times(|_| false);
    rustix::mount::unmount(&target, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert!(done.as_ref().is_ok_and(|d| d.not_appliable.is_empty()), "{done:?}");
    assert_eq!(now, after.without_directory_times(|_| false));
}

#[test]
fn discard_takes_the_stage_and_nothing_else() {
    let (before, after) = small();
    let bench = Bench::new(&before, &after);
    let outside = bench.base.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "x").unwrap();
    std::os::unix::fs::symlink(&outside, bench.stage.join("work/link")).unwrap();
    std::os::unix::fs::symlink(outside.join("precious"), bench.stage.join("upper/ffff")).unwrap();
    let mut deep = bench.stage.join("work/deep");
    for _ in 0..100 {
        deep = deep.join("x");
    }
    fs::create_dir_all(&deep).unwrap();
    fs::set_permissions(bench.stage.join("work/deep/x"), fs::Permissions::from_mode(0o500)).unwrap();
    fs::write(bench.stage.join("notes"), "not ours").unwrap();
    let discarded = discard(&bench.stage).unwrap();
    assert!(!discarded.directory);
    assert_eq!(fs::read_dir(&bench.stage).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(outside.join("precious")).unwrap(), "x");
    bench.assert_target(&before);
    assert!(matches!(discard(&bench.stage), Err(super::DiscardError::Home(super::HomeError::NotAStage(_)))));
}

#[test]
fn discard_refuses_what_is_no_stage() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("lock"), "").unwrap();
    fs::write(dir.path().join("journal"), "somebody's diary").unwrap();
    fs::create_dir(dir.path().join("upper")).unwrap();
    assert!(matches!(discard(dir.path()), Err(super::DiscardError::Home(super::HomeError::NotAStage(_)))));
    assert!(discard(&dir.path().join("missing")).is_err());
    let (before, after) = small();
    let bench = Bench::new(&before, &after);
    let link = bench.base.path().join("link");
    std::os::unix::fs::symlink(&bench.stage, &link).unwrap();
    assert!(matches!(discard(&link), Err(super::DiscardError::Home(super::HomeError::NotAStage(_)))));
    assert!(discard(&bench.stage).unwrap().directory);
    assert!(!bench.stage.exists());
}

#[test]
fn a_filesystem_that_can_not_swap_names_does_as_well() {
    let (before, after) = small();
    let bench = Bench::new(&before, &after);
    super::apply_interruptible(&bench.stage, &bench.set, &ApplyOptions::default(), &model::NoExchange).unwrap();
    bench.assert_target(&after);
    bench.assert_no_leftovers();
}
