//! Launching: the process that holds a run's namespaces and starts its command.

mod channel;
mod command;
mod descendants;
mod hold;
mod init;
pub(crate) mod namespaces;
mod stat;
mod still;
pub(crate) mod terminal;
mod trial;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::sys::signal::{SigSet, SigmaskHow};
use pvisor_spec::WorkerFailure;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::failure::failure;
use crate::plan::Plan;
use crate::receipts;
pub(crate) use channel::{Channel, Failed, NetworkStep, Order, Report, Served, Step};
pub(crate) use command::exit_now;
use init::Init;
use namespaces::{IdMaps, Namespaces, Side, UserIds};
pub(crate) use still::{Still, StillError};
pub(crate) use trial::{Trial, Tried};

/// The user namespace, as bundles name it.
pub(crate) const USER_NAMESPACE: &str = "user_namespace";

/// A launched process that is ready to start the command.
pub(crate) struct Launched {
    /// Its process id here.
    pub(crate) pid: Pid,
    /// Readable once it has ended.
    pub(crate) pidfd: OwnedFd,
    pub(crate) channel: Arc<Channel>,
    /// What was tried as the command would, and what came of it.
    pub(crate) tried: Vec<(Trial, Tried)>,
    /// What it is in; `None`: just a process.
    pub(crate) namespaces: Option<Namespaces>,
    /// Whether it has a `/proc` of its own; else the error.
    pub(crate) own_proc: Result<(), i32>,
}

/// Why a launch failed.
#[derive(Debug)]
enum LaunchError {
    /// No such process to be had.
    Fork(Errno),
    /// It could not set itself up.
    SetUp(Failed),
    /// What it mounted can't be served.
    Serve(WorkerFailure),
    /// It died, or the line to it broke.
    Lost,
}

/// Launches the process with the strongest namespaces that this machine lets the caller have. `mask`: signal mask of
/// the command. `serve` gets the device of each filesystem and network that the worker is to serve.
///
/// # Errors
/// No namespaces are to be had and the run needs them; the stage can't be mounted.
pub(crate) fn launch(
    plan: &Plan,
    mask: SigSet,
    serve: &mut dyn FnMut(Served, OwnedFd) -> Result<(), WorkerFailure>,
) -> Result<Launched, WorkerFailure> {
    check_single_thread()?;
    let network = plan.own_network;
    let isolated = plan.sandbox.is_some();
    let own = Namespaces {
        user: Some(UserIds::Own),
        pid: plan.with(receipts::PID_NAMESPACE),
        network,
        ipc: isolated && plan.with(receipts::IPC_NAMESPACE),
        names: isolated,
    };
    let mut attempts = Vec::new();
    if rustix::process::geteuid().is_root() {
        // In a user namespace the mounts are locked. One whose only id is root's would make strangers of all others.
        if !plan.keep_capabilities && plan.with(USER_NAMESPACE) {
            attempts.push(Some(Namespaces { user: Some(UserIds::All), ..own }));
        }
        attempts.push(Some(Namespaces { user: None, ..own }));
    }
    attempts.push(Some(own));
    if plan.stage.is_none() && !network {
        attempts.push(None);
    }
    let mut first_error = None;
    for namespaces in attempts {
        match attempt(plan, mask, namespaces, serve) {
            Ok(launched) => return Ok(launched),
            Err(error) => {
                tracing::debug!(?namespaces, ?error, "launch failed");
                if !error.is_about_namespaces() {
                    return Err(error.into_failure(plan));
                }
                if first_error.is_none() {
                    first_error = Some(error);
                }
            }
        }
    }
    Err(first_error.unwrap_or(LaunchError::Lost).into_failure(plan))
}

fn check_single_thread() -> Result<(), WorkerFailure> {
    match std::fs::read_dir("/proc/self/task").map(Iterator::count) {
        Ok(1) => Ok(()),
        Ok(threads) => Err(failure("internal", format!("the worker has {threads} threads where it must have one"), "")),
        Err(error) => Err(failure("internal", format!("/proc/self/task: {error}"), "mount /proc")),
    }
}

fn attempt(
    plan: &Plan,
    mask: SigSet,
    namespaces: Option<Namespaces>,
    serve: &mut dyn FnMut(Served, OwnedFd) -> Result<(), WorkerFailure>,
) -> Result<Launched, LaunchError> {
    let (near, far) = Channel::pair().map_err(LaunchError::Fork)?;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let maps = match namespaces.and_then(|n| n.user) {
        Some(UserIds::All) => IdMaps::all().map_err(|_| LaunchError::Fork(Errno::NOENT))?,
        _ => IdMaps::own(),
    };
    // SAFETY: `launch` has seen that this process has one thread.
    match unsafe { namespaces::fork_into(namespaces) }.map_err(LaunchError::Fork)? {
        Side::Child => {
            let _ = nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None);
            Init { plan, namespaces, mask, maps, uid, gid }.run(far)
        }
        Side::Parent(pid) => {
            drop(far);
            if namespaces.is_some_and(|n| n.user == Some(UserIds::All)) {
                // Without its ids it fails, which is heard below.
                let order = if maps.write_for(pid).is_ok() { Order::Mapped } else { Order::Kill };
                let _ = near.send(&order, None);
            }
            let pid = Pid::from_raw(pid).ok_or(LaunchError::Lost)?;
            let ready = wait_until_ready(&near, serve);
            match (ready, rustix::process::pidfd_open(pid, PidfdFlags::empty())) {
                (Ok((tried, own_proc)), Ok(pidfd)) => {
                    Ok(Launched { pid, pidfd, channel: Arc::new(near), tried, namespaces, own_proc })
                }
                (ready, pidfd) => {
                    // Its end of the channel is all that it lives for.
                    drop(near);
                    // But it may wait for a filesystem that nobody serves.
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                    let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
                    ready.map(drop)?;
                    Err(LaunchError::Fork(pidfd.err().unwrap_or(Errno::IO)))
                }
            }
        }
    }
}

