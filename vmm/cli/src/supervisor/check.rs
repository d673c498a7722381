//! Checking a worker's claims against what the kernel says of the command's process.

use std::fs;
use std::path::{Path, PathBuf};

use pvisor_spec::{KnownBy, Level, Receipt};

/// Controls that are namespaces, and the name of each in `/proc/PID/ns`.
const NAMESPACES: [(&str, &str); 7] = [
    ("cgroup_namespace", "cgroup"),
    ("ipc_namespace", "ipc"),
    ("mount_namespace", "mnt"),
    ("network_namespace", "net"),
    ("pid_namespace", "pid"),
    ("user_namespace", "user"),
    ("uts_namespace", "uts"),
];

/// Controls that show in `/proc/PID/status`: name, field, value.
const FIELDS: [(&str, &str, &str); 2] = [("no_new_privs", "NoNewPrivs", "1"), ("seccomp", "Seccomp", "2")];

/// What the kernel says of a claim.
#[derive(Debug, PartialEq, Eq)]
enum Finding {
    /// It is so.
    True,
    /// It is not so.
    False,
    /// It does not say, or not any more.
    Silent,
}

/// Checks each receipt that can be: a claim that is true is known by observation, one that is not is worth nothing.
pub(crate) fn check(receipts: &mut [Receipt], pid: Option<u32>) {
    check_in(receipts, pid, Path::new("/proc"));
}

fn check_in(receipts: &mut [Receipt], pid: Option<u32>, proc: &Path) {
    let Some(process) = pid.map(|pid| proc.join(pid.to_string())) else { return };
    for receipt in receipts {
        match find(&receipt.control.0, &process, &proc.join("self")) {
            Finding::True => receipt.known_by = KnownBy::Observed,
            Finding::False => {
                receipt.level = Level::Unenforced;
                receipt.known_by = KnownBy::Observed;
                receipt.detail = format!("claimed, but not so in {}", process.display());
            }
            Finding::Silent => {}
        }
    }
}

fn find(control: &str, process: &Path, own: &Path) -> Finding {
    if let Some((_, name)) = NAMESPACES.iter().find(|(c, _)| *c == control) {
        let namespace = |of: &Path| -> Option<PathBuf> { fs::read_link(of.join("ns").join(name)).ok() };
        return match (namespace(process), namespace(own)) {
            (Some(theirs), Some(ours)) if theirs != ours => Finding::True,
            (Some(_), Some(_)) => Finding::False,
            _ => Finding::Silent,
        };
    }
    let Some((_, field, value)) = FIELDS.iter().find(|(c, _, _)| *c == control) else { return Finding::Silent };
    let Ok(status) = fs::read_to_string(process.join("status")) else { return Finding::Silent };
    let found = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    match found {
        Some(found) if found.trim() == *value => Finding::True,
        Some(_) => Finding::False,
        None => Finding::Silent,
    }
}

#[cfg(test)]
mod tests {
    use pvisor_spec::{Control, Dimension};

    use super::*;

    fn receipt(control: &str) -> Receipt {
        Receipt {
            control: Control(control.to_owned()),
            dimensions: vec![Dimension::Subprocess],
            level: Level::Enforced,
            known_by: KnownBy::Returned,
            detail: String::new(),
        }
    }

    #[test]
    fn a_false_claim_is_worth_nothing_and_an_unknown_one_stays_a_claim() {
        // This process is in no namespace but its own.
        let mut receipts = [receipt("pid_namespace"), receipt("stage_mount")];
        check(&mut receipts, Some(std::process::id()));
        assert_eq!((receipts[0].level, receipts[0].known_by), (Level::Unenforced, KnownBy::Observed));
        assert_eq!((receipts[1].level, receipts[1].known_by), (Level::Enforced, KnownBy::Returned));
    }

    #[test]
    fn a_true_claim_is_observed() {
        let proc = tempfile::tempdir().unwrap();
        for (process, ns, privs) in [("self", "pid:[1]", "0"), ("7", "pid:[2]", "1")] {
            let dir = proc.path().join(process);
            fs::create_dir_all(dir.join("ns")).unwrap();
            std::os::unix::fs::symlink(ns, dir.join("ns/pid")).unwrap();
            fs::write(dir.join("status"), format!("Name:\tx\nNoNewPrivs:\t{privs}\nSeccomp:\t0\n")).unwrap();
        }
        let mut receipts = [receipt("pid_namespace"), receipt("no_new_privs"), receipt("seccomp")];
        check_in(&mut receipts, Some(7), proc.path());
        let levels = receipts.each_ref().map(|r| r.level);
        assert_eq!(levels, [Level::Enforced, Level::Enforced, Level::Unenforced]);
        assert!(receipts.iter().all(|r| r.known_by == KnownBy::Observed));
    }

    #[test]
    fn a_process_that_is_gone_says_nothing() {
        let mut receipts = [receipt("pid_namespace")];
        check_in(&mut receipts, Some(7), tempfile::tempdir().unwrap().path());
        assert_eq!(receipts[0].known_by, KnownBy::Returned);
    }
}
