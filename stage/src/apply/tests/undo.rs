//! Undo: everything comes back as it was, or nothing is written.

use std::os::unix::fs::{MetadataExt, symlink};

use super::crash::trees;
use super::model::{Bench, Counter, FullDisk, Kill, KillNoExchange, Meddler, NoExchange, Tree, file};
use super::*;
use crate::apply::disk::Disk;
use crate::apply::fault::Effect;
use crate::apply::home::Home;
use crate::apply::ledger::{Ledger, Phase};
use crate::apply::recovery::recover_home;
use crate::apply::undo::undo_interruptible;
use crate::apply::{Keeping, OriginalsKept, UndoError, UndoOptions, apply_interruptible, expire_originals, undo};

const KEEPING: Keeping = Keeping { since_ms: 1000, until_ms: 2000 };

fn keeping() -> ApplyOptions {
    ApplyOptions { keep: Some(KEEPING), ..ApplyOptions::default() }
}

fn back(bench: &Bench) -> UndoOptions {
    UndoOptions { target: Some(bench.target.clone()), dry_run: false, selection: Selection::default(), now_ms: 1500 }
}

/// A bench with everything applied and the originals kept.
fn applied(make: &dyn Fn() -> Bench) -> Bench {
    let bench = make();
    let applied = apply_changes(&bench.stage, &bench.set, &keeping()).unwrap();
    assert_eq!(applied.originals, OriginalsKept::Until(2000));
    bench
}

fn originals(bench: &Bench) -> usize {
    Ledger::load(&Home::open(&bench.stage).unwrap()).unwrap().map_or(0, |l| l.originals.len())
}

fn ino(path: impl AsRef<std::path::Path>) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

#[test]
fn everything_comes_back_the_very_files_and_can_be_applied_again() {
    let (before, after) = trees();
    let bench = Bench::new(&before, &after);
    let outside = bench.base.path().join("outside");
    fs::hard_link(bench.target.join("README"), &outside).unwrap();
    let inodes = |bench: &Bench| ["README", "swap", "tree/leaf", "one"].map(|name| ino(bench.target.join(name)));
    let was = inodes(&bench);
    for _ in 0..3 {
        apply_changes(&bench.stage, &bench.set, &keeping()).unwrap();
        bench.assert_target(&after);
        let planned = undo(&bench.stage, &UndoOptions { dry_run: true, ..back(&bench) }).unwrap();
        bench.assert_target(&after);
        let undone = undo(&bench.stage, &back(&bench)).unwrap();
        assert_eq!(undone, planned);
        assert_eq!((undone.written, undone.same, undone.left), (bench.set.changes.len() as u64, 0, 0));
        assert!(undone.not_undoable.is_empty());
        bench.assert_target(&before);
        assert_eq!(inodes(&bench), was);
        assert_eq!(ino(&outside), was[0]);
        bench.assert_no_leftovers();
        assert!(!bench.stage.join("originals").exists());
        assert!(matches!(undo(&bench.stage, &back(&bench)), Err(UndoError::NothingKept(_))));
    }
}

#[test]
fn what_was_changed_since_is_a_conflict_and_nothing_is_written() {
    let (before, after) = trees();
    let bench = applied(&|| Bench::new(&before, &after));
    fs::write(bench.target.join("new/f"), "mine").unwrap();
    fs::remove_file(bench.target.join("README")).unwrap();
    fs::write(bench.target.join("src"), "in the way").unwrap();
    fs::write(bench.target.join("swap/also"), "new in it").unwrap();
    let now = Tree::read(&bench.target);
    let Err(UndoError::Conflicts(conflicts)) = undo(&bench.stage, &back(&bench)) else { panic!() };
    let words: Vec<(String, &str)> =
        conflicts.iter().map(|c| (String::from_utf8_lossy(c.path.as_bytes()).into_owned(), c.what.word())).collect();
    for expected in [("new/f", "changed"), ("README", "removed"), ("src", "exists"), ("swap", "new_inside")] {
        assert!(words.iter().any(|(path, word)| (&**path, *word) == expected), "{expected:?} in {words:?}");
    }
    assert_eq!(Tree::read(&bench.target), now);
    // Once that is settled, it can be undone.
    fs::write(bench.target.join("new/f"), "x\n").unwrap();
    fs::write(bench.target.join("README"), "hello, world\n").unwrap();
    fs::remove_file(bench.target.join("src")).unwrap();
    fs::remove_file(bench.target.join("swap/also")).unwrap();
    let failed = undo(&bench.stage, &back(&bench));
    // The mode of what was written anew may differ; content is what counts.
    if let Err(UndoError::Conflicts(c)) = &failed {
        panic!("{c:?}");
    }
    bench.assert_target_but_directory_times(&before);
}

