//! One apply from judgement to commit.

use std::collections::{BTreeSet, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::disk::Disk;
use super::error::{ApplyError, Partial, PartialCause};
use super::execute::{Executor, Policy, Progress, Trouble};
use super::fault::Blame;
use super::home::Home;
use super::judgement::{Judgement, Verdict, judge};
use super::ledger::{Aim, Ledger, Phase, Place, Plan, Site};
use super::make::{Contents, PrepareError};
use super::originals::{KeptFile, needs_keeping};
use super::powers::Powers;
use super::prepare::Preparer;
use super::recovery::{complete, kept_paths};
use super::staging::{Staging, choose, create};
use super::target::{Target, is_dir};
use super::{Applied, ApplyOptions, OriginalsKept};
use crate::layout::UPPER;
use crate::review::Sinks;
use crate::{Before, Change, ChangeSet, Kind, RelPath};

/// One apply.
pub(crate) struct Transaction<'a> {
    pub disk: Disk<'a>,
    pub home: &'a Home,
    pub set: &'a ChangeSet,
    pub options: &'a ApplyOptions,
    pub aim: Aim,
    /// For an undo: the kept files, by the numbers that the set has for their contents.
    pub originals: &'a [KeptFile],
}

impl Transaction<'_> {
    /// Runs it. The stage has been recovered.
    pub fn run(&self) -> Result<Applied, ApplyError> {
        validate(self.set)?;
        let path = self.options.target.as_deref().unwrap_or(&self.set.lower);
        let target = self.open_target(path)?;
        let ledger = Ledger::load(self.home)?.unwrap_or_else(|| Ledger::new(self.set.seal));
        if ledger.seal != self.set.seal {
            return Err(ApplyError::Malformed { path: RelPath::default(), what: "the ledger is of another stage" });
        }
        let key = target.path().as_os_str().as_bytes();
        // An undo's set holds nothing else than what was applied.
        let before = if self.aim == Aim::Undo { &[][..] } else { ledger.applied_to(key) };
        let done: HashSet<&RelPath> = before.iter().collect();
        let chosen = self.options.selection.choose(&self.set.changes)?;
        let open: Vec<&Change> = chosen.into_iter().filter(|c| !done.contains(&c.path)).collect();
        let left = self.set.changes.iter().filter(|c| !done.contains(&c.path)).count() - open.len();
        let judgement = judge(&target, &open, &Powers::current())?;
        if !judgement.conflicts.is_empty() {
            return Err(ApplyError::Conflicts(judgement.conflicts));
        }
        self.refuse_exec_sinks(&target, &judgement)?;
        let mut applied = report(&judgement, left);
        if self.options.dry_run {
            return Ok(applied);
        }
        if applied.written == 0 {
            self.record_same(ledger, key, &judgement)?;
            return Ok(applied);
        }
        self.write(ledger, &target, &judgement, &mut applied)?;
        Ok(applied)
    }

    /// What would be written must not make the host run something, unless that is allowed.
    fn refuse_exec_sinks(&self, target: &Target, judgement: &Judgement<'_>) -> Result<(), ApplyError> {
        if self.options.allow_exec_sinks {
            return Ok(());
        }
        let upper = self.home.subdir(UPPER).blame("open", self.home.path())?;
        let sinks = Sinks::new(&self.set.changes, crate::review::Contents { upper: &upper, project: Some(target) });
        let written = judgement.items.iter().filter(|item| item.verdict == Verdict::Write);
        let found = sinks.dangerous(written.map(|item| item.change));
        if found.is_empty() { Ok(()) } else { Err(ApplyError::ExecSinks(found)) }
    }

    /// Opens the directory under the one name that the ledger knows it by.
    fn open_target(&self, path: &Path) -> Result<Target, ApplyError> {
        let real = path.canonicalize().blame("open", path)?;
        let stage = self.home.path().canonicalize().blame("open", self.home.path())?;
        if real.starts_with(&stage) {
            return Err(ApplyError::TargetInStage(real));
        }
        Ok(Target::open(&real).blame("open", real)?)
    }

    fn record_same(&self, mut ledger: Ledger, key: &[u8], judgement: &Judgement<'_>) -> Result<(), ApplyError> {
        let paths = settled(judgement);
        if paths.is_empty() {
            return Ok(());
        }
        match self.aim {
            Aim::Apply(_) => ledger.record(key, &paths),
            // The kept files go with the directories that no record names any more.
            Aim::Undo => ledger.forget_undone(key, &paths),
        }
        Ok(ledger.store(self.disk, self.home)?)
    }

    fn write(
        &self,
        mut ledger: Ledger,
        target: &Target,
        judgement: &Judgement<'_>,
        applied: &mut Applied,
    ) -> Result<(), ApplyError> {
        let site = Site {
            target: target.path().as_os_str().as_bytes().to_vec(),
            target_id: target.id(),
            stagings: Vec::new(),
        };
        let mut scaffold = Scaffold { transaction: self, ledger: ledger.clone(), site, stagings: Vec::new() };
        let prepared = scaffold.raise(target, judgement).and_then(|()| scaffold.fill(target, judgement));
        let (mut plan, left_out) = match prepared {
            Ok(prepared) => prepared,
            Err(e) => {
                scaffold.tear_down();
                return Err(e);
            }
        };
        applied.not_appliable.extend(left_out);
        applied.originals = plan.settle_keeping();
        ledger.phase = Phase::Prepared(plan.clone());
        // Where this fails, nobody knows whether the plan counts: recovery goes by what is on disk.
        ledger.store(self.disk, self.home)?;
        let stagings: Vec<Option<Staging>> = scaffold.stagings.drain(..).map(Some).collect();
        let policy = Policy::Stop;
        let executor = Executor { disk: self.disk, target, stagings: &stagings, policy, steps: &plan.steps };
        let (progress, trouble) = executor.run();
        if let Some(trouble) = trouble {
            return Err(self.stop(ledger, (target, &stagings), &plan, progress, trouble));
        }
        applied.not_appliable.extend(progress.left_out.iter().cloned());
        complete(self.home, self.disk, ledger, (target, &stagings), &plan, progress)?;
        Ok(())
    }

    /// A step could not be done. Where it was the first, the target is as it was, and the plan is dropped.
    fn stop(
        &self,
        ledger: Ledger,
        (target, stagings): (&Target, &[Option<Staging>]),
        plan: &Plan,
        progress: Progress,
        trouble: Trouble,
    ) -> ApplyError {
        let at = plan.steps.get(progress.steps).map(|s| s.path.clone()).unwrap_or_default();
        if !progress.touched {
            let none = Plan { steps: Vec::new(), paths: Vec::new(), ..plan.clone() };
            if complete(self.home, self.disk, ledger, (target, stagings), &none, Progress::default()).is_ok() {
                return match trouble {
                    Trouble::Io(fault) => ApplyError::Io(fault),
                    Trouble::Contested(what) => ApplyError::Conflicts(vec![super::Conflict { path: at, what }]),
                };
            }
        }
        let open: BTreeSet<&RelPath> = plan.steps[progress.steps..].iter().map(|s| &s.path).collect();
        let (undone, done) = plan.paths.iter().cloned().partition(|p| open.contains(p));
        let what = match trouble {
            Trouble::Contested(what) => PartialCause::Contested(what),
            Trouble::Io(fault) => PartialCause::Io(fault),
        };
        let kept = kept_paths(&progress.kept, stagings);
        ApplyError::Partial(Box::new(Partial { at, what, done, undone, kept }))
    }
}

