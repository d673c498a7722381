//! From the start of the command to its end: signals in, reports out, the clock.

use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;
use pvisor_spec::{CommandEnd, WorkerEvent, WorkerFailure};
use rustix::process::WaitOptions;

use crate::failure::failure;
use crate::launch::{Launched, Order, Report, terminal};
use crate::plan::Plan;
use crate::work::asking::{Asking, Step};

/// Two signals within this time are one: a terminal and a supervisor can both send the same.
const SAME_SIGNAL: Duration = Duration::from_millis(100);

/// How long killed processes may take to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(30);

pub(super) struct Relay<'a> {
    plan: &'a Plan,
    launched: Launched,
    signals: SignalFd,
    asking: Option<Asking>,
    report: &'a (dyn Fn(WorkerEvent) + Send + Sync),
    /// The process group that had the terminal's foreground and gets it back; ours or the supervisor's.
    home: Option<Pid>,
    /// Host process id of the command.
    command: Option<u32>,
    channel_open: bool,
    outcome: Option<Result<CommandEnd, WorkerFailure>>,
    timed_out: bool,
    last_interrupt: Option<Instant>,
    /// When the time limit passes.
    limit: Option<Instant>,
    /// When everything is killed.
    kill: Option<Instant>,
    /// When waiting for killed processes ends.
    give_up: Option<Instant>,
}

