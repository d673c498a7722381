//! Stops before every single effect, in turn: as by SIGKILL, and as by a full disk.

use super::model::{Bench, Counter, FullDisk, Kill, KillNoExchange, NoExchange, Node, Tree, file};
use super::small;
use crate::apply::disk::Disk;
use crate::apply::home::Home;
use crate::apply::ledger::{Ledger, Phase};
use crate::apply::recovery::recover_home;
use crate::apply::{ApplyError, ApplyOptions, apply_changes, apply_interruptible, discard, recover};

/// All classes of change, hard links, and a directory that gives way to a file.
pub(super) fn trees() -> (Tree, Tree) {
    let (mut before, mut after) = small();
    before.insert("tree", Node::dir().mode(0o555));
    before.insert("tree/leaf", file("leaf"));
    after.insert("tree", file("felled"));
    before.insert("one", file("linked").linked(1));
    before.insert("two", file("linked").linked(1));
    after.insert("one", file("linked").mode(0o600).linked(1));
    after.insert("two", file("linked").mode(0o600).linked(1));
    after.insert("three", file("linked").mode(0o600).linked(1));
    let mut dressed = file("dressed").mode(0o640);
    dressed.uid = 12;
    dressed.gid = 34;
    before.insert("dressed", file("dressed"));
    after.insert("dressed", dressed);
    before.insert("d", Node::dir());
    after.insert("d", Node::dir().mode(0o700));
    (before, after)
}

/// The ledger says that the plan is complete.
fn is_promised(bench: &Bench) -> bool {
    let home = Home::open(&bench.stage).unwrap();
    match Ledger::load(&home).unwrap() {
        None => false,
        Some(ledger) => match ledger.phase {
            Phase::Preparing(_) => false,
            Phase::Prepared(_) | Phase::TargetApplied(_) => true,
            Phase::Committed => !ledger.applied.is_empty(),
        },
    }
}

fn total_effects(make: &dyn Fn() -> Bench) -> u64 {
    let bench = make();
    let counter = Counter::default();
    apply_interruptible(&bench.stage, &bench.set, &ApplyOptions::default(), &counter).unwrap();
    counter.total()
}

/// Kills an apply before its `n`th effect, and again `again` effects into the recovery.
fn kill_and_recover(bench: &Bench, (before, after): (&Tree, &Tree), n: u64, again: Option<u64>) {
    let killed = apply_interruptible(&bench.stage, &bench.set, &ApplyOptions::default(), &Kill::after(n));
    assert!(killed.is_err(), "effect {n}");
    let promised = is_promised(bench);
    if let Some(again) = again {
        let home = Home::open(&bench.stage).unwrap();
        let _ = recover_home(&home, Disk::new(&Kill::after(again)));
    }
    recover(&bench.stage).unwrap();
    bench.assert_no_leftovers();
    if promised {
        bench.assert_target(after);
    } else {
        bench.assert_target(before);
        apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
        bench.assert_target(after);
    }
    let again = apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
    assert_eq!((again.written, again.same, again.left), (0, 0, 0), "effect {n}");
    assert!(discard(&bench.stage).unwrap().directory);
}

#[test]
fn a_kill_anywhere_leaves_all_or_nothing_after_recovery() {
    let (before, after) = trees();
    let make = || Bench::new(&before, &after);
    let total = total_effects(&make);
    assert!(total > 60, "{total}");
    for n in 0..total {
        kill_and_recover(&make(), (&before, &after), n, None);
    }
}

#[test]
fn a_name_goes_while_another_name_of_its_file_gets_a_mode() {
    let before = Tree::from([("kept", file("linked").linked(1)), ("gone", file("linked").linked(1))]);
    let after = Tree::from([("kept", file("linked").mode(0o600))]);
    let make = || Bench::new(&before, &after);
    for n in 0..total_effects(&make) {
        kill_and_recover(&make(), (&before, &after), n, None);
    }
}

#[test]
fn a_recovery_that_is_killed_too_is_recovered() {
    let (before, after) = trees();
    let make = || Bench::new(&before, &after);
    let total = total_effects(&make);
    for n in (total / 3..total).step_by(3) {
        for again in [0, 1, 2, 5, 9, 14] {
            kill_and_recover(&make(), (&before, &after), n, Some(again));
        }
    }
}

#[test]
fn a_kill_leaves_nothing_beside_or_inside_of_a_target_elsewhere() {
    let (before, after) = trees();
    let make = || Bench::on_another_mount(&before, &after);
    if make().is_none() {
        return;
    }
    let make = || make().unwrap();
    for n in (0..total_effects(&make)).step_by(2) {
        kill_and_recover(&make(), (&before, &after), n, None);
    }
}