#[test]
fn a_path_that_is_as_before_already_is_fine() {
    let (before, after) = trees();
    let bench = applied(&|| Bench::new(&before, &after));
    fs::write(bench.target.join("README"), "hello\n").unwrap();
    let undone = undo(&bench.stage, &back(&bench)).unwrap();
    assert_eq!((undone.same, undone.written), (1, bench.set.changes.len() as u64 - 1));
    let again = apply_changes(&bench.stage, &bench.set, &keeping()).unwrap();
    assert_eq!((again.written, again.left), (bench.set.changes.len() as u64, 0));
    bench.assert_target(&after);
}

#[test]
fn parts_that_were_applied_one_after_another_come_back_at_once() {
    let (before, after) = trees();
    let bench = Bench::new(&before, &after);
    for part in ["new/f", "src", "one"] {
        let options = ApplyOptions { keep: Some(KEEPING), ..selecting(&[part]) };
        apply_changes(&bench.stage, &bench.set, &options).unwrap();
    }
    assert_eq!(originals(&bench), 3);
    // This part is not kept, and stays applied.
    apply_changes(&bench.stage, &bench.set, &selecting(&["run.sh"])).unwrap();
    let undone = undo(&bench.stage, &back(&bench)).unwrap();
    assert_eq!(undone.left, 1);
    let mut expected = before.clone();
    expected.0.insert(rel("run.sh"), after.0[&rel("run.sh")].clone());
    bench.assert_target_but_directory_times(&expected);
    apply_changes(&bench.stage, &bench.set, &keeping()).unwrap();
    bench.assert_target_but_directory_times(&after);
}

#[test]
fn a_part_can_be_undone_and_the_rest_later() {
    let (before, after) = trees();
    let bench = applied(&|| Bench::new(&before, &after));
    fs::write(bench.target.join("README"), "mine").unwrap();
    let selection = Selection { exclude: vec!["README".to_owned()], ..Selection::default() };
    let undone = undo(&bench.stage, &UndoOptions { selection, ..back(&bench) }).unwrap();
    assert_eq!((undone.written, undone.left), (bench.set.changes.len() as u64 - 1, 1));
    fs::write(bench.target.join("README"), "hello, world\n").unwrap();
    let undone = undo(&bench.stage, &back(&bench)).unwrap();
    assert_eq!((undone.written, undone.left), (1, 0));
    bench.assert_target_but_directory_times(&before);
    bench.assert_no_leftovers();
    assert!(!bench.stage.join("originals").exists());
}

#[test]
fn expired_originals_go_and_with_them_the_undo() {
    let (before, after) = trees();
    let bench = applied(&|| Bench::new(&before, &after));
    assert_eq!(expire_originals(&bench.stage, 1999).unwrap(), Some(2000));
    assert!(bench.stage.join("originals").exists());
    assert_eq!(expire_originals(&bench.stage, 2000).unwrap(), None);
    assert!(!bench.stage.join("originals").exists());
    assert!(matches!(undo(&bench.stage, &back(&bench)), Err(UndoError::NothingKept(_))));
    bench.assert_target(&after);
    // An undo that comes too late says so itself.
    let bench = applied(&|| Bench::new(&before, &after));
    let late = UndoOptions { now_ms: 2000, ..back(&bench) };
    assert!(matches!(undo(&bench.stage, &late), Err(UndoError::NothingKept(_))));
    bench.assert_target(&after);
}

