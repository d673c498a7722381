//! The launched process: process 1 of its namespace, where it has one. It sets everything up, starts the command,
//! passes signals on, reaps orphans, and takes everything down with it when it ends.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use pvisor_netstack::{Tap, TapError, bring_loopback_up, configure_interface};
use pvisor_spec::CommandEnd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::WaitOptions;

use super::channel::{Channel, Failed, NetworkStep, Order, Report, Served, Step};
use super::command::{self, Start};
use super::hold::Held;
use super::namespaces::{self, IdMaps, Namespaces, UserIds};
use super::{descendants, terminal, trial};
use crate::egress::RESOLVER;
use crate::plan::{EgressPlan, Plan};
use crate::receipts;
use crate::sandbox::{self, Sandbox};

/// Where the channel is in the launched process: the first descriptor after the standard ones.
const CHANNEL: i32 = 3;

/// Name of the command's network interface.
const CARD: &str = "eth0";

/// Where services of the host listen that resolve names.
const RESOLVER_SOCKETS: [&str; 4] = [
    "/run/systemd/resolve/io.systemd.Resolve",
    "/run/systemd/resolve/io.systemd.Resolve.Monitor",
    "/run/nscd/socket",
    "/run/avahi-daemon/socket",
];

/// Everything that the launched process needs.
pub(crate) struct Init<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) namespaces: Option<Namespaces>,
    /// Signal mask of the command.
    pub(crate) mask: SigSet,
    /// The caller's ids.
    pub(crate) maps: IdMaps,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Init<'_> {
    /// Runs to the end of the command and of everything it started. Never returns; all signals are blocked.
    pub(crate) fn run(self, channel: Channel) -> ! {
        // A panic must not go back into what the worker was doing when it forked.
        let supervise = std::panic::AssertUnwindSafe(|| self.supervise(channel));
        let outcome = std::panic::catch_unwind(supervise);
        // After an error there is nobody left to tell.
        let code = if matches!(outcome, Ok(Ok(()))) { 0 } else { 1 };
        if self.namespaces.is_none_or(|n| !n.pid) {
            descendants::kill_all();
        }
        // The end of process 1 is the end of its namespace: the kernel kills what is left in it, and only then lets
        // the parent see the end of this process.
        command::exit_now(code)
    }

    fn supervise(&self, channel: Channel) -> Result<(), Errno> {
        let channel = keep_only(channel)?;
        match self.set_up(&channel) {
            Ok(own_proc) => channel.send(&Report::Ready { own_proc }, None)?,
            Err(failed) => return channel.send(&Report::Failed(failed), None),
        }
        let foreground = loop {
            match channel.receive::<Order>()?.map(|r| r.message) {
                Some(Order::Start { foreground }) => break foreground,
                // Nothing runs yet that a signal could go to.
                Some(
                    Order::Signal(_)
                    | Order::Continue { .. }
                    | Order::Hold
                    | Order::Release
                    | Order::Stop
                    | Order::Mapped
                    | Order::Serving,
                ) => {}
                Some(Order::Kill) | None => return Ok(()),
            }
        };
        if let Err(error) = rustix::process::chdir(&self.plan.cwd) {
            let failed = Failed { step: Step::WorkingDirectory, errno: error.raw_os_error() };
            return channel.send(&Report::Failed(failed), None);
        }
        match command::start(self.plan, self.namespaces.is_none(), &self.mask, foreground, &channel) {
            Err(failed) => channel.send(&Report::Failed(failed), None),
            Ok(Start::Ended(end)) => channel.send(&Report::Ended(end), None),
            Ok(Start::Running(command)) => {
                channel.send(&Report::Started, None)?;
                attend(command, self.namespaces.is_some_and(|n| n.pid), &channel)
            }
        }
    }

    /// Makes the surroundings of the command; says whether `/proc` is its own.
    fn set_up(&self, channel: &Channel) -> Result<Result<(), i32>, Failed> {
        // A group of its own: signals of the terminal go to the worker and come from there.
        let _ = nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0));
        let Some(namespaces) = self.namespaces else {
            at(Step::Process, rustix::process::set_child_subreaper(Some(rustix::process::getpid())))?;
            trial::run(self.plan, channel, true)?;
            return Ok(Err(Errno::NOSYS.raw_os_error()));
        };
        let kill = Some(rustix::process::Signal::KILL);
        at(Step::Process, rustix::process::set_parent_process_death_signal(kill))?;
        if !namespaces.pid {
            at(Step::Process, rustix::process::set_child_subreaper(Some(rustix::process::getpid())))?;
        }
        match namespaces.user {
            None => {}
            Some(UserIds::Own) => at(Step::UserMap, self.maps.write())?,
            Some(UserIds::All) => match at(Step::UserMap, channel.receive::<Order>())?.map(|r| r.message) {
                Some(Order::Mapped) => {}
                _ => return Err(Failed { step: Step::UserMap, errno: Errno::PERM.raw_os_error() }),
            },
        }
        at(Step::MountPrivacy, namespaces::keep_mounts_inside())?;
        if namespaces.network {
            bring_loopback_up().map_err(|e| not_networked(NetworkStep::Loopback, &e.source))?;
        }
        if let Some(egress) = &self.plan.egress {
            self.lead_out(egress, channel)?;
        }
        let own_proc = match &self.plan.sandbox {
            Some(sandbox) if self.plan.with(receipts::PROJECTED_ROOT) => {
                self.enter_sandbox(sandbox, channel)?;
                Ok(())
            }
            _ => {
                if self.plan.stage.is_some() {
                    at(Step::StageMount, self.serve(Served::Project, &self.plan.project, channel))?;
                }
                let own_proc = namespaces::mount_proc();
                if own_proc.is_ok() && !self.plan.keep_capabilities {
                    // A kernel that can't leaves them to the user's rights, as the rest of the host is.
                    let _ = sandbox::freeze_settings();
                }
                own_proc.map_err(Errno::raw_os_error)
            }
        };
        trial::run(self.plan, channel, false)?;
        Ok(own_proc)
    }

    /// Makes the network's only way out, and has the worker serve it. It comes before the other mounts, so that a
    /// sandbox shows the resolver's file as it is then.
    fn lead_out(&self, egress: &EgressPlan, channel: &Channel) -> Result<(), Failed> {
        use NetworkStep::{Addresses, Device, Resolver};
        let tap = Tap::create(CARD).map_err(|e| match e {
            TapError::Open(e) | TapError::Create { source: e, .. } => not_networked(Device, &e),
            TapError::Name(_) => not_networked(Device, &Errno::INVAL.into()),
        })?;
        configure_interface(CARD, &egress.link).map_err(|e| not_networked(Addresses, &e.source))?;
        at(Step::Network(Device), self.offer(Served::Network, tap.into_fd(), channel))?;
        let file = self.plan.run_dir.join(RESOLVER);
        at(Step::Network(Resolver), rustix::mount::mount_bind(&file, &egress.resolver))?;
        for socket in RESOLVER_SOCKETS {
            // A resolver of the host would answer past the policy, and its answers would open nothing.
            if Path::new(socket).exists() {
                at(Step::Network(Resolver), rustix::mount::mount_bind("/dev/null", socket))?;
            }
        }
        Ok(())
    }

    fn enter_sandbox(&self, sandbox: &Sandbox, channel: &Channel) -> Result<(), Failed> {
        let entered = sandbox::build(sandbox, |which, place| self.serve(which, place, channel));
        entered.map_err(|(number, e)| Failed { step: Step::Sandbox(number), errno: e.raw_os_error() })
    }

    /// Mounts what the worker serves, and waits until it does.
    fn serve(&self, which: Served, place: &Path, channel: &Channel) -> Result<(), Errno> {
        let device = open_device()?;
        pvisor_virtiofs::fuse::mount(device.as_fd(), place, self.uid, self.gid)?;
        self.offer(which, device, channel)
    }

    /// Gives the worker something to serve, and waits until it does.
    fn offer(&self, which: Served, device: OwnedFd, channel: &Channel) -> Result<(), Errno> {
        channel.send(&Report::Offered(which), Some(device.as_fd()))?;
        // As long as it is open here, the end of the worker would not be its end.
        drop(device);
        match channel.receive::<Order>()?.map(|r| r.message) {
            Some(Order::Serving) => Ok(()),
            _ => Err(Errno::CANCELED),
        }
    }
}

