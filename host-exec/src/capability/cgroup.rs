//! Control groups: whether this process may make some below its own.

use std::path::{Path, PathBuf};

use pvisor_spec::{Capability, CapabilityState};
use rustix::fs::Access;

use super::{capability, usable};

/// Controllers that limit a run.
const NEEDED: [&str; 3] = ["cpu", "memory", "pids"];

/// Whether limits can be set with version 2 of control groups.
pub fn cgroup_v2() -> Capability {
    const HINT: &str = "run under systemd with Delegate=yes (systemd-run --user --scope -p Delegate=yes), or as root \
         on a system with the unified hierarchy";
    let missing = |detail: String| capability("cgroup_v2", CapabilityState::Missing, detail, HINT);
    let Some(mount) = std::fs::read_to_string("/proc/self/mountinfo").ok().as_deref().and_then(unified_mount) else {
        return missing("no unified hierarchy is mounted".to_owned());
    };
    let Some(own) = own_group(&std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default()).map(str::to_owned)
    else {
        return missing("this process is in no group of the unified hierarchy".to_owned());
    };
    let dir = mount.join(own.trim_start_matches('/'));
    let writable = |path: &Path| rustix::fs::access(path, Access::WRITE_OK).is_ok();
    if !writable(&dir) || !writable(&dir.join("cgroup.procs")) {
        return missing(format!("{} is not delegated to this user", dir.display()));
    }
    let controllers = std::fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
    let absent: Vec<&str> = NEEDED.into_iter().filter(|c| !controllers.split_whitespace().any(|o| o == *c)).collect();
    if absent.is_empty() {
        return usable("cgroup_v2", format!("{} is delegated with {}", dir.display(), NEEDED.join(", ")));
    }
    let detail = format!("{} is delegated, without {}", dir.display(), absent.join(", "));
    capability("cgroup_v2", CapabilityState::Limited, detail, HINT)
}

fn unified_mount(table: &str) -> Option<PathBuf> {
    let line = table.lines().find(|line| line.split(" - ").nth(1).is_some_and(|fs| fs.starts_with("cgroup2 ")))?;
    line.split(' ').nth(4).map(PathBuf::from)
}

fn own_group(table: &str) -> Option<&str> {
    table.lines().find_map(|line| line.strip_prefix("0::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_hierarchy_is_told_from_the_old_ones() {
        let old = "1 2 0:3 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let new = "1 2 0:3 / /sys/fs/cgroup/unified rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(unified_mount(old), None);
        assert_eq!(unified_mount(&(old.to_owned() + new)), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(own_group("3:cpu:/x\n0::/user.slice\n"), Some("/user.slice"));
        assert_eq!(own_group("3:cpu:/x\n"), None);
    }
}
