//! An apply by somebody who is not root. Each runs on a thread that has given up its rights; skipped where it has none
//! to give up.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use rustix::fs::{Gid, Uid};

use super::model::{Bench, Node, Tree, file};
use super::rel;
use crate::apply::{
    Applied, ApplyError, ApplyOptions, ConflictKind, apply_changes, apply_interruptible, discard, model, recover,
};

const USER: u32 = 54_321;

/// Runs as the user; `None`: this process can't become another user.
fn as_user<T: Send>(run: impl FnOnce() -> T + Send) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let (uid, gid) = (Uid::from_raw(USER), Gid::from_raw(USER));
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            // These change the thread alone.
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            run()
        });
        Some(worker.join().unwrap())
    })
}

/// A bench that belongs to the user, but for the given paths of the project.
fn bench(before: &Tree, after: &Tree, foreign: &[&str]) -> Bench {
    let owned = |tree: &Tree, only: bool| {
        let mut tree = tree.clone();
        for (path, node) in &mut tree.0 {
            if !only || !foreign.iter().any(|f| rel(f) == *path) {
                (node.uid, node.gid) = (USER, USER);
            }
        }
        tree
    };
    let bench = Bench::new(&owned(before, true), &owned(after, true));
    let mut queue = vec![bench.base.path().to_owned()];
    while let Some(path) = queue.pop() {
        let inside = path.strip_prefix(&bench.target).ok().map(|p| p.to_str().unwrap().to_owned());
        let kept = inside.is_some_and(|p| foreign.contains(&&*p));
        if path.is_dir() && !path.is_symlink() {
            queue.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        }
        if !kept {
            let meta = path.symlink_metadata().unwrap();
            std::os::unix::fs::lchown(&path, Some(USER), Some(USER)).unwrap();
            if !path.is_symlink() {
                fs::set_permissions(&path, meta.permissions()).unwrap();
            }
        }
    }
    bench
}

fn apply(bench: &Bench) -> Option<Result<Applied, ApplyError>> {
    as_user(|| apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()))
}

#[test]
fn read_only_directories_of_its_own_are_no_obstacle() {
    let before = Tree::from([
        ("cache", Node::dir().mode(0o555)),
        ("cache/old", file("old").mode(0o444)),
        ("cache/gone", file("gone").mode(0o444)),
        ("bye", Node::dir().mode(0o555)),
        ("bye/deep", Node::dir().mode(0o500)),
        ("bye/deep/f", file("f")),
    ]);
    let after = Tree::from([
        ("cache", Node::dir().mode(0o555)),
        ("cache/old", file("new").mode(0o444)),
        ("cache/more", Node::dir().mode(0o555)),
        ("cache/more/f", file("f").mode(0o400)),
    ]);
    let make = || bench(&before, &after, &[]);
    let first = make();
    let Some(applied) = apply(&first) else { return };
    let applied = applied.unwrap();
    assert!(applied.not_appliable.is_empty(), "{:?}", applied.not_appliable);
    let mut expected = after.clone();
    expected.0.values_mut().for_each(|node| (node.uid, node.gid) = (USER, USER));
    first.assert_target_but_directory_times(&expected);
    first.assert_no_leftovers();
    for n in (0..90).step_by(4) {
        let bench = make();
        as_user(|| {
            let kill = model::Kill::after(n);
            let _ = apply_interruptible(&bench.stage, &bench.set, &ApplyOptions::default(), &kill);
            recover(&bench.stage).unwrap();
            apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
        });
        bench.assert_target_but_directory_times(&expected);
        bench.assert_no_leftovers();
        assert!(as_user(|| discard(&bench.stage).unwrap().files > 0).unwrap());
    }
}

#[test]
fn owners_and_devices_that_only_root_can_give_are_named() {
    let before = Tree::from([("theirs", file("x")), ("plain", file("x"))]);
    let after =
        Tree::from([("theirs", file("y")), ("plain", file("x").mode(0o755)), ("owned", file("z").mode(0o4755))]);
    let mut bench = bench(&before, &after, &[]);
    let owned = bench.set.changes.iter_mut().find(|c| c.path == rel("owned")).unwrap();
    let mut device = owned.clone();
    (owned.after.as_mut().unwrap().print.meta.uid, owned.after.as_mut().unwrap().print.meta.gid) = (0, 0);
    device.path = rel("zero");
    let after = device.after.as_mut().unwrap();
    (after.print.kind, after.object) = (crate::Kind::CharDevice(rustix::fs::makedev(1, 5)), None);
    bench.set.changes.push(device);
    bench.set.changes.sort_by(|a, b| a.path.cmp(&b.path));
    let options = ApplyOptions { allow_exec_sinks: true, ..ApplyOptions::default() };
    let Some(applied) = as_user(|| apply_changes(&bench.stage, &bench.set, &options)) else { return };
    let applied = applied.unwrap();
    assert_eq!((applied.written, applied.left), (3, 0));
    let named: Vec<_> = applied.not_appliable.iter().map(|(p, what)| (p.clone(), what.as_str())).collect();
    assert_eq!(
        named,
        [
            (rel("owned"), "owner 0 needs root"),
            (rel("owned"), "group 0 needs root"),
            (rel("owned"), "set-id bits without their owner"),
            (rel("zero"), "making device nodes needs root"),
        ]
    );
    let meta = fs::metadata(bench.target.join("owned")).unwrap();
    assert_eq!((meta.uid(), meta.permissions().mode() & 0o7777), (USER, 0o755));
    assert!(!bench.target.join("zero").exists());
    // What could not be done at all stays to be reviewed.
    let again = apply(&bench).unwrap().unwrap();
    assert_eq!((again.written, again.not_appliable.len()), (0, 1));
}

#[test]
fn directories_and_files_of_others_are_conflicts_before_anything_is_written() {
    let before =
        Tree::from([("d", Node::dir()), ("d/f", file("x")), ("secret", file("s").mode(0o600)), ("a", file("a"))]);
    let after =
        Tree::from([("d", Node::dir()), ("d/f", file("y")), ("secret", file("t").mode(0o600)), ("a", file("b"))]);
    let bench = bench(&before, &after, &["d", "secret"]);
    let Some(failed) = apply(&bench) else { return };
    let Err(ApplyError::Conflicts(found)) = failed else { panic!("{failed:?}") };
    let what: Vec<_> = found.into_iter().map(|c| (c.path, c.what)).collect();
    assert_eq!(what, [(rel("d/f"), ConflictKind::NotWritable), (rel("secret"), ConflictKind::Unreadable)]);
    assert_eq!(fs::read_to_string(bench.target.join("a")).unwrap(), "a");
    bench.assert_no_leftovers();
}

#[test]
fn metadata_of_a_file_of_somebody_else_is_named_and_the_rest_applied() {
    let before = Tree::from([("theirs", file("x")), ("mine", file("x"))]);
    let after = Tree::from([("theirs", file("x").mode(0o755)), ("mine", file("y"))]);
    let bench = bench(&before, &after, &["theirs"]);
    let Some(applied) = apply(&bench) else { return };
    let applied = applied.unwrap();
    assert_eq!(applied.written, 1);
    assert_eq!(applied.not_appliable, [(rel("theirs"), "it belongs to user 0".to_owned())]);
}
