//! What kind of place an address is.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// A network: an address and how many of its leading bits count. The other bits are zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// A network; an IPv4-mapped IPv6 network becomes the IPv4 network it maps.
    ///
    /// `None` if the prefix is too long or bits beyond it are set.
    pub fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        let (address, prefix) = match (address, canonical(address)) {
            (IpAddr::V6(_), IpAddr::V4(v4)) if prefix >= 96 => (IpAddr::V4(v4), prefix - 96),
            // Wider than the mapped range: it would hold IPv4 addresses that can't be told apart from it.
            (IpAddr::V6(_), IpAddr::V4(_)) => return None,
            (address, _) => (address, prefix),
        };
        let cidr = Self { address, prefix };
        (prefix <= width(address) && mask(address, prefix) == address).then_some(cidr)
    }

    /// The network that holds this address alone.
    pub fn host(address: IpAddr) -> Self {
        let address = canonical(address);
        Self { address, prefix: width(address) }
    }

    const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Self {
        Self { address: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix }
    }

    const fn v6(segments: [u16; 8], prefix: u8) -> Self {
        let [a, b, c, d, e, f, g, h] = segments;
        Self { address: IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), prefix }
    }

    /// Whether the address is in the network. IPv4-mapped addresses count as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = canonical(address);
        width(address) == width(self.address) && mask(address, self.prefix) == self.address
    }

    /// Whether every address of this network is also in `other`.
    pub fn is_within(&self, other: &Cidr) -> bool {
        self.prefix >= other.prefix && other.contains(self.address)
    }

    /// Whether the network is one single address.
    pub fn is_host(&self) -> bool {
        self.prefix == width(self.address)
    }

    /// The lowest address of the network that holds `address` and has this prefix.
    pub(crate) fn base(address: IpAddr, prefix: u8) -> IpAddr {
        mask(address, prefix.min(width(address)))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_host() { write!(f, "{}", self.address) } else { write!(f, "{}/{}", self.address, self.prefix) }
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn mask(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & mask))
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & mask))
        }
    }
}

/// The address with its IPv4-mapped form (`::ffff:192.0.2.1`) undone: the kernel connects both to the same place.
pub fn canonical(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// What kind of place an address is. All but [`AddressClass::Public`] are denied unless a rule names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AddressClass {
    /// Routed on the internet.
    Public,
    /// A site's own network: RFC 1918, unique local, carrier-grade NAT, benchmarking.
    Private,
    /// The host itself: its loopback, any address of its interfaces, the unspecified address.
    Loopback,
    /// One link only.
    LinkLocal,
    /// A cloud's instance metadata, which hands out credentials.
    Metadata,
    /// Many receivers, or all.
    Multicast,
    /// Not to be used: documentation, transition mechanisms, not assigned.
    Reserved,
}

impl fmt::Display for AddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Public => "public",
            Self::Private => "private",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link-local",
            Self::Metadata => "metadata",
            Self::Multicast => "multicast",
            Self::Reserved => "reserved",
        })
    }
}

/// Ranges that are not public, the first that holds an address decides. Sources: the IANA special-purpose registries
/// and the cloud providers' documentation of their metadata services.
const SPECIAL: &[(Cidr, AddressClass)] = &[
    (Cidr::v4(169, 254, 169, 254, 32), AddressClass::Metadata), // most clouds
    (Cidr::v4(169, 254, 170, 2, 32), AddressClass::Metadata),   // AWS containers
    (Cidr::v4(169, 254, 170, 23, 32), AddressClass::Metadata),  // AWS pods
    (Cidr::v4(100, 100, 100, 200, 32), AddressClass::Metadata), // Alibaba
    (Cidr::v4(168, 63, 129, 16, 32), AddressClass::Metadata),   // Azure
    (Cidr::v4(192, 0, 0, 192, 32), AddressClass::Metadata),     // Oracle
    (Cidr::v4(0, 0, 0, 0, 8), AddressClass::Loopback),          // connects to the host itself
    (Cidr::v4(127, 0, 0, 0, 8), AddressClass::Loopback),
    (Cidr::v4(169, 254, 0, 0, 16), AddressClass::LinkLocal),
    (Cidr::v4(10, 0, 0, 0, 8), AddressClass::Private),
    (Cidr::v4(100, 64, 0, 0, 10), AddressClass::Private),
    (Cidr::v4(172, 16, 0, 0, 12), AddressClass::Private),
    (Cidr::v4(192, 168, 0, 0, 16), AddressClass::Private),
    (Cidr::v4(198, 18, 0, 0, 15), AddressClass::Private),
    (Cidr::v4(192, 0, 0, 0, 24), AddressClass::Reserved),
    (Cidr::v4(192, 0, 2, 0, 24), AddressClass::Reserved),
    (Cidr::v4(192, 88, 99, 0, 24), AddressClass::Reserved),
    (Cidr::v4(198, 51, 100, 0, 24), AddressClass::Reserved),
    (Cidr::v4(203, 0, 113, 0, 24), AddressClass::Reserved),
    (Cidr::v4(224, 0, 0, 0, 4), AddressClass::Multicast),
    (Cidr::v4(240, 0, 0, 0, 4), AddressClass::Reserved),
    (Cidr::v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128), AddressClass::Metadata), // AWS
    (Cidr::v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128), AddressClass::Metadata),  // Google
    (Cidr::v6([0, 0, 0, 0, 0, 0, 0, 0], 127), AddressClass::Loopback),              // :: and ::1
    (Cidr::v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), AddressClass::LinkLocal),
    (Cidr::v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), AddressClass::Private),
    (Cidr::v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), AddressClass::Private),
    (Cidr::v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), AddressClass::Multicast),
    (Cidr::v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), AddressClass::Reserved),
    (Cidr::v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), AddressClass::Reserved),
    (Cidr::v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), AddressClass::Reserved),
];

