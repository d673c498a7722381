//! The control group of a run: what all of its processes together can use up.
//!
//! Version 2 where this process may make groups below its own, or below the root of a hierarchy that it can write;
//! else the old hierarchies, which root can still write on machines that have nothing else.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pvisor_spec::{Control, Dimension, KnownBy, Level, Receipt, Resources};

use crate::plan::Plan;

/// The control, as bundles name it.
pub(crate) const CONTROL_GROUP: &str = "control_group";

/// What groups of runs are called before the run's name.
const PREFIX: &str = "pvisor-";

/// Length of the period in which processors are counted, in microseconds.
const PERIOD: u64 = 100_000;

/// Age from which a group without processes is one that was left: a younger one may be about to get its first.
const LEFT: Duration = Duration::from_secs(60);

/// The groups of one run, one in each hierarchy that limits it. Gone with it.
pub(super) struct Groups {
    groups: Vec<PathBuf>,
    /// What was read back.
    seen: Vec<String>,
    version: u8,
}

/// A file of a group with what is written to it.
type Limit = (&'static str, String);

impl Groups {
    /// Makes groups for what is to be limited and puts a process into them. `None`: there is nothing to limit, or no
    /// group to be had.
    pub(super) fn make(plan: &Plan, pid: i32) -> Option<Self> {
        if !plan.with(CONTROL_GROUP) || of_unified(&plan.resources).is_empty() {
            return None;
        }
        let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let name = format!("{PREFIX}{}", plan.id);
        Self::unified(&table, &own, &name, &plan.resources, pid)
            .or_else(|| Self::old(&table, &own, &name, &plan.resources, pid))
    }

    fn unified(table: &str, own: &str, name: &str, resources: &Resources, pid: i32) -> Option<Self> {
        let limits = of_unified(resources);
        let top = mounts(table, "cgroup2 ").next()?;
        let group = own.lines().find_map(|line| line.strip_prefix("0::"))?;
        let dir = top.join(group.trim_start_matches('/'));
        let available = fs::read_to_string(dir.join("cgroup.controllers")).ok()?;
        let needed = |(file, _): &Limit| file.split('.').next().unwrap_or_default();
        if !limits.iter().all(|l| available.split_whitespace().any(|c| c == needed(l))) {
            return None;
        }
        for limit in &limits {
            // Written already, or refused because processes are in this very group: the limits then do not stick.
            let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{}", needed(limit)));
        }
        let mut groups = Self { groups: Vec::new(), seen: Vec::new(), version: 2 };
        groups.add(&dir, name, &limits).ok()?;
        groups.enter(pid).ok()?;
        Some(groups)
    }

    fn old(table: &str, own: &str, name: &str, resources: &Resources, pid: i32) -> Option<Self> {
        let mut groups = Self { groups: Vec::new(), seen: Vec::new(), version: 1 };
        for (controller, limits) in of_old(resources) {
            let top = table.lines().find_map(|line| {
                let (place, kind) = (line.split(' ').nth(4)?, line.split(" - ").nth(1)?);
                let options = kind.strip_prefix("cgroup ")?.rsplit(' ').next()?;
                options.split(',').any(|o| o == controller).then(|| PathBuf::from(place))
            })?;
            let group = own.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                fields.next()?.split(',').any(|c| c == controller).then(|| fields.next()).flatten()
            })?;
            groups.add(&top.join(group.trim_start_matches('/')), name, &limits).ok()?;
        }
        if groups.groups.is_empty() {
            return None;
        }
        // Last, so that a group that is not to be had leaves the process where it is.
        groups.enter(pid).ok()?;
        Some(groups)
    }

    fn enter(&self, pid: i32) -> io::Result<()> {
        self.groups.iter().try_for_each(|dir| fs::write(dir.join("cgroup.procs"), pid.to_string()))
    }

    fn add(&mut self, parent: &Path, name: &str, limits: &[Limit]) -> io::Result<()> {
        tidy(parent);
        let dir = parent.join(name);
        match fill(&dir, limits) {
            Ok(seen) => {
                self.groups.push(dir);
                self.seen.extend(seen);
                Ok(())
            }
            Err(error) => {
                let _ = fs::remove_dir(&dir);
                Err(error)
            }
        }
    }

    /// What holds, as it was read back.
    pub(super) fn receipt(&self) -> Receipt {
        Receipt {
            control: Control(CONTROL_GROUP.to_owned()),
            dimensions: vec![Dimension::Resources],
            level: Level::Enforced,
            known_by: KnownBy::Observed,
            detail: format!("version {}, of all processes together: {}", self.version, self.seen.join(", ")),
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // Its processes are gone, but the kernel may take a moment to notice.
        for dir in &self.groups {
            for _ in 0..50 {
                match fs::remove_dir(dir) {
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    _ => break,
                }
            }
        }
    }
}

