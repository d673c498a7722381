//! One run on its way: what each stop of `pvisor run` does to it.

use std::path::PathBuf;

use pvisor_spec::{
    Bundle, CommandEnd, ExecutorKind, ExitCode, FilesystemMode, Interruption, Observation, Outcome, Probe,
    ProfileGrant, Question, Receipt, RunId, RunSpec, StageRecord, StageState, WorkerJob,
};
use serde::Serialize;

use super::status::{exit_code, outcome_text};
use crate::access::Clerk;
use crate::artefacts::{self, Boot};
use crate::bundle::{self, without_values};
use crate::report::{Failure, chain, count, plain, say, say_json, span};
use crate::resolve::{Ambient, Resolved, told_of_grant};
use crate::runs::{Claim, Phase, Store, now_ms};
use crate::supervisor::{EarlyEnd, Ending, Interrupt, WORKER_LOST, Worker, check};
use crate::{secrets, select, stages};

/// A run that has a record and no bundle yet.
pub(super) struct Attempt {
    claim: Claim,
    spec: RunSpec,
    receipts: Vec<Receipt>,
    probes: Vec<Probe>,
    started: bool,
    /// Whether it was said that the record can't be written.
    warned: bool,
    boot: Option<Boot>,
    interrupt: Option<Interrupt>,
    clerk: Clerk,
    /// Whether a worker was given the run, and with it the stage's directory.
    handed_over: bool,
    /// What it begins with; `None`: the project as it is.
    origin: Option<Origin>,
    /// Whether standard error is for programs.
    json: bool,
}

/// The changes of another run that one begins with.
pub(super) struct Origin {
    /// The other run.
    pub(super) run: RunId,
    /// Its stage.
    pub(super) stage: PathBuf,
    /// Which savepoint of it; `None`: as the run left it.
    pub(super) savepoint: Option<String>,
}

/// How far a worker came.
pub(super) enum Progress {
    /// The command runs.
    Started,
    /// It is over before it began: there is no such program, for instance.
    Over(CommandEnd),
}

/// What the report says, for programs.
#[derive(Serialize)]
struct Report<'a> {
    run: RunId,
    executor: Option<ExecutorKind>,
    selection: &'a str,
    exit_code: u8,
    outcome: &'a Outcome,
    stage: &'a StageRecord,
    stage_dir: Option<&'a pvisor_spec::OsBytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<&'a ProfileGrant>,
    /// `kind`, `message` and `hints`, where the command did not come to an end of its own.
    #[serde(flatten)]
    failure: Option<Failure>,
}

impl Attempt {
    /// Opens the run's record.
    pub(super) fn begin(resolved: &Resolved, store: &Store, json: bool) -> Result<Self, Failure> {
        let spec = resolved.spec().clone();
        let clerk = Clerk::new(store.home(), spec.project.clone());
        let claim = store.begin(without_values(&spec)).map_err(|e| Failure::from(e).code(ExitCode::FAILED))?;
        Ok(Self {
            claim,
            spec,
            receipts: Vec::new(),
            probes: Vec::new(),
            started: false,
            warned: false,
            boot: None,
            interrupt: None,
            clerk,
            handed_over: false,
            origin: None,
            json,
        })
    }

    /// The same, beginning with the changes of another run.
    pub(super) fn with(mut self, origin: Origin) -> Self {
        self.claim.record.forked_from = Some(origin.run);
        Self { origin: Some(origin), ..self }
    }

    /// Stop 3: the executor.
    pub(super) fn select(&mut self, resolved: &Resolved) -> Result<(), Interruption> {
        let selection = select::select(&self.spec)?;
        self.spec = resolved.on(selection.kind);
        self.claim.record.spec = without_values(&self.spec);
        self.claim.record.selection = selection.reason.clone();
        if selection.fell_back {
            self.tell(&format!("{}; running on the host, changes are staged", selection.reason));
        } else if self.spec.stage.is_none() {
            self.tell(&format!("no --stage: changes go to {} directly", self.spec.project.display()));
        }
        self.tell_of_profile(resolved);
        if selection.kind == ExecutorKind::Krun {
            self.boot = Some(artefacts::ensure()?);
        }
        Ok(())
    }

    /// What a profile adds, or that there is one for this command.
    fn tell_of_profile(&self, resolved: &Resolved) {
        self.spec.sources.profile.iter().flat_map(told_of_grant).for_each(|line| self.tell(&line));
        if let Some(hint) = resolved.hint() {
            self.tell(hint);
        }
    }

    /// One line for the person; programs find it in the report.
    fn tell(&self, line: &str) {
        if !self.json {
            say(&plain(line).replace('\n', " "));
        }
    }

