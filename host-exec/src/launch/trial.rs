//! Trying, in a process that is everything the command will be, what the command is to be kept from.

use std::ffi::CString;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::unistd::ForkResult;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use super::channel::{Channel, Failed, Report, Step};
use super::command::{exit_now, take_shape};
use super::namespaces::last_errno;
use crate::plan::Plan;
use crate::trials::Trials;

/// Something that is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Trial {
    /// Capabilities that the process has or could get.
    Capabilities,
    /// Whether executing a program can add rights.
    NewPrivileges,
    /// A system call that the filter refuses.
    FilteredCall,
    /// Making a user namespace.
    UserNamespace,
    /// Unmounting the project.
    Unmount,
    /// A descriptor above the standard ones that the command would inherit.
    Descriptor,
    /// A signal to a process of the host.
    HostProcess,
    /// A file of the host that is not shown.
    OutsideRead,
    /// Making a file in a directory of the system.
    OutsideWrite,
    /// Opening a file with secrets.
    Secret,
    /// A device of the host.
    Device,
    /// A setting of the kernel.
    KernelSetting,
    /// A listener of the host at a path.
    PathSocket,
    /// A listener of the host with an abstract name.
    AbstractSocket,
    /// A listener on the host's loopback.
    HostLoopback,
    /// An address on the internet.
    Internet,
    /// Packets of any protocol.
    RawSocket,
    /// The limit of open files, as the kernel has it.
    FileLimit,
}

impl Trial {
    /// Whether only namespaces keep the command from it.
    pub(crate) fn is_about_namespaces(self) -> bool {
        matches!(
            self,
            Self::HostProcess | Self::Secret | Self::Device | Self::PathSocket | Self::HostLoopback | Self::Internet
        )
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Tried {
    /// It was refused with this error.
    Refused(i32),
    /// It worked, or what was looked for is there.
    Worked,
}

/// Forks a process that takes the command's shape and tries everything of `plan.trials`, reporting each on the channel.
pub(crate) fn run(plan: &Plan, channel: &Channel, alone: bool) -> Result<(), Failed> {
    let process = |errno: Errno| Failed { step: Step::Process, errno: errno.raw_os_error() };
    let Some(trials) = plan.trials.get() else { return Ok(()) };
    // SAFETY: this process has one thread, so the child may do anything that this process may.
    match unsafe { nix::unistd::fork() }.map_err(|e| process(Errno::from_raw_os_error(e as i32)))? {
        ForkResult::Child => {
            if let Err(failed) = take_shape(plan, alone) {
                let _ = channel.send(&Report::Failed(failed), None);
                exit_now(1)
            }
            for trial in trials.of(alone) {
                let tried = match attempt(trial, plan, trials) {
                    Ok(()) => Tried::Worked,
                    Err(errno) => Tried::Refused(errno.raw_os_error()),
                };
                if channel.send(&Report::Tried { trial, tried }, None).is_err() {
                    exit_now(1)
                }
            }
            exit_now(0)
        }
        ForkResult::Parent { child } => match nix::sys::wait::waitpid(child, None) {
            Ok(nix::sys::wait::WaitStatus::Exited(_, 0)) => Ok(()),
            // Why is on the channel already, where it could be said.
            _ => Err(Failed { step: Step::Trial, errno: Errno::CHILD.raw_os_error() }),
        },
    }
}

fn attempt(trial: Trial, plan: &Plan, trials: &Trials) -> Result<(), Errno> {
    match trial {
        Trial::Capabilities => capabilities(),
        Trial::NewPrivileges => match rustix::thread::no_new_privs()? {
            true => Err(Errno::PERM),
            false => Ok(()),
        },
        Trial::FilteredCall => {
            const KEYCTL_GET_KEYRING_ID: libc::c_long = 0;
            const SESSION_KEYRING: libc::c_long = -3;
            // SAFETY: the call takes numbers only, and makes nothing.
            done(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_GET_KEYRING_ID, SESSION_KEYRING, 0) })
        }
        // SAFETY: the call takes a number; the process ends soon in any case.
        Trial::UserNamespace => done(libc::c_long::from(unsafe { libc::unshare(libc::CLONE_NEWUSER) })),
        Trial::Unmount => rustix::mount::unmount(&plan.project, rustix::mount::UnmountFlags::DETACH),
        Trial::Descriptor => descriptor(),
        // SAFETY: signal 0 only asks.
        Trial::HostProcess => done(libc::c_long::from(unsafe { libc::kill(trials.host_process, 0) })),
        Trial::OutsideRead => open(&trials.outside, OFlags::RDONLY),
        Trial::OutsideWrite => {
            let path = Path::new("/usr").join(&trials.name);
            open(&path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
            // It must not stay.
            let _ = rustix::fs::unlink(&path);
            Ok(())
        }
        Trial::Secret => trials.secret.as_deref().map_or(Err(Errno::NOENT), |path| open(path, OFlags::RDONLY)),
        Trial::Device => open(Path::new("/dev/fuse"), OFlags::RDWR),
        Trial::KernelSetting => open(Path::new("/proc/sys/kernel/core_pattern"), OFlags::WRONLY),
        Trial::PathSocket => connect_unix(&SocketAddrUnix::new(&trials.socket_path)?),
        Trial::AbstractSocket => connect_unix(&SocketAddrUnix::new_abstract_name(trials.name.as_bytes())?),
        Trial::HostLoopback => {
            let socket = inet(SocketType::STREAM)?;
            rustix::net::connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, trials.loopback_port))
        }
        Trial::Internet => {
            // A datagram socket: connecting it only asks for a route. The address is one for documentation.
            let socket = inet(SocketType::DGRAM)?;
            rustix::net::connect(&socket, &SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 9))
        }
        Trial::RawSocket => {
            let icmp = Some(rustix::net::ipproto::ICMP);
            rustix::net::socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, icmp).map(drop)
        }
        Trial::FileLimit => {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
            match (limit, plan.restrictions.open_files()) {
                (Some(limit), Some(asked)) if limit <= asked => Err(Errno::MFILE),
                _ => Ok(()),
            }
        }
    }
}

