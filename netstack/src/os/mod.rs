//! The few things that differ between systems, and the only place with unsafe code.
#![allow(unsafe_code)]

use std::net::IpAddr;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod portable;

#[cfg(target_os = "linux")]
pub(crate) use linux::Signal;
#[cfg(target_os = "linux")]
pub use linux::{Configured, InterfaceError, Tap, TapError, bring_loopback_up, configure_interface};
#[cfg(not(target_os = "linux"))]
pub(crate) use portable::Signal;

use crate::LocalAddresses;

/// The addresses of all interfaces of the host.
///
/// # Errors
/// What the system says.
pub(crate) fn local_addresses() -> std::io::Result<LocalAddresses> {
    let interfaces = nix::ifaddrs::getifaddrs()?;
    Ok(interfaces
        .filter_map(|interface| interface.address)
        .filter_map(|address| {
            let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
        })
        .collect())
}

/// Raises this process's limit of open descriptors to the highest allowed and returns it: every flow takes one.
///
/// # Errors
/// What the system says.
pub fn raise_descriptor_limit() -> std::io::Result<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(limit.current.unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_loopback_is_among_the_local_addresses() {
        let local = super::local_addresses().unwrap();
        assert!(local.contains([127, 0, 0, 1].into()));
    }
}