    /// Stop 4: a place for the stage. The worker makes it, so that whoever writes it has made it; where it begins with
    /// another run's changes, these are put there.
    pub(super) fn stage(&mut self) -> Result<(), Interruption> {
        let Some(stage) = &self.spec.stage else { return Ok(()) };
        stages::vacant(stage.dir.as_path())?;
        let Some(origin) = &self.origin else { return Ok(()) };
        pvisor_stage::fork(&origin.stage, origin.savepoint.as_deref(), stage.dir.as_path())
            .map(drop)
            .map_err(|e| (&stages::savepoint_failure(&e)).into())
    }

    /// Stop 5: a worker that waits for its job.
    pub(super) fn spawn(&mut self) -> Result<Worker, Interruption> {
        let worker = Worker::spawn().map_err(|e| internal(chain(&e)))?;
        self.claim.record.worker = worker.process();
        self.save();
        Ok(worker)
    }

    /// Stop 6: the job. From here on the worker opens what the run needs.
    pub(super) fn wire(&mut self, worker: &mut Worker, ambient: &Ambient) {
        // Looking for credentials takes its time; a command that has all of the host has them too.
        let shows_all = self.boot.is_none() && self.spec.filesystem == FilesystemMode::Host;
        let hidden = if shows_all { Vec::new() } else { self.hidden(ambient) };
        let job = WorkerJob {
            spec: self.spec.clone(),
            run_dir: self.claim.dir().into(),
            kernel: self.boot.as_ref().map(|b| b.kernel.clone().into()),
            initramfs: self.boot.as_ref().map(|b| b.initramfs.clone().into()),
            hidden,
            resume: self.origin.is_some(),
            without: Vec::new(),
        };
        self.handed_over = true;
        // A worker that died early says why in what follows.
        let _ = worker.wire(&job);
    }

    /// What a root that we make does not show.
    fn hidden(&self, ambient: &Ambient) -> Vec<String> {
        let homes = [ambient.home(), ambient.home().and_then(|h| h.canonicalize().ok())];
        // As the guest's root would show it: without symbolic links.
        let private = [self.claim.dir().parent().unwrap_or(self.claim.dir()).to_owned()];
        let mut hidden = secrets::hidden_globs(homes.iter().flatten(), &private);
        hidden.extend(self.spec.confinement.denied.iter().cloned());
        hidden
    }

    /// Stop 7: what the worker installed, checked; the command starts.
    pub(super) fn confine(&mut self, worker: &mut Worker) -> Result<Progress, Interruption> {
        let started = match worker.until_started() {
            Ok(started) => started,
            Err(early) => {
                let EarlyEnd { ending, receipts, probes } = early;
                (self.receipts, self.probes) = (receipts, probes);
                return match ending {
                    Ending::Command(end) => Ok(Progress::Over(end)),
                    Ending::Broken(broken) => Err(broken),
                };
            }
        };
        (self.receipts, self.probes) = (started.receipts, started.probes);
        check(&mut self.receipts, started.pid);
        if let Some(broken) = self.lacking() {
            worker.stop();
            return Err(broken);
        }
        self.started = true;
        self.claim.record.receipts.clone_from(&self.receipts);
        self.claim.record.phase = Phase::Running;
        self.save();
        Ok(Progress::Started)
    }

    /// Stop 8: the command runs to its end.
    pub(super) fn start(&mut self, worker: &mut Worker) -> Result<CommandEnd, Interruption> {
        let (clerk, claim) = (&mut self.clerk, &mut self.claim);
        let mut answer = |worker: &mut Worker, question: &Question| {
            let (answer, record) = clerk.answer(worker, question);
            claim.record.answers.push(record);
            // For whoever asks meanwhile, and if this process is killed.
            let _ = claim.save();
            answer
        };
        match worker.until_ended(&self.spec, &mut self.receipts, &mut answer) {
            Ending::Command(end) => {
                self.interrupt = worker.interrupt_of_terminal(end);
                Ok(end)
            }
            Ending::Broken(broken) => Err(broken),
        }
    }

    /// How a run ended whose command has no end of its own.
    pub(super) fn broken(&self, broken: Interruption) -> Outcome {
        // A worker that is lost may have started the command without having told so.
        match self.started || broken.kind == WORKER_LOST {
            true => Outcome::Interrupted(broken),
            false => Outcome::Refused(broken),
        }
    }

