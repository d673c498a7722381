//! What applies replaced or removed: which files are kept, found again, given up.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use super::disk::Disk;
use super::execute::Progress;
use super::fault::{Blame, Fault, Uninterrupted};
use super::home::Home;
use super::ledger::{Act, Cleanup, Keeping, Ledger, Original, Originals, Plan, Step};
use super::recovery::{RecoverError, open_target, recover_home};
use super::staging::{Staging, aside_name, find, slot_name};
use super::target::{Target, is_dir};
use crate::layout::ORIGINALS;
use crate::stat::Stat;
use crate::{Errno, RelPath};

/// A kept file.
#[derive(Clone, Debug)]
pub(crate) struct KeptFile {
    pub staging: Arc<Staging>,
    pub name: Vec<u8>,
}

/// Whether a step moves a file out of the target that has to be kept.
pub(super) fn needs_keeping(step: &Step) -> bool {
    match &step.act {
        Act::Remove { .. } => true,
        Act::Put { before, .. } => before.as_ref().is_some_and(|b| !is_dir(&b.kind)),
        Act::Loosen | Act::RemoveDir { .. } | Act::Adjust { .. } | Act::Settle { .. } => false,
    }
}

/// What a plan that was carried out replaced and removed, and where that is now; `None`: nothing that could be put
/// back, or something of the person's got in between and is kept for him instead.
pub(super) fn find_kept(
    (target, stagings): (&Target, &[Option<Staging>]),
    plan: &Plan,
    progress: &Progress,
    keeping: Keeping,
) -> Result<Option<Originals>, Fault> {
    if !progress.kept.is_empty() {
        return Ok(None);
    }
    let contested: HashSet<&RelPath> = progress.contested.iter().map(|c| &c.path).collect();
    let mut entries: HashMap<&RelPath, Original> = HashMap::new();
    for step in plan.steps.iter().filter(|s| !contested.contains(&s.path)) {
        let Some((before, after)) = step.act.sides() else { continue };
        let kept = match needs_keeping(step) {
            false => None,
            true => match place_of(stagings, step)? {
                // Somebody removed it.
                None => continue,
                kept => kept,
            },
        };
        // A new directory is put first and settled later.
        let entry = entries.entry(&step.path).or_insert_with(|| {
            let (path, before) = (step.path.clone(), before.cloned());
            Original { path, before, after: None, kept }
        });
        entry.after = after.cloned();
    }
    for (path, _) in &progress.left_out {
        // What the kernel would not set is not there.
        if let (Some(entry), Ok(Some(now))) = (entries.get_mut(path), target.look(path)) {
            entry.after = Some(now.print);
        }
    }
    let same = |e: &Original| matches!((&e.before, &e.after), (Some(b), Some(a)) if b == a) && e.kept.is_none();
    let mut entries: Vec<Original> = entries.into_values().filter(|e| !same(e)).collect();
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((!entries.is_empty()).then(|| Originals { site: plan.site.clone(), keeping, entries }))
}

/// Where the file is that a step moved out.
fn place_of(stagings: &[Option<Staging>], step: &Step) -> Result<Option<(u32, Vec<u8>)>, Fault> {
    let (Act::Remove { slot, .. } | Act::Put { slot, .. }) = &step.act else { return Ok(None) };
    let staging = usize::try_from(step.staging).ok().and_then(|at| stagings.get(at)).and_then(Option::as_ref);
    let Some(staging) = staging else { return Ok(None) };
    for name in [slot_name(*slot), aside_name(*slot)] {
        if staging.held(&name).blame("read", &staging.label)?.is_some() {
            return Ok(Some((step.staging, name)));
        }
    }
    Ok(None)
}

/// Names of the kept files in one staging directory.
pub(super) fn kept_names(originals: &Originals, staging: usize) -> Vec<Vec<u8>> {
    let kept = originals.entries.iter().filter_map(|e| e.kept.as_ref());
    kept.filter(|(at, _)| usize::try_from(*at) == Ok(staging)).map(|(_, name)| name.clone()).collect()
}

