//! Namespaces: which ones, made with the process, and set up from inside.

use std::ffi::CStr;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};

/// Namespaces that a launched process gets of its own, beside that of mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Namespaces {
    /// A user namespace with these ids.
    pub(crate) user: Option<UserIds>,
    /// A process namespace; only a test leaves it out.
    pub(crate) pid: bool,
    /// A network namespace with nothing but its own loopback.
    pub(crate) network: bool,
    /// Namespaces of System V's and POSIX's queues and memory.
    pub(crate) ipc: bool,
    /// Namespaces of the host's name and of its control groups.
    pub(crate) names: bool,
}

/// Which ids a user namespace has; each stands for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserIds {
    /// Just the caller's own: the way for those who are not root.
    Own,
    /// All that the caller has: files of others stay theirs. Only root can make such a map, and from outside.
    All,
}

impl Namespaces {
    /// Those that every run has.
    pub(crate) fn least(user: Option<UserIds>) -> Self {
        Self { user, pid: true, network: false, ipc: false, names: false }
    }

    fn clone_flags(self) -> libc::c_int {
        let wanted = [
            (self.user.is_some(), libc::CLONE_NEWUSER),
            (self.pid, libc::CLONE_NEWPID),
            (self.network, libc::CLONE_NEWNET),
            (self.ipc, libc::CLONE_NEWIPC),
            (self.names, libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP),
        ];
        wanted.into_iter().filter(|(wanted, _)| *wanted).fold(libc::CLONE_NEWNS, |flags, (_, flag)| flags | flag)
    }
}

/// Which side of a fork this is.
pub(crate) enum Side {
    /// The new process.
    Child,
    /// The old one; the process id of the new one.
    Parent(i32),
}

/// Forks a process into new namespaces; with none, just forks.
///
/// # Safety
/// The process must have one thread only, or the child must do nothing that takes memory or a lock.
///
/// # Errors
/// What `clone` answers: EPERM, ENOSPC, EUSERS or EINVAL where such namespaces are not to be had.
pub(crate) unsafe fn fork_into(namespaces: Option<Namespaces>) -> Result<Side, Errno> {
    const NONE: libc::c_long = 0;
    let flags = namespaces.map_or(0, Namespaces::clone_flags) | libc::SIGCHLD;
    // SAFETY: without CLONE_VM and with a null stack this is fork(): the child goes on with a copy of this thread's
    // stack. The caller promises that the child will not wait for a lock that another thread held.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(flags), NONE, NONE, NONE, NONE) };
    match i32::try_from(pid) {
        Ok(0) => Ok(Side::Child),
        Ok(pid) if pid > 0 => Ok(Side::Parent(pid)),
        _ => Err(last_errno()),
    }
}

/// The error of the last system call.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The maps of a user namespace. Made before the fork, so that writing them takes no memory: a process with several
/// threads can do it in its child too.
pub(crate) struct IdMaps {
    uid: String,
    gid: String,
}

impl IdMaps {
    /// Maps the caller's own ids to themselves.
    pub(crate) fn own() -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self { uid: format!("{uid} {uid} 1"), gid: format!("{gid} {gid} 1") }
    }

    /// Maps every id that this process can see to itself.
    pub(crate) fn all() -> std::io::Result<Self> {
        let identity = |path| Ok::<_, std::io::Error>(to_themselves(&std::fs::read_to_string(path)?));
        Ok(Self { uid: identity("/proc/self/uid_map")?, gid: identity("/proc/self/gid_map")? })
    }

    /// Writes the maps of the user namespace that a child of this process is in.
    pub(crate) fn write_for(&self, child: i32) -> std::io::Result<()> {
        std::fs::write(format!("/proc/{child}/uid_map"), &self.uid)?;
        std::fs::write(format!("/proc/{child}/gid_map"), &self.gid)
    }

    /// Writes the maps of the new user namespace that the process is in.
    pub(crate) fn write(&self) -> Result<(), Errno> {
        write_file(c"/proc/self/setgroups", "deny")?;
        write_file(c"/proc/self/uid_map", &self.uid)?;
        write_file(c"/proc/self/gid_map", &self.gid)
    }
}

/// The lines of a map with the ids of its inside on both sides.
fn to_themselves(map: &str) -> String {
    let lines = map.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (first, count) = (words.next()?, words.nth(1)?);
        Some(format!("{first} {first} {count}\n"))
    });
    lines.collect()
}

fn write_file(path: &CStr, text: &str) -> Result<(), Errno> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    // The kernel takes such a file whole or not at all.
    rustix::io::write(&file, text.as_bytes()).map(drop)
}

/// Keeps mounts made here from showing outside. Those made outside later still show here.
pub(crate) fn keep_mounts_inside() -> Result<(), Errno> {
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change(c"/", flags)
}

/// Puts a `/proc` of the own process namespace over the old one.
pub(crate) fn mount_proc() -> Result<(), Errno> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount(c"proc", c"/proc", c"proc", flags, None)
}

/// Closes every descriptor from `first` on.
///
/// # Safety
/// Nothing in the process may use one of them afterwards.
pub(crate) unsafe fn close_from(first: u32) -> Result<(), Errno> {
    // SAFETY: what the caller promises.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    if done == 0 {
        return Ok(());
    }
    match last_errno() {
        // A kernel before 5.9: one by one, up to the highest number that there can be.
        Errno::NOSYS => {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
            let end = limit.maximum.unwrap_or(1 << 20).min(1 << 20);
            for fd in u64::from(first)..end {
                // SAFETY: what the caller promises; a number that is not open is answered with EBADF.
                unsafe { libc::close(fd as libc::c_int) };
            }
            Ok(())
        }
        other => Err(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_id_is_mapped_to_itself() {
        assert_eq!(to_themselves("         0          0 4294967295\n"), "0 0 4294967295\n");
        assert_eq!(to_themselves("0 1000 1\n1 100000 65536\n"), "0 0 1\n1 1 65536\n");
        assert_eq!(to_themselves(""), "");
    }
}
