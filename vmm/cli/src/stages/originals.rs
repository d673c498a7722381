//! What the store knows of originals: kept by an apply, put back by an undo, given up when their time has come.

use pvisor_stage::RecoverError;

use super::Target;
use crate::report::{chain, plain, say};
use crate::runs::{Run, RunRecord, Store, now_ms};

/// Removes originals whose time has come. What can't be done now is done by a later command.
pub(crate) fn give_up_originals(store: &Store) {
    let now = now_ms();
    for mark in store.due_originals(now) {
        let Ok(run) = store.read(mark.1) else {
            // Without its record nobody finds its stage either.
            store.unmark_originals(mark);
            continue;
        };
        let expired = match run.stage_dir() {
            Some(dir) => pvisor_stage::expire_originals(dir, now),
            None => Ok(None),
        };
        match expired {
            Ok(until) => {
                if run.record.originals_until_ms != until {
                    amend(store, &run, |record| record.originals_until_ms = until);
                }
            }
            Err(RecoverError::Home(pvisor_stage::HomeError::NotAStage(_))) => {}
            Err(error) => {
                tracing::warn!(%error, id = %run.id, "expired originals stay for now");
                continue;
            }
        }
        store.unmark_originals(mark);
    }
}

/// Notes what an apply to the project did. `done`: nothing is left to apply.
pub(crate) fn remember_applied(store: &Store, target: &Target, done: bool, until_ms: Option<u64>) {
    let Some(run) = &target.run else { return };
    let done = done && run.record.applied_ms.is_none();
    let until = until_ms.max(run.record.originals_until_ms);
    if done || until != run.record.originals_until_ms {
        amend(store, run, |record| {
            record.applied_ms = record.applied_ms.or(done.then(now_ms));
            record.originals_until_ms = until;
        });
    }
}

/// Notes that what was applied to the project is undone, but for a `rest`.
pub(crate) fn remember_undone(store: &Store, run: &Run, rest: bool) {
    amend(store, run, |record| {
        record.applied_ms = None;
        record.originals_until_ms = record.originals_until_ms.filter(|_| rest);
        record.undone_ms = Some(now_ms());
    });
}

fn amend(store: &Store, run: &Run, change: impl FnOnce(&mut RunRecord)) {
    if let Err(e) = store.amend(run, change) {
        say(&format!("warning: {}", plain(&chain(&e))));
    }
}
