//! Receipts: what was installed, read back from the kernel where it can be.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pvisor_spec::{Control, Dimension, KnownBy, Level, Probe, Receipt, WorkerFailure};
use pvisor_virtiofs::fuse::MOUNT_TYPE;

use crate::egress::Egress;
use crate::failure::failure;
use crate::launch::namespaces::Namespaces;
use crate::launch::{Launched, USER_NAMESPACE};
use crate::plan::Plan;
use crate::restrict;
use crate::sandbox::{Access, Sandbox, SetupOp};

/// Names of controls, as bundles have them.
pub(crate) const PID_NAMESPACE: &str = "pid_namespace";
pub(crate) const IPC_NAMESPACE: &str = "ipc_namespace";
pub(crate) const NETWORK_NAMESPACE: &str = "network_namespace";
pub(crate) const PROJECTED_ROOT: &str = "projected_root";
pub(crate) const PRIVATE_DEVICES: &str = "private_devices";
pub(crate) const SECRET_PATHS: &str = "secret_paths";

/// Receipts of everything around a launched process. The command does not run yet.
///
/// # Errors
/// The kernel shows something else than what was asked for.
pub(crate) fn collect(
    plan: &Plan,
    launched: &Launched,
    probes: &[Probe],
    egress: Option<&Egress>,
) -> Result<Vec<Receipt>, WorkerFailure> {
    let mut receipts = Vec::new();
    match launched.namespaces {
        Some(namespaces) => of_namespaces(plan, launched, namespaces, egress, &mut receipts)?,
        None => receipts.push(process_group()),
    }
    if let Some(sandbox) = &plan.sandbox {
        if launched.namespaces.is_some() {
            of_root(plan, sandbox, probes, &mut receipts);
        }
        let alone = launched.namespaces.is_none();
        if plan.restrictions.wants_landlock() {
            let installed = plan.restrictions.has_landlock(alone);
            receipts.push(if installed { landlock(alone, probes) } else { no_landlock() });
        }
    }
    of_process(plan, probes, &mut receipts);
    Ok(receipts)
}

/// Real root who keeps his capabilities can leave whatever he is kept in: all of it holds for commands that play along.
pub(crate) fn weaken(plan: &Plan, receipts: &mut [Receipt]) {
    if plan.uid == 0 && !plan.restrictions.drops_capabilities() {
        for receipt in receipts.iter_mut().filter(|r| r.level == Level::Enforced) {
            receipt.level = Level::Cooperative;
        }
    }
}

fn process_group() -> Receipt {
    Receipt {
        control: Control("process_group".to_owned()),
        dimensions: vec![Dimension::Subprocess],
        level: Level::Cooperative,
        known_by: KnownBy::Returned,
        detail: "no namespaces are to be had; descendants are found by their parents and killed".to_owned(),
    }
}

fn of_namespaces(
    plan: &Plan,
    launched: &Launched,
    namespaces: Namespaces,
    egress: Option<&Egress>,
    receipts: &mut Vec<Receipt>,
) -> Result<(), WorkerFailure> {
    // Real root can leave any namespace: what it is kept in holds for commands that play along.
    let root = plan.uid == 0 && !plan.restrictions.drops_capabilities();
    let keeps = if root { "; the command keeps the capabilities of root on this host" } else { "" };
    if namespaces.user.is_some() {
        let detail = "; mounts made outside of it are locked";
        receipts.push(namespace_receipt(launched, "user", USER_NAMESPACE, Vec::new(), detail)?);
    }
    if namespaces.pid {
        receipts.push(namespace_receipt(launched, "pid", PID_NAMESPACE, vec![Dimension::Subprocess], keeps)?);
    }
    if namespaces.ipc {
        receipts.push(namespace_receipt(launched, "ipc", IPC_NAMESPACE, Vec::new(), "")?);
    }
    if plan.sandbox.is_none() {
        let own_proc = match launched.own_proc {
            Ok(()) => "with a /proc of its own",
            Err(_) => "without a /proc of its own: the host's processes can be seen in it",
        };
        let mut mount = namespace_receipt(launched, "mnt", "mount_namespace", vec![Dimension::FilesystemWrite], "")?;
        mount.level = Level::Unenforced;
        mount.detail = format!("{}, {own_proc}; files of the host are as the user's rights allow", mount.detail);
        receipts.push(mount);
    }
    if plan.stage.is_some() {
        receipts.push(stage_receipt(plan, launched, root)?);
    }
    if namespaces.network {
        let paths = if plan.sandbox.is_some() { "" } else { "; unix sockets with a path can still be reached" };
        let way = if egress.is_some() { "; a TAP device to pvisor is its only way out" } else { "; loopback only" };
        let detail = format!("{way}{paths}{keeps}");
        let mut network = namespace_receipt(launched, "net", NETWORK_NAMESPACE, vec![Dimension::Network], &detail)?;
        if let Some(egress) = egress {
            network = egress.receipt(NETWORK_NAMESPACE, &network.detail, network.known_by);
        }
        // A service of the host that listens at a path can do for the command what the command can't.
        network.level = if plan.sandbox.is_some() { Level::Enforced } else { Level::Cooperative };
        receipts.push(network);
    }
    Ok(())
}

