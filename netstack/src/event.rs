//! What the network reports: every flow that was opened, denied, or ended.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::limit::Bucket;
use crate::{Name, Reason, Rule};

/// Receives events on the network's own thread: it must be quick and must not block.
pub type EventSink = Arc<dyn Fn(NetEvent) + Send + Sync>;

/// A transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP echo, for IPv4 or IPv6.
    Icmp,
}

/// Who opened a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The sandbox.
    Outbound,
    /// Somebody on the host, through a published port.
    Inbound,
}

/// Two ends that talk.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Flow {
    /// Who opened it.
    pub direction: Direction,
    /// The transport.
    pub protocol: Protocol,
    /// The other end. For the host's own loopback, the gateway's address as the sandbox sees it.
    pub address: IpAddr,
    /// The other end's port; the sandbox's own for inbound flows; `None` for ICMP.
    pub port: Option<u16>,
    /// The name whose resolution led there, if one did.
    pub name: Option<Name>,
    /// What decided.
    pub decided_by: Reason,
}

/// How a flow ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowEnd {
    /// Both ends said so.
    Finished,
    /// One end broke it off.
    Reset,
    /// Silent for too long.
    Idle,
    /// The network was stopped.
    Stopped,
}

/// Something that happened. Names and addresses come from the sandbox: they are data, never instructions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum NetEvent {
    /// A flow was allowed; for TCP, the other end also took the connection.
    Opened {
        /// The flow.
        flow: Flow,
    },
    /// A flow was denied.
    Denied {
        /// The flow.
        flow: Flow,
        /// How many equal ones this stands for: repeats within five seconds come as one event.
        count: u32,
    },
    /// A flow was allowed, but the other end can't be reached.
    Unreachable {
        /// The flow.
        flow: Flow,
        /// The system's reason, a lower-case fragment.
        error: String,
    },
    /// A flow ended.
    Closed {
        /// The flow.
        flow: Flow,
        /// Payload bytes from the sandbox.
        sent: u64,
        /// Payload bytes to the sandbox.
        received: u64,
        /// Milliseconds from start to end.
        millis: u64,
        /// How.
        end: FlowEnd,
    },
    /// A name was not resolved.
    NameDenied {
        /// The name as asked for; for one that is no name, with its odd bytes escaped.
        name: String,
        /// Kind of query: `A`, `TXT`, `TYPE65` …
        query: String,
        /// What decided.
        decided_by: Reason,
        /// How many equal ones this stands for.
        count: u32,
    },
    /// An answer contained an address that the name must not lead to: DNS rebinding, or a name of the local network.
    AnswerDropped {
        /// The name.
        name: Name,
        /// The address.
        address: IpAddr,
        /// How many equal ones this stands for.
        count: u32,
    },
    /// The sandbox wants to reach something that no rule is about: is this rule to hold? What it sent waits for the
    /// answer ([`crate::Handle::answer`]) for two minutes. Each rule is asked for once.
    Asked {
        /// The rule that would allow it.
        rule: Rule,
    },
    /// More events came than are reported: this many were left out.
    Suppressed {
        /// How many.
        count: u64,
    },
    /// The network broke and is closed: nothing gets in or out any more.
    Failed {
        /// Why, a lower-case fragment.
        error: String,
    },
}

impl NetEvent {
    fn count_mut(&mut self) -> Option<&mut u32> {
        match self {
            Self::Denied { count, .. } | Self::NameDenied { count, .. } | Self::AnswerDropped { count, .. } => {
                Some(count)
            }
            _ => None,
        }
    }

    fn is_denial(&self) -> bool {
        matches!(self, Self::Denied { .. } | Self::NameDenied { .. } | Self::AnswerDropped { .. })
    }
}

/// How long equal denials are counted before they are reported again.
const WINDOW: Duration = Duration::from_secs(5);
/// Denials counted at once; more are suppressed.
const MAX_KINDS: usize = 512;
/// Events a second in the long run, and how many may come in one burst.
const RATE: u64 = 1000;
const BURST: u64 = 20_000;

struct Repeats {
    since: Instant,
    more: u32,
}

/// Passes events on, merges repeated denials and keeps a hostile sandbox from flooding the log.
pub(crate) struct Reporter {
    sink: EventSink,
    /// By the event of a single denial.
    repeats: HashMap<NetEvent, Repeats>,
    budget: Bucket,
    suppressed: u64,
}

