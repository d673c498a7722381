//! Puts the policy together with what it has to know: the host's addresses and which names led where.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::Rule;
use crate::config::LinkConfig;
use crate::dns::Bindings;
use crate::event::{Direction, Flow, Protocol};
use crate::policy::{HOST_ALIAS, canonical};
use crate::{AddressClass, DefaultVerdict, LocalAddresses, Name, Policy, Reason, Verdict, classify, os};

/// How long the list of the host's addresses is trusted.
const LOCAL_FRESH: Duration = Duration::from_secs(2);
/// The port of name servers.
pub(crate) const DNS_PORT: u16 = 53;

/// Decides about destinations.
pub(crate) struct Judge {
    pub(crate) policy: Policy,
    pub(crate) bindings: Bindings,
    local: LocalAddresses,
    local_at: Option<Instant>,
    gateways: [IpAddr; 2],
    alias: Option<Name>,
}

/// What was decided about a destination.
pub(crate) struct Decision {
    /// Where to connect on the host.
    pub(crate) target: IpAddr,
    pub(crate) allowed: bool,
    pub(crate) flow: Flow,
    /// The rule that would allow it, where somebody is to be asked about that.
    pub(crate) question: Option<Rule>,
}

impl Judge {
    pub(crate) fn new(policy: Policy, link: &LinkConfig) -> Self {
        Self {
            policy,
            bindings: Bindings::default(),
            local: LocalAddresses::default(),
            local_at: None,
            gateways: [IpAddr::V4(link.gateway_v4), IpAddr::V6(link.gateway_v6)],
            alias: HOST_ALIAS.parse().ok(),
        }
    }

    /// The host's own addresses. Where the system does not tell, the last known ones.
    pub(crate) fn local(&mut self, now: Instant) -> &LocalAddresses {
        if self.local_at.is_none_or(|at| at + LOCAL_FRESH <= now) {
            match os::local_addresses() {
                Ok(local) => self.local = local,
                Err(error) => tracing::warn!(%error, "can't list the host's addresses"),
            }
            self.local_at = Some(now);
        }
        &self.local
    }

    /// Whether our own name server answers for this destination: the gateway, and, where everything public is allowed,
    /// any other server that no rule names, so that names stay under the policy.
    pub(crate) fn is_name_service(&mut self, address: IpAddr, port: u16, now: Instant) -> bool {
        if port != DNS_PORT {
            return false;
        }
        if self.gateways.contains(&address) {
            return true;
        }
        let address = canonical(address);
        (self.policy.default == DefaultVerdict::Public || self.policy.ask)
            && classify(address, self.local(now)).0 == AddressClass::Public
            && matches!(self.judge(address, Some(port), &[], now).reason, Reason::DefaultPublic | Reason::NotListed)
    }

    /// Whether an answer for `name` may contain this address.
    pub(crate) fn admits_answer(&mut self, name: &Name, address: IpAddr, now: Instant) -> bool {
        self.local(now);
        self.policy.admits_answer(name, address, &self.local)
    }

    fn judge(&mut self, target: IpAddr, port: Option<u16>, names: &[Name], now: Instant) -> Verdict {
        self.local(now);
        self.policy.judge(target, port, names, &self.local)
    }

    /// Decides about a destination that the sandbox wants to reach.
    pub(crate) fn decide(&mut self, protocol: Protocol, address: IpAddr, port: Option<u16>, now: Instant) -> Decision {
        let gateway = self.gateways.contains(&address);
        let (target, names) = if gateway {
            let loopback = if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { IpAddr::V6(Ipv6Addr::LOCALHOST) };
            (loopback, self.alias.iter().cloned().collect())
        } else {
            (canonical(address), self.bindings.names(address, now))
        };
        let verdict = self.judge(target, port, &names, now);
        let question = match (&verdict.reason, port) {
            (Reason::NotListed | Reason::Special(_), Some(port)) if self.policy.ask => {
                self.question(target, port, names.first(), gateway)
            }
            _ => None,
        };
        let decisive = match &verdict.reason {
            Reason::AllowRule(rule) | Reason::DenyRule(rule) => names.iter().find(|name| rule.names(name)),
            _ => None,
        };
        let name = decisive.or(names.first()).cloned();
        let flow = Flow { direction: Direction::Outbound, protocol, address, port, name, decided_by: verdict.reason };
        Decision { target, allowed: verdict.allowed, flow, question }
    }

    /// The rule that would open a destination that is denied for want of one; `None`: nobody is asked about such.
    fn question(&self, target: IpAddr, port: u16, name: Option<&Name>, gateway: bool) -> Option<Rule> {
        let class = classify(target, &self.local).0;
        let rule = match name {
            Some(name) if gateway || matches!(class, AddressClass::Public | AddressClass::Private) => {
                Rule::of_name(name.clone(), Some(port))
            }
            None if matches!(class, AddressClass::Public | AddressClass::Private) => Rule::of_address(target, port),
            _ => return None,
        };
        // One that is there and does not open it never will.
        (!self.policy.allow.contains(&rule)).then_some(rule)
    }