/// Staging directories while they are made and filled.
struct Scaffold<'a> {
    transaction: &'a Transaction<'a>,
    ledger: Ledger,
    site: Site,
    stagings: Vec<Staging>,
}

impl Scaffold<'_> {
    /// Makes the staging directories. Those outside of the stage are announced in the ledger first.
    fn raise(&mut self, target: &Target, judgement: &Judgement<'_>) -> Result<(), ApplyError> {
        let Transaction { disk, home, .. } = *self.transaction;
        for (mount, top) in &judgement.mounts {
            let keep = matches!(self.transaction.aim, Aim::Apply(Some(_)));
            self.site.stagings.push(choose(home, target, (*mount, top), keep)?);
        }
        if self.site.stagings.iter().any(|s| !matches!(s.place, Place::Work | Place::Originals)) {
            self.ledger.phase = Phase::Preparing(self.site.clone());
            self.ledger.store(disk, home)?;
        }
        for at in &mut self.site.stagings {
            self.stagings.push(create(disk, home, target, at)?);
        }
        Ok(())
    }

    /// Makes the new contents and brings them to the disk.
    fn fill(&self, target: &Target, judgement: &Judgement<'_>) -> Result<(Plan, Vec<(RelPath, String)>), ApplyError> {
        let Transaction { disk, home, aim, originals, .. } = *self.transaction;
        let places = (&judgement.mounts[..], &self.stagings[..]);
        let contents = match aim {
            Aim::Apply(_) => Contents::Upper(home.subdir(UPPER).blame("open", home.path().join(UPPER))?),
            Aim::Undo => Contents::Originals(originals),
        };
        let prepared = Preparer::new(disk, contents, target, places).run(judgement).map_err(|e| match e {
            PrepareError::Io(fault) => ApplyError::Io(fault),
            PrepareError::Damaged(path) => ApplyError::Damaged(path),
        })?;
        for staging in &self.stagings {
            disk.sync_filesystem(&staging.dir).blame("sync", &staging.label)?;
        }
        let written: HashSet<&RelPath> = prepared.steps.iter().map(|s| &s.path).collect();
        let kept = |path: &RelPath| written.contains(path);
        let write = judgement.items.iter().filter(|i| i.verdict == Verdict::Write).map(|i| &i.change.path);
        let mut paths: Vec<RelPath> = write.filter(|p| kept(p)).cloned().collect();
        paths.extend(settled(judgement));
        paths.sort();
        Ok((Plan { site: self.site.clone(), steps: prepared.steps, paths, aim }, prepared.left_out))
    }

    /// Nothing was written: removes what there is, as far as that goes. Recovery does the rest.
    fn tear_down(&mut self) {
        let Transaction { disk, home, .. } = *self.transaction;
        let mut clean = true;
        for staging in self.stagings.drain(..) {
            if let Err(e) = staging.remove(disk, &[]) {
                tracing::warn!(path = ?staging.label, error = %e, "temporary files are left until the next command");
                clean = false;
            }
        }
        if clean && matches!(self.ledger.phase, Phase::Preparing(_)) {
            self.ledger.phase = Phase::Committed;
            if let Err(e) = self.ledger.store(disk, home) {
                tracing::warn!(error = %e, "the ledger still names temporary files that are gone");
            }
        }
    }
}