#[test]
fn a_kill_between_moving_aside_and_moving_in_is_recovered() {
    let (before, after) = trees();
    let make = || Bench::new(&before, &after);
    // Moving aside takes one effect more for each replaced path.
    for n in 0..total_effects(&make) + 5 {
        let bench = make();
        let kill = KillNoExchange(Kill::after(n));
        let done = apply_interruptible(&bench.stage, &bench.set, &ApplyOptions::default(), &kill);
        let promised = is_promised(&bench);
        let home = Home::open(&bench.stage).unwrap();
        recover_home(&home, Disk::new(&NoExchange)).unwrap();
        bench.assert_no_leftovers();
        bench.assert_target(if promised { &after } else { &before });
        assert!(promised || done.is_err());
    }
}

#[test]
fn a_full_disk_anywhere_is_an_error_that_says_what_is_true() {
    let (before, after) = trees();
    let make = || Bench::new(&before, &after);
    for n in 0..total_effects(&make) {
        let bench = make();
        let failed = apply_interruptible(&bench.stage, &bench.set, &ApplyOptions::default(), &FullDisk::at(n));
        match failed {
            // Sharing blocks can fail, then they are copied.
            Ok(applied) if applied.not_appliable.is_empty() => bench.assert_target(&after),
            // Metadata that could not be set is named, and the rest applied.
            Ok(_) => {}
            Err(ApplyError::Partial(partial)) => {
                assert!(!partial.undone.is_empty(), "effect {n}: {partial:?}");
                assert!(partial.kept.is_empty());
                recover(&bench.stage).unwrap();
                bench.assert_target(&after);
            }
            Err(_) if is_promised(&bench) => {
                recover(&bench.stage).unwrap();
                bench.assert_target(&after);
            }
            Err(_) => {
                bench.assert_target(&before);
                apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
                bench.assert_target(&after);
            }
        }
        bench.assert_no_leftovers();
    }
}

#[test]
fn without_its_target_a_cut_off_apply_can_only_be_discarded() {
    let (before, after) = trees();
    let bench = Bench::new(&before, &after);
    let total = total_effects(&|| Bench::new(&before, &after));
    apply_interruptible(&bench.stage, &bench.set, &ApplyOptions::default(), &Kill::after(total * 3 / 4)).unwrap_err();
    assert!(is_promised(&bench));
    std::fs::remove_dir_all(&bench.target).unwrap();
    std::fs::create_dir(&bench.target).unwrap();
    let failed = recover(&bench.stage);
    assert!(matches!(failed, Err(crate::RecoverError::TargetGone(_))), "{failed:?}");
    assert_eq!(std::fs::read_dir(&bench.target).unwrap().count(), 0);
    assert!(discard(&bench.stage).unwrap().directory);
}

#[test]
fn a_person_who_edits_between_the_kill_and_the_recovery_keeps_the_edit() {
    let (before, after) = trees();
    let bench = Bench::new(&before, &after);
    let total = total_effects(&|| Bench::new(&before, &after));
    // Early among the steps: nothing of the README is done yet.
    let at = (0..total).find(|n| {
        let probe = Bench::new(&before, &after);
        let _ = apply_interruptible(&probe.stage, &probe.set, &ApplyOptions::default(), &Kill::after(*n));
        is_promised(&probe)
    });
    apply_interruptible(&bench.stage, &bench.set, &ApplyOptions::default(), &Kill::after(at.unwrap())).unwrap_err();
    std::fs::write(bench.target.join("README"), "my own").unwrap();
    let recovery = recover(&bench.stage).unwrap();
    let crate::Recovery::Finished { contested, kept, applied, .. } = recovery else { panic!("{recovery:?}") };
    assert_eq!((contested.len(), kept.len()), (1, 0));
    assert_eq!(applied, bench.set.changes.len() as u64 - 1);
    assert_eq!(std::fs::read_to_string(bench.target.join("README")).unwrap(), "my own");
    let mut expected = after;
    expected.insert("README", file("my own"));
    let now = Tree::read(&bench.target);
    expected.0.get_mut(&super::rel("README")).unwrap().mtime = now.0[&super::rel("README")].mtime;
    bench.assert_target(&expected);
    let again = apply_changes(&bench.stage, &bench.set, &ApplyOptions::default());
    assert!(matches!(again, Err(ApplyError::Conflicts(c)) if c.len() == 1));
}