    /// The rule that would let a name be resolved that is denied for want of one; `None`: nobody is asked about such.
    pub(crate) fn name_question(&self, name: &Name) -> Option<Rule> {
        // Names of addresses: whoever looks them up goes on without.
        let reverse = name.as_str().ends_with(".in-addr.arpa") || name.as_str().ends_with(".ip6.arpa");
        (self.policy.ask && !reverse).then(|| Rule::of_name(name.clone(), None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(default: DefaultVerdict, allow: &[&str]) -> Judge {
        let allow = allow.iter().map(|r| r.parse().unwrap()).collect();
        Judge::new(Policy { default, allow, ..Policy::default() }, &LinkConfig::default())
    }

    #[test]
    fn the_gateway_is_the_hosts_loopback_and_closed_unless_named() {
        let (now, link) = (Instant::now(), LinkConfig::default());
        let mut closed = judge(DefaultVerdict::Public, &["*"]);
        assert!(!closed.decide(Protocol::Tcp, link.gateway_v4.into(), Some(80), now).allowed);
        for rule in ["localhost:80", "host.pvisor.internal:80", "127.0.0.1:80"] {
            let mut open = judge(DefaultVerdict::AllowList, &[rule]);
            let decision = open.decide(Protocol::Tcp, link.gateway_v4.into(), Some(80), now);
            assert!(decision.allowed, "{rule}");
            assert_eq!(decision.target, IpAddr::from([127, 0, 0, 1]));
            assert_eq!(decision.flow.address, IpAddr::V4(link.gateway_v4));
            assert!(!open.decide(Protocol::Tcp, link.gateway_v4.into(), Some(81), now).allowed, "{rule}");
        }
    }

    #[test]
    fn questions_are_about_what_an_answer_could_open() {
        let (now, link) = (Instant::now(), LinkConfig::default());
        let mut judge = judge(DefaultVerdict::AllowList, &["named.example:443"]);
        judge.policy.deny = vec!["192.88.1.1".parse().unwrap()];
        let asked = |judge: &mut Judge, address: IpAddr, port: u16| -> Option<String> {
            judge.decide(Protocol::Tcp, address, Some(port), now).question.map(|rule| rule.to_string())
        };
        let public = IpAddr::from([1, 1, 1, 1]);
        assert_eq!(asked(&mut judge, public, 443), None, "nobody answers");
        judge.policy.ask = true;
        judge.bindings.bind(&"named.example".parse().unwrap(), [9, 9, 9, 9].into(), Duration::from_secs(60), now);
        for (address, port, question) in [
            (public, 443, Some("1.1.1.1:443")),
            ([10, 0, 0, 7].into(), 22, Some("10.0.0.7:22")),
            (link.gateway_v4.into(), 5432, Some("host.pvisor.internal:5432")),
            ([9, 9, 9, 9].into(), 80, Some("named.example:80")),
            ([9, 9, 9, 9].into(), 443, None),
            ([169, 254, 169, 254].into(), 80, None),
            ([127, 0, 0, 1].into(), 80, None),
            ([192, 88, 1, 1].into(), 80, None),
        ] {
            assert_eq!(asked(&mut judge, address, port).as_deref(), question, "{address}");
            // What would open it does.
            if let Some(rule) = question {
                judge.policy.allow.push(rule.parse().unwrap());
                assert!(judge.decide(Protocol::Tcp, address, Some(port), now).allowed, "{rule}");
            }
        }
        assert!(judge.decide(Protocol::Icmp, [8, 8, 8, 8].into(), None, now).question.is_none());
        assert!(judge.is_name_service([8, 8, 8, 8].into(), 53, now), "names stay under the policy");
        assert!(judge.name_question(&"1.1.1.1.in-addr.arpa".parse().unwrap()).is_none());
    }

    #[test]
    fn other_name_servers_are_ours_only_under_the_public_default() {
        let (now, link) = (Instant::now(), LinkConfig::default());
        let public = IpAddr::from([8, 8, 8, 8]);
        let mut open = judge(DefaultVerdict::Public, &[]);
        assert!(open.is_name_service(public, 53, now) && !open.is_name_service(public, 853, now));
        assert!(open.is_name_service(link.gateway_v6.into(), 53, now));
        assert!(!open.is_name_service([10, 0, 0, 1].into(), 53, now));
        let mut named = judge(DefaultVerdict::Public, &["8.8.8.8"]);
        assert!(!named.is_name_service(public, 53, now), "a rule that names it means it");
        let mut listed = judge(DefaultVerdict::AllowList, &["example.com"]);
        assert!(!listed.is_name_service(public, 53, now) && listed.is_name_service(link.gateway_v4.into(), 53, now));
    }
}
