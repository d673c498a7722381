//! The log of what a command reached: flows of its network, questions to the person and their answers.

use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use pvisor_netstack::{Direction, Flow, FlowEnd, NetEvent, Protocol};
use pvisor_spec::{AnswerScope, AnsweredBy, Subject};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

/// Name of the log, in the run's directory.
pub const FLOW_LOG: &str = "events.jsonl";
/// Bytes of it; what comes after is counted only.
const MAX_BYTES: u64 = 64 << 20;

/// The log: a JSON document a line, `time_ms` (since the Unix epoch) and the event.
#[derive(Debug)]
pub(crate) struct EventLog {
    written: Mutex<Written>,
}

#[derive(Debug)]
struct Written {
    file: File,
    bytes: u64,
    lost: u64,
}

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowLine {
    /// Milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// What happened.
    #[serde(flatten)]
    event: Event,
}

/// What is logged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Event {
    Access(AccessEvent),
    Net(NetEvent),
}

/// A question or its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum AccessEvent {
    /// The person is asked.
    Asked { subject: Subject },
    /// The answer.
    Answered { subject: Subject, allowed: bool, scope: AnswerScope, by: AnsweredBy },
}

impl From<AccessEvent> for Event {
    fn from(event: AccessEvent) -> Self {
        Self::Access(event)
    }
}

impl From<NetEvent> for Event {
    fn from(event: NetEvent) -> Self {
        Self::Net(event)
    }
}

impl fmt::Display for FlowLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.event {
            Event::Access(event) => event.fmt(f),
            Event::Net(event) => tell_flow(event, f),
        }
    }
}

impl fmt::Display for AccessEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |subject: &Subject| match subject {
            Subject::Host(rule) => rule.clone(),
            Subject::Path(path) => path.display().to_string(),
        };
        match self {
            Self::Asked { subject } => write!(f, "asked whether the command may reach {}", name(subject)),
            Self::Answered { subject, allowed, scope, by } => {
                let what = if *allowed { "yes" } else { "no" };
                let scope = match scope {
                    AnswerScope::Run => "in this run",
                    AnswerScope::Workspace => "in this project",
                    AnswerScope::User => "always",
                };
                let by = match by {
                    AnsweredBy::Person => "",
                    AnsweredBy::Timeout => ": nobody answered in time",
                    AnsweredBy::Interrupt => ": the question was interrupted",
                    AnsweredBy::NoTerminal => ": there was no terminal to ask on",
                    AnsweredBy::AskedEnough => ": nothing more was to be asked",
                };
                write!(f, "answered {what} to {}, {scope}{by}", name(subject))
            }
        }
    }
}

fn tell_flow(event: &NetEvent, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let times = |count: &u32| if *count > 1 { format!(", {count} times") } else { String::new() };
    match event {
        NetEvent::Opened { flow } => write!(f, "opened {}: {}", Words(flow), flow.decided_by),
        NetEvent::Denied { flow, count } => {
            write!(f, "denied {}: {}{}", Words(flow), flow.decided_by, times(count))
        }
        NetEvent::Unreachable { flow, error } => write!(f, "no way to {}: {error}", Words(flow)),
        NetEvent::Closed { flow, sent, received, millis, end } => {
            let end = match end {
                FlowEnd::Finished => "finished",
                FlowEnd::Reset => "broken off",
                FlowEnd::Idle => "silent for too long",
                FlowEnd::Stopped => "the run was over",
            };
            write!(f, "closed {}: {end} after {millis} ms, {sent} bytes out, {received} in", Words(flow))
        }
        NetEvent::NameDenied { name, query, decided_by, count } => {
            write!(f, "denied name {name} ({query}): {decided_by}{}", times(count))
        }
        NetEvent::AnswerDropped { name, address, count } => {
            write!(f, "dropped {address} from the answer for {name}: it must not lead there{}", times(count))
        }
        NetEvent::Asked { rule } => write!(f, "waits for an answer about {rule}"),
        NetEvent::Suppressed { count } => write!(f, "{count} events left out"),
        NetEvent::Failed { error } => write!(f, "the network broke and is closed: {error}"),
    }
}

/// A flow in words.
struct Words<'a>(&'a Flow);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Flow { direction, protocol, address, port, name, .. } = self.0;
        let protocol = match protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Icmp => "ping",
        };
        match direction {
            Direction::Outbound => write!(f, "{protocol} to ")?,
            Direction::Inbound => write!(f, "{protocol} from ")?,
        }
        if let Some(name) = name {
            write!(f, "{name} ")?;
        }
        match (port, direction) {
            (Some(port), Direction::Outbound) => write!(f, "{}", SocketAddr::new(*address, *port)),
            (Some(port), Direction::Inbound) => write!(f, "{address} to port {port}"),
            (None, _) => write!(f, "{address}"),
        }
    }
}

