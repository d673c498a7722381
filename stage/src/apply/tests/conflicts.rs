//! What other people do to the project before and during an apply.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::model::{Bench, Meddler, Node, Tree, file};
use super::{rel, selecting, small};
use crate::apply::fault::Effect;
use crate::apply::{ApplyError, ApplyOptions, Conflict, ConflictKind, apply_changes, apply_interruptible, recover};
use crate::{Before, Recovery};

fn conflicts(bench: &Bench, options: &ApplyOptions) -> Vec<Conflict> {
    let before = Tree::read(&bench.target);
    let found = match apply_changes(&bench.stage, &bench.set, options) {
        Err(ApplyError::Conflicts(found)) => found,
        other => panic!("{other:?}"),
    };
    assert_eq!(Tree::read(&bench.target), before, "nothing was written");
    bench.assert_no_leftovers();
    found
}

fn only(bench: &Bench, path: &str, what: ConflictKind) {
    assert_eq!(conflicts(bench, &ApplyOptions::default()), [Conflict { path: rel(path), what }]);
}

fn bench() -> Bench {
    let (before, after) = small();
    Bench::new(&before, &after)
}

#[test]
fn an_edit_of_the_content_is_a_conflict() {
    let bench = bench();
    fs::write(bench.target.join("README"), "mine\n").unwrap();
    only(&bench, "README", ConflictKind::Changed);
    // All but that can be applied, and that later when it is as it was.
    let options = ApplyOptions {
        selection: crate::Selection { exclude: vec!["README".to_owned()], ..Default::default() },
        ..ApplyOptions::default()
    };
    let applied = apply_changes(&bench.stage, &bench.set, &options).unwrap();
    assert_eq!(applied.left, 1);
    fs::write(bench.target.join("README"), "hello\n").unwrap();
    apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
    assert_eq!(fs::read_to_string(bench.target.join("README")).unwrap(), "hello, world\n");
}

#[test]
fn an_edit_that_keeps_size_and_time_is_a_conflict() {
    let bench = bench();
    let path = bench.target.join("README");
    let times = fs::FileTimes::new().set_modified(fs::metadata(&path).unwrap().modified().unwrap());
    fs::write(&path, "HELLO\n").unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
    only(&bench, "README", ConflictKind::Changed);
}

#[test]
fn another_mode_is_a_conflict_and_another_time_is_none() {
    let bench = bench();
    fs::set_permissions(bench.target.join("run.sh"), fs::Permissions::from_mode(0o600)).unwrap();
    only(&bench, "run.sh", ConflictKind::Changed);
    fs::set_permissions(bench.target.join("run.sh"), fs::Permissions::from_mode(0o644)).unwrap();
    let file = fs::File::options().write(true).open(bench.target.join("README")).unwrap();
    file.set_modified(std::time::SystemTime::now()).unwrap();
    apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
}

#[test]
fn what_the_person_removed_or_made_is_a_conflict() {
    let bench = bench();
    fs::remove_file(bench.target.join("README")).unwrap();
    fs::create_dir(bench.target.join("new")).unwrap();
    fs::write(bench.target.join("new/f"), "mine").unwrap();
    let found = conflicts(&bench, &ApplyOptions::default());
    let what: Vec<_> = found.iter().map(|c| (c.path.clone(), c.what.clone())).collect();
    assert_eq!(
        what,
        [
            (rel("README"), ConflictKind::Removed),
            (rel("new"), ConflictKind::Exists),
            (rel("new/f"), ConflictKind::Exists)
        ]
    );
}

#[test]
fn a_new_file_in_a_directory_that_goes_is_a_conflict() {
    let bench = bench();
    fs::write(bench.target.join("src/mine"), "").unwrap();
    only(&bench, "src", ConflictKind::NewInside(b"mine".to_vec()));
    // The files in it can be removed without it.
    fs::remove_file(bench.target.join("src/mine")).unwrap();
    apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
}

#[test]
fn what_was_removed_on_both_sides_is_the_same() {
    let bench = bench();
    fs::remove_dir_all(bench.target.join("src")).unwrap();
    let applied = apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
    assert_eq!(applied.same, 3);
}

#[test]
fn a_lost_original_is_a_conflict_unless_it_is_as_the_command_left_it() {
    let mut bench = bench();
    bench.set.changes.iter_mut().find(|c| c.path == rel("README")).unwrap().before = Before::Lost;
    only(&bench, "README", ConflictKind::Lost);
    fs::write(bench.target.join("README"), "hello, world\n").unwrap();
    apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
}

