//! The start of the machine, and its end.

use std::fmt;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use pvisor_proto::{KEY_PARAMETER, Key, PORT_NAME};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::system::{RebootCommand, reboot};

use crate::console::{self, report};
use crate::network;
use crate::root::{self, Tree};
use crate::session::{Ended, serve};
use crate::system::Guest;

/// Longest wait for the port and for the host at its other end. The host has its own limit for the whole boot; this one
/// only ends a machine that nobody looks after, and an emulated one is slow.
const PORT_WAIT: Duration = Duration::from_secs(600);

/// Kernel settings of the guest, `/proc/sys` being left out of the path. The first keeps the console for what matters;
/// the others are what distributions set.
const SETTINGS: [(&str, &str); 7] = [
    ("kernel/printk", "4 4 1 4"),
    ("kernel/dmesg_restrict", "1"),
    ("fs/protected_symlinks", "1"),
    ("fs/protected_hardlinks", "1"),
    ("fs/protected_fifos", "1"),
    ("fs/protected_regular", "2"),
    ("net/ipv4/ping_group_range", "0 2147483647"),
];

/// Process 1 of the guest: serves the host until the machine ends.
pub fn init() -> ! {
    if std::process::id() != 1 {
        // Called as a program by mistake: nothing of what follows is meant for that machine.
        std::process::exit(2)
    }
    std::panic::set_hook(Box::new(|what| {
        report(format_args!("{what}"));
        end_machine()
    }));
    match run() {
        Ok(Ended::Shutdown) => {}
        Ok(Ended::HostGone(None)) => report(format_args!("the host closed the port")),
        Ok(Ended::HostGone(Some(error))) => report(format_args!("the port broke: {error}")),
        Ok(Ended::Protocol(what)) => report(format_args!("the host broke the protocol: {what}")),
        Ok(Ended::Refused(refused)) => report(format_args!("handshake: {refused}")),
        Err(what) => report(format_args!("{what}")),
    }
    end_machine()
}

fn run() -> Result<Ended, Broken> {
    for (target, kind) in [("/proc", "proc"), ("/sys", "sysfs"), ("/dev", "devtmpfs")] {
        let _ = fs::create_dir(target);
        let tree = Tree { source: kind, target: Path::new(target), kind, flags: MountFlags::empty(), data: c"" };
        match root::mount(&tree) {
            // The kernel may have mounted it by itself.
            Ok(()) | Err(Errno::BUSY) => {}
            Err(error) => return Err(Broken::of(target, error)),
        }
    }
    console::open();
    settle_descriptors();
    let key = key().ok_or_else(|| Broken(format!("no usable {KEY_PARAMETER} on the kernel command line")))?;
    prepare();
    let port = open_port()?;
    serve(port, key, &mut Guest).map_err(|e| Broken(format!("session: {e}")))
}

/// Why the machine can't do its work.
struct Broken(String);

impl Broken {
    fn of(what: impl fmt::Display, error: impl fmt::Display) -> Self {
        Self(format!("{what}: {error}"))
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Makes the standard descriptors `/dev/null`: no file that is opened later may get one of their numbers.
fn settle_descriptors() {
    let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else { return };
    let _ = rustix::stdio::dup2_stdin(&null);
    let _ = rustix::stdio::dup2_stdout(&null);
    let _ = rustix::stdio::dup2_stderr(&null);
}

/// The key of the first handshake.
fn key() -> Option<Key> {
    let line = fs::read_to_string("/proc/cmdline").ok()?;
    key_in(&line)
}

fn key_in(line: &str) -> Option<Key> {
    line.split_ascii_whitespace()
        .filter_map(|word| word.strip_prefix(KEY_PARAMETER)?.strip_prefix('='))
        .next_back()
        .and_then(|hex| hex.parse().ok())
}

/// Settings of the machine that the command inherits. None of them is worth ending the machine.
fn prepare() {
    let note = |what: &str, result: Result<(), std::io::Error>| {
        if let Err(error) = result {
            report(format_args!("{what}: {error}"));
        }
    };
    // SAFETY: changes the mask of this process and touches no memory.
    unsafe { libc::umask(0o022) };
    for (name, value) in SETTINGS {
        let path = Path::new("/proc/sys").join(name);
        if path.exists() {
            note(name, fs::write(path, value));
        }
    }
    note("oom_score_adj", fs::write("/proc/self/oom_score_adj", "-1000"));
    // The soft limit that programs with select(2) expect, and room to raise it.
    let files = Rlimit { current: Some(1024), maximum: Some(524_288) };
    note("open files", setrlimit(Resource::Nofile, files).map_err(Into::into));
    note("lo", network::loopback_up());
    note("host name", rustix::system::sethostname(b"pvisor").map_err(Into::into));
    // Ctrl-Alt-Del is nobody's business here.
    let _ = reboot(RebootCommand::CadOff);
}

/// Opens the port once the host is at its other end.
fn open_port() -> Result<OwnedFd, Broken> {
    let deadline = Instant::now() + PORT_WAIT;
    let mut open = None;
    loop {
        if open.is_none() {
            open = find_port().and_then(|node| {
                let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
                rustix::fs::open(node, flags, Mode::empty()).ok()
            });
        }
        match open.take() {
            Some(port) if is_connected(&port) => return Ok(port),
            still_closed => open = still_closed,
        }
        if Instant::now() >= deadline {
            let what = if open.is_some() { "nobody at the other end of the port" } else { "no port" };
            return Err(Broken(format!("{what} {PORT_NAME}")));
        }
        sleep(Duration::from_millis(2));
    }
}

/// The device node of the port with our name.
fn find_port() -> Option<PathBuf> {
    fs::read_dir("/sys/class/virtio-ports").ok()?.flatten().find_map(|entry| {
        let name = fs::read_to_string(entry.path().join("name")).ok()?;
        (name.trim_end() == PORT_NAME).then(|| Path::new("/dev").join(entry.file_name()))
    })
}

/// A port without the host hangs up.
fn is_connected(port: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(port.as_fd(), PollFlags::IN | PollFlags::OUT)];
    poll(&mut fds, Some(&now)).is_ok() && !fds[0].revents().contains(PollFlags::HUP)
}

/// Ends the machine. By a restart: the machine has no power button, and its host takes a restart for the end.
fn end_machine() -> ! {
    let _ = reboot(RebootCommand::Restart);
    // It returns only where this is not the machine's own process 1.
    std::process::exit(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_found_among_other_parameters() {
        let hex = "0123456789abcdef".repeat(4);
        let key: Key = hex.parse().unwrap();
        assert_eq!(key_in(&format!("quiet console=hvc0 pvisor.secret={hex} panic=-1\n")), Some(key.clone()));
        assert_eq!(key_in(&format!("pvisor.secret={} pvisor.secret={hex}", "0".repeat(64))), Some(key));
        for line in ["", "quiet", "pvisor.secret", "pvisor.secret=", "pvisor.secret=12", "xpvisor.secret=00"] {
            assert_eq!(key_in(line), None, "{line}");
        }
    }
}
