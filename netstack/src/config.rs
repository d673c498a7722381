//! What a network is started with.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::{Binding, Policy};

/// Bytes of an Ethernet header.
pub const ETHERNET_HEADER: usize = 14;

/// Smallest MTU that IPv6 allows.
const MIN_MTU: u16 = 1280;
/// Largest MTU of a TAP device, rounded down to a multiple of eight.
const MAX_MTU: u16 = 65520;

/// Addresses on the link between the sandbox and us. The sandbox is configured statically with these; there is no DHCP
/// and no router advertisement. Name server: the gateway, either address.
///
/// The defaults were chosen not to hide anything that a site uses: four addresses of the benchmarking range and a
/// unique local prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// Hardware address of the sandbox's interface. Frames are sent to whichever one the sandbox last used.
    pub guest_mac: [u8; 6],
    /// Our hardware address.
    pub gateway_mac: [u8; 6],
    /// The sandbox's IPv4 address; packets from another one are dropped.
    pub guest_v4: Ipv4Addr,
    /// Our IPv4 address: default route and name server.
    pub gateway_v4: Ipv4Addr,
    /// Length of the IPv4 prefix.
    pub prefix_v4: u8,
    /// The sandbox's IPv6 address; packets from another one are dropped.
    pub guest_v6: Ipv6Addr,
    /// Our IPv6 address: default route and name server.
    pub gateway_v6: Ipv6Addr,
    /// Length of the IPv6 prefix.
    pub prefix_v6: u8,
    /// Largest IP packet on the link, in bytes: 1280 to 65520. Longer ones save most of the work for bulk transfers.
    pub mtu: u16,
}

impl LinkConfig {
    /// For a virtio-net device without offloads, whose receive buffers hold a standard frame.
    pub const VIRTIO_MTU: u16 = 1500;
    /// For a TAP device of our own.
    pub const TAP_MTU: u16 = MAX_MTU;

    /// Whether the address is one of ours on the link.
    pub fn is_gateway(&self, address: IpAddr) -> bool {
        address == IpAddr::V4(self.gateway_v4) || address == IpAddr::V6(self.gateway_v6)
    }

    /// The sandbox's address of the same family.
    pub fn guest(&self, like: IpAddr) -> IpAddr {
        if like.is_ipv4() { IpAddr::V4(self.guest_v4) } else { IpAddr::V6(self.guest_v6) }
    }

    /// Longest frame on the link, in bytes.
    pub fn max_frame(&self) -> usize {
        usize::from(self.mtu) + ETHERNET_HEADER
    }

    /// Checks that the addresses can work together.
    ///
    /// # Errors
    /// What is wrong, as a lower-case fragment.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let unicast_mac = |mac: [u8; 6]| mac[0] & 1 == 0 && mac != [0; 6];
        if !(MIN_MTU..=MAX_MTU).contains(&self.mtu) {
            return Err("the mtu is outside 1280 to 65520");
        }
        if !unicast_mac(self.guest_mac) || !unicast_mac(self.gateway_mac) || self.guest_mac == self.gateway_mac {
            return Err("the hardware addresses are not two different unicast ones");
        }
        let v4 = [self.guest_v4, self.gateway_v4];
        if v4.iter().any(|a| a.is_unspecified() || a.is_multicast() || a.is_broadcast() || a.is_loopback())
            || self.guest_v4 == self.gateway_v4
            || self.prefix_v4 > 30
        {
            return Err("the IPv4 addresses are not two different unicast ones of one network");
        }
        let v6 = [self.guest_v6, self.gateway_v6];
        if v6.iter().any(|a| a.is_unspecified() || a.is_multicast() || a.is_loopback())
            || self.guest_v6 == self.gateway_v6
            || self.prefix_v6 > 126
        {
            return Err("the IPv6 addresses are not two different unicast ones of one network");
        }
        Ok(())
    }
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            guest_mac: [0x02, 0x70, 0x76, 0x00, 0x00, 0x02],
            gateway_mac: [0x02, 0x70, 0x76, 0x00, 0x00, 0x01],
            guest_v4: Ipv4Addr::new(198, 18, 92, 2),
            gateway_v4: Ipv4Addr::new(198, 18, 92, 1),
            prefix_v4: 30,
            guest_v6: Ipv6Addr::new(0xfd70, 0x7669, 0x736f, 0x7200, 0, 0, 0, 2),
            gateway_v6: Ipv6Addr::new(0xfd70, 0x7669, 0x736f, 0x7200, 0, 0, 0, 1),
            prefix_v6: 64,
            mtu: Self::VIRTIO_MTU,
        }
    }
}

/// One TCP port of the sandbox that is offered on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publish {
    /// Where to listen on the host; port 0 lets the system choose.
    pub host: SocketAddr,
    /// The port inside.
    pub guest_port: u16,
}

/// Who resolves names for us.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Upstream {
    /// The servers of the host's `/etc/resolv.conf`, read again whenever it changes.
    #[default]
    Host,
    /// These servers, in this order.
    Servers(Vec<SocketAddr>),
}

/// How much a sandbox may have open at once. What goes beyond is refused, and the refusal is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capacity {
    /// TCP connections, both ways.
    pub tcp: usize,
    /// UDP and ping associations; the longest silent one makes room for a new one.
    pub datagrams: usize,
    /// Name queries waiting for an answer.
    pub queries: usize,
    /// Bytes of all TCP buffers together. Connections get large buffers while there is room, small ones after.
    pub buffers: usize,
}

impl Default for Capacity {
    fn default() -> Self {
        Self { tcp: 4096, datagrams: 1024, queries: 256, buffers: 256 << 20 }
    }
}

/// Everything a network is started with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackConfig {
    /// What may be reached.
    pub policy: Policy,
    /// The link to the sandbox.
    #[serde(default)]
    pub link: LinkConfig,
    /// Ports offered on the host.
    #[serde(default)]
    pub publish: Vec<Publish>,
    /// Who resolves names.
    #[serde(default)]
    pub upstream: Upstream,
    /// How much may be open at once.
    #[serde(default)]
    pub capacity: Capacity,
    /// Which names led the sandbox where before: for a sandbox that goes on from a checkpoint. The policy still decides.
    #[serde(default)]
    pub bindings: Vec<Binding>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_work_together_and_bad_ones_are_refused() {
        let good = LinkConfig::default();
        assert_eq!(good.check(), Ok(()));
        assert_eq!(LinkConfig { mtu: LinkConfig::TAP_MTU, ..good.clone() }.check(), Ok(()));
        for bad in [
            LinkConfig { mtu: 1279, ..good.clone() },
            LinkConfig { mtu: 65521, ..good.clone() },
            LinkConfig { guest_mac: [1, 0, 0, 0, 0, 0], ..good.clone() },
            LinkConfig { guest_mac: good.gateway_mac, ..good.clone() },
            LinkConfig { guest_v4: good.gateway_v4, ..good.clone() },
            LinkConfig { gateway_v4: Ipv4Addr::LOCALHOST, ..good.clone() },
            LinkConfig { guest_v6: Ipv6Addr::UNSPECIFIED, ..good.clone() },
            LinkConfig { prefix_v4: 31, ..good.clone() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
