//! Finishing an apply that was cut off: forward where its plan was complete, else back to nothing.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::AtFlags;

use super::conflict::Conflict;
use super::disk::{Disk, reopen};
use super::execute::{Executor, Policy, Progress, Trouble};
use super::fault::{Blame, Fault, Uninterrupted};
use super::home::{Home, HomeError};
use super::ledger::{Aim, Cleanup, LEDGER, Ledger, LedgerError, Originals, Outcome, Phase, Plan, Site};
use super::originals::{drop_undone, find_kept, kept_names};
use super::staging::{IN_WORK, Staging, find};
use super::target::Target;
use crate::layout::WORK;
use crate::{Errno, RelPath};

/// Why an apply that was cut off can't be finished.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The directory can't be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The ledger can't be trusted. Nothing was written.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The directory that was being changed is not there, or another one is.
    #[error("an apply to {0:?} was cut off, and that directory is gone")]
    TargetGone(PathBuf),
    /// A system call failed; what is done stays done, and the next attempt goes on from there.
    #[error(transparent)]
    Io(#[from] Fault),
}

/// What there was to finish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Nothing.
    Nothing,
    /// An apply had been cut off before it wrote to its target; its temporary files are gone.
    CleanedUp,
    /// An apply or undo had been cut off while it wrote; now it is complete.
    Finished {
        /// The directory that it wrote to.
        target: PathBuf,
        /// It was an undo: the paths are as they were before they had been applied.
        undo: bool,
        /// Paths that are applied, or undone.
        applied: u64,
        /// Paths that the person changed in between: left as they are, and not applied.
        contested: Vec<Conflict>,
        /// Files of the person's that could not be put back to their place, and where they are now.
        kept: Vec<PathBuf>,
    },
}

/// Finishes an apply that was cut off, if there was one. Doing it again does no harm.
///
/// # Errors
/// The stage is in use or no stage, its ledger is damaged, or the target can't be reached.
pub fn recover(dir: &Path) -> Result<Recovery, RecoverError> {
    recover_now(&Home::open(dir)?)
}

/// The same for a stage that is open already.
pub(crate) fn recover_now(home: &Home) -> Result<Recovery, RecoverError> {
    recover_home(home, Disk::new(&Uninterrupted))
}

/// The same, on a disk that may fail.
pub(crate) fn recover_home(home: &Home, disk: Disk<'_>) -> Result<Recovery, RecoverError> {
    let Some(mut ledger) = Ledger::load(home)? else { return sweep(home, disk, &[]) };
    match std::mem::replace(&mut ledger.phase, Phase::Committed) {
        Phase::Committed => sweep(home, disk, &ledger.originals),
        Phase::Preparing(site) => {
            if let Some(target) = open_target(&site)? {
                for staging in open_stagings(home, &target, &site)?.iter().flatten() {
                    staging.remove(disk, &[]).blame("remove", &staging.label)?;
                }
            }
            ledger.store(disk, home)?;
            sweep(home, disk, &ledger.originals)?;
            Ok(Recovery::CleanedUp)
        }
        Phase::Prepared(plan) => finish_plan(home, disk, ledger, &plan),
        Phase::TargetApplied(cleanup) => {
            let stagings = match open_target(&cleanup.site)? {
                Some(target) => open_stagings(home, &target, &cleanup.site)?,
                None => Vec::new(),
            };
            clean_up(home, disk, ledger, &stagings, &cleanup)?;
            Ok(finished(&cleanup, &stagings, Vec::new()))
        }
    }
}

fn finish_plan(home: &Home, disk: Disk<'_>, ledger: Ledger, plan: &Plan) -> Result<Recovery, RecoverError> {
    let target = require_target(&plan.site)?;
    let stagings = open_stagings(home, &target, &plan.site)?;
    let policy = Policy::LeaveAlone;
    let executor = Executor { disk, target: &target, stagings: &stagings, policy, steps: &plan.steps };
    let (progress, trouble) = executor.run();
    match trouble {
        Some(Trouble::Io(fault)) => return Err(fault.into()),
        // With this policy a contested path stops nothing.
        Some(Trouble::Contested(_)) | None => {}
    }
    let contested = progress.contested.clone();
    let cleanup = complete(home, disk, ledger, (&target, &stagings), plan, progress)?;
    Ok(finished(&cleanup, &stagings, contested))
}

/// From "every step is done" to "nothing is left but the result".
pub(crate) fn complete(
    home: &Home,
    disk: Disk<'_>,
    mut ledger: Ledger,
    (target, stagings): (&Target, &[Option<Staging>]),
    plan: &Plan,
    progress: Progress,
) -> Result<Cleanup, RecoverError> {
    sync_target(disk, target, stagings)?;
    let contested: HashSet<&RelPath> = progress.contested.iter().map(|c| &c.path).collect();
    let paths = plan.paths.iter().filter(|p| !contested.contains(p)).cloned().collect();
    let outcome = match plan.aim {
        Aim::Undo => Outcome::Undone,
        Aim::Apply(None) => Outcome::Applied(None),
        Aim::Apply(Some(keeping)) => Outcome::Applied(find_kept((target, stagings), plan, &progress, keeping)?),
    };
    let cleanup = Cleanup { site: plan.site.clone(), paths, kept: progress.kept, outcome };
    ledger.phase = Phase::TargetApplied(cleanup.clone());
    ledger.store(disk, home)?;
    clean_up(home, disk, ledger, stagings, &cleanup)?;
    Ok(cleanup)
}