#[test]
fn a_missing_or_replaced_parent_is_a_conflict_and_nothing_is_written_through_a_link() {
    let before = Tree::from([("d", Node::dir())]);
    let after = Tree::from([("d", Node::dir()), ("d/f", file("staged"))]);
    let bench = Bench::new(&before, &after);
    let outside = bench.base.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::remove_dir(bench.target.join("d")).unwrap();
    only(&bench, "d/f", ConflictKind::ParentMissing);
    symlink(&outside, bench.target.join("d")).unwrap();
    only(&bench, "d/f", ConflictKind::ParentMissing);
    fs::remove_file(bench.target.join("d")).unwrap();
    fs::write(bench.target.join("d"), "a file").unwrap();
    only(&bench, "d/f", ConflictKind::ParentMissing);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn a_link_in_place_of_a_file_is_never_followed() {
    let bench = bench();
    let outside = bench.base.path().join("outside");
    // The same content: only the link tells.
    fs::write(&outside, "hello\n").unwrap();
    fs::remove_file(bench.target.join("README")).unwrap();
    symlink(&outside, bench.target.join("README")).unwrap();
    only(&bench, "README", ConflictKind::Changed);
    assert_eq!(fs::read_to_string(&outside).unwrap(), "hello\n");
}

#[test]
fn a_mount_point_is_a_conflict() {
    let bench = bench();
    let point = bench.target.join("src");
    let Ok(()) = rustix::mount::mount("none", &point, "tmpfs", rustix::mount::MountFlags::empty(), None) else {
        return;
    };
    let found = apply_changes(&bench.stage, &bench.set, &selecting(&["src"]));
    rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert!(matches!(found, Err(ApplyError::Conflicts(_))), "{found:?}");
}

/// Runs an apply in which `meddle` happens once, right before the `n`th effect of that kind.
fn meddled(bench: &Bench, kind: Effect, n: usize, meddle: impl Fn(&Path) + Sync) -> Result<(), ApplyError> {
    let (seen, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let target = bench.target.clone();
    let meddler = Meddler(move |effect| {
        if effect == kind && seen.fetch_add(1, Ordering::SeqCst) == n && !done.swap(true, Ordering::SeqCst) {
            meddle(&target);
        }
    });
    apply_interruptible(&bench.stage, &bench.set, &ApplyOptions::default(), &meddler).map(|_| ())
}

#[test]
fn an_edit_in_the_very_moment_of_the_swap_survives() {
    let before = Tree::from([("f", file("base\n"))]);
    let after = Tree::from([("f", file("staged\n"))]);
    // In place, by an editor that writes a new file, and by one that is quick enough to keep size and time.
    let edits: [&(dyn Fn(&Path) + Sync); 3] = [
        &|target| fs::write(target.join("f"), "mine").unwrap(),
        &|target| {
            fs::write(target.join("f~"), "BASE\n").unwrap();
            fs::rename(target.join("f~"), target.join("f")).unwrap();
        },
        &|target| fs::write(target.join("f"), "BASE\n").unwrap(),
    ];
    for edit in edits {
        let bench = Bench::new(&before, &after);
        let failed = meddled(&bench, Effect::Exchange, 0, edit);
        assert!(matches!(failed, Err(ApplyError::Conflicts(_))), "{failed:?}");
        assert!(fs::read_to_string(bench.target.join("f")).unwrap().to_lowercase().starts_with(['m', 'b']));
        assert_ne!(fs::read_to_string(bench.target.join("f")).unwrap(), "base\n");
        bench.assert_no_leftovers();
        assert_eq!(recover(&bench.stage).unwrap(), Recovery::Nothing);
    }
}

#[test]
fn a_new_file_in_the_very_moment_of_its_creation_survives() {
    let after = Tree::from([("f", file("staged\n"))]);
    let bench = Bench::new(&Tree::default(), &after);
    // The renames before: the ledger's.
    let failed = meddled(&bench, Effect::Rename, 1, |target| fs::write(target.join("f"), "mine").unwrap());
    assert!(matches!(failed, Err(ApplyError::Conflicts(_))), "{failed:?}");
    assert_eq!(fs::read_to_string(bench.target.join("f")).unwrap(), "mine");
    bench.assert_no_leftovers();
}

#[test]
fn an_edit_in_the_very_moment_of_its_removal_survives() {
    let before = Tree::from([("d", Node::dir()), ("d/f", file("base\n"))]);
    let bench = Bench::new(&before, &Tree::default());
    let failed = meddled(&bench, Effect::Rename, 1, |target| fs::write(target.join("d/f"), "mine\n").unwrap());
    assert!(matches!(failed, Err(ApplyError::Conflicts(_))), "{failed:?}");
    assert_eq!(fs::read_to_string(bench.target.join("d/f")).unwrap(), "mine\n");
    bench.assert_no_leftovers();
}

#[test]
fn an_edit_that_can_not_be_put_back_is_kept_and_its_place_named() {
    let before = Tree::from([("d", Node::dir()), ("d/f", file("base\n"))]);
    let bench = Bench::new(&before, &Tree::default());
    let renames = AtomicUsize::new(0);
    let path = bench.target.join("d/f");
    let meddler = Meddler(|effect| {
        if effect == Effect::Rename {
            match renames.fetch_add(1, Ordering::SeqCst) {
                // Moving it out, and giving it back.
                1 => fs::write(&path, "first\n").unwrap(),
                2 => fs::write(&path, "second\n").unwrap(),
                _ => {}
            }
        }
    });
    let failed = apply_interruptible(&bench.stage, &bench.set, &ApplyOptions::default(), &meddler);
    let Err(ApplyError::Partial(partial)) = failed else { panic!("{failed:?}") };
    assert_eq!(partial.kept.len(), 1);
    let recovery = recover(&bench.stage).unwrap();
    let Recovery::Finished { kept, contested, .. } = recovery else { panic!("{recovery:?}") };
    assert_eq!((kept.len(), contested[0].path.clone()), (1, rel("d/f")));
    assert_eq!(kept, partial.kept);
    for _ in 0..2 {
        assert_eq!(fs::read_to_string(&kept[0]).unwrap(), "first\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "second\n");
        assert_eq!(recover(&bench.stage).unwrap(), Recovery::Nothing);
    }
}

#[test]
fn what_stops_an_apply_on_the_way_says_what_is_done_and_the_rest_is_done_later() {
    let before = Tree::from([("a", file("a\n")), ("b", file("b\n")), ("c", file("c\n"))]);
    let after = Tree::from([("a", file("A\n")), ("b", file("B\n")), ("c", file("C\n"))]);
    let bench = Bench::new(&before, &after);
    let failed = meddled(&bench, Effect::Exchange, 1, |target| fs::write(target.join("b"), "mine\n").unwrap());
    let Err(ApplyError::Partial(partial)) = failed else { panic!("{failed:?}") };
    assert_eq!((&partial.at, &partial.done[..]), (&rel("b"), &[rel("a")][..]));
    assert_eq!(partial.undone, [rel("b"), rel("c")]);
    assert_eq!(fs::read_to_string(bench.target.join("c")).unwrap(), "c\n");
    let recovery = recover(&bench.stage).unwrap();
    assert!(matches!(recovery, Recovery::Finished { applied: 2, contested, .. } if contested[0].path == rel("b")));
    let now = ["a", "b", "c"].map(|name| fs::read_to_string(bench.target.join(name)).unwrap());
    assert_eq!(now, ["A\n", "mine\n", "C\n"]);
    assert_eq!(recover(&bench.stage).unwrap(), Recovery::Nothing);
}

#[test]
fn parents_that_turn_into_links_at_any_moment_never_lead_outside() {
    let mut before = Tree::from([("d", Node::dir())]);
    let mut after = before.clone();
    for n in 0..40 {
        before.insert(&format!("d/old{n}"), file("old"));
        before.insert(&format!("d/gone{n}"), file("old"));
        after.insert(&format!("d/old{n}"), file("replaced"));
        after.insert(&format!("d/new{n}"), file("new"));
    }
    for round in 0..6 {
        let bench = Bench::new(&before, &after);
        let outside = bench.base.path().join("outside");
        before.write(&outside);
        let outside = outside.join("d");
        let untouched = Tree::read(&outside);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (dir, aside) = (bench.target.join("d"), bench.target.join("aside"));
                while !stop.load(Ordering::Relaxed) {
                    fs::rename(&dir, &aside).unwrap();
                    symlink(&outside, &dir).unwrap();
                    std::thread::yield_now();
                    fs::remove_file(&dir).unwrap();
                    fs::rename(&aside, &dir).unwrap();
                    for _ in 0..round * 50 {
                        std::thread::yield_now();
                    }
                }
            });
            for _ in 0..10 {
                let _ = apply_changes(&bench.stage, &bench.set, &ApplyOptions::default());
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(Tree::read(&outside), untouched);
        recover(&bench.stage).unwrap();
        let _ = apply_changes(&bench.stage, &bench.set, &ApplyOptions::default());
        assert_eq!(Tree::read(&outside), untouched);
        bench.assert_no_leftovers();
    }
}