/// All of the internet's IPv6 addresses are in here; everything else is special or not assigned.
const GLOBAL_V6: Cidr = Cidr::v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);
/// IPv4 addresses inside IPv6 ones: translated at the site's gateway (NAT64), tunnelled (6to4).
const NAT64: Cidr = Cidr::v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);
const SIX_TO_FOUR: Cidr = Cidr::v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16);

/// The IPv4 address that a NAT64 or 6to4 address leads to.
pub(crate) fn embedded(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(v6) = canonical(address) else { return None };
    let [_, b, c, _, _, _, g, h] = v6.segments();
    let bits = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    if NAT64.contains(address) {
        Some(bits(g, h))
    } else if SIX_TO_FOUR.contains(address) {
        Some(bits(b, c))
    } else {
        None
    }
}

/// The addresses of the host's own interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalAddresses(Vec<IpAddr>);

impl LocalAddresses {
    /// Whether the host has this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&canonical(address))
    }
}

impl FromIterator<IpAddr> for LocalAddresses {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        Self(addresses.into_iter().map(canonical).collect())
    }
}

/// The class of an address and, unless it is public, the range that makes it so. A rule reaches the address only if it
/// names no more than that range.
pub fn classify(address: IpAddr, local: &LocalAddresses) -> (AddressClass, Option<Cidr>) {
    let address = canonical(address);
    if local.contains(address) && !Cidr::v4(127, 0, 0, 0, 8).contains(address) {
        return (AddressClass::Loopback, Some(Cidr::host(address)));
    }
    if let Some(v4) = embedded(address) {
        let (class, _) = classify(IpAddr::V4(v4), local);
        return (class, (class != AddressClass::Public).then_some(Cidr::host(address)));
    }
    if let Some((range, class)) = SPECIAL.iter().find(|(range, _)| range.contains(address)) {
        return (*class, Some(*range));
    }
    match address {
        IpAddr::V6(_) if !GLOBAL_V6.contains(address) => (AddressClass::Reserved, Some(Cidr::host(address))),
        _ => (AddressClass::Public, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn class(text: &str) -> AddressClass {
        classify(text.parse().unwrap(), &LocalAddresses::default()).0
    }

    #[test]
    fn every_special_range_is_well_formed() {
        for (range, _) in SPECIAL {
            assert_eq!(Cidr::new(range.address, range.prefix), Some(*range), "{range}");
        }
    }

    #[test]
    fn first_and_last_address_of_each_range() {
        for (first, last, expected) in [
            ("10.0.0.0", "10.255.255.255", AddressClass::Private),
            ("100.64.0.0", "100.127.255.255", AddressClass::Private),
            ("172.16.0.0", "172.31.255.255", AddressClass::Private),
            ("192.168.0.0", "192.168.255.255", AddressClass::Private),
            ("198.18.0.0", "198.19.255.255", AddressClass::Private),
            ("127.0.0.0", "127.255.255.255", AddressClass::Loopback),
            ("0.0.0.0", "0.255.255.255", AddressClass::Loopback),
            ("169.254.0.0", "169.254.255.255", AddressClass::LinkLocal),
            ("224.0.0.0", "239.255.255.255", AddressClass::Multicast),
            ("240.0.0.0", "255.255.255.255", AddressClass::Reserved),
            ("::", "::1", AddressClass::Loopback),
            ("fe80::", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff", AddressClass::LinkLocal),
            ("fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", AddressClass::Private),
            ("ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", AddressClass::Multicast),
            ("::2", "::ffff", AddressClass::Reserved),
            ("100::", "100::ffff", AddressClass::Reserved),
            ("2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", AddressClass::Reserved),
            ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", AddressClass::Reserved),
            ("4000::", "4000::1", AddressClass::Reserved),
            ("9.255.255.255", "11.0.0.0", AddressClass::Public),
            ("100.63.255.255", "100.128.0.0", AddressClass::Public),
            ("126.255.255.255", "128.0.0.0", AddressClass::Public),
            ("169.253.255.255", "169.255.0.0", AddressClass::Public),
            ("172.15.255.255", "172.32.0.0", AddressClass::Public),
            ("192.167.255.255", "192.169.0.0", AddressClass::Public),
            ("2606:4700::1111", "2a00:1450::1", AddressClass::Public),
        ] {
            assert_eq!(class(first), expected, "{first}");
            assert_eq!(class(last), expected, "{last}");
        }
        for metadata in
            ["169.254.169.254", "100.100.100.200", "168.63.129.16", "fd00:ec2::254", "::ffff:169.254.169.254"]
        {
            assert_eq!(class(metadata), AddressClass::Metadata, "{metadata}");
        }
    }

    #[test]
    fn addresses_inside_addresses_are_judged_by_where_they_lead() {
        assert_eq!(class("::ffff:127.0.0.1"), AddressClass::Loopback);
        assert_eq!(class("64:ff9b::7f00:1"), AddressClass::Loopback);
        assert_eq!(class("64:ff9b::a9fe:a9fe"), AddressClass::Metadata);
        assert_eq!(class("2002:7f00:1::"), AddressClass::Loopback);
        assert_eq!(class("2002:a00:1::5"), AddressClass::Private);
        assert_eq!(class("64:ff9b::808:808"), AddressClass::Public);
        // IPv4-compatible: long gone, but still parsed by some.
        assert_eq!(class("::127.0.0.1"), AddressClass::Reserved);
    }

    #[test]
    fn the_hosts_own_addresses_are_loopback() {
        let local: LocalAddresses = ["8.8.4.4", "192.168.1.5", "2a00::5"].iter().map(|a| a.parse().unwrap()).collect();
        for own in ["8.8.4.4", "192.168.1.5", "2a00::5", "::ffff:8.8.4.4", "64:ff9b::808:404"] {
            assert_eq!(classify(own.parse().unwrap(), &local).0, AddressClass::Loopback, "{own}");
        }
        assert_eq!(classify("192.168.1.6".parse().unwrap(), &local).0, AddressClass::Private);
    }

    #[test]
    fn networks() {
        let net = |text: &str, prefix| Cidr::new(text.parse().unwrap(), prefix);
        assert!(net("10.0.0.0", 33).is_none() && net("::", 129).is_none());
        assert!(net("10.0.0.1", 8).is_none());
        assert_eq!(net("::ffff:10.0.0.0", 104), net("10.0.0.0", 8));
        assert!(net("::ffff:0.0.0.0", 95).is_none());
        let all = net("0.0.0.0", 0).unwrap();
        assert!(all.contains("255.1.2.3".parse().unwrap()) && !all.contains("::1".parse().unwrap()));
        assert!(all.contains("::ffff:1.2.3.4".parse().unwrap()));
        assert!(net("10.1.0.0", 16).unwrap().is_within(&net("10.0.0.0", 8).unwrap()));
        assert!(!all.is_within(&net("10.0.0.0", 8).unwrap()));
    }

    proptest! {
        #[test]
        fn mapped_addresses_have_the_class_of_what_they_map(bits in any::<u32>()) {
            let v4 = Ipv4Addr::from_bits(bits);
            let local = LocalAddresses::default();
            prop_assert_eq!(
                classify(IpAddr::V4(v4), &local),
                classify(IpAddr::V6(v4.to_ipv6_mapped()), &local)
            );
        }

        #[test]
        fn membership_is_the_shared_prefix(a in any::<u128>(), b in any::<u128>(), prefix in 0u8..=128) {
            // Outside the IPv4-mapped range, whose networks are IPv4 networks.
            let (a, b) = (a | 1 << 127, b | 1 << 127);
            let net = Cidr::new(Cidr::base(IpAddr::V6(a.into()), prefix), prefix).unwrap();
            let shared = (a ^ b).leading_zeros() >= u32::from(prefix);
            prop_assert_eq!(net.contains(IpAddr::V6(b.into())), shared);
        }
    }
}
