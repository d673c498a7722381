//! The loopback interface.

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Brings up `lo`; the kernel gives it its addresses.
pub fn loopback_up() -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: a zeroed ifreq is a valid one.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    // SAFETY: the request is valid for the call and stays so, and both calls use the flags member of its union.
    let result = unsafe {
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &mut request) == 0 {
            request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
            libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request)
        } else {
            -1
        }
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