impl Reporter {
    pub(crate) fn new(sink: EventSink, now: Instant) -> Self {
        Self { sink, repeats: HashMap::new(), budget: Bucket::new(RATE, BURST, now), suppressed: 0 }
    }

    /// Reports one event, or counts it.
    pub(crate) fn report(&mut self, event: NetEvent, now: Instant) {
        if event.is_denial() {
            if let Some(repeats) = self.repeats.get_mut(&event) {
                repeats.more = repeats.more.saturating_add(1);
                return;
            }
            if self.repeats.len() >= MAX_KINDS {
                self.suppressed += 1;
                return;
            }
            self.repeats.insert(event.clone(), Repeats { since: now, more: 0 });
        }
        self.pass(event, now);
    }

    fn pass(&mut self, event: NetEvent, now: Instant) {
        if self.budget.available(now) == 0 {
            self.suppressed += 1;
            return;
        }
        self.budget.spend(1);
        (self.sink)(event);
    }

    /// When [`Reporter::tick`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.repeats.values().map(|r| r.since + WINDOW).min()
    }

    /// Reports what was counted for long enough.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.deadline().is_some_and(|at| at <= now) {
            self.flush(|repeats| repeats.since + WINDOW <= now, now);
        }
    }

    /// Reports everything that was counted.
    pub(crate) fn finish(&mut self, now: Instant) {
        self.flush(|_| true, now);
    }

    fn flush(&mut self, due: impl Fn(&Repeats) -> bool, now: Instant) {
        let done: Vec<NetEvent> = self.repeats.iter().filter(|(_, r)| due(r)).map(|(e, _)| e.clone()).collect();
        for mut event in done {
            let more = self.repeats.remove(&event).map_or(0, |repeats| repeats.more);
            if more == 0 {
                continue;
            }
            if let Some(count) = event.count_mut() {
                *count = more;
            }
            self.pass(event, now);
        }
        if self.suppressed > 0 && self.budget.available(now) > 0 {
            self.budget.spend(1);
            (self.sink)(NetEvent::Suppressed { count: std::mem::take(&mut self.suppressed) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn recorder() -> (EventSink, Arc<Mutex<Vec<NetEvent>>>) {
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&events);
        (Arc::new(move |event| sink.lock().unwrap().push(event)), events)
    }

    fn denied(port: u16) -> NetEvent {
        let flow = Flow {
            direction: Direction::Outbound,
            protocol: Protocol::Tcp,
            address: [192, 0, 2, 1].into(),
            port: Some(port),
            name: None,
            decided_by: Reason::NotListed,
        };
        NetEvent::Denied { flow, count: 1 }
    }

    #[test]
    fn repeats_come_as_one_event_with_their_number() {
        let (sink, events) = recorder();
        let start = Instant::now();
        let mut reporter = Reporter::new(sink, start);
        for _ in 0..10 {
            reporter.report(denied(80), start);
        }
        reporter.report(denied(81), start);
        assert_eq!(events.lock().unwrap().len(), 2);
        reporter.tick(start + WINDOW - Duration::from_millis(1));
        assert_eq!(events.lock().unwrap().len(), 2);
        reporter.tick(start + WINDOW);
        let events = events.lock().unwrap();
        assert_eq!(events.len(), 3);
        assert!(matches!(&events[2], NetEvent::Denied { flow, count: 9 } if flow.port == Some(80)));
        assert_eq!(reporter.deadline(), None);
    }

    #[test]
    fn a_flood_is_counted_and_not_passed_on() {
        let (sink, events) = recorder();
        let start = Instant::now();
        let mut reporter = Reporter::new(sink, start);
        for port in 0..2000 {
            reporter.report(denied(port), start);
        }
        reporter.finish(start);
        let events = events.lock().unwrap();
        assert_eq!(events.len(), MAX_KINDS + 1);
        assert_eq!(events.last(), Some(&NetEvent::Suppressed { count: 2000 - MAX_KINDS as u64 }));
    }

    #[test]
    fn json_form_is_stable() {
        let json = serde_json::to_string(&denied(80)).unwrap();
        assert_eq!(
            json,
            r#"{"event":"denied","flow":{"direction":"outbound","protocol":"tcp","address":"192.0.2.1","port":80,"name":null,"decided_by":"not_listed"},"count":1}"#
        );
        assert_eq!(serde_json::from_str::<NetEvent>(&json).unwrap(), denied(80));
    }
}
