//! Errors of stages as a person reads them.

use pvisor_spec::ExitCode;
use pvisor_stage::{
    ApplyError, Conflict, DiscardError, HomeError, LoadError, RecoverError, ReviewError, SavepointError, UndoError,
};

use super::Target;
use crate::report::{Failure, chain};

/// Most conflicts, or other paths, that are listed.
const SHOWN: usize = 20;

/// A stage that can't be reviewed.
pub(crate) fn review_failure(error: &ReviewError, target: &Target) -> Failure {
    let message = chain(error);
    match error {
        ReviewError::Load(load) => load_failure(load, message, target),
        ReviewError::Recover(recover) => recover_failure(recover, message),
        ReviewError::Selection(_) => selection_failure(message),
        ReviewError::Io(_) => Failure::new("io", message),
    }
}

/// An apply that did not happen, or not wholly.
pub(crate) fn apply_failure(error: &ApplyError, target: &Target) -> Failure {
    let message = chain(error);
    match error {
        ApplyError::Home(home) => home_failure(home, message),
        ApplyError::Load(load) => load_failure(load, message, target),
        ApplyError::Ledger(_) | ApplyError::Malformed { .. } | ApplyError::Damaged(_) => damaged(message, target),
        ApplyError::Recover(recover) => recover_failure(recover, message),
        ApplyError::Selection(_) => selection_failure(message),
        ApplyError::TargetInStage(_) => {
            Failure::new("target", message).hint("name another directory with --target").code(ExitCode::USAGE)
        }
        ApplyError::ExecSinks(sinks) => Failure::new("exec_sinks", format!("{message}{}", list(sinks)))
            .hint("look at them with `pvisor review --diff`")
            .hint("take them with --allow-exec-sinks, or leave them out: --exclude PATH")
            .detail("exec_sinks", sinks),
        ApplyError::Conflicts(conflicts) => {
            conflict_failure(&message, conflicts, "undo your change there, or leave these paths out: --exclude PATH")
        }
        ApplyError::Io(_) => Failure::new("io", message).hint("nothing was applied"),
        ApplyError::Partial(partial) => {
            let failure = Failure::new("partial", message).hint(
                "what was done stays, and can be seen with `pvisor review`; the next command on this stage goes on",
            );
            partial.kept.iter().fold(failure, |failure, path| {
                failure.hint(format!("a file of yours is kept in {}", crate::report::plain_path(path)))
            })
        }
    }
}

/// An undo that did not happen, or not wholly.
pub(crate) fn undo_failure(error: &UndoError, target: &Target) -> Failure {
    let message = chain(error);
    match error {
        UndoError::NothingKept(_) => Failure::new("no_originals", message).hint(
            "they are kept by `pvisor apply` for the days of --keep-originals; nothing is kept before, or after that",
        ),
        UndoError::Missing(_) | UndoError::Damaged(_) => {
            Failure::new("damaged", message).hint("nothing was undone; what is kept is in the stage's `originals`")
        }
        UndoError::Conflicts(conflicts) => conflict_failure(
            &message,
            conflicts,
            "take your changes there back, or leave these paths out: --exclude PATH",
        ),
        UndoError::Other(ApplyError::Io(_)) => Failure::new("io", message).hint("nothing was undone"),
        UndoError::Other(other) => apply_failure(other, target),
    }
}

fn conflict_failure(message: &str, conflicts: &[Conflict], hint: &str) -> Failure {
    Failure::new("conflict", format!("{message}{}", list(conflicts)))
        .hint(hint)
        .code(ExitCode::CONFLICT)
        .detail("conflicts", &conflicts)
}

