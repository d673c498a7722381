//! The guest's network interfaces: the loopback, and the card whose other end is the run's network.

use std::fs;
use std::io;
use std::mem::zeroed;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use pvisor_proto::{Failure, Network};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::system::failure;

/// The card's name: the kernel numbers them, and there is one.
const CARD: &str = "eth0";
const RESOLVER: &str = "/etc/resolv.conf";

/// Settings of the card, below `/proc/sys/net/ipv6/conf`: nobody else is on the link, so an address need not wait until
/// it is known to be free, and there is no router to ask.
const SETTINGS_V6: [(&str, &str); 4] =
    [("accept_dad", "0"), ("dad_transmits", "0"), ("accept_ra", "0"), ("router_solicitations", "0")];

/// `struct rtentry` of the kernel.
#[repr(C)]
struct RouteV4 {
    pad1: libc::c_ulong,
    destination: libc::sockaddr,
    gateway: libc::sockaddr,
    mask: libc::sockaddr,
    flags: libc::c_ushort,
    pad2: libc::c_short,
    pad3: libc::c_ulong,
    pad4: *mut libc::c_void,
    metric: libc::c_short,
    device: *mut libc::c_char,
    mtu: libc::c_ulong,
    window: libc::c_ulong,
    round_trip: libc::c_ushort,
}

/// `struct in6_rtmsg` of the kernel.
#[repr(C)]
struct RouteV6 {
    destination: libc::in6_addr,
    source: libc::in6_addr,
    gateway: libc::in6_addr,
    kind: u32,
    destination_length: u16,
    source_length: u16,
    metric: u32,
    info: libc::c_ulong,
    flags: u32,
    index: libc::c_int,
}

/// Brings up `lo`; the kernel gives it its addresses.
pub fn loopback_up() -> io::Result<()> {
    up(&socket(AddressFamily::INET)?, "lo").map_err(Into::into)
}

/// Gives the card its addresses and routes, brings it up, and names the resolver.
///
/// # Errors
/// The step that failed and the kernel's reason.
pub fn configure(network: &Network) -> Result<(), Failure> {
    let fault = |what: &'static str| move |errno: Errno| failure(errno, what);
    let four = socket(AddressFamily::INET).map_err(fault("network socket"))?;
    for (name, value) in SETTINGS_V6 {
        // Not there in a kernel without IPv6, which the address then tells.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{CARD}/{name}"), value);
    }
    let mut mtu = request(CARD);
    mtu.ifr_ifru.ifru_mtu = network.mtu.into();
    control(&four, libc::SIOCSIFMTU, &mut mtu).map_err(fault("network card: mtu"))?;
    let (address, prefix) = network.v4;
    let mut place = request(CARD);
    place.ifr_ifru.ifru_addr = socket_address(address);
    control(&four, libc::SIOCSIFADDR, &mut place).map_err(fault("network card: address"))?;
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
    place.ifr_ifru.ifru_addr = socket_address(Ipv4Addr::from(mask));
    control(&four, libc::SIOCSIFNETMASK, &mut place).map_err(fault("network card: mask"))?;
    up(&four, CARD).map_err(fault("network card: up"))?;
    route_v4(&four, network.gateway_v4).map_err(fault("IPv4 route"))?;
    configure_v6(network, &four).map_err(fault("IPv6"))?;
    // Everybody may ping: the network passes on echo requests, and nothing else of the kind.
    let _ = fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
    name_resolver(network, Path::new(RESOLVER))
        .map_err(|e| failure(Errno::from_io_error(&e).unwrap_or(Errno::IO), RESOLVER))
}

fn route_v4(socket: &OwnedFd, gateway: Ipv4Addr) -> Result<(), Errno> {
    // SAFETY: all of its fields are valid when zero.
    let mut route: RouteV4 = unsafe { zeroed() };
    route.destination = socket_address(Ipv4Addr::UNSPECIFIED);
    route.mask = socket_address(Ipv4Addr::UNSPECIFIED);
    route.gateway = socket_address(gateway);
    route.flags = libc::RTF_UP | libc::RTF_GATEWAY;
    control(socket, libc::SIOCADDRT, &mut route)
}

