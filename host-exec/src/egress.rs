//! A command's network: from the policy as it is asked for to one that runs.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use pvisor_netstack::{
    Answerer, DefaultVerdict, EventSink, Handle, Link, LinkConfig, NetEvent, NetStack, ParseRuleError, Policy, Publish,
    Rule, StackConfig, StartError, Tap, raise_descriptor_limit,
};
use pvisor_spec::{
    Control, Dimension, EgressDefault, EgressSpec, KnownBy, Level, PublishSpec, Receipt, Subject, WorkerFailure,
};

use crate::ask::Desk;
use crate::failure::failure_from;
use crate::log::EventLog;
use crate::plan::EgressPlan;

/// Name of the file that names the resolver, in the run's directory.
pub(crate) const RESOLVER: &str = "resolv.conf";

/// A rule that is none.
#[derive(Debug, thiserror::Error)]
#[error("{option} {text}")]
pub struct EgressError {
    option: &'static str,
    text: String,
    #[source]
    source: ParseRuleError,
}

/// Checks the rules of a policy.
///
/// # Errors
/// The rule that can't be understood.
pub fn check_egress(egress: &EgressSpec) -> Result<(), EgressError> {
    stack_config(egress, LinkConfig::default()).map(drop)
}

/// Whether a text is a destination that a network policy can name.
pub fn is_destination(text: &str) -> bool {
    text.parse::<Rule>().is_ok()
}

/// Whether a rule of a deny list is about that destination, `NAME:PORT`. What can't be understood counts as denied.
pub fn is_denied(destination: &str, deny: &[String]) -> bool {
    let named = destination.rsplit_once(':').and_then(|(name, port)| Some((name.parse().ok()?, port.parse().ok()?)));
    let Some((name, port)) = named else { return true };
    deny.iter().any(|text| text.parse::<Rule>().map_or(true, |rule| rule.names(&name) && rule.covers_port(Some(port))))
}

fn stack_config(egress: &EgressSpec, link: LinkConfig) -> Result<StackConfig, EgressError> {
    let rules = |option: &'static str, texts: &[String]| -> Result<Vec<Rule>, EgressError> {
        let parse =
            |text: &String| text.parse::<Rule>().map_err(|source| EgressError { option, text: text.clone(), source });
        texts.iter().map(parse).collect()
    };
    let default = match egress.default {
        EgressDefault::Nothing => DefaultVerdict::AllowList,
        EgressDefault::Public => DefaultVerdict::Public,
    };
    let policy = Policy {
        default,
        allow: rules("--overlaynet-allow", &egress.allow)?,
        deny: rules("--overlaynet-deny", &egress.deny)?,
        limit: egress.limit,
        ask: egress.ask,
        refused: rules("a remembered answer", &egress.refused)?,
    };
    Ok(StackConfig {
        policy,
        link,
        publish: egress.publish.iter().map(|p| Publish { host: p.host, guest_port: p.port }).collect(),
        ..StackConfig::default()
    })
}

/// Writes the file that names the resolver of a network namespace.
///
/// # Errors
/// What the system says.
pub(crate) fn write_resolver(way_out: &EgressPlan, run_dir: &Path) -> io::Result<()> {
    let link = &way_out.link;
    let mut text = format!("nameserver {}\nnameserver {}\n", link.gateway_v4, link.gateway_v6);
    if way_out.policy.ask {
        // A person takes longer than a name server.
        text.push_str("options timeout:30\n");
    }
    let file = run_dir.join(RESOLVER);
    std::fs::write(&file, text)?;
    // The command may be another user.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644))
}

fn prepare(spec: &EgressSpec, link: LinkConfig) -> Result<StackConfig, WorkerFailure> {
    let config = stack_config(spec, link).map_err(|e| failure_from("network", &e, "correct the rule"))?;
    raise_descriptor_limit().map_err(|e| failure_from("network", &e, ""))?;
    Ok(config)
}

/// What becomes of a network's events: its questions go to the desk, everything else is logged.
fn sink(log: &Arc<EventLog>, desk: Option<(Arc<Desk>, Arc<OnceLock<Answerer>>)>) -> EventSink {
    let log = Arc::clone(log);
    Arc::new(move |event| match (event, &desk) {
        (NetEvent::Asked { rule }, Some((desk, answerer))) => {
            let (subject, answerer) = (Subject::Host(rule.to_string()), Arc::clone(answerer));
            // Where nobody answers, what waits in the network is denied after its time.
            let tell = move |allowed| answerer.get().into_iter().for_each(|a| a.answer(rule.clone(), allowed));
            desk.ask(subject, Box::new(tell));
        }
        (event, _) => log.write(event),
    })
}

fn not_started(error: &StartError) -> WorkerFailure {
    let hint = match error {
        StartError::Publish { .. } => "choose another port with --publish, or port 0 for any",
        _ => "",
    };
    failure_from("network", error, hint)
}

/// A command's network that runs.
#[derive(Debug)]
pub struct Egress {
    spec: EgressSpec,
    link: LinkConfig,
    handle: Handle,
    log: Arc<EventLog>,
}

impl Egress {
    /// Starts the network of a guest, whose frames come and go through the link; flows are logged in `run_dir`.
    ///
    /// # Errors
    /// A rule that is none, a port that can't be published, no descriptors or threads left.
    pub fn start(spec: &EgressSpec, run_dir: &Path) -> Result<(Link, Self), WorkerFailure> {
        // Its receive buffers hold a standard frame.
        let link = LinkConfig { mtu: LinkConfig::VIRTIO_MTU, ..LinkConfig::default() };
        let config = prepare(spec, link.clone())?;
        let log = EventLog::create(run_dir).map_err(|e| failure_from("network", &e, ""))?;
        let (end, handle) = NetStack::start(config, sink(&log, None)).map_err(|e| not_started(&e))?;
        Ok((end, Self { spec: spec.clone(), link, handle, log }))
    }

