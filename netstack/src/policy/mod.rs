//! Which names may be resolved and which addresses may be reached. Pure: no I/O, no time, no state.

mod class;
mod name;
mod rule;

pub(crate) use class::canonical;
pub(crate) use rule::is_alias;

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

pub use class::{AddressClass, Cidr, LocalAddresses, classify};
pub use name::{Name, NameError};
pub use rule::{HOST_ALIAS, ParseRuleError, Rule, RuleFault};

/// What happens to a destination that no rule is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DefaultVerdict {
    /// Public addresses are allowed, everything else is denied.
    Public,
    /// Nothing but what the allow list names; an empty list allows nothing.
    #[default]
    AllowList,
    /// Nothing at all, whatever the lists say.
    DenyAll,
}

/// The whole policy of one run. A deny rule always beats an allow rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// For what no rule is about.
    pub default: DefaultVerdict,
    /// What may be reached.
    #[serde(default)]
    pub allow: Vec<Rule>,
    /// What may not, even if allowed elsewhere.
    #[serde(default)]
    pub deny: Vec<Rule>,
    /// Somebody answers questions ([`crate::NetEvent::Asked`]) about what no rule is about: a name, or a public or
    /// private address or a port of the host by number. What the default or a deny rule decides is not asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ask: bool,
    /// What was answered with no before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Rule>,
    /// Bytes a second in each direction, over all flows; `None`: as fast as it goes.
    #[serde(default)]
    pub limit: Option<std::num::NonZeroU64>,
}

/// What decided about a flow or a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// This rule of the allow list.
    AllowRule(Rule),
    /// This rule of the deny list.
    DenyRule(Rule),
    /// No rule; public addresses are allowed by default.
    DefaultPublic,
    /// No rule allows it, and only what is named is allowed.
    NotListed,
    /// Everything is denied.
    DenyAll,
    /// Not a public address, and no rule names it.
    Special(AddressClass),
    /// Not a name: a spelling that different programs read differently.
    BadName,
    /// A kind of query that carries data out or amplifies, for a name that is not listed.
    BadQuery,
    /// More than the sandbox may have open at once.
    Capacity,
    /// A port of the sandbox that the run offers on the host.
    Published,
    /// Whoever was asked said no, or nothing.
    Refused,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllowRule(rule) => write!(f, "allowed by {rule}"),
            Self::DenyRule(rule) => write!(f, "denied by {rule}"),
            Self::DefaultPublic => f.write_str("public address, allowed by default"),
            Self::NotListed => f.write_str("not in the allow list"),
            Self::DenyAll => f.write_str("all network access is denied"),
            Self::Special(class) => write!(f, "{class} address that no rule names"),
            Self::BadName => f.write_str("not a host name"),
            Self::BadQuery => f.write_str("kind of query that is not answered"),
            Self::Capacity => f.write_str("too many at once"),
            Self::Published => f.write_str("published port"),
            Self::Refused => f.write_str("asked for, and not allowed"),
        }
    }
}

/// A decision and what it rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether it may go ahead.
    pub allowed: bool,
    /// What decided.
    pub reason: Reason,
}

impl Verdict {
    fn allow(reason: Reason) -> Self {
        Self { allowed: true, reason }
    }

    fn deny(reason: Reason) -> Self {
        Self { allowed: false, reason }
    }
}

impl Policy {
    /// Whether a name may be resolved at all: whether some port of it may be reached.
    pub fn judge_name(&self, name: &Name) -> Verdict {
        if self.default == DefaultVerdict::DenyAll {
            return Verdict::deny(Reason::DenyAll);
        }
        if let Some(rule) = self.deny.iter().find(|rule| !rule.has_port() && rule.names(name)) {
            return Verdict::deny(Reason::DenyRule(rule.clone()));
        }
        if let Some(rule) = self.allow.iter().find(|rule| rule.names(name)) {
            return Verdict::allow(Reason::AllowRule(rule.clone()));
        }
        match self.default {
            DefaultVerdict::Public if !is_alias(name) => Verdict::allow(Reason::DefaultPublic),
            _ => Verdict::deny(Reason::NotListed),
        }
    }

    /// Whether an answer to a query for `name` may contain this address. What this refuses is DNS rebinding.
    pub fn admits_answer(&self, name: &Name, address: IpAddr, local: &LocalAddresses) -> bool {
        classify(address, local).0 == AddressClass::Public
            || self.allow.iter().any(|rule| rule.leads(name, address, local) || rule.reaches(address, local))
    }

    /// Whether a destination may be reached. `port` is `None` for ICMP; `names` are those whose resolution led the
    /// sandbox to this address.
    pub fn judge(&self, address: IpAddr, port: Option<u16>, names: &[Name], local: &LocalAddresses) -> Verdict {
        if self.default == DefaultVerdict::DenyAll {
            return Verdict::deny(Reason::DenyAll);
        }
        let denies =
            |rule: &&Rule| rule.covers_port(port) && (rule.holds(address) || names.iter().any(|name| rule.names(name)));
        if let Some(rule) = self.deny.iter().find(denies) {
            return Verdict::deny(Reason::DenyRule(rule.clone()));
        }
        let allows = |rule: &&Rule| {
            rule.covers_port(port)
                && (rule.reaches(address, local) || names.iter().any(|name| rule.leads(name, address, local)))
        };
        if let Some(rule) = self.allow.iter().find(allows) {
            return Verdict::allow(Reason::AllowRule(rule.clone()));
        }
        match (classify(address, local).0, self.default) {
            (AddressClass::Public, DefaultVerdict::Public) => Verdict::allow(Reason::DefaultPublic),
            (AddressClass::Public, _) => Verdict::deny(Reason::NotListed),
            (class, _) => Verdict::deny(Reason::Special(class)),
        }
    }

    /// Whether any rule opens the host's own loopback, so that the alias of the host is worth resolving.
    pub fn opens_host(&self) -> bool {
        let loopback = [IpAddr::from([127, 0, 0, 1]), IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)];
        self.default != DefaultVerdict::DenyAll
            && self.allow.iter().any(|rule| loopback.iter().any(|a| rule.reaches(*a, &LocalAddresses::default())))
    }
}

#[cfg(test)]
mod tests;