/// The directories that kept files are in; `None`: one is not there any more, or can't be found without its target.
pub(super) fn directories(home: &Home, originals: &Originals) -> Result<Vec<Option<Arc<Staging>>>, Fault> {
    let target = open_target(&originals.site)?;
    let found = originals.site.stagings.iter().map(|at| Ok(find(home, target.as_ref(), at)?.map(Arc::new)));
    found.collect()
}

/// Removes the kept files of paths that were undone, and then their record.
pub(super) fn drop_undone(
    home: &Home,
    disk: Disk<'_>,
    ledger: &mut Ledger,
    cleanup: &Cleanup,
) -> Result<(), RecoverError> {
    let undone: HashSet<&RelPath> = cleanup.paths.iter().collect();
    for originals in ledger.originals.iter_mut().filter(|o| o.site.target == cleanup.site.target) {
        originals.entries.retain(|e| !undone.contains(&e.path));
        for (at, staging) in directories(home, originals)?.iter().enumerate() {
            let Some(staging) = staging else { continue };
            staging.reduce(disk, &kept_names(originals, at)).blame("empty", &staging.label)?;
        }
    }
    ledger.originals.retain(|o| !o.entries.is_empty());
    Ok(())
}

impl Ledger {
    /// Strikes paths that are undone, with their originals. The files have to be removed first, or are swept.
    pub(super) fn forget_undone(&mut self, target: &[u8], paths: &[RelPath]) {
        self.strike(target, paths);
        let undone: HashSet<&RelPath> = paths.iter().collect();
        for originals in self.originals.iter_mut().filter(|o| o.site.target == target) {
            originals.entries.retain(|e| !undone.contains(&e.path));
        }
        self.originals.retain(|o| !o.entries.is_empty());
    }
}

/// Gives up originals whose time has come; `now_ms`: milliseconds since the Unix epoch. Returns until when the others
/// are kept.
///
/// # Errors
/// The stage is in use or no stage, its ledger is damaged, or a file can't be removed.
pub fn expire_originals(dir: &Path, now_ms: u64) -> Result<Option<u64>, RecoverError> {
    let home = Home::open(dir)?;
    let disk = Disk::new(&Uninterrupted);
    recover_home(&home, disk)?;
    expire(&home, disk, now_ms)
}

pub(super) fn expire(home: &Home, disk: Disk<'_>, now_ms: u64) -> Result<Option<u64>, RecoverError> {
    let Some(mut ledger) = Ledger::load(home)? else { return Ok(None) };
    let before = ledger.originals.len();
    for originals in ledger.originals.iter().filter(|o| o.keeping.until_ms <= now_ms) {
        remove(home, disk, originals)?;
    }
    ledger.originals.retain(|o| o.keeping.until_ms > now_ms);
    if ledger.originals.len() < before {
        ledger.store(disk, home)?;
        sweep(home, disk, &ledger.originals)?;
    }
    Ok(ledger.originals.iter().map(|o| o.keeping.until_ms).max())
}

/// Removes kept files. Their record has to go afterwards, so that a second attempt finds what is left.
pub(super) fn remove(home: &Home, disk: Disk<'_>, originals: &Originals) -> Result<(), Fault> {
    for staging in directories(home, originals)?.iter().flatten() {
        staging.remove(disk, &[]).blame("remove", &staging.label)?;
    }
    Ok(())
}

/// Removes directories of originals in the stage that no record names.
pub(super) fn sweep(home: &Home, disk: Disk<'_>, known: &[Originals]) -> Result<bool, Fault> {
    let label = || home.path().join(ORIGINALS);
    let dir = match home.subdir(ORIGINALS) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(false),
        dir => dir.blame("open", label())?,
    };
    let wanted: HashSet<&[u8]> = known.iter().flat_map(|o| &o.site.stagings).map(|s| &s.name[..]).collect();
    let mut removed = false;
    for (name, _) in super::removal::names(&dir).blame("list", label())? {
        if !wanted.contains(&name[..]) {
            super::removal::remove_tree(disk, &dir, &name).blame("remove", label())?;
            removed = true;
        }
    }
    if wanted.is_empty() && Stat::at(home.dir(), ORIGINALS.as_bytes()).is_ok() {
        disk.remove_dir(home.dir(), ORIGINALS.as_bytes()).blame("remove", label())?;
    }
    Ok(removed)
}
