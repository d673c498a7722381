//! The list of steps that an apply takes, with every new content made for it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;

use super::disk::Disk;
use super::fault::{Blame, Fault};
use super::judgement::{Item, Judgement, Verdict};
use super::ledger::{Act, Step};
use super::make::{Contents, Made, Maker, PrepareError, Source};
use super::parallel;
use super::print::Sight;
use super::staging::Staging;
use super::target::{Mount, Target, is_dir};
use crate::{Before, Fingerprint, RelPath};

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    /// In the order of execution.
    pub steps: Vec<Step>,
    /// Parts of changes that turned out to be impossible.
    pub left_out: Vec<(RelPath, String)>,
}

/// Makes the contents and lists the steps.
pub(crate) struct Preparer<'a> {
    maker: Maker<'a>,
    mounts: &'a [(Mount, RelPath)],
    /// Where other names of a file are to be had from, by link group.
    sources: HashMap<u64, Source>,
    /// Files with names outside of the plan, by device and inode number.
    shared: HashSet<(u64, u64)>,
    out: Prepared,
}

/// Something to be made.
struct Job<'j> {
    item: &'j Item<'j>,
    after: &'j Fingerprint,
    staging: usize,
    slot: u64,
    group: Option<u64>,
}

/// The steps by what they do.
#[derive(Default)]
struct Lists {
    removals: Vec<Step>,
    puts: Vec<Step>,
    adjusts: Vec<Step>,
    settles: Vec<Step>,
}

impl<'a> Preparer<'a> {
    /// `stagings` are those of the judgement's mounts, in that order.
    pub fn new(
        disk: Disk<'a>,
        contents: Contents<'a>,
        target: &'a Target,
        (mounts, stagings): (&'a [(Mount, RelPath)], &'a [Staging]),
    ) -> Self {
        let maker = Maker { disk, target, contents, stagings, never_shares: AtomicBool::new(false) };
        Self { maker, mounts, sources: HashMap::new(), shared: HashSet::new(), out: Prepared::default() }
    }

    /// Makes everything that the judgement calls for.
    pub fn run(mut self, judgement: &Judgement<'_>) -> Result<Prepared, PrepareError> {
        self.find_shared(judgement);
        self.find_anchors(judgement);
        let mut lists = Lists::default();
        let mut jobs = Vec::new();
        for (at, item) in judgement.items.iter().enumerate().filter(|(_, i)| i.verdict == Verdict::Write) {
            jobs.extend(self.list(item, at as u64, &mut lists));
        }
        let made = self.make_all(&jobs)?;
        for (job, made) in jobs.iter().zip(made) {
            let path = &job.item.change.path;
            self.out.left_out.extend(made.left_out.into_iter().map(|what| (path.clone(), what)));
            let Some((after, ino)) = made.made else { continue };
            let before = job.item.now.as_ref().map(|n| n.print.clone());
            if is_dir(&after.kind) {
                let (before, mtime) = (after.clone(), Some(after.meta.mtime));
                let settle = Act::Settle { before, after: after.clone(), mtime, ino: Some(ino) };
                lists.settles.push(step(job.item, job.staging, settle));
            }
            lists.puts.push(step(job.item, job.staging, Act::Put { slot: job.slot, ino, before, after }));
        }
        self.loosen(judgement, &mut lists.settles)?;
        lists.settles.sort_by(|a, b| b.path.cmp(&a.path));
        let Lists { removals, puts, adjusts, settles } = lists;
        self.out.steps.extend(removals.into_iter().rev().chain(puts).chain(adjusts).chain(settles));
        Ok(self.out)
    }

    /// Lists the step for one change, or returns what has to be made for it first.
    fn list<'j>(&self, item: &'j Item<'j>, slot: u64, lists: &mut Lists) -> Option<Job<'j>> {
        let staging = self.staging_of(item);
        match (&item.now, &item.after) {
            (Some(now), None) if now.is_dir() => {
                lists.removals.push(step(item, staging, Act::RemoveDir { before: now.print.clone() }));
            }
            (Some(now), None) => {
                lists.removals.push(step(item, staging, Act::Remove { slot, before: now.print.clone() }));
            }
            (Some(now), Some(after)) if now.is_dir() && is_dir(&after.kind) => {
                let (before, after) = (now.print.clone(), after.clone());
                // What happens in it changes its time, so that it always has to be set.
                let mtime = Some(after.meta.mtime);
                lists.settles.push(step(item, staging, Act::Settle { before, after, mtime, ino: None }));
            }
            (Some(now), Some(after)) if item.adjusts() && self.keeps_inode(item) && !self.maker.puts_back(item) => {
                let (before, after) = (now.print.clone(), after.clone());
                lists.adjusts.push(step(item, staging, Act::Adjust { before, after, mtime: new_mtime(item) }));
            }
            (_, Some(after)) => {
                let group = item.change.after.as_ref().and_then(|a| a.link_group);
                return Some(Job { item, after, staging, slot, group });
            }
            (None, None) => {}
        }
        None
    }