/// Makes a group, limits it, and reads that back.
fn fill(dir: &Path, limits: &[Limit]) -> io::Result<Vec<String>> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let mut seen = Vec::new();
    for (file, value) in limits {
        fs::write(dir.join(file), value)?;
        let read = fs::read_to_string(dir.join(file))?;
        // The kernel rounds memory to pages; anything else it did not take.
        if read.trim() != value && !file.starts_with("memory") {
            return Err(io::Error::other(format!("{file} is {:?} and not {value:?}", read.trim())));
        }
        seen.push(format!("{file} {}", read.trim()));
    }
    Ok(seen)
}

/// Removes what runs left that were killed with everything of ours. A group with processes in it can't be removed.
fn tidy(parent: &Path) {
    for entry in parent.read_dir().into_iter().flatten().flatten() {
        let made = entry.metadata().and_then(|meta| meta.modified());
        let left = made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > LEFT));
        if left && entry.file_name().to_string_lossy().starts_with(PREFIX) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn mounts<'a>(table: &'a str, kind: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
    table
        .lines()
        .filter(move |line| line.split(" - ").nth(1).is_some_and(|fs| fs.starts_with(kind)))
        .filter_map(|line| line.split(' ').nth(4).map(PathBuf::from))
}

fn bytes(mib: u32) -> String {
    (u64::from(mib) << 20).to_string()
}

fn of_unified(resources: &Resources) -> Vec<Limit> {
    let mut limits: Vec<Limit> = Vec::new();
    limits.extend(resources.memory_mib.map(|mib| ("memory.max", bytes(mib))));
    limits.extend(resources.pids.map(|pids| ("pids.max", pids.to_string())));
    limits.extend(resources.cpus.map(|cpus| ("cpu.max", format!("{} {PERIOD}", u64::from(cpus) * PERIOD))));
    limits
}

fn of_old(resources: &Resources) -> Vec<(&'static str, Vec<Limit>)> {
    let mut all = Vec::new();
    if let Some(mib) = resources.memory_mib {
        all.push(("memory", vec![("memory.limit_in_bytes", bytes(mib))]));
    }
    if let Some(pids) = resources.pids {
        all.push(("pids", vec![("pids.max", pids.to_string())]));
    }
    if let Some(cpus) = resources.cpus {
        all.push(("cpu", vec![("cpu.cfs_quota_us", (u64::from(cpus) * PERIOD).to_string())]));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_as_each_version_wants_them() {
        let resources = Resources { cpus: Some(2), memory_mib: Some(512), pids: Some(7), ..Resources::default() };
        let unified = of_unified(&resources);
        let text: Vec<String> = unified.iter().map(|(file, value)| format!("{file}={value}")).collect();
        assert_eq!(text, ["memory.max=536870912", "pids.max=7", "cpu.max=200000 100000"]);
        assert_eq!(of_old(&resources).len(), 3);
        assert!(of_unified(&Resources::default()).is_empty());
    }

    #[test]
    fn where_there_is_no_hierarchy_there_is_no_group() {
        let resources = Resources { pids: Some(7), ..Resources::default() };
        assert!(Groups::unified("", "0::/\n", "pvisor-x", &resources, 1).is_none());
        assert!(Groups::old("1 2 0:3 / /x rw - tmpfs t rw\n", "8:pids:/\n", "pvisor-x", &resources, 1).is_none());
    }
}
