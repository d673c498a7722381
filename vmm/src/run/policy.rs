//! What signals and the time limit mean for a running command.

use std::time::{Duration, Instant};

/// Longest time from SIGKILL to the command's end, before the machine is ended under it.
const AFTER_KILL: Duration = Duration::from_secs(5);

const SIGHUP: u8 = 1;
const SIGINT: u8 = 2;
const SIGQUIT: u8 = 3;
const SIGKILL: u8 = 9;
const SIGTERM: u8 = 15;
const SIGWINCH: u8 = 28;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Send the command's process group this signal.
    Signal(u8),
    /// Tell the command's terminal its size.
    Resize,
    /// End the machine: the command did not even go when killed.
    EndMachine,
}

/// How far the command's end has been brought on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Nobody wants it to end.
    Free,
    /// It was asked to; killed at that time.
    Asked(Instant),
    /// It was killed; the machine ends at that time.
    Killed(Instant),
    /// The machine was ended.
    Over,
}

/// The rules: signals are passed on; a second SIGINT or the time limit asks the command to end, and the grace time
/// later kills it.
#[derive(Debug)]
pub(super) struct Policy {
    step: Step,
    interrupts: u32,
    limit: Option<Instant>,
    grace: Duration,
    timed_out: bool,
}

impl Policy {
    /// For a command that starts now.
    pub(super) fn new(now: Instant, limit: Option<Duration>, grace: Duration) -> Self {
        let limit = limit.and_then(|limit| now.checked_add(limit));
        Self { step: Step::Free, interrupts: 0, limit, grace, timed_out: false }
    }

    /// Whether the time limit is why the command ends.
    pub(super) fn timed_out(&self) -> bool {
        self.timed_out
    }

    /// A signal came.
    pub(super) fn signal(&mut self, signal: u8, now: Instant) -> Option<Action> {
        match signal {
            SIGWINCH => return Some(Action::Resize),
            SIGINT => self.interrupts += 1,
            _ => {}
        }
        match (signal, self.interrupts) {
            (SIGINT, 2) => Some(self.ask(now)),
            (SIGINT, 3..) => Some(self.kill(now)),
            _ => Some(Action::Signal(signal)),
        }
    }

    /// When to look again.
    pub(super) fn next(&self) -> Option<Instant> {
        match self.step {
            Step::Free => self.limit,
            Step::Asked(at) | Step::Killed(at) => Some(at),
            Step::Over => None,
        }
    }

    /// The time has come to `now`.
    pub(super) fn tick(&mut self, now: Instant) -> Option<Action> {
        if self.next().is_none_or(|at| now < at) {
            return None;
        }
        match self.step {
            Step::Free => {
                self.timed_out = true;
                Some(self.ask(now))
            }
            Step::Asked(_) => Some(self.kill(now)),
            Step::Killed(_) => {
                self.step = Step::Over;
                Some(Action::EndMachine)
            }
            Step::Over => None,
        }
    }

    fn ask(&mut self, now: Instant) -> Action {
        match self.step {
            Step::Free => {
                self.step = Step::Asked(now + self.grace.min(Duration::from_secs(86_400)));
                Action::Signal(SIGTERM)
            }
            _ => self.kill(now),
        }
    }

    fn kill(&mut self, now: Instant) -> Action {
        if !matches!(self.step, Step::Killed(_) | Step::Over) {
            self.step = Step::Killed(now + AFTER_KILL);
        }
        Action::Signal(SIGKILL)
    }
}

/// Whether a signal that comes before the command runs ends the run.
pub(super) fn ends_boot(signal: u8) -> bool {
    [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(&signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(3);

    #[test]
    fn the_time_limit_asks_then_kills_then_ends_the_machine() {
        let start = Instant::now();
        let mut policy = Policy::new(start, Some(Duration::from_secs(5)), GRACE);
        assert_eq!(policy.tick(start), None);
        let limit = policy.next().unwrap();
        assert_eq!(policy.tick(limit), Some(Action::Signal(SIGTERM)));
        assert!(policy.timed_out());
        assert_eq!(policy.tick(limit), None);
        let kill = policy.next().unwrap();
        assert_eq!(kill, limit + GRACE);
        assert_eq!(policy.tick(kill), Some(Action::Signal(SIGKILL)));
        assert_eq!(policy.tick(policy.next().unwrap()), Some(Action::EndMachine));
        assert_eq!(policy.next(), None);
        assert_eq!(policy.tick(start + Duration::from_secs(1000)), None);
    }

    #[test]
    fn the_first_interrupt_is_the_commands_and_the_second_is_ours() {
        let now = Instant::now();
        let mut policy = Policy::new(now, None, GRACE);
        assert_eq!(policy.next(), None);
        assert_eq!(policy.signal(SIGINT, now), Some(Action::Signal(SIGINT)));
        assert_eq!(policy.next(), None);
        assert_eq!(policy.signal(SIGINT, now), Some(Action::Signal(SIGTERM)));
        assert_eq!(policy.signal(SIGTERM, now), Some(Action::Signal(SIGTERM)));
        assert_eq!(policy.next(), Some(now + GRACE));
        assert_eq!(policy.signal(SIGINT, now), Some(Action::Signal(SIGKILL)));
        assert_eq!(policy.next(), Some(now + AFTER_KILL));
        assert!(!policy.timed_out());
    }

    #[test]
    fn other_signals_are_passed_on_for_ever() {
        let now = Instant::now();
        let mut policy = Policy::new(now, None, GRACE);
        for _ in 0..5 {
            assert_eq!(policy.signal(SIGHUP, now), Some(Action::Signal(SIGHUP)));
            assert_eq!(policy.signal(SIGWINCH, now), Some(Action::Resize));
        }
        assert_eq!(policy.next(), None);
        assert!(ends_boot(SIGTERM) && !ends_boot(SIGWINCH) && !ends_boot(10));
    }
}