#[test]
fn a_missing_or_damaged_original_stops_everything() {
    let (before, after) = trees();
    let bench = applied(&|| Bench::new(&before, &after));
    let dir = fs::read_dir(bench.stage.join("originals")).unwrap().next().unwrap().unwrap().path();
    let victim = fs::read_dir(&dir).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(victim).unwrap();
    assert!(matches!(undo(&bench.stage, &back(&bench)), Err(UndoError::Missing(_))));
    bench.assert_target(&after);
    fs::remove_dir_all(dir).unwrap();
    assert!(matches!(undo(&bench.stage, &back(&bench)), Err(UndoError::Missing(_))));
    bench.assert_target(&after);
    assert!(discard(&bench.stage).unwrap().directory);
}

#[test]
fn a_target_on_another_filesystem_keeps_its_originals_beside_it() {
    let (before, after) = trees();
    let Some(bench) = Bench::on_another_mount(&before, &after) else { return };
    let parent = bench.target.parent().unwrap().to_owned();
    let kept = || {
        let names = fs::read_dir(&parent).unwrap().map(|e| e.unwrap().file_name());
        names.filter(|n| n.to_string_lossy().starts_with(".pvisor-originals-")).count()
    };
    let others = kept();
    apply_changes(&bench.stage, &bench.set, &keeping()).unwrap();
    assert_eq!(kept(), others + 1);
    undo(&bench.stage, &back(&bench)).unwrap();
    bench.assert_target(&before);
    assert_eq!(kept(), others);
    for end in [
        |b: &Bench| {
            discard(&b.stage).unwrap();
        },
        |b: &Bench| {
            expire_originals(&b.stage, u64::MAX).unwrap();
        },
    ] {
        let bench = Bench::on_another_mount(&before, &after).unwrap();
        apply_changes(&bench.stage, &bench.set, &keeping()).unwrap();
        assert_eq!(kept(), others + 1);
        end(&bench);
        assert_eq!(kept(), others);
        bench.assert_target(&after);
    }
}

#[test]
fn keeping_costs_no_syncs() {
    let (before, after) = trees();
    let syncs = |options: &ApplyOptions| {
        let (bench, counter) = (Bench::new(&before, &after), Counter::default());
        apply_interruptible(&bench.stage, &bench.set, options, &counter).unwrap();
        counter.count(Effect::Sync)
    };
    assert_eq!(syncs(&keeping()), syncs(&ApplyOptions::default()));
}

fn total(run: impl FnOnce(&Counter)) -> u64 {
    let counter = Counter::default();
    run(&counter);
    counter.total()
}

#[test]
fn an_apply_that_is_killed_anywhere_can_be_undone() {
    let (before, after) = trees();
    let make = || Bench::new(&before, &after);
    let effects = total(|counter| {
        let bench = make();
        apply_interruptible(&bench.stage, &bench.set, &keeping(), counter).unwrap();
    });
    for n in 0..effects {
        let bench = make();
        apply_interruptible(&bench.stage, &bench.set, &keeping(), &Kill::after(n)).unwrap_err();
        recover(&bench.stage).unwrap();
        bench.assert_no_leftovers();
        if originals(&bench) == 0 {
            bench.assert_target(&before);
            assert!(!bench.stage.join("originals").exists(), "effect {n}");
            apply_changes(&bench.stage, &bench.set, &keeping()).unwrap();
        }
        bench.assert_target(&after);
        undo(&bench.stage, &back(&bench)).unwrap();
        bench.assert_target(&before);
        bench.assert_no_leftovers();
        assert!(discard(&bench.stage).unwrap().directory);
    }
}

fn is_promised(bench: &Bench) -> bool {
    let ledger = Ledger::load(&Home::open(&bench.stage).unwrap()).unwrap().unwrap();
    ledger.originals.is_empty() || matches!(ledger.phase, Phase::Prepared(_) | Phase::TargetApplied(_))
}

/// Kills an undo before its `n`th effect, and again `again` effects into the recovery.
fn kill_and_recover(bench: &Bench, (before, after): (&Tree, &Tree), n: u64, again: Option<u64>) {
    undo_interruptible(&bench.stage, &back(bench), &Kill::after(n)).unwrap_err();
    let promised = is_promised(bench);
    if let Some(again) = again {
        let home = Home::open(&bench.stage).unwrap();
        let _ = recover_home(&home, Disk::new(&Kill::after(again)));
    }
    recover(&bench.stage).unwrap();
    bench.assert_no_leftovers();
    if !promised {
        bench.assert_target(after);
        undo(&bench.stage, &back(bench)).unwrap();
    }
    bench.assert_target(before);
    assert!(!bench.stage.join("originals").exists(), "effect {n}");
    apply_changes(&bench.stage, &bench.set, &keeping()).unwrap();
    bench.assert_target(after);
}