fn sync_target(disk: Disk<'_>, target: &Target, stagings: &[Option<Staging>]) -> Result<(), Fault> {
    let root = target.directory(&RelPath::default()).blame("open", target.path())?;
    // A staging directory is on the filesystem that its steps changed; without one, the target's own will do.
    let mut synced = false;
    for staging in stagings.iter().flatten() {
        disk.sync_filesystem(&staging.dir).blame("sync", &staging.label)?;
        synced = true;
    }
    if let (false, Some(root)) = (synced, root) {
        let root = reopen(root).blame("open", target.path())?;
        disk.sync_filesystem(root).blame("sync", target.path())?;
    }
    Ok(())
}

fn clean_up(
    home: &Home,
    disk: Disk<'_>,
    mut ledger: Ledger,
    stagings: &[Option<Staging>],
    cleanup: &Cleanup,
) -> Result<(), RecoverError> {
    for (at, staging) in stagings.iter().enumerate() {
        let Some(staging) = staging else { continue };
        let kept = cleanup.kept.iter().filter(|(of, _)| usize::try_from(*of) == Ok(at));
        let kept: Vec<Vec<u8>> = kept.map(|(_, name)| name.clone()).collect();
        match &cleanup.outcome {
            Outcome::Applied(Some(originals)) => staging.reduce(disk, &kept_names(originals, at)),
            Outcome::Applied(None) | Outcome::Undone => staging.remove(disk, &kept),
        }
        .blame("remove", &staging.label)?;
    }
    match &cleanup.outcome {
        Outcome::Applied(originals) => {
            ledger.record(&cleanup.site.target, &cleanup.paths);
            ledger.originals.extend(originals.clone());
        }
        Outcome::Undone => {
            ledger.strike(&cleanup.site.target, &cleanup.paths);
            drop_undone(home, disk, &mut ledger, cleanup)?;
        }
    }
    ledger.phase = Phase::Committed;
    ledger.store(disk, home)?;
    if cleanup.outcome == Outcome::Undone {
        super::originals::sweep(home, disk, &ledger.originals)?;
    }
    Ok(())
}

fn finished(cleanup: &Cleanup, stagings: &[Option<Staging>], contested: Vec<Conflict>) -> Recovery {
    Recovery::Finished {
        target: path_of(&cleanup.site.target).to_owned(),
        undo: cleanup.outcome == Outcome::Undone,
        applied: cleanup.paths.len() as u64,
        contested,
        kept: kept_paths(&cleanup.kept, stagings),
    }
}

/// Where files are that could not be put back.
pub(crate) fn kept_paths(kept: &[(u32, Vec<u8>)], stagings: &[Option<Staging>]) -> Vec<PathBuf> {
    let path = |(at, name): &(u32, Vec<u8>)| {
        let staging = stagings.get(usize::try_from(*at).ok()?)?.as_ref()?;
        Some(staging.kept_path(name))
    };
    kept.iter().filter_map(path).collect()
}

pub(crate) fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// The target of a site; `None`: it is gone.
pub(crate) fn open_target(site: &Site) -> Result<Option<Target>, Fault> {
    match Target::open(path_of(&site.target)) {
        Ok(target) if target.id() == site.target_id => Ok(Some(target)),
        Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(e) => Err(e).blame("open", path_of(&site.target)),
    }
}

fn require_target(site: &Site) -> Result<Target, RecoverError> {
    open_target(site)?.ok_or_else(|| RecoverError::TargetGone(path_of(&site.target).to_owned()))
}

fn open_stagings(home: &Home, target: &Target, site: &Site) -> Result<Vec<Option<Staging>>, Fault> {
    site.stagings.iter().map(|at| find(home, Some(target), at)).collect()
}

/// Removes what an apply leaves in the stage's own directory when it is cut off early. `originals` are what stays.
fn sweep(home: &Home, disk: Disk<'_>, originals: &[Originals]) -> Result<Recovery, RecoverError> {
    let half = format!("{LEDGER}.new");
    let mut removed = match rustix::fs::statat(home.dir(), &*half, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => disk.unlink(home.dir(), half.as_bytes()).map(|()| true).blame("remove", home.path().join(&half))?,
        Err(_) => false,
    };
    if let Some(work) = home.work().ok().filter(|work| crate::stat::Stat::at(work, IN_WORK).is_ok()) {
        super::removal::remove_tree(disk, &work, IN_WORK).blame("empty", home.path().join(WORK))?;
        removed = true;
    }
    removed |= super::originals::sweep(home, disk, originals)?;
    Ok(if removed { Recovery::CleanedUp } else { Recovery::Nothing })
}