/// The level of a control by what was probed: what was tried and refused is observed.
fn probed(control: &str, probes: &[Probe]) -> KnownBy {
    let mut of = probes.iter().filter(|p| p.control.0 == control).peekable();
    if of.peek().is_some() && of.all(|p| p.holds) { KnownBy::Observed } else { KnownBy::Returned }
}

fn enforced(control: &str, dimensions: &[Dimension], probes: &[Probe], detail: String) -> Receipt {
    Receipt {
        control: Control(control.to_owned()),
        dimensions: dimensions.to_vec(),
        level: Level::Enforced,
        known_by: probed(control, probes),
        detail,
    }
}

fn of_root(plan: &Plan, sandbox: &Sandbox, probes: &[Probe], receipts: &mut Vec<Receipt>) {
    if !plan.with(PROJECTED_ROOT) {
        return;
    }
    let both = [Dimension::FilesystemRead, Dimension::FilesystemWrite];
    let shown = |access| {
        let ops = sandbox.ops.iter();
        ops.filter(|op| matches!(op, SetupOp::Bind { access: a, .. } if *a == access)).count()
    };
    let detail = format!(
        "{} directories of the host to read, {} to write; /proc of its own, the kernel's settings read-only",
        shown(Access::Read),
        shown(Access::Write)
    );
    receipts.push(enforced(PROJECTED_ROOT, &both, probes, detail));
    if plan.with(PRIVATE_DEVICES) {
        let detail = format!("{} harmless nodes and pseudo-terminals of its own", shown(Access::Device));
        receipts.push(enforced(PRIVATE_DEVICES, &[Dimension::Devices], probes, detail));
    }
    if plan.with(SECRET_PATHS) {
        receipts.push(secrets(plan, sandbox, probes));
    }
}

fn secrets(plan: &Plan, sandbox: &Sandbox, probes: &[Probe]) -> Receipt {
    let home = match &sandbox.home {
        Some(home) => format!("{} is shown without what matches {} patterns", home.display(), sandbox.hidden.len()),
        None => "of the home directory toolchains at most are shown".to_owned(),
    };
    let environment = if plan.projected_environment { "" } else { "; the command has all of the caller's variables" };
    let detail = format!("{home}; {} other paths are covered{environment}", sandbox.covers.len());
    let mut receipt = enforced(SECRET_PATHS, &[Dimension::Secrets], probes, detail);
    if !plan.projected_environment {
        receipt.level = Level::Cooperative;
    }
    if sandbox.covers.is_empty() {
        // With nothing to cover, what the root does not show says it all.
        receipt.known_by = probed(PROJECTED_ROOT, probes);
    }
    receipt
}

fn landlock(alone: bool, probes: &[Probe]) -> Receipt {
    let version = crate::capability::landlock_version().unwrap_or_default();
    let missing = if alone {
        "; alone: without a projected root, process and queue namespaces, devices of its own and covered secrets"
    } else {
        ""
    };
    Receipt {
        control: Control(restrict::LANDLOCK.to_owned()),
        dimensions: vec![Dimension::FilesystemRead, Dimension::FilesystemWrite],
        level: Level::Enforced,
        known_by: probed(restrict::LANDLOCK, probes),
        detail: format!("interface version {version}{missing}"),
    }
}

fn no_landlock() -> Receipt {
    Receipt {
        control: Control(restrict::LANDLOCK.to_owned()),
        dimensions: Vec::new(),
        level: Level::Unenforced,
        known_by: KnownBy::Observed,
        detail: "this kernel has none: the projected root is the only layer".to_owned(),
    }
}

/// What the command may not do. It is about no dimension of its own: a process that may do little still gets away from
/// its run where nothing but its parents tells whose it is.
fn of_process(plan: &Plan, probes: &[Probe], receipts: &mut Vec<Receipt>) {
    let restrictions = &plan.restrictions;
    if restrictions.drops_capabilities() {
        let detail = "none, and none to be gained by executing a program".to_owned();
        receipts.push(enforced(restrict::CAPABILITIES, &[], probes, detail));
    }
    if restrictions.no_new_privs() {
        let detail = "set-user-id programs run without their rights".to_owned();
        receipts.push(enforced(restrict::NO_NEW_PRIVS, &[], probes, detail));
    }
    if restrictions.filters_calls() {
        let detail = "what no build needs is refused".to_owned();
        receipts.push(enforced(restrict::SECCOMP, &[], probes, detail));
    }
    receipts.extend(limits(plan, probes));
}

