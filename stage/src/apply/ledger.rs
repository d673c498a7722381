//! The ledger: an apply's plan and how far it has come, in the stage's directory.
//!
//! One file, replaced whole at each state: an envelope around a postcard record.
//!
//! | state | what is true on disk | what recovery does |
//! |---|---|---|
//! | preparing | temporary files outside the stage's `work` may exist | removes them |
//! | prepared | every new content is complete beside the target; any number of steps is done | does the rest |
//! | target applied | every step is done and synced; what was replaced is still kept aside | removes that |
//! | committed | nothing is left but the result | nothing |
//!
//! No ledger at all is the same as committed with nothing applied.

use std::collections::HashSet;

use pvisor_spec::{Envelope, EnvelopeError};
use serde::{Deserialize, Serialize};

use super::disk::Disk;
use super::fault::{Blame, Fault};
use super::home::Home;
use crate::{ContentHash, Fingerprint, RelPath};

/// Name of the file.
pub(crate) const LEDGER: &str = "ledger";
const ENVELOPE: Envelope = Envelope { magic: *b"PVSTGLDG", major: 2, minor: 0 };
/// No ledger is longer, in bytes: a plan of a million paths has some 300 MiB.
const LIMIT: u64 = 1 << 30;

/// The ledger can't be trusted.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] Fault),
    /// It is damaged or of another version.
    #[error("the ledger of the stage is unusable")]
    Envelope(#[from] EnvelopeError),
    /// Its content makes no sense.
    #[error("the ledger of the stage is unusable: {0}")]
    Content(String),
}

/// The whole record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ledger {
    /// Names the set of changes.
    pub seal: ContentHash,
    /// What is going on.
    pub phase: Phase,
    /// What has been applied.
    pub applied: Vec<Applied>,
    /// What applies replaced or removed, as long as it is kept.
    pub originals: Vec<Originals>,
}

/// The paths that one target has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Applied {
    /// Absolute path of the target.
    pub target: Vec<u8>,
    /// Sorted.
    pub paths: Vec<RelPath>,
}

/// How far an apply has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    /// No apply is under way.
    Committed,
    /// These staging directories may exist.
    Preparing(Site),
    /// All of it may be done.
    Prepared(Plan),
    /// All of it is done.
    TargetApplied(Cleanup),
}

/// Where an apply works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Site {
    /// Absolute path of the target.
    pub target: Vec<u8>,
    /// The target's identity: another directory under that name is not it.
    pub target_id: TargetId,
    /// Its staging directories, one for each mount that it changes.
    pub stagings: Vec<StagingRef>,
}

/// What a directory keeps over a restart of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TargetId {
    /// Inode number.
    pub ino: u64,
    /// Time of birth, which tells a reused number; zero where the filesystem has none.
    pub born: (i64, u32),
}

/// A staging directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StagingRef {
    /// Where it is.
    pub place: Place,
    /// Its name there.
    pub name: Vec<u8>,
    /// Its inode number; zero while it may not exist yet.
    pub ino: u64,
}

/// Where a staging directory is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Place {
    /// In the stage's own directory of temporary files.
    Work,
    /// In the stage's own directory of originals.
    Originals,
    /// Beside the target, in its parent directory.
    Beside,
    /// In this directory of the target.
    Inside(RelPath),
}

/// Everything that is to happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub site: Site,
    /// In the order of execution.
    pub steps: Vec<Step>,
    /// The paths that are applied, or undone, when all steps are done.
    pub paths: Vec<RelPath>,
    pub aim: Aim,
}

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Aim {
    /// To apply; what is replaced is kept where a time is given.
    Apply(Option<Keeping>),
    /// To put originals back.
    Undo,
}

/// How long originals are kept: milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeping {
    /// When they were replaced.
    pub since_ms: u64,
    /// When they may be removed.
    pub until_ms: u64,
}

/// One change of the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    pub path: RelPath,
    /// Index of the staging directory on the path's mount.
    pub staging: u32,
    pub act: Act,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Act {
    /// Lets the owner write to a directory, until a later step settles it.
    Loosen,
    /// Moves a name that is no directory out to the staging directory, as `slot`.
    Remove { slot: u64, before: Fingerprint },
    /// Removes an empty directory.
    RemoveDir { before: Fingerprint },
    /// Moves `slot` of the staging directory to a free name, or swaps it with what is there.
    Put { slot: u64, ino: u64, before: Option<Fingerprint>, after: Fingerprint },
    /// Changes metadata of what is no directory; the time only where it is given.
    Adjust { before: Fingerprint, after: Fingerprint, mtime: Option<(i64, u32)> },
    /// Gives a directory its final mode, owner, attributes and time. `ino`: of one that this plan put there.
    Settle { before: Fingerprint, after: Fingerprint, mtime: Option<(i64, u32)>, ino: Option<u64> },
}