fn not_networked(step: NetworkStep, error: &std::io::Error) -> Failed {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    Failed { step: Step::Network(step), errno: errno.raw_os_error() }
}

fn at<T>(step: Step, result: Result<T, Errno>) -> Result<T, Failed> {
    result.map_err(|e| Failed { step, errno: e.raw_os_error() })
}

/// Opens the device in the user namespace that mounts it, as the kernel wants.
pub(crate) fn open_device() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Closes every descriptor but the standard ones and the channel.
fn keep_only(channel: Channel) -> Result<Channel, Errno> {
    let old = OwnedFd::from(channel);
    let kept = if old.as_raw_fd() == CHANNEL {
        old
    } else {
        // SAFETY: descriptor 3 of this process is free or one that was inherited from the worker, and nothing here
        // uses those: this process runs only the code from here on.
        let fd = unsafe { libc::dup3(old.as_raw_fd(), CHANNEL, libc::O_CLOEXEC) };
        if fd != CHANNEL {
            return Err(Errno::BADF);
        }
        // Closed with the others below.
        std::mem::forget(old);
        // SAFETY: the call above made it, for nobody else.
        unsafe { OwnedFd::from_raw_fd(fd) }
    };
    // SAFETY: as above, everything beyond was inherited and is not used.
    unsafe { namespaces::close_from(CHANNEL.cast_unsigned() + 1) }?;
    Ok(Channel::from(kept))
}

