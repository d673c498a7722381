//! Rules as people write them: `HOST[:PORT]`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::class::{AddressClass, Cidr, LocalAddresses, classify, embedded};
use super::name::{Name, NameError};

/// The name that stands for the host itself inside a sandbox; `localhost` in a rule means the same.
pub const HOST_ALIAS: &str = "host.pvisor.internal";

/// One line of a policy.
///
/// | text | what it names |
/// |---|---|
/// | `example.com` | that host, every port |
/// | `*.example.com:443` | every host below it, at any depth, port 443; not `example.com` itself |
/// | `192.0.2.1`, `[2001:db8::1]:22` | that address |
/// | `10.0.0.0/8`, `fd00::/8`, `[fd00::/8]:443` | that network |
/// | `*`, `*:443` | every public address |
/// | `localhost:8080`, `host.pvisor.internal:8080` | the host's own loopback, seen inside as the gateway |
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    target: Target,
    port: Option<u16>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Target {
    Any,
    Host(Name),
    Below(Name),
    Network(Cidr),
}

/// Why a text is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no network rule: {reason}")]
pub struct ParseRuleError {
    /// The whole text.
    pub text: String,
    /// What is wrong with it.
    pub reason: RuleFault,
}

/// What is wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleFault {
    /// The host part is no name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The part behind the last colon.
    #[error("the port is no number from 1 to 65535")]
    Port,
    /// `https://…`
    #[error("a rule is HOST[:PORT], not a URL")]
    Url,
    /// A bracket without its partner, or something that is no IPv6 address between them.
    #[error("brackets hold an IPv6 address or network")]
    Bracket,
    /// `a/b` where `a` is no address or `b` no prefix length.
    #[error("a network is ADDRESS/LENGTH")]
    Network,
    /// `10.1.2.3/8`
    #[error("bits beyond the prefix length are set: did you mean {0}?")]
    HostBits(String),
    /// A star anywhere but in `*` and `*.suffix`.
    #[error("a star stands alone or in front, as in *.example.com")]
    Star,
}

impl Rule {
    /// The rule about a host name; without a port: about all of them.
    pub(crate) fn of_name(name: Name, port: Option<u16>) -> Self {
        Self { target: Target::Host(name), port }
    }

    /// The rule about one port of one address.
    pub(crate) fn of_address(address: IpAddr, port: u16) -> Self {
        Self { target: Target::Network(Cidr::host(address)), port: Some(port) }
    }

    /// Whether the rule says something about this port; one without a port says it about all, and about ICMP.
    pub fn covers_port(&self, port: Option<u16>) -> bool {
        self.port.is_none() || self.port == port
    }

    /// Whether it is limited to one port.
    pub fn has_port(&self) -> bool {
        self.port.is_some()
    }

    /// Whether the rule names this host name. A star alone names all.
    pub fn names(&self, name: &Name) -> bool {
        match &self.target {
            Target::Any => true,
            Target::Host(host) => host == name || (self.means_host_itself() && is_alias(name)),
            Target::Below(zone) => name.is_below(zone),
            Target::Network(_) => false,
        }
    }

    /// Whether the rule holds this address by number: what a deny rule needs. Addresses that lead to an IPv4 address
    /// through NAT64 or 6to4 are held by rules about that address too.
    pub fn holds(&self, address: IpAddr) -> bool {
        match &self.target {
            Target::Any => true,
            Target::Host(_) => self.means_host_itself() && is_loopback(address),
            Target::Below(_) => false,
            Target::Network(net) => {
                net.contains(address) || embedded(address).is_some_and(|v4| net.contains(IpAddr::V4(v4)))
            }
        }
    }

    /// Whether the rule lets this address be reached as a number. A network reaches an address that is not public only
    /// if it lies within the special range, so that `0.0.0.0/0` is the internet and not the host's loopback.
    pub fn reaches(&self, address: IpAddr, local: &LocalAddresses) -> bool {
        let (class, range) = classify(address, local);
        match &self.target {
            Target::Any => class == AddressClass::Public,
            Target::Host(_) => self.means_host_itself() && is_loopback(address),
            Target::Below(_) => false,
            Target::Network(net) => net.contains(address) && range.is_none_or(|range| net.is_within(&range)),
        }
    }