fn done(answer: libc::c_long) -> Result<(), Errno> {
    if answer == -1 { Err(last_errno()) } else { Ok(()) }
}

fn capabilities() -> Result<(), Errno> {
    use rustix::thread::{CapabilitySet, capability_is_in_bounding_set};
    let sets = rustix::thread::capabilities(None)?;
    if !sets.effective.is_empty() || !sets.permitted.is_empty() || !sets.inheritable.is_empty() {
        return Ok(());
    }
    // What can't be dropped for want of a right can't be gained either, which is another trial.
    let bounding = capability_is_in_bounding_set(CapabilitySet::SYS_ADMIN)?;
    if bounding && rustix::process::geteuid().is_root() { Ok(()) } else { Err(Errno::PERM) }
}

/// Looks for one that would outlive the start of a program.
fn descriptor() -> Result<(), Errno> {
    const MOST: i32 = 1024;
    let number = |fd| libc::pollfd { fd, events: 0, revents: 0 };
    let mut asked: Vec<libc::pollfd> = (3..MOST).map(number).collect();
    // One call tells which of the numbers are open. Where it fails, for there may be fewer, each is looked at.
    // SAFETY: the call reads and writes as many entries as it is told, which are there, and does not wait.
    unsafe { libc::poll(asked.as_mut_ptr(), asked.len() as libc::nfds_t, 0) };
    for entry in asked.iter().filter(|entry| entry.revents & libc::POLLNVAL == 0) {
        // SAFETY: the call asks for flags; a number that is not open is answered with an error.
        let flags = unsafe { libc::fcntl(entry.fd, libc::F_GETFD) };
        if flags != -1 && flags.cast_unsigned() & FdFlags::CLOEXEC.bits() == 0 {
            return Ok(());
        }
    }
    Err(Errno::BADF)
}

fn open(path: &Path, flags: OFlags) -> Result<(), Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    rustix::fs::openat(CWD, path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::from_raw_mode(0o600)).map(drop)
}

fn connect_unix(to: &SocketAddrUnix) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, to)
}

fn inet(kind: SocketType) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None)
}