/// Waits for the command's end; meanwhile reaps, and does what the worker orders. `first`: this is process 1 of its
/// namespace.
fn attend(command: Pid, first: bool, channel: &Channel) -> Result<(), Errno> {
    let mut held = None;
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    let signals = SignalFd::with_flags(&children, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(|e| Errno::from_raw_os_error(e as i32))?;
    loop {
        // Before the wait: a child may have ended before the descriptor was there.
        if let Some(end) = reap(command, channel)? {
            return channel.send(&Report::Ended(end), None);
        }
        let (child_ended, order_came) = wait_for(signals.as_fd(), channel.as_fd())?;
        if child_ended {
            while let Ok(Some(_)) = signals.read_signal() {}
        }
        if order_came {
            let order = channel.receive::<Order>()?;
            match order.as_ref().map(|r| r.message) {
                Some(Order::Signal(signal)) => signal_group(command, signal),
                Some(Order::Stop) if first => stop_all(),
                Some(Order::Continue { foreground }) => {
                    if foreground {
                        terminal::give_to(command);
                    }
                    signal_group(command, libc::SIGCONT);
                }
                Some(Order::Hold) if first => {
                    held.get_or_insert_with(Held::hold);
                    channel.send(&Report::Held, None)?;
                }
                Some(Order::Release) => held.take().into_iter().for_each(Held::release),
                Some(Order::Hold | Order::Stop | Order::Start { .. } | Order::Mapped | Order::Serving) => {}
                Some(Order::Kill) | None => return Ok(()),
            }
        }
    }
}

fn wait_for(signals: BorrowedFd<'_>, channel: BorrowedFd<'_>) -> Result<(bool, bool), Errno> {
    let mut fds = [PollFd::new(signals, PollFlags::POLLIN), PollFd::new(channel, PollFlags::POLLIN)];
    match nix::poll::poll(&mut fds, PollTimeout::NONE) {
        Ok(_) | Err(nix::Error::EINTR) => {}
        Err(e) => return Err(Errno::from_raw_os_error(e as i32)),
    }
    let happened = |fd: &PollFd<'_>| fd.revents().is_some_and(|r| !r.is_empty());
    Ok((happened(&fds[0]), happened(&fds[1])))
}

/// Takes in all ended children; returns the command's end once it is among them.
fn reap(command: Pid, channel: &Channel) -> Result<Option<CommandEnd>, Errno> {
    loop {
        let (pid, status) = match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some(ended)) => ended,
            Ok(None) | Err(Errno::CHILD) => return Ok(None),
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        };
        if pid.as_raw_nonzero().get() != command.as_raw() {
            continue;
        }
        let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
        if let Some(code) = status.exit_status() {
            return Ok(Some(CommandEnd::Exited(byte(code))));
        }
        if let Some(signal) = status.terminating_signal() {
            return Ok(Some(CommandEnd::Signaled(byte(signal))));
        }
        if let Some(signal) = status.stopping_signal() {
            channel.send(&Report::Stopped(signal), None)?;
        }
    }
}

/// Stops every process of this one's namespace at once: none can fork and get away in between.
fn stop_all() {
    // Elsewhere it would be every process of the user.
    if rustix::process::getpid().is_init() {
        // SAFETY: kill reads its arguments only.
        unsafe { libc::kill(-1, libc::SIGSTOP) };
    }
}

fn signal_group(command: Pid, signal: i32) {
    // SAFETY: kill reads its arguments only. The library's own type has no real-time signals.
    unsafe { libc::kill(-command.as_raw(), signal) };
}