impl Plan {
    /// What is to become of the originals, now that the steps are known. Without a place outside of the target none
    /// can be kept.
    fn settle_keeping(&mut self) -> OriginalsKept {
        let Aim::Apply(Some(keeping)) = self.aim else { return OriginalsKept::NotAsked };
        let inside = |at: u32| {
            let staging = usize::try_from(at).ok().and_then(|at| self.site.stagings.get(at));
            staging.is_none_or(|s| matches!(s.place, Place::Inside(_)))
        };
        if self.steps.iter().any(|step| needs_keeping(step) && inside(step.staging)) {
            self.aim = Aim::Apply(None);
            return OriginalsKept::NoPlace;
        }
        OriginalsKept::Until(keeping.until_ms)
    }
}

/// Paths that the target has already.
fn settled(judgement: &Judgement<'_>) -> Vec<RelPath> {
    let same = judgement.items.iter().filter(|i| i.verdict == Verdict::Same);
    same.map(|i| i.change.path.clone()).collect()
}

fn report(judgement: &Judgement<'_>, left: usize) -> Applied {
    let count = |verdict| judgement.items.iter().filter(|i| i.verdict == verdict).count() as u64;
    let left_out = |i: &super::judgement::Item<'_>| {
        i.left_out.iter().map(|what| (i.change.path.clone(), what.clone())).collect::<Vec<_>>()
    };
    Applied {
        written: count(Verdict::Write),
        same: count(Verdict::Same),
        not_appliable: judgement.items.iter().flat_map(left_out).collect(),
        left: left as u64,
        originals: OriginalsKept::NotAsked,
    }
}

/// Refuses a set that no stage can have produced.
fn validate(set: &ChangeSet) -> Result<(), ApplyError> {
    let wrong = |change: &Change, what| Err(ApplyError::Malformed { path: change.path.clone(), what });
    if let Some(pair) = set.changes.windows(2).find(|pair| pair[0].path >= pair[1].path) {
        return wrong(&pair[1], "the changes are not in order");
    }
    for change in &set.changes {
        let before = match &change.before {
            Before::Present(before) => Some(before),
            Before::Absent | Before::Lost => None,
        };
        let Some(after) = &change.after else {
            if matches!(change.before, Before::Absent) || change.path.as_bytes().is_empty() {
                return wrong(change, "a removal of nothing, or of everything");
            }
            continue;
        };
        if change.path.as_bytes().is_empty() && !is_dir(&after.print.kind) {
            return wrong(change, "the root is no directory");
        }
        if after.print.meta.mode & !0o7777 != 0 || after.print.meta.mtime.1 >= 1_000_000_000 {
            return wrong(change, "impossible metadata");
        }
        let content = matches!(after.print.kind, Kind::File { .. });
        let as_before = before.is_some_and(|b| b.kind == after.print.kind);
        if content && after.object.is_none() && !as_before && !matches!(change.before, Before::Lost) {
            return wrong(change, "new content is missing");
        }
    }
    Ok(())
}