/// What is left to do once all steps are done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cleanup {
    pub site: Site,
    /// The paths that are applied, or undone.
    pub paths: Vec<RelPath>,
    /// Files in staging directories, by index and name, that belong to the person and stay.
    pub kept: Vec<(u32, Vec<u8>)>,
    pub outcome: Outcome,
}

/// What a plan came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// Paths are applied; these are the originals to keep.
    Applied(Option<Originals>),
    /// Paths are as they were before they were applied.
    Undone,
}

/// What one apply replaced or removed. The files are in the staging directories of its site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Originals {
    pub site: Site,
    pub keeping: Keeping,
    /// Sorted by path.
    pub entries: Vec<Original>,
}

/// One path of an apply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Original {
    pub path: RelPath,
    /// What stood there before.
    pub before: Option<Fingerprint>,
    /// What the apply left there.
    pub after: Option<Fingerprint>,
    /// The file that stood there: index of the staging directory, and name. Directories and files that only changed
    /// their metadata have none.
    pub kept: Option<(u32, Vec<u8>)>,
}

impl Ledger {
    /// That of a stage from which nothing was applied.
    pub fn new(seal: ContentHash) -> Self {
        Self { seal, phase: Phase::Committed, applied: Vec::new(), originals: Vec::new() }
    }

    /// Reads it; `None`: there is none.
    pub fn load(home: &Home) -> Result<Option<Self>, LedgerError> {
        let Some(bytes) = home.read(LEDGER, LIMIT).blame("read", home.path().join(LEDGER))? else { return Ok(None) };
        let payload = ENVELOPE.unwrap(&bytes)?;
        let (ledger, rest): (Self, _) =
            postcard::take_from_bytes(payload).map_err(|e| LedgerError::Content(e.to_string()))?;
        if !rest.is_empty() {
            return Err(LedgerError::Content("bytes follow the record".to_owned()));
        }
        ledger.check().map_err(|what| LedgerError::Content(what.to_owned()))?;
        Ok(Some(ledger))
    }

    /// Writes it: when this returns, it is on disk.
    pub fn store(&self, disk: Disk<'_>, home: &Home) -> Result<(), LedgerError> {
        let payload = postcard::to_stdvec(self).map_err(|e| LedgerError::Content(e.to_string()))?;
        if payload.len() as u64 + Envelope::HEADER as u64 > LIMIT {
            return Err(LedgerError::Content("the plan is too long".to_owned()));
        }
        Ok(home.replace(disk, LEDGER, &ENVELOPE.wrap(&payload)).blame("write", home.path().join(LEDGER))?)
    }

    /// The paths that a target has; none where nothing was applied to it.
    pub fn applied_to(&self, target: &[u8]) -> &[RelPath] {
        self.applied.iter().find(|a| a.target == target).map_or(&[], |a| &a.paths)
    }

    /// Adds to the paths that a target has.
    pub fn record(&mut self, target: &[u8], paths: &[RelPath]) {
        if paths.is_empty() {
            return;
        }
        let at = self.applied.iter().position(|a| a.target == target);
        let at = at.unwrap_or_else(|| {
            self.applied.push(Applied { target: target.to_vec(), paths: Vec::new() });
            self.applied.len() - 1
        });
        let all = &mut self.applied[at].paths;
        all.extend_from_slice(paths);
        all.sort();
        all.dedup();
    }

    /// Takes from the paths that a target has.
    pub fn strike(&mut self, target: &[u8], paths: &[RelPath]) {
        let gone: HashSet<&RelPath> = paths.iter().collect();
        for applied in self.applied.iter_mut().filter(|a| a.target == target) {
            applied.paths.retain(|p| !gone.contains(p));
        }
        self.applied.retain(|a| !a.paths.is_empty());
    }