    /// Whether the rule lets `name` lead to this address: public ones always, private ones only for a name written out
    /// in full, everything else never: it has to be named by number.
    pub fn leads(&self, name: &Name, address: IpAddr, local: &LocalAddresses) -> bool {
        self.names(name)
            && match classify(address, local).0 {
                AddressClass::Public => true,
                AddressClass::Private => matches!(self.target, Target::Host(_)),
                _ => false,
            }
    }

    /// Whether the rule means the host's own loopback by one of its two names.
    pub fn means_host_itself(&self) -> bool {
        matches!(&self.target, Target::Host(host) if is_alias(host))
    }

    /// The host name, if the rule is about exactly one.
    pub fn host(&self) -> Option<&Name> {
        match &self.target {
            Target::Host(name) => Some(name),
            _ => None,
        }
    }
}

/// Whether a name stands for the host itself.
pub(crate) fn is_alias(name: &Name) -> bool {
    matches!(name.as_str(), "localhost" | HOST_ALIAS)
}

fn is_loopback(address: IpAddr) -> bool {
    super::class::canonical(address) == IpAddr::V4(Ipv4Addr::LOCALHOST) || address == IpAddr::V6(Ipv6Addr::LOCALHOST)
}

impl FromStr for Rule {
    type Err = ParseRuleError;

    fn from_str(text: &str) -> Result<Self, ParseRuleError> {
        parse(text).map_err(|reason| ParseRuleError { text: text.to_owned(), reason })
    }
}

fn parse(text: &str) -> Result<Rule, RuleFault> {
    if text.contains("://") {
        return Err(RuleFault::Url);
    }
    let (host, port) = split_port(text)?;
    let target = if host == "*" {
        Target::Any
    } else if let Some(suffix) = host.strip_prefix("*.") {
        if suffix.contains('*') {
            return Err(RuleFault::Star);
        }
        Target::Below(suffix.parse()?)
    } else if host.contains('*') {
        return Err(RuleFault::Star);
    } else if host.contains('/') {
        Target::Network(parse_network(host)?)
    } else if let Ok(address) = host.parse() {
        Target::Network(Cidr::host(address))
    } else {
        Target::Host(host.parse()?)
    };
    Ok(Rule { target, port })
}

/// Splits `HOST[:PORT]`, where a host with more than one colon and no brackets is an IPv6 address.
fn split_port(text: &str) -> Result<(&str, Option<u16>), RuleFault> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, port) = rest.split_once(']').ok_or(RuleFault::Bracket)?;
        let address = host.split('/').next().unwrap_or_default();
        if address.parse::<Ipv6Addr>().is_err() {
            return Err(RuleFault::Bracket);
        }
        return match port.strip_prefix(':') {
            Some(port) => Ok((host, Some(parse_port(port)?))),
            None if port.is_empty() => Ok((host, None)),
            None => Err(RuleFault::Port),
        };
    }
    match text.split_once(':') {
        Some((_, rest)) if rest.contains(':') => Ok((text, None)),
        Some((host, port)) => Ok((host, Some(parse_port(port)?))),
        None => Ok((text, None)),
    }
}

fn parse_port(text: &str) -> Result<u16, RuleFault> {
    // `parse` alone would take "+80".
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(RuleFault::Port);
    }
    text.parse().ok().filter(|&port| port != 0).ok_or(RuleFault::Port)
}

