//! Receipts: what was installed, read back from the kernel where it can be.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pvisor_spec::{Control, Dimension, KnownBy, Level, Receipt, WorkerFailure};
use pvisor_virtiofs::fuse::MOUNT_TYPE;

use crate::failure::failure;
use crate::launch::Launched;
use crate::plan::Plan;

/// Receipts of everything around a launched process. The command does not run yet.
///
/// # Errors
/// The kernel shows something else than what was asked for.
pub(crate) fn collect(plan: &Plan, launched: &Launched) -> Result<Vec<Receipt>, WorkerFailure> {
    let mut receipts = Vec::new();
    let Some(namespaces) = launched.namespaces else {
        receipts.push(Receipt {
            control: Control("process_group".to_owned()),
            dimensions: vec![Dimension::Subprocess],
            level: Level::Cooperative,
            known_by: KnownBy::Returned,
            detail: "no namespaces are to be had; descendants are found by their parents and killed".to_owned(),
        });
        return Ok(receipts);
    };
    let root = !namespaces.user && plan.uid == 0;
    // Real root can leave any namespace: what it is kept in holds for commands that play along.
    let keeps = if root { "; the command keeps the capabilities of root on this host" } else { "" };
    let level = if root { Level::Cooperative } else { Level::Enforced };
    let mut processes = namespace_receipt(launched, "pid", "pid_namespace", vec![Dimension::Subprocess], keeps)?;
    processes.level = level;
    receipts.push(processes);
    let own_proc = match launched.own_proc {
        Ok(()) => "with a /proc of its own",
        Err(_) => "without a /proc of its own: the host's processes can be seen in it",
    };
    let mut mount = namespace_receipt(launched, "mnt", "mount_namespace", vec![Dimension::FilesystemWrite], "")?;
    mount.level = Level::Unenforced;
    mount.detail = format!("{}, {own_proc}; files of the host are as the user's rights allow", mount.detail);
    receipts.push(mount);
    if plan.stage.is_some() {
        receipts.push(stage_receipt(plan, launched, root)?);
    }
    if namespaces.network {
        let detail = format!("; loopback only; unix sockets with a path can still be reached{keeps}");
        let mut network = namespace_receipt(launched, "net", "network_namespace", vec![Dimension::Network], &detail)?;
        network.level = level;
        receipts.push(network);
    }
    Ok(receipts)
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
        level: Level::Unenforced,
        known_by,
        detail: format!(
            "writes below {project} go to the stage{caveat}; writes elsewhere are as the user's rights allow"
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
