//! Puts the policy together with what it has to know: the host's addresses and which names led where.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

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
        self.policy.default == DefaultVerdict::Public
            && classify(address, self.local(now)).0 == AddressClass::Public
            && self.judge(address, Some(port), &[], now).reason == Reason::DefaultPublic
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
        let decisive = match &verdict.reason {
            Reason::AllowRule(rule) | Reason::DenyRule(rule) => names.iter().find(|name| rule.names(name)),
            _ => None,
        };
        let name = decisive.or(names.first()).cloned();
        let flow = Flow { direction: Direction::Outbound, protocol, address, port, name, decided_by: verdict.reason };
        Decision { target, allowed: verdict.allowed, flow }
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
