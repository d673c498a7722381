//! Controls that are in the kernel or not.

use pvisor_spec::{Capability, CapabilityState};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{capability, usable};
use crate::launch::namespaces::last_errno;

/// Flag of the query for the version.
const VERSION: u32 = 1;

/// Landlock, with the version of its interface and the errata that the kernel says are fixed.
pub fn landlock() -> Capability {
    const ERRATA: u32 = 2;
    match landlock_query(VERSION) {
        Ok(abi) => {
            let errata = landlock_query(ERRATA).map_or_else(|_| "unknown".to_owned(), |mask| format!("{mask:#x}"));
            usable("landlock", format!("interface version {abi}, errata fixed: {errata}"))
        }
        Err(Errno::NOSYS) => capability(
            "landlock",
            CapabilityState::Missing,
            "not built into the kernel",
            "use a kernel from 5.13 on with CONFIG_SECURITY_LANDLOCK",
        ),
        Err(Errno::OPNOTSUPP) => capability(
            "landlock",
            CapabilityState::Missing,
            "built into the kernel, but not started",
            "add landlock to the kernel's lsm= parameter",
        ),
        Err(errno) => capability(
            "landlock",
            CapabilityState::Missing,
            format!("refused: {errno}"),
            "allow the landlock system calls, which a container's seccomp filter may block",
        ),
    }
}

/// The version of Landlock's interface, where the kernel has it.
pub(crate) fn landlock_version() -> Option<i64> {
    landlock_query(VERSION).ok()
}

fn landlock_query(flags: u32) -> Result<i64, Errno> {
    // SAFETY: with these flags the call takes no attributes and makes nothing.
    let answer =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0usize, flags) };
    if answer < 0 { Err(last_errno()) } else { Ok(answer) }
}

/// System call filters.
pub fn seccomp() -> Capability {
    const GET_ACTION_AVAIL: u32 = 2;
    let action: u32 = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: the call reads one u32, which outlives it, and changes nothing.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, GET_ACTION_AVAIL, 0usize, &raw const action) };
    if answer == 0 {
        return usable("seccomp", "filters can be installed");
    }
    capability(
        "seccomp",
        CapabilityState::Missing,
        format!("filters can't be installed: {}", last_errno()),
        "use a kernel from 4.14 on with CONFIG_SECCOMP_FILTER",
    )
}

/// Network interfaces in user space.
pub fn tun() -> Capability {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::open("/dev/net/tun", flags, Mode::empty()) {
        Ok(_) => usable("tun", "/dev/net/tun can be opened"),
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
            capability("tun", CapabilityState::Missing, "no /dev/net/tun", "load the module: modprobe tun")
        }
        Err(errno) => capability(
            "tun",
            CapabilityState::Limited,
            format!("/dev/net/tun can't be opened: {errno}"),
            "make /dev/net/tun readable and writable for this user (mode 0666 is usual)",
        ),
    }
}