/// Most things that are tried.
const MOST_TRIED: usize = 64;

type Ready = (Vec<(Trial, Tried)>, Result<(), i32>);

fn wait_until_ready(
    channel: &Channel,
    serve: &mut dyn FnMut(Served, OwnedFd) -> Result<(), WorkerFailure>,
) -> Result<Ready, LaunchError> {
    let mut results = Vec::new();
    loop {
        let received = channel.receive::<Report>().map_err(|_| LaunchError::Lost)?.ok_or(LaunchError::Lost)?;
        match received.message {
            Report::Offered(which) => {
                serve(which, received.fd.ok_or(LaunchError::Lost)?).map_err(LaunchError::Serve)?;
                channel.send(&Order::Serving, None).map_err(|_| LaunchError::Lost)?;
            }
            Report::Tried { trial, tried } if results.len() < MOST_TRIED => results.push((trial, tried)),
            Report::Ready { own_proc } => return Ok((results, own_proc)),
            Report::Failed(failed) => return Err(LaunchError::SetUp(failed)),
            _ => return Err(LaunchError::Lost),
        }
    }
}

impl LaunchError {
    /// Whether other namespaces, or none, may go better.
    fn is_about_namespaces(&self) -> bool {
        match self {
            Self::Fork(_) => true,
            Self::SetUp(failed) => match failed.step {
                Step::UserMap | Step::MountPrivacy => true,
                Step::StageMount | Step::Network(_) => failed.errno == Errno::PERM.raw_os_error(),
                _ => false,
            },
            Self::Serve(_) | Self::Lost => false,
        }
    }

    fn into_failure(self, plan: &Plan) -> WorkerFailure {
        match self {
            Self::Fork(errno) => {
                let needed = if plan.stage.is_some() { "a stage" } else { "what was asked for" };
                failure(
                    "namespaces",
                    format!("no namespaces are to be had, and {needed} needs them: {errno}"),
                    NAMESPACE_HINT,
                )
            }
            Self::SetUp(failed) => failed.into_failure(plan),
            Self::Serve(failure) => failure,
            Self::Lost => failure("internal", "the launched process died while setting itself up", ""),
        }
    }
}

/// What to try where namespaces are refused.
pub(crate) const NAMESPACE_HINT: &str = "allow unprivileged user namespaces (sysctl user.max_user_namespaces, \
     kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns), or run as root";

/// What to try where a sandbox can't be made.
const SANDBOX_HINT: &str = "it takes Linux 5.12, user namespaces and a /proc that is not covered in part, as in \
     containers; `pvisor doctor` shows what this machine lacks";

/// What to try where a network of the command's own can't be made.
const NETWORK_HINT: &str = "it takes user namespaces, or root, and a /dev/net/tun that this user may open (modprobe tun; \
     mode 0666 is usual); `pvisor doctor` shows what this machine lacks";

/// What to try where `/dev/fuse` is missing or closed.
pub(crate) const FUSE_HINT: &str =
    "load the module (modprobe fuse) and make /dev/fuse readable and writable for this user (mode 0666 is usual)";

impl Failed {
    pub(crate) fn into_failure(self, plan: &Plan) -> WorkerFailure {
        let errno = Errno::from_raw_os_error(self.errno);
        match self.step {
            Step::Descriptors => failure("internal", format!("can't close inherited descriptors: {errno}"), ""),
            Step::UserMap => {
                failure("namespaces", format!("can't map ids in a user namespace: {errno}"), NAMESPACE_HINT)
            }
            Step::MountPrivacy => {
                failure("namespaces", format!("can't detach the mount namespace: {errno}"), NAMESPACE_HINT)
            }
            Step::FuseDevice => failure("mount", format!("/dev/fuse: {errno}"), FUSE_HINT),
            Step::StageMount => {
                let project = plan.project.display();
                failure("mount", format!("can't mount the stage on {project}: {errno}"), NAMESPACE_HINT)
            }
            Step::Network(what) => {
                let what = match what {
                    NetworkStep::Loopback => "bring the loopback up",
                    NetworkStep::Device => "make a TAP device (/dev/net/tun)",
                    NetworkStep::Addresses => "give the TAP device its addresses",
                    NetworkStep::Resolver => "name the resolver",
                };
                failure("network", format!("can't {what} in a network namespace: {errno}"), NETWORK_HINT)
            }
            Step::WorkingDirectory => failure("cwd", format!("working directory {}: {errno}", plan.cwd.display()), ""),
            Step::Restriction(which) => failure(
                "restriction",
                format!("the command's process can't be restricted ({which:?}): {errno}"),
                "`pvisor doctor` shows what this machine lacks",
            ),
            Step::Sandbox(number) => {
                let what = number.and_then(|n| plan.sandbox.as_ref()?.ops.get(usize::from(n)));
                let what = what.map_or("its root directory".to_owned(), |op| op.place().display().to_string());
                failure("sandbox", format!("the sandbox can't be made: {what}: {errno}"), SANDBOX_HINT)
            }
            Step::Trial => failure("probe", "the process that probes the sandbox died", ""),
            Step::Process => failure("internal", format!("can't start a process: {errno}"), ""),
            Step::Identity => failure(
                "identity",
                format!("can't become user {}, group {}, other groups {:?}: {errno}", plan.uid, plan.gid, plan.groups),
                "",
            ),
        }
    }
}