impl<'a> Relay<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        launched: Launched,
        signals: SignalFd,
        asking: Option<Asking>,
        report: &'a (dyn Fn(WorkerEvent) + Send + Sync),
    ) -> Self {
        Self {
            plan,
            launched,
            signals,
            asking,
            report,
            home: home_group(),
            command: None,
            channel_open: true,
            outcome: None,
            timed_out: false,
            last_interrupt: None,
            limit: None,
            kill: None,
            give_up: None,
        }
    }

    /// Starts the command and returns once nothing of it is left.
    pub(super) fn run(mut self) -> Result<CommandEnd, WorkerFailure> {
        let foreground = self.home.is_some() && wants_terminal();
        self.order(Order::Start { foreground });
        let gone = loop {
            match self.wait() {
                Ok(true) => break Ok(()),
                Ok(false) => {}
                Err(broken) => break Err(broken),
            }
        };
        if let Some(home) = self.home {
            terminal::give_to(home);
        }
        gone?;
        self.verdict()
    }

    fn verdict(self) -> Result<CommandEnd, WorkerFailure> {
        match self.outcome {
            Some(Err(broken)) => Err(broken),
            _ if self.timed_out => Ok(CommandEnd::TimedOut),
            Some(Ok(end)) => Ok(end),
            None if self.give_up.is_some() => Ok(CommandEnd::Signaled(Signal::SIGKILL as u8)),
            None => Err(failure("internal", "the process that holds the run's namespaces died", "")),
        }
    }

    /// One turn; true: the launched process is gone.
    fn wait(&mut self) -> Result<bool, WorkerFailure> {
        let broken = |what: &str, e: &dyn std::fmt::Display| failure("internal", format!("{what}: {e}"), "");
        let timeout = self.next_deadline().map_or(PollTimeout::NONE, |at| {
            // A millisecond late rather than a turn for nothing.
            let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        let channel = self.channel_open.then(|| self.launched.channel.as_fd());
        let [bell, answers] = self.asking.as_ref().map_or([None, None], Asking::fds);
        let fds = [Some(self.signals.as_fd()), Some(self.launched.pidfd.as_fd()), channel, bell, answers];
        let ready = poll(fds, timeout).map_err(|e| broken("waiting for the command", &e))?;
        let [signalled, gone, reported, rung, answered] = ready;
        if signalled {
            while let Ok(Some(signal)) = self.signals.read_signal() {
                self.handle_signal(signal.ssi_signo.cast_signed());
            }
        }
        if reported {
            self.take_report()?;
        }
        if rung && self.command.is_some() {
            self.step(Asking::hear_bell);
        }
        if answered {
            self.step(Asking::hear_answers);
        }
        self.check_clock()?;
        if gone && !self.channel_open {
            let ended = rustix::process::waitpid(Some(self.launched.pid), WaitOptions::empty());
            ended.map_err(|e| broken("waiting for the launched process", &e))?;
            return Ok(true);
        }
        Ok(false)
    }

    fn next_deadline(&self) -> Option<Instant> {
        [self.limit, self.kill, self.give_up].into_iter().flatten().min()
    }

    fn take_report(&mut self) -> Result<(), WorkerFailure> {
        let received = self
            .launched
            .channel
            .receive::<Report>()
            .map_err(|e| failure("internal", format!("the line to the launched process: {e}"), ""))?;
        let Some(received) = received else {
            self.channel_open = false;
            return Ok(());
        };
        match received.message {
            Report::Born => self.command = received.sender,
            Report::Started => {
                self.limit = self.plan.timeout.and_then(|t| Instant::now().checked_add(t));
                (self.report)(WorkerEvent::Started { pid: self.command });
            }
            Report::Ended(end) => {
                self.outcome.get_or_insert(Ok(end));
                self.limit = None;
                self.kill = None;
                self.give_up = Instant::now().checked_add(KILL_LIMIT);
            }
            Report::Failed(failed) => self.outcome = Some(Err(failed.into_failure(self.plan))),
            Report::Stopped(signal) => self.handle_stop(signal),
            Report::Held => {
                let home = self.home;
                self.step(|asking| asking.held(home));
            }
            Report::Offered(_) | Report::Tried { .. } | Report::Ready { .. } => {}
        }
        Ok(())
    }

    fn step(&mut self, next: impl FnOnce(&mut Asking) -> Step) {
        match self.asking.as_mut().map_or(Step::None, next) {
            Step::None => {}
            Step::Hold => self.order(Order::Hold),
            Step::Put(question) => (self.report)(WorkerEvent::Asked(question)),
            Step::Release => self.order(Order::Release),
        }
    }

    /// Whether the command is held while the person is asked.
    fn is_held(&self) -> bool {
        self.asking.as_ref().is_some_and(Asking::is_busy)
    }

    /// An order that comes too late is none: the other side is gone, which is noticed elsewhere.
    fn order(&self, order: Order) {
        let _ = self.launched.channel.send(&order, None);
    }

    fn handle_signal(&mut self, number: i32) {
        let Ok(signal) = Signal::try_from(number) else { return };
        match signal {
            Signal::SIGCONT => self.go_on(),
            Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT => {
                let now = Instant::now();
                let again = match self.last_interrupt {
                    Some(last) if now.duration_since(last) < SAME_SIGNAL => return,
                    last => last.is_some(),
                };
                self.last_interrupt = Some(now);
                match (again, self.kill) {
                    (false, _) => self.order(Order::Signal(number)),
                    (true, None) => self.end_politely(),
                    (true, Some(_)) => self.kill_everything(),
                }
            }
            _ => self.order(Order::Signal(number)),
        }
    }

    fn end_politely(&mut self) {
        self.order(Order::Signal(libc::SIGTERM));
        // A stopped process would not hear it.
        self.order(Order::Signal(libc::SIGCONT));
        self.kill = Instant::now().checked_add(self.plan.grace);
    }

    fn kill_everything(&mut self) {
        self.kill = None;
        self.limit = None;
        if self.give_up.is_none() {
            self.give_up = Instant::now().checked_add(KILL_LIMIT);
        }
        if self.launched.namespaces.is_some() {
            // With process 1 the kernel kills all of its namespace.
            let _ = rustix::process::pidfd_send_signal(&self.launched.pidfd, rustix::process::Signal::KILL);
        } else {
            self.order(Order::Kill);
        }
    }

    fn check_clock(&mut self) -> Result<(), WorkerFailure> {
        let now = Instant::now();
        let passed = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if passed(self.limit) {
            self.limit = None;
            self.timed_out = true;
            self.end_politely();
        }
        if passed(self.kill) {
            self.kill_everything();
        }
        if passed(self.give_up) {
            return Err(failure(
                "internal",
                "processes of the command were killed, but do not end",
                "look for processes in state D: ps -eo pid,state,wchan,args",
            ));
        }
        Ok(())
    }

    /// The command stopped: for the terminal, or because the person wants to get at the shell.
    fn handle_stop(&mut self, signal: i32) {
        let Some(home) = self.home.filter(|_| !self.is_held()) else { return };
        let wants_terminal = signal == libc::SIGTTIN || signal == libc::SIGTTOU;
        if wants_terminal && terminal::foreground() == Some(home) {
            self.order(Order::Continue { foreground: true });
            return;
        }
        if signal == libc::SIGSTOP {
            return;
        }
        terminal::give_to(home);
        // Stops this process too, until the shell has the job go on; SIGCONT is then in the queue of signals. Nothing
        // happens where no shell could have it go on.
        let _ = nix::sys::signal::kill(Pid::from_raw(0), Signal::SIGTSTP);
        let resumed = poll([Some(self.signals.as_fd())], PollTimeout::ZERO).is_ok_and(|ready| ready[0]);
        if !resumed && !wants_terminal {
            self.order(Order::Continue { foreground: true });
        }
    }

    /// The shell had the job go on.
    fn go_on(&mut self) {
        if self.is_held() {
            return;
        }
        let foreground = self.home.is_some() && terminal::foreground() == self.home;
        self.order(Order::Continue { foreground });
    }
}

/// The group of this process or of its parent, if it has the terminal's foreground.
fn home_group() -> Option<Pid> {
    let foreground = terminal::foreground()?;
    let own = nix::unistd::getpgrp();
    let parents = nix::unistd::getpgid(Some(nix::unistd::getppid())).ok();
    (foreground == own || Some(foreground) == parents).then_some(foreground)
}

/// Whether the command gets the terminal at once. In a pipeline another program may need it; there the command gets it
/// when it asks.
fn wants_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Which descriptors can be read, or are at their end; `None` never is.
fn poll<const N: usize>(fds: [Option<BorrowedFd<'_>>; N], timeout: PollTimeout) -> Result<[bool; N], nix::Error> {
    let mut polled: Vec<PollFd<'_>> = fds.iter().flatten().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    match nix::poll::poll(&mut polled, timeout) {
        Ok(_) | Err(nix::Error::EINTR) => {}
        Err(error) => return Err(error),
    }
    let mut polled = polled.iter();
    Ok(fds.map(|fd| fd.is_some() && polled.next().and_then(PollFd::revents).is_some_and(|r| !r.is_empty())))
}