    /// Starts the network of a network namespace, whose frames come and go through its TAP device. Its questions go
    /// to the desk.
    ///
    /// # Errors
    /// As [`Egress::start`].
    pub(crate) fn start_on_tap(
        way_out: &EgressPlan,
        device: OwnedFd,
        log: &Arc<EventLog>,
        desk: Option<&Arc<Desk>>,
    ) -> Result<Self, WorkerFailure> {
        let EgressPlan { policy, link, .. } = way_out;
        let config = prepare(policy, link.clone())?;
        let tap = Tap::from_fd(device).map_err(|e| failure_from("network", &e, ""))?;
        let answerer = Arc::new(OnceLock::new());
        let sink = sink(log, desk.map(|desk| (Arc::clone(desk), Arc::clone(&answerer))));
        let handle = NetStack::start_on_tap(config, tap, sink).map_err(|e| not_started(&e))?;
        // Nothing can be asked before the command runs.
        let _ = answerer.set(handle.answerer());
        Ok(Self { spec: policy.clone(), link: link.clone(), handle, log: Arc::clone(log) })
    }

    /// What the command's side of the link is configured with.
    pub fn link(&self) -> &LinkConfig {
        &self.link
    }

    /// What is installed. `way`: how frames get here.
    pub fn receipt(&self, control: &str, way: &str, known_by: KnownBy) -> Receipt {
        let default = match self.spec.default {
            EgressDefault::Nothing => "nothing else",
            EgressDefault::Public => "public addresses",
        };
        let mut detail = format!("{way}; allowed: ");
        for rule in &self.spec.allow {
            detail.push_str(&format!("{rule}, "));
        }
        detail.push_str(default);
        if self.spec.ask {
            detail.push_str(", and what the person says yes to");
        }
        if !self.spec.deny.is_empty() {
            detail.push_str(&format!("; denied: {}", self.spec.deny.join(", ")));
        }
        if let Some(limit) = self.spec.limit {
            detail.push_str(&format!("; {limit} bytes a second each way"));
        }
        for PublishSpec { host, port } in self.published() {
            detail.push_str(&format!("; port {port} is offered at {host}"));
        }
        Receipt {
            control: Control(control.to_owned()),
            dimensions: vec![Dimension::Network],
            level: Level::Enforced,
            known_by,
            detail,
        }
    }

    /// Where published ports are really listened at.
    fn published(&self) -> impl Iterator<Item = PublishSpec> {
        self.handle
            .published()
            .iter()
            .zip(&self.spec.publish)
            .map(|(host, p)| PublishSpec { host: *host, port: p.port })
    }

    /// Ends all flows; their ends are logged then.
    pub fn stop(self) {
        self.handle.stop();
        self.log.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_parsed_and_a_bad_one_is_named() {
        let egress = EgressSpec {
            default: EgressDefault::Public,
            allow: vec!["crates.io:443".into(), "*.npmjs.org".into()],
            deny: vec!["10.0.0.0/8".into()],
            ..EgressSpec::default()
        };
        let config = stack_config(&egress, LinkConfig::default()).unwrap();
        assert_eq!((config.policy.allow.len(), config.policy.deny.len()), (2, 1));
        assert_eq!(config.policy.default, DefaultVerdict::Public);
        let bad = EgressSpec { deny: vec!["http://x".into()], ..EgressSpec::default() };
        assert_eq!(check_egress(&bad).unwrap_err().to_string(), "--overlaynet-deny http://x");
    }

    #[test]
    fn a_destination_is_denied_by_any_rule_about_it() {
        let denied = |rule: &str| is_denied("api.example.com:443", &[rule.to_owned()]);
        for rule in ["api.example.com", "API.example.com:443", "*.example.com", "*.com:443", "*", "http://x"] {
            assert!(denied(rule), "{rule}");
        }
        for rule in ["example.com", "*.api.example.com", "api.example.com:80", "10.0.0.0/8"] {
            assert!(!denied(rule), "{rule}");
        }
        assert!(is_denied("no port", &[]) && !is_denied("a.b:1", &[]));
    }

    #[test]
    fn the_receipt_tells_the_policy_and_where_ports_really_are() {
        let dir = tempfile::tempdir().unwrap();
        let spec = EgressSpec {
            allow: vec!["localhost:80".into()],
            deny: vec!["x.org".into()],
            limit: std::num::NonZeroU64::new(1000),
            publish: vec![PublishSpec { host: "127.0.0.1:0".parse().unwrap(), port: 8080 }],
            ..EgressSpec::default()
        };
        let (_link, egress) = Egress::start(&spec, dir.path()).unwrap();
        let at = egress.published().next().unwrap().host;
        let detail = egress.receipt("guest_network", "way", KnownBy::Returned).detail;
        let wanted = "way; allowed: localhost:80, nothing else; denied: x.org; 1000 bytes a second each way";
        assert_eq!(detail, format!("{wanted}; port 8080 is offered at {at}"));
        let taken = EgressSpec { publish: vec![PublishSpec { host: at, port: 1 }], ..EgressSpec::default() };
        let failure = Egress::start(&taken, dir.path()).unwrap_err();
        assert!(failure.message.contains(&at.to_string()) && failure.hint.contains("--publish"), "{failure:?}");
        egress.stop();
    }
}
