//! Configures an interface of a network namespace through rtnetlink.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

use crate::LinkConfig;

// linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const IFLA_ADDRESS: u16 = 1;
const IFLA_MTU: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_F_NODAD: u8 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RTN_UNICAST: u8 = 1;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const IFF_UP: u32 = 1;
/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;

/// Why an interface was not configured.
#[derive(Debug, thiserror::Error)]
#[error("network interface {name}: {step}: {source}")]
pub struct InterfaceError {
    /// The interface's name.
    pub name: String,
    /// What was tried: a lower-case fragment.
    pub step: &'static str,
    /// What the system says.
    pub source: io::Error,
}

/// What was configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configured {
    /// Whether IPv6 is there: kernels can be without it.
    pub ipv6: bool,
}

/// Brings the loopback of the calling thread's network namespace up, which takes `CAP_NET_ADMIN` there.
///
/// # Errors
/// See [`InterfaceError`].
pub fn bring_loopback_up() -> Result<(), InterfaceError> {
    const LOOPBACK: &str = "lo";
    let fault = |step| move |source: io::Error| InterfaceError { name: LOOPBACK.to_owned(), step, source };
    let index = nix::net::if_::if_nametoindex(LOOPBACK).map_err(|e| fault("find it")(e.into()))?;
    let route = Route::open().map_err(fault("open rtnetlink"))?;
    route.set_link(index, &[]).map_err(fault("bring it up"))
}

/// Gives an interface its hardware address, MTU, addresses and default routes, and brings it up. Acts on the network
/// namespace of the calling thread, which needs `CAP_NET_ADMIN` there.
///
/// # Errors
/// See [`InterfaceError`]. The absence of IPv6 is none.
pub fn configure_interface(name: &str, link: &LinkConfig) -> Result<Configured, InterfaceError> {
    let fault = |step| move |source: io::Error| InterfaceError { name: name.to_owned(), step, source };
    let route = Route::open().map_err(fault("open rtnetlink"))?;
    let own = nix::net::if_::if_nametoindex(name).map_err(|e| fault("find it")(e.into()))?;
    let attributes = [(IFLA_ADDRESS, link.guest_mac.to_vec()), (IFLA_MTU, u32::from(link.mtu).to_ne_bytes().to_vec())];
    route.set_link(own, &attributes).map_err(fault("bring it up"))?;
    route.add_address(own, link.guest_v4.into(), link.prefix_v4).map_err(fault("add the IPv4 address"))?;
    route.add_default(own, link.gateway_v4.into()).map_err(fault("add the IPv4 route"))?;
    let six = route.add_address(own, link.guest_v6.into(), link.prefix_v6);
    match six {
        Ok(()) => {
            route.add_default(own, link.gateway_v6.into()).map_err(fault("add the IPv6 route"))?;
            Ok(Configured { ipv6: true })
        }
        Err(error) if is_without_ipv6(&error) => Ok(Configured { ipv6: false }),
        Err(error) => Err(fault("add the IPv6 address")(error)),
    }
}

/// Not built in, or switched off by a sysctl.
fn is_without_ipv6(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::EACCES))
}

/// A socket to the kernel's network configuration.
struct Route(OwnedFd);

impl Route {
    fn open() -> io::Result<Self> {
        // Protocol 0 of this family is the network configuration.
        let flags = SocketFlags::CLOEXEC;
        Ok(Self(socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?))
    }

    fn set_link(&self, index: u32, attributes: &[(u16, Vec<u8>)]) -> io::Result<()> {
        // struct ifinfomsg: family, padding, type, index, flags, which flags to change
        let mut body = vec![0; 4];
        body.extend_from_slice(&index.to_ne_bytes());
        body.extend_from_slice(&IFF_UP.to_ne_bytes());
        body.extend_from_slice(&IFF_UP.to_ne_bytes());
        self.request(RTM_NEWLINK, 0, body, attributes)
    }

    fn add_address(&self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        // struct ifaddrmsg: family, prefix length, flags, scope, index. Nobody else can have our IPv6 address: it need not
        // wait until that is checked.
        let flags = if address.is_ipv6() { IFA_F_NODAD } else { 0 };
        let mut body = vec![family(address), prefix, flags, 0];
        body.extend_from_slice(&index.to_ne_bytes());
        let bytes = octets(address);
        self.request(
            RTM_NEWADDR,
            NLM_F_CREATE | NLM_F_REPLACE,
            body,
            &[(IFA_LOCAL, bytes.clone()), (IFA_ADDRESS, bytes)],
        )
    }

    fn add_default(&self, index: u32, gateway: IpAddr) -> io::Result<()> {
        // struct rtmsg: family, two prefix lengths, type of service, table, protocol, scope, type, flags
        let mut body = vec![family(gateway), 0, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, 0, RTN_UNICAST];
        body.extend_from_slice(&[0; 4]);
        let attributes = [(RTA_GATEWAY, octets(gateway)), (RTA_OIF, index.to_ne_bytes().to_vec())];
        self.request(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, body, &attributes)
    }

    fn request(&self, kind: u16, flags: u16, body: Vec<u8>, attributes: &[(u16, Vec<u8>)]) -> io::Result<()> {
        let message = message(kind, flags | NLM_F_REQUEST | NLM_F_ACK, &body, attributes);
        sendto(&self.0, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut reply = [0; 4096];
        let (_, length) = recv(&self.0, &mut reply, RecvFlags::empty())?;
        let reply = reply.get(..length.min(reply.len())).unwrap_or_default();
        let word = |at: usize| reply.get(at..at + 4).and_then(|b| <[u8; 4]>::try_from(b).ok()).map(i32::from_ne_bytes);
        let is_status = reply.get(4..6) == Some(&NLMSG_ERROR.to_ne_bytes());
        match word(HEADER).filter(|_| is_status) {
            Some(0) => Ok(()),
            Some(code) => Err(io::Error::from_raw_os_error(code.checked_neg().unwrap_or(libc::EIO))),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn message(kind: u16, flags: u16, body: &[u8], attributes: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut message = vec![0; HEADER];
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&flags.to_ne_bytes());
    message[8..12].copy_from_slice(&1u32.to_ne_bytes());
    message.extend_from_slice(body);
    for (kind, data) in attributes {
        message.extend_from_slice(&u16::try_from(4 + data.len()).unwrap_or(0).to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(data);
        message.resize(message.len().next_multiple_of(4), 0);
    }
    let length = u32::try_from(message.len()).unwrap_or(0);
    message[0..4].copy_from_slice(&length.to_ne_bytes());
    message
}

fn family(address: IpAddr) -> u8 {
    (if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_laid_out_as_the_kernel_reads_them() {
        let all = message(RTM_NEWLINK, NLM_F_REQUEST, &[1; 16], &[(IFLA_ADDRESS, vec![2; 6]), (IFLA_MTU, vec![3; 4])]);
        assert_eq!(all.len(), 16 + 16 + 12 + 8);
        assert_eq!(all[0..4], 52u32.to_ne_bytes());
        assert_eq!((&all[32..34], &all[36..44]), (&10u16.to_ne_bytes()[..], &[2, 2, 2, 2, 2, 2, 0, 0][..]));
    }
}