#[test]
fn an_undo_that_is_killed_anywhere_is_all_or_nothing() {
    let (before, after) = trees();
    let make = || applied(&|| Bench::new(&before, &after));
    let effects = total(|counter| {
        let bench = make();
        undo_interruptible(&bench.stage, &back(&bench), counter).unwrap();
    });
    assert!(effects > 60, "{effects}");
    for n in 0..effects {
        kill_and_recover(&make(), (&before, &after), n, None);
    }
    for n in (effects / 3..effects).step_by(5) {
        for again in [0, 1, 3, 8, 14] {
            kill_and_recover(&make(), (&before, &after), n, Some(again));
        }
    }
}

#[test]
fn a_full_disk_anywhere_in_an_undo_loses_nothing() {
    let (before, after) = trees();
    let make = || applied(&|| Bench::new(&before, &after));
    let effects = total(|counter| {
        let bench = make();
        undo_interruptible(&bench.stage, &back(&bench), counter).unwrap();
    });
    for n in (0..effects).step_by(2) {
        let bench = make();
        let done = undo_interruptible(&bench.stage, &back(&bench), &FullDisk::at(n));
        if done.is_err() {
            let promised = is_promised(&bench);
            recover(&bench.stage).unwrap();
            if !promised {
                bench.assert_target(&after);
                undo(&bench.stage, &back(&bench)).unwrap();
            }
        }
        bench.assert_target_but_directory_times(&before);
        bench.assert_no_leftovers();
    }
}

#[test]
fn without_swapping_names_it_is_the_same() {
    let (before, after) = trees();
    let make = || {
        let bench = Bench::new(&before, &after);
        apply_interruptible(&bench.stage, &bench.set, &keeping(), &NoExchange).unwrap();
        bench.assert_target(&after);
        bench
    };
    let effects = total(|counter| {
        let bench = make();
        undo_interruptible(&bench.stage, &back(&bench), counter).unwrap();
        bench.assert_target(&before);
    });
    for n in (0..effects + 5).step_by(2) {
        let bench = make();
        let done = undo_interruptible(&bench.stage, &back(&bench), &KillNoExchange(Kill::after(n)));
        let promised = is_promised(&bench);
        recover_home(&Home::open(&bench.stage).unwrap(), Disk::new(&NoExchange)).unwrap();
        bench.assert_target(if promised { &before } else { &after });
        assert!(promised || done.is_err());
        bench.assert_no_leftovers();
    }
}

#[test]
fn a_directory_that_becomes_a_link_meanwhile_leads_nowhere() {
    let (before, after) = trees();
    let effects = total(|counter| {
        let bench = applied(&|| Bench::new(&before, &after));
        undo_interruptible(&bench.stage, &back(&bench), counter).unwrap();
    });
    for n in (0..effects).step_by(2) {
        let bench = applied(&|| Bench::new(&before, &after));
        let outside = bench.base.path().join("outside");
        Tree::from([("f", file("x\n")), ("inner", file("now inside"))]).write(&outside);
        let untouched = Tree::read(&outside);
        let count = std::sync::atomic::AtomicU64::new(0);
        let swap = Meddler(|_| {
            if count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == n {
                for name in ["new", "swap"] {
                    let at = bench.target.join(name);
                    if fs::symlink_metadata(&at).is_ok_and(|m| m.is_dir()) {
                        fs::rename(&at, bench.base.path().join(format!("moved-{name}"))).unwrap();
                        symlink(&outside, &at).unwrap();
                    }
                }
            }
        });
        let _ = undo_interruptible(&bench.stage, &back(&bench), &swap);
        let _ = recover(&bench.stage);
        assert_eq!(Tree::read(&outside), untouched, "effect {n}");
    }
}