fn parse_network(text: &str) -> Result<Cidr, RuleFault> {
    let (address, prefix) = text.split_once('/').ok_or(RuleFault::Network)?;
    let address: IpAddr = address.parse().map_err(|_| RuleFault::Network)?;
    if prefix.is_empty() || !prefix.bytes().all(|b| b.is_ascii_digit()) {
        return Err(RuleFault::Network);
    }
    let prefix: u8 = prefix.parse().map_err(|_| RuleFault::Network)?;
    if prefix > if address.is_ipv4() { 32 } else { 128 } {
        return Err(RuleFault::Network);
    }
    Cidr::new(address, prefix).ok_or_else(|| RuleFault::HostBits(format!("{}/{prefix}", Cidr::base(address, prefix))))
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.target, self.port) {
            (Target::Any, _) => f.write_str("*")?,
            (Target::Host(name), _) => write!(f, "{name}")?,
            (Target::Below(zone), _) => write!(f, "*.{zone}")?,
            (Target::Network(net), Some(_)) if net.to_string().contains(':') => write!(f, "[{net}]")?,
            (Target::Network(net), _) => write!(f, "{net}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rule({self})")
    }
}

impl TryFrom<String> for Rule {
    type Error = ParseRuleError;

    fn try_from(text: String) -> Result<Self, ParseRuleError> {
        text.parse()
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> Self {
        rule.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(text: &str) -> Rule {
        text.parse().unwrap()
    }

    #[test]
    fn every_form_comes_back_in_its_canonical_spelling() {
        for (text, canonical) in [
            ("example.com", "example.com"),
            ("EXAMPLE.com.:443", "example.com:443"),
            ("bücher.example:80", "xn--bcher-kva.example:80"),
            ("*.Example.com", "*.example.com"),
            ("*.example.com:8443", "*.example.com:8443"),
            ("*", "*"),
            ("*:443", "*:443"),
            ("192.0.2.1", "192.0.2.1"),
            ("192.0.2.1:22", "192.0.2.1:22"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.0.0.0/8:22", "10.0.0.0/8:22"),
            ("10.1.2.3/32", "10.1.2.3"),
            ("::1", "::1"),
            ("[::1]", "::1"),
            ("[::1]:80", "[::1]:80"),
            ("fd00::/8", "fd00::/8"),
            ("[fd00::/8]:443", "[fd00::/8]:443"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
            ("[::ffff:10.0.0.0/104]", "10.0.0.0/8"),
            ("localhost:8080", "localhost:8080"),
        ] {
            let parsed = rule(text);
            assert_eq!(parsed.to_string(), canonical, "{text}");
            assert_eq!(rule(canonical), parsed, "{text}");
        }
    }

    #[test]
    fn what_is_no_rule_is_refused_with_its_reason() {
        let fault = |text: &str| text.parse::<Rule>().unwrap_err().reason;
        for text in ["https://example.com", "http://10.0.0.1:80"] {
            assert_eq!(fault(text), RuleFault::Url, "{text}");
        }
        for text in ["a:0", "a:65536", "a:", "a:+80", "a: 80", "a:80x", "[::1]80", "[::1]:", "a:80-90", "a:*"] {
            assert_eq!(fault(text), RuleFault::Port, "{text}");
        }
        for text in ["[::1", "[1.2.3.4]:80", "[example.com]", "[]", "[]:80"] {
            assert_eq!(fault(text), RuleFault::Bracket, "{text}");
        }
        for text in ["10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8", "example.com/8", "/8", "fd00::/129", "10.0.0.0/8/8"] {
            assert_eq!(fault(text), RuleFault::Network, "{text}");
        }
        assert_eq!(fault("10.1.2.3/8"), RuleFault::HostBits("10.0.0.0/8".into()));
        for text in ["*.*.com", "a.*.com", "*com", "**", "exa*mple.com"] {
            assert_eq!(fault(text), RuleFault::Star, "{text}");
        }
        for text in ["0x7f000001", "127.1", "2130706433:80", "0177.0.0.1", "010.0.0.1"] {
            assert_eq!(fault(text), RuleFault::Name(NameError::Number), "{text}");
        }
        for text in ["evil\0.allowed.com", "user@host", "a b", "a,b", "::g", "fe80::1%eth0"] {
            assert_eq!(fault(text), RuleFault::Name(NameError::Character), "{text}");
        }
        for text in ["", ":80", "*."] {
            assert_eq!(fault(text), RuleFault::Name(NameError::Empty), "{text}");
        }
    }

    #[test]
    fn a_wide_network_does_not_name_special_ranges() {
        let local: LocalAddresses = [IpAddr::from([192, 168, 7, 7])].into_iter().collect();
        let reaches = |text: &str, address: &str| rule(text).reaches(address.parse().unwrap(), &local);
        for special in ["127.0.0.1", "10.0.0.1", "169.254.169.254", "224.0.0.1", "255.255.255.255", "0.0.0.0"] {
            assert!(!reaches("0.0.0.0/0", special) && !reaches("*", special), "{special}");
        }
        assert!(reaches("0.0.0.0/0", "8.8.8.8") && reaches("*", "8.8.8.8") && reaches("::/0", "2a00::1"));
        assert!(!reaches("::/0", "::1") && !reaches("::/0", "fd00::1") && !reaches("::/0", "64:ff9b::7f00:1"));
        assert!(reaches("10.0.0.0/8", "10.9.9.9") && reaches("10.9.0.0/16", "10.9.9.9"));
        assert!(!reaches("8.0.0.0/6", "10.9.9.9"), "wider than the private range");
        assert!(reaches("127.0.0.0/8", "127.0.0.1") && reaches("127.0.0.1", "::ffff:127.0.0.1"));
        assert!(reaches("169.254.0.0/16", "169.254.1.1"));
        assert!(!reaches("169.254.0.0/16", "169.254.169.254"), "metadata only by its own number");
        assert!(reaches("169.254.169.254", "169.254.169.254"));
        assert!(!reaches("192.168.0.0/16", "192.168.7.7"), "the host's own address only by its own number");
        assert!(reaches("192.168.7.7", "192.168.7.7") && reaches("192.168.0.0/16", "192.168.7.8"));
    }

    #[test]
    fn deny_rules_hold_addresses_in_every_disguise() {
        let holds = |text: &str, address: &str| rule(text).holds(address.parse().unwrap());
        for disguise in ["8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"] {
            assert!(holds("8.8.8.8", disguise) && holds("8.8.8.0/24", disguise) && holds("*", disguise), "{disguise}");
        }
        assert!(!holds("8.8.8.8", "8.8.8.9"));
        assert!(holds("0.0.0.0/0", "127.0.0.1"));
    }

    #[test]
    fn a_name_leads_where_it_may() {
        let local = LocalAddresses::default();
        let leads = |text: &str, name: &str, address: &str| {
            rule(text).leads(&name.parse().unwrap(), address.parse().unwrap(), &local)
        };
        assert!(leads("a.example", "a.example", "8.8.8.8") && leads("*.example", "a.example", "8.8.8.8"));
        assert!(leads("a.example", "a.example", "10.0.0.1"), "written out in full: an intranet host");
        assert!(!leads("*.example", "a.example", "10.0.0.1") && !leads("*", "a.example", "10.0.0.1"));
        for address in ["127.0.0.1", "::1", "169.254.169.254", "fe80::1", "0.0.0.0", "64:ff9b::7f00:1"] {
            assert!(!leads("a.example", "a.example", address), "{address}");
        }
    }

    #[test]
    fn localhost_and_the_alias_are_the_host_itself() {
        for text in ["localhost:80", "host.pvisor.internal:80"] {
            let rule = rule(text);
            assert!(rule.means_host_itself());
            assert!(rule.names(&HOST_ALIAS.parse().unwrap()) && rule.names(&"localhost".parse().unwrap()));
            assert!(rule.reaches([127, 0, 0, 1].into(), &LocalAddresses::default()));
            assert!(!rule.reaches([127, 0, 0, 2].into(), &LocalAddresses::default()));
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_a_stable_rule_or_an_error(text in "[a-z0-9.:/*\\[\\]\\-@ ]{0,24}|\\PC{0,16}") {
            if let Ok(rule) = text.parse::<Rule>() {
                prop_assert_eq!(rule.to_string().parse::<Rule>().unwrap(), rule);
            }
        }
    }
}