impl EventLog {
    pub(crate) fn create(run_dir: &Path) -> io::Result<Arc<Self>> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = File::from(rustix::fs::open(run_dir.join(FLOW_LOG), flags, Mode::RUSR | Mode::WUSR)?);
        let bytes = file.metadata()?.len();
        Ok(Arc::new(Self { written: Mutex::new(Written { file, bytes, lost: 0 }) }))
    }

    /// Adds a line.
    pub(crate) fn write(&self, event: impl Into<Event>) {
        self.lock().write(event.into(), MAX_BYTES);
    }

    /// Says how much is missing.
    pub(crate) fn finish(&self) {
        let mut written = self.lock();
        let count = std::mem::take(&mut written.lost);
        if count > 0 {
            written.write(NetEvent::Suppressed { count }.into(), u64::MAX);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Written> {
        // Counters and a file have no state that a panic could leave half done.
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Written {
    fn write(&mut self, event: Event, most: u64) {
        let line = FlowLine { time_ms: now_ms(), event };
        let mut text = serde_json::to_vec(&line).unwrap_or_default();
        text.push(b'\n');
        let length = text.len() as u64;
        // A full disk must not stop the network; the count of what is missing is kept.
        if self.bytes.saturating_add(length) > most || self.file.write_all(&text).is_err() {
            self.lost += 1;
        } else {
            self.bytes += length;
        }
    }
}

#[cfg(test)]
mod tests {
    use pvisor_netstack::Reason;

    use super::*;

    #[test]
    fn events_are_lines_and_what_a_full_log_leaves_out_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let log = EventLog::create(dir.path()).unwrap();
        let event = NetEvent::Failed { error: "a \"b\"\n".into() };
        log.write(event.clone());
        log.lock().bytes = MAX_BYTES;
        log.write(event);
        log.finish();
        let text = std::fs::read_to_string(dir.path().join(FLOW_LOG)).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((lines.len(), lines[0]["event"].as_str()), (2, Some("failed")));
        assert!(lines[0]["time_ms"].as_u64() > Some(1_600_000_000_000));
        assert_eq!((lines[1]["event"].as_str(), lines[1]["count"].as_u64()), (Some("suppressed"), Some(1)));
    }

    #[test]
    fn lines_are_read_back_and_told_in_words() {
        let flow = Flow {
            direction: Direction::Outbound,
            protocol: Protocol::Tcp,
            address: "2001:db8::1".parse().unwrap(),
            port: Some(443),
            name: Some("crates.io".parse().unwrap()),
            decided_by: Reason::DefaultPublic,
        };
        let told = |event: NetEvent| {
            let text = serde_json::to_string(&FlowLine { time_ms: 7, event: event.into() }).unwrap();
            serde_json::from_str::<FlowLine>(&text).unwrap().to_string()
        };
        assert_eq!(
            told(NetEvent::Opened { flow: flow.clone() }),
            "opened tcp to crates.io [2001:db8::1]:443: public address, allowed by default"
        );
        let inbound = Flow { direction: Direction::Inbound, name: None, decided_by: Reason::Published, ..flow.clone() };
        assert_eq!(
            told(NetEvent::Closed { flow: inbound, sent: 1, received: 2, millis: 3, end: FlowEnd::Idle }),
            "closed tcp from 2001:db8::1 to port 443: silent for too long after 3 ms, 1 bytes out, 2 in"
        );
        let ping = Flow { protocol: Protocol::Icmp, port: None, name: None, decided_by: Reason::NotListed, ..flow };
        assert_eq!(
            told(NetEvent::Denied { flow: ping, count: 4 }),
            "denied ping to 2001:db8::1: not in the allow list, 4 times"
        );
    }

    #[test]
    fn questions_and_answers_come_back_as_they_were() {
        let subject = Subject::Path("/data/a".into());
        for (event, words) in [
            (AccessEvent::Asked { subject: subject.clone() }, "asked whether the command may reach /data/a"),
            (
                AccessEvent::Answered { subject, allowed: false, scope: AnswerScope::Run, by: AnsweredBy::Timeout },
                "answered no to /data/a, in this run: nobody answered in time",
            ),
        ] {
            let line = FlowLine { time_ms: 7, event: event.into() };
            let back: FlowLine = serde_json::from_str(&serde_json::to_string(&line).unwrap()).unwrap();
            assert_eq!((back.to_string().as_str(), back), (words, line));
        }
    }
}