fn configure_v6(network: &Network, four: &OwnedFd) -> Result<(), Errno> {
    let socket = match socket(AddressFamily::INET6) {
        Err(Errno::AFNOSUPPORT) => return Ok(()),
        socket => socket?,
    };
    let mut index = request(CARD);
    control(four, libc::SIOCGIFINDEX, &mut index)?;
    // SAFETY: the call before filled this member.
    let index = unsafe { index.ifr_ifru.ifru_ifindex };
    let mut address =
        libc::in6_ifreq { ifr6_addr: octets(network.v6.0), ifr6_prefixlen: network.v6.1.into(), ifr6_ifindex: index };
    control(&socket, libc::SIOCSIFADDR, &mut address)?;
    let any = octets(Ipv6Addr::UNSPECIFIED);
    let mut route = RouteV6 {
        destination: any,
        source: any,
        gateway: octets(network.gateway_v6),
        kind: 0,
        destination_length: 0,
        source_length: 0,
        metric: 1,
        info: 0,
        flags: u32::from(libc::RTF_UP | libc::RTF_GATEWAY),
        index,
    };
    control(&socket, libc::SIOCADDRT, &mut route)
}

/// Replaces the resolver's file by one of the guest's own. Where it is a link, as with systemd, its target is not there.
fn name_resolver(network: &Network, file: &Path) -> io::Result<()> {
    let text = format!("nameserver {}\nnameserver {}\n", network.gateway_v4, network.gateway_v6);
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(file, text)?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o644))
}

fn up(socket: &OwnedFd, name: &str) -> Result<(), Errno> {
    let mut flags = request(name);
    control(socket, libc::SIOCGIFFLAGS, &mut flags)?;
    // SAFETY: the call before filled this member.
    unsafe { flags.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short };
    control(socket, libc::SIOCSIFFLAGS, &mut flags)
}

fn socket(family: AddressFamily) -> Result<OwnedFd, Errno> {
    socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

/// A request about the interface of that name, which is shorter than 16 bytes.
fn request(name: &str) -> libc::ifreq {
    // SAFETY: a zeroed ifreq is a valid one.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request
}

/// One of the interface ioctls; `argument` is the structure that it takes.
fn control<T>(socket: &OwnedFd, call: libc::c_ulong, argument: &mut T) -> Result<(), Errno> {
    // SAFETY: the argument is valid for the call, and each caller passes the structure that its call reads and writes.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), call, std::ptr::from_mut(argument)) };
    if result == 0 { Ok(()) } else { Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)) }
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let [a, b, c, d] = address.octets().map(u8::cast_signed);
    // struct sockaddr_in: port, address, padding
    let sa_data = [0, 0, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0];
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data }
}

fn octets(address: Ipv6Addr) -> libc::in6_addr {
    libc::in6_addr { s6_addr: address.octets() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const NETWORK: Network = Network {
        mtu: 1500,
        v4: (Ipv4Addr::new(198, 18, 92, 2), 30),
        gateway_v4: Ipv4Addr::new(198, 18, 92, 1),
        v6: (Ipv6Addr::new(0xfd70, 0, 0, 0, 0, 0, 0, 2), 64),
        gateway_v6: Ipv6Addr::new(0xfd70, 0, 0, 0, 0, 0, 0, 1),
    };

    #[test]
    fn the_resolver_is_named_where_a_link_or_nothing_was() {
        let dir = tempfile::tempdir().unwrap();
        let (other, file) = (dir.path().join("other"), dir.path().join("etc/resolv.conf"));
        fs::write(&other, "mine").unwrap();
        name_resolver(&NETWORK, &file).unwrap();
        fs::remove_file(&file).unwrap();
        symlink(&other, &file).unwrap();
        name_resolver(&NETWORK, &file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "nameserver 198.18.92.1\nnameserver fd70::1\n");
        assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
    }

    #[test]
    fn structures_have_the_sizes_that_the_kernel_reads() {
        assert_eq!((size_of::<RouteV4>(), size_of::<RouteV6>(), size_of::<libc::in6_ifreq>()), (120, 80, 24));
    }
}