    /// Makes everything, in the order of the jobs: names of one file one after another, all else at once.
    fn make_all(&mut self, jobs: &[Job<'_>]) -> Result<Vec<Made>, PrepareError> {
        let maker = &self.maker;
        let alone = |job: &Job<'_>| match job.group {
            None => maker.make(job.item, job.after, (job.staging, job.slot), None).map(Some),
            Some(_) => Ok(None),
        };
        let mut out = Vec::with_capacity(jobs.len());
        for (job, made) in jobs.iter().zip(parallel::map(jobs, alone)) {
            if let Some(made) = made? {
                out.push(made);
                continue;
            }
            let source = job.group.and_then(|g| self.sources.get(&g));
            let made = maker.make(job.item, job.after, (job.staging, job.slot), source)?;
            if let (Some(group), true) = (job.group, made.made.is_some() && !made.linked) {
                self.sources.insert(group, Source::Slot { staging: job.staging, slot: job.slot });
            }
            out.push(made);
        }
        Ok(out)
    }

    fn staging_of(&self, item: &Item<'_>) -> usize {
        self.mounts.iter().position(|(mount, _)| Some(*mount) == item.mount).unwrap_or(usize::MAX)
    }

    /// Files that would change under names that nobody asked to change, were their metadata set in place.
    fn find_shared(&mut self, judgement: &Judgement<'_>) {
        let mut names: HashMap<(u64, u64), u32> = HashMap::new();
        let linked = || judgement.items.iter().filter_map(|i| Some((i, i.now.as_ref()?))).filter(|(_, n)| !n.is_dir());
        for (item, now) in linked() {
            let planned = matches!(item.verdict, Verdict::Write | Verdict::Same);
            *names.entry((now.stat.dev, now.stat.ino)).or_default() += u32::from(planned);
        }
        let more = linked().map(|(_, n)| &n.stat).filter(|s| names.get(&(s.dev, s.ino)).is_some_and(|n| s.nlink > *n));
        self.shared = more.map(|s| (s.dev, s.ino)).collect();
    }

    fn is_shared(&self, now: &Sight) -> bool {
        self.shared.contains(&(now.stat.dev, now.stat.ino))
    }

    /// Names whose file already has the right content: the other names of their groups become links to them.
    fn find_anchors(&mut self, judgement: &Judgement<'_>) {
        let mut originals: HashMap<u64, bool> = HashMap::new();
        for item in &judgement.items {
            let Some(after) = &item.change.after else { continue };
            let (Some(group), Some(now)) = (after.link_group, &item.now) else { continue };
            let stays = item.verdict == Verdict::Same || (item.verdict == Verdict::Write && !self.is_shared(now));
            let fits = stays && item.adjusts();
            let better = !originals.contains_key(&group) || (after.object.is_none() && !originals[&group]);
            if fits && !now.is_dir() && better {
                originals.insert(group, after.object.is_none());
                let anchor = Source::Anchor { path: item.change.path.clone(), ino: now.stat.ino };
                self.sources.insert(group, anchor);
            }
        }
    }

    /// Whether a change of metadata is made on the file that is there, rather than by a link to another or a copy.
    fn keeps_inode(&self, item: &Item<'_>) -> bool {
        if item.now.as_ref().is_some_and(|now| self.is_shared(now)) {
            return false;
        }
        let group = item.change.after.as_ref().and_then(|a| a.link_group);
        match group.and_then(|g| self.sources.get(&g)) {
            Some(Source::Anchor { ino, .. }) => item.now.as_ref().is_some_and(|now| now.stat.ino == *ino),
            _ => true,
        }
    }

    /// Steps that let the owner write to directories, and those that take it back.
    fn loosen(&mut self, judgement: &Judgement<'_>, settles: &mut Vec<Step>) -> Result<(), Fault> {
        for path in &judgement.loosen {
            let Some(sight) = self.maker.target.look(path).blame("read", self.maker.target.whole(path))? else {
                continue;
            };
            self.out.steps.push(Step { path: path.clone(), staging: 0, act: Act::Loosen });
            let at = judgement.items.binary_search_by(|i| i.change.path.cmp(path));
            let gone =
                at.is_ok_and(|at| judgement.items[at].verdict == Verdict::Write && judgement.items[at].empties());
            if !gone && !settles.iter().any(|s| s.path == *path) {
                let (before, after) = (sight.print.clone(), sight.print);
                settles.push(Step {
                    path: path.clone(),
                    staging: 0,
                    act: Act::Settle { before, after, mtime: None, ino: None },
                });
            }
        }
        Ok(())
    }
}

fn step(item: &Item<'_>, staging: usize, act: Act) -> Step {
    Step { path: item.change.path.clone(), staging: u32::try_from(staging).unwrap_or(u32::MAX), act }
}

/// The time that a change of metadata sets, if the command set it.
fn new_mtime(item: &Item<'_>) -> Option<(i64, u32)> {
    let after = item.change.after.as_ref()?.print.meta.mtime;
    match &item.change.before {
        Before::Present(before) if before.meta.mtime == after => None,
        _ => Some(after),
    }
}