/// A savepoint that was not made or can't be used.
pub(crate) fn savepoint_failure(error: &SavepointError) -> Failure {
    let message = chain(error);
    match error {
        SavepointError::Home(home) => home_failure(home, message),
        SavepointError::Recover(recover) => recover_failure(recover, message),
        SavepointError::Load(LoadError::NotSealed(_)) => Failure::new("not_sealed", message)
            .hint("its run did not end as it should: `pvisor checkpoint create` saves what there is of it")
            .code(ExitCode::NOT_SEALED),
        SavepointError::Load(LoadError::NotAStage(_)) => {
            Failure::new("no_stage", message).hint("it may have been removed by hand")
        }
        SavepointError::Name(_) => Failure::new("savepoint_name", message).code(ExitCode::USAGE),
        SavepointError::Exists(_) => {
            Failure::new("savepoint_exists", message).hint("leave out --name, or take another")
        }
        SavepointError::Unknown(_) | SavepointError::None => {
            Failure::new("no_savepoint", message).hint("`pvisor checkpoint list` shows what there is")
        }
        SavepointError::Damaged { .. } => Failure::new("damaged", message).hint("nothing was changed; use another one"),
        SavepointError::Restoring(_) => {
            Failure::new("restoring", message).hint("`pvisor checkpoint restore` does it again, from the beginning")
        }
        SavepointError::Applied => Failure::new("applied", message).hint("take that back first: pvisor undo"),
        SavepointError::Restarted(_) => {
            Failure::new("restarted", message).hint("a savepoint that was made before can be restored")
        }
        SavepointError::Seal(_) => Failure::new("seal", message).hint("when the cause is gone, restore it again"),
        SavepointError::Ledger(_) | SavepointError::Load(_) => Failure::new("damaged", message),
        SavepointError::Io(_) | SavepointError::Occupied(_) => Failure::new("io", message),
        SavepointError::Overdue | SavepointError::ThrownAway => Failure::new("savepoint", message),
    }
}

/// A stage that can't be thrown away.
pub(crate) fn discard_failure(error: &DiscardError) -> Failure {
    let message = chain(error);
    match error {
        DiscardError::Home(home) => home_failure(home, message),
        DiscardError::Ledger(_) => Failure::new("damaged", message)
            .hint("an apply from it may have been cut off: look at the project first, then remove the stage by hand"),
        DiscardError::Recover(_) => {
            Failure::new("recovery", message).hint("it goes on once the directory that it writes can be written again")
        }
        DiscardError::Io(_) => Failure::new("io", message).hint("what is left of it can be discarded again"),
    }
}

/// The first few, a line each.
fn list(items: &[impl ToString]) -> String {
    let mut lines: Vec<String> = items.iter().take(SHOWN).map(ToString::to_string).collect();
    if items.len() > SHOWN {
        lines.push(format!("and {} more", items.len() - SHOWN));
    }
    lines.iter().map(|line| format!("\n  {line}")).collect()
}

fn selection_failure(message: String) -> Failure {
    Failure::new("selection", message)
        .hint("`pvisor review` lists the paths; they are relative to the project")
        .code(ExitCode::USAGE)
}

fn home_failure(error: &HomeError, message: String) -> Failure {
    match error {
        HomeError::NotAStage(_) => Failure::new("no_stage", message).hint("it may have been removed by hand"),
        HomeError::Locked(_) => Failure::new("stage_in_use", message)
            .hint("another pvisor command is at it: wait for it, or see `pvisor list`"),
        HomeError::Io(_) => Failure::new("io", message),
    }
}

fn load_failure(error: &LoadError, message: String, target: &Target) -> Failure {
    match error {
        LoadError::NotSealed(_) => Failure::new("not_sealed", message)
            .hint(format!(
                "its run did not end as it should: pvisor checkpoint create {0} saves what there is of it, pvisor \
                 discard {0} throws it away",
                target.name()
            ))
            .code(ExitCode::NOT_SEALED),
        LoadError::NotAStage(_) => Failure::new("no_stage", message).hint("it may have been removed by hand"),
        LoadError::Io { .. } => Failure::new("io", message),
        LoadError::Journal { .. } | LoadError::Misfit { .. } | LoadError::Seal { .. } | LoadError::Damaged { .. } => {
            damaged(message, target)
        }
    }
}

fn recover_failure(error: &RecoverError, message: String) -> Failure {
    match error {
        RecoverError::Home(home) => home_failure(home, message),
        RecoverError::TargetGone(_) => {
            Failure::new("recovery", message).hint("put the directory back, or discard the stage")
        }
        RecoverError::Ledger(_) | RecoverError::Io(_) => Failure::new("recovery", message),
    }
}

fn damaged(message: String, target: &Target) -> Failure {
    Failure::new("damaged", message)
        .hint(format!("nothing was applied; what it holds can't be trusted any more: pvisor discard {}", target.name()))
}
