//! Destinations that no rule is about, and what waits for somebody's answer about them.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::Rule;
use crate::dns::ReplyTo;
use crate::policy::Reason;

/// Questions that wait for an answer at once.
const MOST_OPEN: usize = 32;
/// Packets and name queries that wait at once; the sandbox sends again what finds no room.
const MOST_WAITING: usize = 256;
/// Largest packet that waits, in bytes: a first segment, or a datagram of ordinary size.
const LARGEST: usize = 2048;
/// How long something waits. After that it is denied, and so is what comes later, until there is an answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// Answers and silences that are remembered; beyond that everything is denied unasked.
const MOST_REFUSED: usize = 4096;

/// What waits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// A whole IP packet of the sandbox.
    Packet(Vec<u8>),
    /// A name query.
    Query {
        /// As it came.
        message: Vec<u8>,
        /// Where its answer goes.
        to: ReplyTo,
    },
}

/// What becomes of something that no rule is about.
#[derive(Debug)]
pub(crate) enum Standing {
    /// It waits. `new`: nobody was asked yet.
    Waits { new: bool },
    /// It is denied for this reason.
    Denied(Reason),
}

#[derive(Debug)]
struct Waiting {
    rule: Rule,
    until: Instant,
    held: Held,
}

/// The questions of one network, each the rule that would open what was asked for.
#[derive(Debug)]
pub(crate) struct Asking {
    open: HashSet<Rule>,
    refused: HashSet<Rule>,
    /// In order of arrival, and so of `until`.
    waiting: Vec<Waiting>,
    most_refused: usize,
}

impl Asking {
    /// `refused`: what was answered with no before.
    pub(crate) fn new(refused: &[Rule]) -> Self {
        Self {
            open: HashSet::new(),
            refused: refused.iter().cloned().collect(),
            waiting: Vec::new(),
            most_refused: MOST_REFUSED.max(refused.len() * 2),
        }
    }

    /// Keeps something until the question whether this rule is to hold has an answer.
    pub(crate) fn hold(&mut self, rule: &Rule, held: Held, now: Instant) -> Standing {
        if self.refused.contains(rule) || self.refused.len() >= self.most_refused {
            return Standing::Denied(Reason::Refused);
        }
        let new = !self.open.contains(rule);
        if new && self.open.len() >= MOST_OPEN {
            return Standing::Denied(Reason::Capacity);
        }
        self.open.insert(rule.clone());
        let fits = match &held {
            Held::Packet(packet) => packet.len() <= LARGEST,
            Held::Query { .. } => true,
        };
        // What is sent again waits once.
        let again = self.waiting.iter().any(|waiting| waiting.held == held && waiting.rule == *rule);
        if fits && !again && self.waiting.len() < MOST_WAITING {
            self.waiting.push(Waiting { rule: rule.clone(), until: now + PATIENCE, held });
        }
        Standing::Waits { new }
    }

    /// Takes an answer in; returns what waited for it.
    pub(crate) fn settle(&mut self, rule: &Rule, allowed: bool) -> Vec<Held> {
        self.open.remove(rule);
        if allowed {
            self.refused.remove(rule);
        } else {
            self.refused.insert(rule.clone());
        }
        self.waiting.extract_if(.., |waiting| waiting.rule == *rule).map(|waiting| waiting.held).collect()
    }

    /// Rules whose questions something has waited for too long for.
    pub(crate) fn overdue(&self, now: Instant) -> Vec<Rule> {
        let late: HashSet<&Rule> = self.waiting.iter().take_while(|w| w.until <= now).map(|w| &w.rule).collect();
        late.into_iter().cloned().collect()
    }

    /// When [`Asking::overdue`] has something.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.waiting.first().map(|w| w.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Rule {
        text.parse().unwrap()
    }

    fn packet(length: usize) -> Held {
        Held::Packet(vec![0; length])
    }

    #[test]
    fn a_question_is_new_once_and_its_answer_gives_back_what_waited() {
        let (mut asking, now) = (Asking::new(&[rule("old.example")]), Instant::now());
        assert!(matches!(asking.hold(&rule("a.example"), packet(1), now), Standing::Waits { new: true }));
        assert!(matches!(asking.hold(&rule("a.example"), packet(2), now), Standing::Waits { new: false }));
        assert!(matches!(asking.hold(&rule("a.example"), packet(2), now), Standing::Waits { new: false }));
        assert!(matches!(asking.hold(&rule("b.example"), packet(3), now), Standing::Waits { new: true }));
        assert!(matches!(asking.hold(&rule("old.example"), packet(3), now), Standing::Denied(Reason::Refused)));
        assert_eq!(asking.settle(&rule("a.example"), false).len(), 2);
        assert!(matches!(asking.hold(&rule("a.example"), packet(1), now), Standing::Denied(Reason::Refused)));
        assert_eq!(asking.settle(&rule("b.example"), true).len(), 1);
        assert_eq!(asking.deadline(), None);
    }

    #[test]
    fn everything_is_bounded_and_nothing_waits_for_ever() {
        let (mut asking, now) = (Asking::new(&[]), Instant::now());
        for number in 0..MOST_OPEN {
            let standing = asking.hold(&rule(&format!("n{number}.example")), packet(1), now);
            assert!(matches!(standing, Standing::Waits { new: true }));
        }
        let one_more = asking.hold(&rule("more.example"), packet(1), now);
        assert!(matches!(one_more, Standing::Denied(Reason::Capacity)));
        for length in 0..2 * MOST_WAITING {
            asking.hold(&rule("n0.example"), packet(length), now);
        }
        asking.hold(&rule("n0.example"), packet(7), now);
        asking.hold(&rule("n1.example"), packet(LARGEST + 1), now);
        assert_eq!(asking.waiting.len(), MOST_WAITING);
        assert!(asking.overdue(now).is_empty());
        assert_eq!(asking.overdue(now + PATIENCE).len(), MOST_OPEN);
        for number in 0..2 * MOST_REFUSED {
            asking.settle(&rule(&format!("r{number}.example")), false);
        }
        let unasked = asking.hold(&rule("n0.example"), packet(1), now);
        assert!(matches!(unasked, Standing::Denied(Reason::Refused)));
    }
}
