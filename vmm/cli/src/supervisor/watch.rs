//! Watching a worker from its start to its end.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal as Number;
use pvisor_spec::{
    Answer, CommandEnd, Interruption, Probe, Question, Receipt, RunSpec, WorkerEvent, WorkerFailure, signal_name,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions, WaitStatus, pidfd_send_signal, waitpid};

use super::signals::{Arrived, Interrupt};
use super::spawn::Worker;

/// Kind of the interruption of a run whose worker ended without a word.
pub(crate) const WORKER_LOST: &str = "worker_lost";

/// How long after its own deadline a worker is given to enforce it.
const LENIENCE: Duration = Duration::from_secs(10);

/// Interrupts after which the worker is killed.
const INTERRUPTS: u32 = 3;

/// Most receipts of one run.
const MAX_RECEIPTS: usize = 1000;

/// The command runs.
#[derive(Debug)]
pub(crate) struct Started {
    /// Its process id on the host, where it has one: a claim.
    pub(crate) pid: Option<u32>,
    /// What was installed, in order: claims.
    pub(crate) receipts: Vec<Receipt>,
    /// What was tried before.
    pub(crate) probes: Vec<Probe>,
}

/// A run that was over before its command started.
#[derive(Debug)]
pub(crate) struct EarlyEnd {
    pub(crate) ending: Ending,
    /// What was installed until then: claims.
    pub(crate) receipts: Vec<Receipt>,
    /// What was tried until then.
    pub(crate) probes: Vec<Probe>,
}

/// The worker is gone.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It reported the end of the command first: the stage can be sealed.
    Command(CommandEnd),
    /// It did not.
    Broken(Interruption),
}

/// Who sent the last SIGINT that the supervisor has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupter {
    /// The terminal, and it sent it to the whole foreground group.
    Terminal,
    /// A process.
    Process,
}

/// What comes next from a worker.
enum Next {
    Event(WorkerEvent),
    Gone(WaitStatus),
    Overdue,
    Broken(String),
}

impl Worker {
    /// Waits until the command has started.
    ///
    /// # Errors
    /// The run ended before that.
    pub(crate) fn until_started(&mut self) -> Result<Started, EarlyEnd> {
        let (mut receipts, mut probes) = (Vec::new(), Vec::new());
        let ending = loop {
            match self.next(None) {
                Next::Event(WorkerEvent::Installed(receipt)) if receipts.len() < MAX_RECEIPTS => receipts.push(receipt),
                Next::Event(WorkerEvent::Probed(probe)) if probes.len() < MAX_RECEIPTS => probes.push(probe),
                Next::Event(WorkerEvent::Started { pid }) => return Ok(Started { pid, receipts, probes }),
                Next::Event(WorkerEvent::Ended(end)) => break self.after(end, &mut receipts),
                Next::Event(WorkerEvent::Failed(failure)) => break self.failed(failure),
                Next::Event(WorkerEvent::Installed(_) | WorkerEvent::Probed(_)) => {
                    break self.give_up("the worker claimed too many controls");
                }
                Next::Event(WorkerEvent::Asked(_)) => {
                    break self.give_up("the worker asked before the command ran");
                }
                Next::Gone(status) => break Ending::Broken(lost(status)),
                Next::Overdue => {}
                Next::Broken(why) => break self.give_up(&why),
            }
        };
        Err(EarlyEnd { ending, receipts, probes })
    }