    /// Stop 9: the stage becomes complete and immutable, the bundle tells the rest. What can't be written is said.
    pub(super) fn seal(&mut self, outcome: Outcome) -> Bundle {
        let (outcome, stage) = self.seal_stage(outcome);
        self.claim.sweep();
        let receipts = std::mem::take(&mut self.receipts);
        let probes = std::mem::take(&mut self.probes);
        let bundle = bundle::compose(&self.claim.record, receipts, probes, outcome, stage, now_ms());
        if let Err(e) = self.claim.publish(&bundle) {
            say(&format!("warning: {}", plain(&chain(&e))));
        }
        bundle
    }

    fn seal_stage(&mut self, outcome: Outcome) -> (Outcome, StageRecord) {
        let Some(stage) = self.spec.stage.as_ref().filter(|_| self.handed_over || self.origin.is_some()) else {
            return (outcome, bundle::no_stage());
        };
        let dir = stage.dir.as_path().to_owned();
        if !matches!(outcome, Outcome::Completed(_)) {
            return (outcome, stages::record(&dir));
        }
        self.claim.record.phase = Phase::Sealing;
        self.save();
        match stages::seal(&dir) {
            Ok(sealed) => (outcome, sealed),
            Err(broken) => (Outcome::Interrupted(broken), stages::record(&dir)),
        }
    }

    /// Stop 10: the report; the number is the exit code. Where the person at the terminal interrupted the command, this
    /// process ends by the same signal instead.
    pub(super) fn report(&self, bundle: &Bundle) -> u8 {
        let code = exit_code(&bundle.outcome);
        if self.json {
            say_json(&Report {
                run: self.spec.id,
                executor: bundle.executor,
                selection: &bundle.selection,
                exit_code: code,
                outcome: &bundle.outcome,
                stage: &bundle.stage,
                stage_dir: self.spec.stage.as_ref().map(|s| &s.dir),
                profile: self.spec.sources.profile.as_ref(),
                failure: match &bundle.outcome {
                    Outcome::Completed(_) => None,
                    Outcome::Refused(i) | Outcome::Interrupted(i) => Some(i.clone().into()),
                },
            });
        } else {
            self.say(bundle);
        }
        if let Some(interrupt) = self.interrupt {
            interrupt.raise();
        }
        code
    }

    fn say(&self, bundle: &Bundle) {
        let took = span(bundle.ended_ms.saturating_sub(bundle.started_ms));
        let place = bundle.executor.map_or_else(String::new, |kind| format!(" ({kind})"));
        let how = outcome_text(&bundle.outcome);
        let run = self.spec.id;
        match &bundle.outcome {
            Outcome::Completed(_) => {}
            Outcome::Refused(broken) | Outcome::Interrupted(broken) => {
                let failure = Failure::from(broken.clone());
                failure.tell(false);
                if matches!(bundle.outcome, Outcome::Interrupted(_)) {
                    say(&format!("the run was interrupted after {took}{place}; pvisor status {run} has the details"));
                }
                if bundle.stage.state == StageState::Unsealed && broken.kind != stages::SEAL_FAILED {
                    say(&format!("its stage is incomplete and can't be applied: pvisor discard {run}"));
                }
                return;
            }
        }
        match (bundle.stage.state, bundle.stage.changes) {
            (StageState::Sealed, Some(0)) => say(&format!("{how} after {took}{place}; nothing was changed")),
            (StageState::Sealed, changes) => {
                let changes = count(changes.unwrap_or_default(), "change");
                say(&format!(
                    "{how} after {took}{place}; {changes} staged, the project is as it was\n  \
                     pvisor review --diff {run}\n  pvisor apply {run}\n  pvisor discard {run}"
                ));
            }
            _ => say(&format!("{how} after {took}{place}")),
        }
    }

    /// A control that was required and is not there. How far one holds that is there, the bundle says: real root on the
    /// host, for instance, can leave what he put himself in.
    fn lacking(&self) -> Option<Interruption> {
        let observations = Observation::from_receipts(&self.receipts, &self.spec.needs);
        let lacking = observations.iter().find(|o| o.is_lacking(self.spec.confinement.strict))?;
        let dimension = serde_json::to_string(&lacking.dimension).unwrap_or_default();
        Some(Interruption {
            kind: "control_missing".to_owned(),
            message: format!("{} was asked to be controlled, and nothing here does", dimension.trim_matches('"')),
            hint: "`pvisor doctor` shows what this machine lacks".to_owned(),
        })
    }

    /// For whoever asks meanwhile. That the disk is full, for instance, is no reason to end the run.
    fn save(&mut self) {
        if let Err(e) = self.claim.save()
            && !std::mem::replace(&mut self.warned, true)
        {
            say(&format!("warning: {}", plain(&chain(&e))));
        }
    }
}

fn internal(message: String) -> Interruption {
    Interruption { kind: "internal".to_owned(), message, hint: String::new() }
}
