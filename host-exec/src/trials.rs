//! Which trials a run makes, what each is to show, and the listeners on the host that some try to reach.

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;

use pvisor_spec::{Control, Probe, WorkerFailure};
use rustix::io::Errno;

use crate::failure::failure;
use crate::launch::{Trial, Tried};
use crate::plan::Plan;
use crate::receipts;
use crate::restrict;

/// Names of processes below this one can be those of another process namespace by chance.
const LEAST_TELLING_PID: i32 = 32;

/// What the process that tries has to know.
#[derive(Debug)]
pub(crate) struct Trials {
    list: Vec<Trial>,
    /// A name that nothing else has.
    pub(crate) name: String,
    /// A file of the host that no sandbox shows.
    pub(crate) outside: PathBuf,
    /// A covered path.
    pub(crate) secret: Option<PathBuf>,
    pub(crate) socket_path: PathBuf,
    pub(crate) loopback_port: u16,
    pub(crate) host_process: i32,
}

impl Trials {
    /// What is tried. `alone`: without namespaces.
    pub(crate) fn of(&self, alone: bool) -> impl Iterator<Item = Trial> {
        self.list.iter().copied().filter(move |trial| !alone || !trial.is_about_namespaces())
    }
}

/// What the trials try to reach on the host, for as long as they do.
#[derive(Default)]
pub(crate) struct Decoys {
    listeners: Vec<OwnedFd>,
    files: Vec<PathBuf>,
}