    /// Waits until the worker is gone. Further receipts are added to `receipts`; questions get their answers from
    /// `answer`.
    pub(crate) fn until_ended(
        &mut self,
        spec: &RunSpec,
        receipts: &mut Vec<Receipt>,
        answer: &mut dyn FnMut(&mut Self, &Question) -> Answer,
    ) -> Ending {
        let limit = spec.timeout_ms.map(|ms| Duration::from_millis(ms.saturating_add(spec.grace_ms)));
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit.saturating_add(LENIENCE)));
        loop {
            match self.next(deadline) {
                Next::Event(WorkerEvent::Installed(receipt)) if receipts.len() < MAX_RECEIPTS => receipts.push(receipt),
                Next::Event(WorkerEvent::Asked(question)) => {
                    let answer = answer(self, &question);
                    // A worker that is gone needs none.
                    let _ = self.send(&answer);
                }
                Next::Event(WorkerEvent::Installed(_) | WorkerEvent::Probed(_) | WorkerEvent::Started { .. }) => {
                    return self.give_up("the worker contradicted itself");
                }
                Next::Event(WorkerEvent::Ended(end)) => return self.after(end, receipts),
                Next::Event(WorkerEvent::Failed(failure)) => return self.failed(failure),
                Next::Gone(status) => return Ending::Broken(lost(status)),
                Next::Overdue => {
                    self.kill();
                    self.reap();
                    return Ending::Broken(interruption(
                        "timeout",
                        "the time limit passed and the worker did not end the command; both were killed",
                    ));
                }
                Next::Broken(why) => return self.give_up(&why),
            }
        }
    }

    /// The command has ended, says the worker, and the stage's writers with it: now it has to go.
    fn after(&mut self, end: CommandEnd, receipts: &mut Vec<Receipt>) -> Ending {
        let deadline = Instant::now() + LENIENCE;
        loop {
            match self.next(Some(deadline)) {
                Next::Gone(_) => return Ending::Command(end),
                Next::Event(WorkerEvent::Installed(receipt)) if receipts.len() < MAX_RECEIPTS => receipts.push(receipt),
                Next::Event(WorkerEvent::Failed(failure)) => return self.failed(failure),
                // Nobody waits for that answer any more.
                Next::Event(WorkerEvent::Asked(_)) => {}
                // The end is told once or twice, by the executor and by the worker's own last word.
                Next::Event(WorkerEvent::Ended(again)) if again == end => {}
                Next::Event(_) => return self.give_up("the worker contradicted itself"),
                Next::Overdue => {
                    // Once it is dead it writes nothing any more, as it said.
                    self.kill();
                    self.reap();
                    return Ending::Command(end);
                }
                Next::Broken(why) => return self.give_up(&why),
            }
        }
    }

    fn failed(&mut self, failure: WorkerFailure) -> Ending {
        let deadline = Instant::now() + LENIENCE;
        while !matches!(self.next(Some(deadline)), Next::Gone(_)) {
            if Instant::now() >= deadline {
                self.kill();
                self.reap();
                break;
            }
        }
        Ending::Broken(Interruption { kind: failure.kind, message: failure.message, hint: failure.hint })
    }

    fn give_up(&mut self, why: &str) -> Ending {
        self.kill();
        self.reap();
        Ending::Broken(interruption("worker_protocol", why))
    }

    /// Whether the person at the terminal interrupted the command, and how others of the job are to hear of it.
    pub(crate) fn interrupt_of_terminal(&self, end: CommandEnd) -> Option<Interrupt> {
        if end != CommandEnd::Signaled(Number::SIGINT as u8) || !self.shares_group {
            return None;
        }
        match self.interrupted_by {
            // The command had the foreground, so that nobody else was told.
            None => Some(Interrupt::Job),
            Some(Interrupter::Terminal) => Some(Interrupt::Own),
            Some(Interrupter::Process) => None,
        }
    }

    /// Ends the worker, whatever it is at.
    pub(crate) fn stop(&mut self) {
        self.kill();
        self.reap();
    }

    /// Waits for the end of a worker that was killed.
    fn reap(&mut self) {
        if self.status.is_none() {
            let reaped = rustix::io::retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()));
            self.status = reaped.ok().flatten().map(|(_, status)| status);
        }
    }

    /// Waits for what comes next, passing on signals meanwhile. All events come before the end.
    fn next(&mut self, deadline: Option<Instant>) -> Next {
        loop {
            match self.events.next() {
                Ok(Some(event)) => return Next::Event(event),
                Ok(None) => {}
                Err(e) => return Next::Broken(e.to_string()),
            }
            if let Some(status) = self.status {
                return Next::Gone(status);
            }
            match waitpid(Some(self.pid), WaitOptions::NOHANG) {
                // What it wrote before its end is still in the pipe: once more around.
                Ok(Some((_, status))) => {
                    self.status = Some(status);
                    continue;
                }
                Ok(None) | Err(Errno::INTR) => {}
                Err(e) => return Next::Broken(format!("can't wait for the worker: {e}")),
            }
            if let Err(why) = self.take_signals().and_then(|()| self.sleep(deadline)) {
                return Next::Broken(why);
            }
            if deadline.is_some_and(|d| Instant::now() >= d) && self.status.is_none() {
                return Next::Overdue;
            }
        }
    }

    /// Sleeps until something may have happened.
    fn sleep(&self, deadline: Option<Instant>) -> Result<(), String> {
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let signals = self.signals.fd();
        let mut fds = vec![PollFd::from_borrowed_fd(signals, PollFlags::IN), PollFd::new(&self.handle, PollFlags::IN)];
        if let Some(events) = self.events.fd() {
            fds.push(PollFd::new(events, PollFlags::IN));
        }
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(format!("can't wait for the worker: {e}")),
        }
    }

    fn take_signals(&mut self) -> Result<(), String> {
        loop {
            match self.signals.next() {
                Ok(None) => return Ok(()),
                Ok(Some(Arrived { signal: Number::SIGCHLD, .. })) => {}
                Ok(Some(arrived)) => self.pass_on(arrived),
                Err(e) => return Err(format!("can't read signals: {e}")),
            }
        }
    }

    /// Passes a signal on, unless the terminal has sent it to the worker as well.
    pub(super) fn pass_on(&mut self, arrived: Arrived) {
        if arrived.signal == Number::SIGINT {
            self.interrupts += 1;
            if self.interrupts >= INTERRUPTS {
                return self.kill();
            }
        }
        if arrived.signal == Number::SIGINT {
            self.interrupted_by = Some(if arrived.by_terminal { Interrupter::Terminal } else { Interrupter::Process });
        }
        if arrived.by_terminal && self.shares_group {
            return;
        }
        if let Some(signal) = Signal::from_named_raw(arrived.signal as i32) {
            // It may have ended by itself.
            let _ = pidfd_send_signal(&self.handle, signal);
        }
    }
}

/// A worker that ended without saying how its command did.
fn lost(status: WaitStatus) -> Interruption {
    let message = match (status.terminating_signal(), status.exit_status()) {
        (Some(signal), _) => {
            let name = signal_name(u8::try_from(signal).unwrap_or_default());
            format!("the worker was ended by {name} before the command was over")
        }
        (None, Some(code)) => format!("the worker ended with status {code} without telling how the command did"),
        (None, None) => "the worker ended without telling how the command did".to_owned(),
    };
    interruption(WORKER_LOST, &message)
}

fn interruption(kind: &str, message: &str) -> Interruption {
    Interruption { kind: kind.to_owned(), message: message.to_owned(), hint: String::new() }
}