    fn check(&self) -> Result<(), &'static str> {
        for originals in &self.originals {
            originals.check()?;
        }
        let (site, steps, kept): (_, &[Step], &[_]) = match &self.phase {
            Phase::Committed => return Ok(()),
            Phase::Preparing(site) => (site, &[], &[]),
            Phase::Prepared(plan) => (&plan.site, &plan.steps, &[]),
            Phase::TargetApplied(cleanup) => (&cleanup.site, &[], &cleanup.kept),
        };
        if site.stagings.iter().any(|s| !crate::is_name(&s.name)) || kept.iter().any(|(_, n)| !crate::is_name(n)) {
            return Err("a name is no single path component");
        }
        let known = |at: u32| usize::try_from(at).is_ok_and(|at| at < site.stagings.len());
        if !steps.iter().all(|s| known(s.staging)) || !kept.iter().all(|(at, _)| known(*at)) {
            return Err("a staging directory is missing");
        }
        match &self.phase {
            Phase::TargetApplied(Cleanup { outcome: Outcome::Applied(Some(originals)), .. }) => originals.check(),
            _ => Ok(()),
        }
    }
}

impl Originals {
    fn check(&self) -> Result<(), &'static str> {
        let stagings = &self.site.stagings;
        let known = |at: u32| usize::try_from(at).is_ok_and(|at| at < stagings.len());
        let kept = || self.entries.iter().filter_map(|e| e.kept.as_ref());
        if stagings.iter().any(|s| !crate::is_name(&s.name)) || kept().any(|(_, name)| !crate::is_name(name)) {
            return Err("a name of an original is no single path component");
        }
        if !kept().all(|(at, _)| known(*at)) || !self.entries.is_sorted_by(|a, b| a.path < b.path) {
            return Err("the originals are not in order");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_names_no_staging_directory_of_its_own_is_refused() {
        let site = Site { target: b"/t".to_vec(), target_id: TargetId { ino: 7, born: (0, 0) }, stagings: Vec::new() };
        let step = Step { path: RelPath::default(), staging: 0, act: Act::Loosen };
        let plan = Plan { site: site.clone(), steps: vec![step], paths: Vec::new(), aim: Aim::Undo };
        let ledger = |phase| Ledger { seal: [0; 32], phase, ..Ledger::new([0; 32]) };
        assert!(ledger(Phase::Prepared(plan)).check().is_err());
        let staging = StagingRef { place: Place::Beside, name: b"..".to_vec(), ino: 1 };
        assert!(ledger(Phase::Preparing(Site { stagings: vec![staging], ..site })).check().is_err());
    }

    #[test]
    fn applied_paths_add_up_for_each_target() {
        let path = |text: &str| RelPath::new(text.as_bytes().to_vec()).unwrap();
        let mut ledger = Ledger::new([0; 32]);
        ledger.record(b"/t", &[path("b"), path("a")]);
        ledger.record(b"/u", &[path("z")]);
        ledger.record(b"/t", &[path("a"), path("c")]);
        assert_eq!(ledger.applied_to(b"/t"), [path("a"), path("b"), path("c")]);
        assert_eq!(ledger.applied_to(b"/v"), []);
        ledger.strike(b"/t", &[path("b"), path("z")]);
        assert_eq!(ledger.applied_to(b"/t"), [path("a"), path("c")]);
        assert_eq!(ledger.applied_to(b"/u"), [path("z")]);
        ledger.strike(b"/u", &[path("z")]);
        assert_eq!(ledger.applied.len(), 1);
    }

    #[test]
    fn originals_that_contradict_themselves_are_refused() {
        let site = Site { target: b"/t".to_vec(), target_id: TargetId { ino: 7, born: (0, 0) }, stagings: Vec::new() };
        let keeping = Keeping { since_ms: 0, until_ms: 1 };
        let entry = |path: &str, kept| Original {
            path: RelPath::new(path.as_bytes().to_vec()).unwrap(),
            before: None,
            after: None,
            kept,
        };
        let ledger = |entries| Ledger {
            originals: vec![Originals { site: site.clone(), keeping, entries }],
            ..Ledger::new([0; 32])
        };
        assert!(ledger(vec![entry("a", None), entry("b", None)]).check().is_ok());
        for bad in [
            vec![entry("a", Some((0, b"1".to_vec())))],
            vec![entry("b", None), entry("a", None)],
            vec![entry("a", None), entry("a", None)],
            vec![entry("a", Some((0, b"../1".to_vec())))],
        ] {
            assert!(ledger(bad).check().is_err());
        }
    }
}