impl Drop for Decoys {
    fn drop(&mut self) {
        for file in &self.files {
            // The run's own directory goes with the run in any case.
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Decides on the plan's trials, and sets up what they need.
///
/// # Errors
/// No listener is to be had.
pub(crate) fn prepare(plan: &Plan) -> Result<Decoys, WorkerFailure> {
    let broken = |what: &str, e: std::io::Error| {
        failure("probe", format!("what is to be probed can't be prepared: {what}: {e}"), "")
    };
    let name = format!("pvisor-probe-{}", plan.id);
    let (socket_path, outside) = (plan.run_dir.join("probe.socket"), plan.run_dir.join("probe"));
    let list = list(plan);
    let (mut decoys, mut loopback_port) = (Decoys::default(), 0);
    if list.contains(&Trial::OutsideRead) {
        std::fs::write(&outside, "").map_err(|e| broken("a file", e))?;
        decoys.files.push(outside.clone());
    }
    // A path can be too long for a socket; then there is none to reach either.
    if list.contains(&Trial::PathSocket)
        && let Ok(listener) = UnixListener::bind(&socket_path)
    {
        decoys.listeners.push(listener.into());
        decoys.files.push(socket_path.clone());
    }
    if list.contains(&Trial::AbstractSocket) {
        let address = SocketAddr::from_abstract_name(&name).map_err(|e| broken("a name", e))?;
        decoys.listeners.push(UnixListener::bind_addr(&address).map_err(|e| broken("a socket", e))?.into());
    }
    if list.contains(&Trial::HostLoopback) {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|e| broken("a listener", e))?;
        loopback_port = tcp.local_addr().map_err(|e| broken("a listener", e))?.port();
        decoys.listeners.push(tcp.into());
    }
    let trials = Trials {
        list,
        name,
        outside,
        secret: plan.sandbox.as_ref().and_then(|s| s.first_cover().cloned()),
        socket_path,
        loopback_port,
        host_process: std::process::id().cast_signed(),
    };
    // Set once: a plan is for one run.
    let _ = plan.trials.set(trials);
    Ok(decoys)
}

fn list(plan: &Plan) -> Vec<Trial> {
    let mut list = vec![Trial::Descriptor];
    let mut when = |holds: bool, trials: &[Trial]| {
        if holds {
            list.extend(trials);
        }
    };
    let restrictions = &plan.restrictions;
    when(restrictions.drops_capabilities(), &[Trial::Capabilities, Trial::RawSocket]);
    when(restrictions.drops_capabilities() && plan.stage.is_some(), &[Trial::Unmount]);
    when(restrictions.no_new_privs(), &[Trial::NewPrivileges]);
    when(restrictions.filters_calls(), &[Trial::FilteredCall]);
    when(restrictions.filters_calls() && !plan.allow_user_namespaces, &[Trial::UserNamespace]);
    when(restrictions.open_files().is_some(), &[Trial::FileLimit]);
    let telling = std::process::id().cast_signed() >= LEAST_TELLING_PID;
    when(telling && plan.with(receipts::PID_NAMESPACE), &[Trial::HostProcess]);
    when(plan.own_network, &[Trial::HostLoopback, Trial::AbstractSocket]);
    when(plan.own_network && plan.egress.is_none(), &[Trial::Internet]);
    if let Some(sandbox) = &plan.sandbox {
        let root = plan.with(receipts::PROJECTED_ROOT);
        when(root, &[Trial::OutsideRead, Trial::OutsideWrite, Trial::PathSocket, Trial::KernelSetting]);
        when(root && plan.with(receipts::PRIVATE_DEVICES), &[Trial::Device]);
        // Who keeps capabilities can read the empty file that covers it.
        let covered = sandbox.first_cover().is_some() && restrictions.drops_capabilities();
        when(root && covered, &[Trial::Secret]);
        when(!plan.own_network && plan.with(restrict::LANDLOCK) && plan.scopes(), &[Trial::AbstractSocket]);
    }
    list
}

/// What came of a trial, against what is expected of it. `alone`: without namespaces.
pub(crate) fn judge(trial: Trial, tried: Tried, alone: bool) -> Probe {
    let (name, control, expected): (_, _, &[Errno]) = match trial {
        Trial::Capabilities => ("use_a_capability", restrict::CAPABILITIES, &[Errno::PERM]),
        Trial::NewPrivileges => ("gain_privileges", restrict::NO_NEW_PRIVS, &[Errno::PERM]),
        Trial::FilteredCall => ("forbidden_system_call", restrict::SECCOMP, &[Errno::PERM]),
        Trial::UserNamespace => ("make_user_namespace", restrict::SECCOMP, &[Errno::PERM]),
        Trial::Unmount => ("unmount_project", restrict::CAPABILITIES, &[Errno::PERM]),
        Trial::Descriptor => ("inherited_descriptor", "closed_descriptors", &[Errno::BADF]),
        Trial::HostProcess => ("signal_host_process", receipts::PID_NAMESPACE, &[Errno::SRCH]),
        Trial::OutsideRead => ("read_outside", receipts::PROJECTED_ROOT, &[Errno::NOENT, Errno::ACCESS]),
        Trial::OutsideWrite => ("write_outside", receipts::PROJECTED_ROOT, &[Errno::ROFS, Errno::ACCESS]),
        Trial::Secret => ("read_secret", receipts::SECRET_PATHS, &[Errno::ACCESS]),
        Trial::Device => ("open_host_device", receipts::PRIVATE_DEVICES, &[Errno::NOENT]),
        Trial::KernelSetting => ("change_kernel_setting", receipts::PROJECTED_ROOT, &[Errno::ROFS, Errno::ACCESS]),
        Trial::PathSocket => {
            ("connect_path_socket", receipts::PROJECTED_ROOT, &[Errno::NOENT, Errno::ACCESS, Errno::CONNREFUSED])
        }
        Trial::AbstractSocket => {
            ("connect_abstract_socket", receipts::NETWORK_NAMESPACE, &[Errno::CONNREFUSED, Errno::PERM])
        }
        Trial::HostLoopback => ("connect_host_loopback", receipts::NETWORK_NAMESPACE, &[Errno::CONNREFUSED]),
        Trial::Internet => ("reach_internet", receipts::NETWORK_NAMESPACE, &[Errno::NETUNREACH]),
        Trial::RawSocket => ("open_raw_socket", restrict::CAPABILITIES, &[Errno::PERM]),
        Trial::FileLimit => ("open_file_limit", restrict::LIMITS, &[Errno::MFILE]),
    };
    let control = if alone && control == receipts::PROJECTED_ROOT { restrict::LANDLOCK } else { control };
    let names: Vec<String> = expected.iter().map(|e| named(*e)).collect();
    let (observed, holds) = match tried {
        Tried::Worked => ("it worked".to_owned(), false),
        Tried::Refused(errno) => {
            let errno = Errno::from_raw_os_error(errno);
            (format!("refused with {}", named(errno)), expected.contains(&errno))
        }
    };
    Probe {
        name: name.to_owned(),
        control: Control(control.to_owned()),
        expected: format!("refused with {}", names.join(" or ")),
        observed,
        holds,
    }
}

/// An error by the name that manuals have for it.
fn named(errno: Errno) -> String {
    nix::errno::Errno::from_raw(errno.raw_os_error()).to_string().split(':').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_works_or_fails_for_another_reason_does_not_hold() {
        let refused = |errno: Errno| Tried::Refused(errno.raw_os_error());
        assert!(judge(Trial::Unmount, refused(Errno::PERM), false).holds);
        assert!(!judge(Trial::Unmount, refused(Errno::INVAL), false).holds);
        let worked = judge(Trial::OutsideRead, Tried::Worked, true);
        assert_eq!(worked.control.0, restrict::LANDLOCK);
        assert!(!worked.holds);
        assert_eq!(
            (worked.expected.as_str(), worked.observed.as_str()),
            ("refused with ENOENT or EACCES", "it worked")
        );
    }
}