/// The limits of each process. Where something else was asked for too, they are not all of it.
fn limits(plan: &Plan, probes: &[Probe]) -> Option<Receipt> {
    let (limits, beyond) = (plan.restrictions.limits(), plan.restrictions.beyond_limits());
    let held: Vec<String> = limits.iter().map(|(which, limit)| format!("{which:?} {limit}")).collect();
    let mut detail = format!("of each process: {}", held.join(", "));
    if !beyond.is_empty() {
        detail.push_str(&format!("; not held by them, but by a control group: {}", beyond.join(", ")));
    }
    let mut receipt = enforced(restrict::LIMITS, &[Dimension::Resources], probes, detail);
    if !beyond.is_empty() {
        receipt.level = Level::Cooperative;
    }
    (!held.is_empty()).then_some(receipt)
}

fn namespace_receipt(
    launched: &Launched,
    kind: &str,
    control: &str,
    dimensions: Vec<Dimension>,
    detail: &str,
) -> Result<Receipt, WorkerFailure> {
    let link = |process: String| std::fs::read_link(format!("/proc/{process}/ns/{kind}"));
    let (own, other) = (link("self".to_owned()), link(launched.pid.as_raw_nonzero().to_string()));
    let (known_by, seen) = match (own, other) {
        (Ok(own), Ok(other)) if own == other => {
            return Err(failure("internal", format!("the {kind} namespace is the worker's own"), ""));
        }
        (Ok(own), Ok(other)) => (KnownBy::Observed, format!("{} (worker: {})", other.display(), own.display())),
        // Somebody else's processes can be hidden in /proc; the namespace came with the process all the same.
        _ => (KnownBy::Returned, "made with the process".to_owned()),
    };
    Ok(Receipt {
        control: Control(control.to_owned()),
        dimensions,
        level: Level::Enforced,
        known_by,
        detail: format!("{seen}{detail}"),
    })
}

fn stage_receipt(plan: &Plan, launched: &Launched, root: bool) -> Result<Receipt, WorkerFailure> {
    let sandboxed = plan.sandbox.is_some() && plan.with(PROJECTED_ROOT);
    let project = plan.project.display();
    let known_by = match std::fs::read(format!("/proc/{}/mountinfo", launched.pid.as_raw_nonzero())) {
        Ok(table) if shows_stage(&table, &plan.project) => KnownBy::Observed,
        Ok(_) => {
            return Err(failure("mount", format!("the stage is not mounted on {project}, although mount said so"), ""));
        }
        Err(_) => KnownBy::Returned,
    };
    let caveat = if root { "; the command is root and could unmount it" } else { "" };
    Ok(Receipt {
        control: Control("stage_mount".to_owned()),
        dimensions: vec![Dimension::FilesystemWrite],
        level: if sandboxed && !root { Level::Enforced } else { Level::Unenforced },
        known_by,
        detail: format!(
            "writes below {project} go to the stage, a FUSE mount{caveat}; writes elsewhere are as {} allows",
            if sandboxed { "the projected root" } else { "the user's right" }
        ),
    })
}

/// Whether the topmost mount on the project is the stage.
fn shows_stage(table: &[u8], project: &Path) -> bool {
    let top = table.split(|b| *b == b'\n').rfind(|line| mount_point(line).is_some_and(|p| p == project));
    let Some(line) = top else { return false };
    let separator = b" - ";
    let Some(at) = line.windows(separator.len()).position(|w| w == separator) else { return false };
    line[at + separator.len()..].split(|b| *b == b' ').next() == Some(MOUNT_TYPE.to_bytes())
}

/// The fifth field of a line of `mountinfo`, in which blanks and backslashes are written as octal numbers.
fn mount_point(line: &[u8]) -> Option<PathBuf> {
    let field = line.split(|b| *b == b' ').nth(4)?;
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|d| *first == b'\\' && d.iter().all(|b| (b'0'..=b'7').contains(b)));
        if let Some(digits) = octal {
            path.push(digits.iter().fold(0, |byte: u8, d| byte.wrapping_mul(8).wrapping_add(d - b'0')));
            rest = &tail[3..];
        } else {
            path.push(*first);
            rest = tail;
        }
    }
    Some(PathBuf::from(OsStr::from_bytes(&path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_mount_on_the_very_path_counts() {
        let line = |path: &str, kind: &str| format!("1 2 0:3 / {path} rw,nosuid shared:1 - {kind} source rw\n");
        let project = Path::new("/home/a b/p");
        let stage = line("/home/a\\040b/p", MOUNT_TYPE.to_str().unwrap());
        let table = line("/", "ext4") + &stage;
        assert!(shows_stage(table.as_bytes(), project));
        assert!(!shows_stage((table.clone() + &line("/home/a\\040b/p", "tmpfs")).as_bytes(), project));
        assert!(!shows_stage(table.as_bytes(), Path::new("/home/a b")));
        assert!(!shows_stage(b"garbage\n1 2 3 4 /p", Path::new("/p")));
    }

    #[test]
    fn odd_names_are_read_as_the_kernel_writes_them() {
        let path = |field: &str| mount_point(format!("1 2 3 / {field} rw").as_bytes()).unwrap();
        assert_eq!(path("/a\\134b\\012c"), Path::new("/a\\b\nc"));
        assert_eq!(path("/a\\9"), Path::new("/a\\9"));
    }
}
