//! Limits of each process: the floor where there is no control group to hold all of them together.

use pvisor_spec::Resources;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const MIB: u64 = 1 << 20;

/// The kernel's name of each limit and its value. `counted`: the kernel counts the user's processes.
pub(crate) fn of(resources: &Resources, counted: bool) -> Vec<(Resource, u64)> {
    let all = [
        (Resource::Data, resources.memory_mib.map(|mib| u64::from(mib) * MIB)),
        (Resource::Nproc, resources.pids.filter(|_| counted).map(u64::from)),
        (Resource::Nofile, resources.open_files.map(u64::from)),
        (Resource::Fsize, resources.file_size_mib.map(|mib| u64::from(mib) * MIB)),
        (Resource::Cpu, resources.cpu_time_s.map(u64::from)),
    ];
    all.into_iter().filter_map(|(resource, limit)| Some((resource, limit?))).collect()
}

/// What is asked for and no limit of a process can hold: it takes a control group.
pub(crate) fn beyond(resources: &Resources, counted: bool) -> Vec<&'static str> {
    let all = [("cpus", resources.cpus.is_some()), ("pids", resources.pids.is_some() && !counted)];
    all.into_iter().filter_map(|(name, beyond)| beyond.then_some(name)).collect()
}

/// Whether the kernel counts this user's processes: those of the machine's root it does not, whatever their limit says.
/// `uid_map`: the map of the user namespace that `uid` belongs to; in a container inside a container it tells half of the
/// way, and a root that might be the machine's is taken for it.
pub(crate) fn counts_processes(uid: u32, uid_map: &str) -> bool {
    let outside = uid_map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(|n| n.parse::<u32>().ok());
        let (inside, outside, length) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let offset = uid.checked_sub(inside).filter(|offset| *offset < length)?;
        outside.checked_add(offset)
    });
    outside.is_some_and(|outside| outside != 0)
}

/// Lowers the limits of this process; one that is lower already stays.
pub(super) fn install(limits: &[(Resource, u64)]) -> Result<(), Errno> {
    for (resource, limit) in limits {
        let now = getrlimit(*resource);
        let lower = |old: Option<u64>| Some(old.map_or(*limit, |old| old.min(*limit)));
        setrlimit(*resource, Rlimit { current: lower(now.current), maximum: lower(now.maximum) })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_machines_root_is_not_counted() {
        let whole = "         0          0 4294967295\n";
        assert!(!counts_processes(0, whole));
        assert!(counts_processes(1000, whole));
        let rootless = "0 1000 1\n1 100000 65536\n";
        assert!(counts_processes(0, rootless));
        assert!(counts_processes(5, rootless));
        // It could be anybody.
        for unclear in ["", "0 0 1", "7 9 1", "x y z", "0 4294967295"] {
            assert!(!counts_processes(0, unclear), "{unclear:?}");
        }
    }

    #[test]
    fn what_no_process_can_be_held_to_is_told() {
        let resources = Resources { cpus: Some(1), pids: Some(9), open_files: Some(7), ..Resources::default() };
        assert_eq!(
            (of(&resources, false), beyond(&resources, false)),
            (vec![(Resource::Nofile, 7)], vec!["cpus", "pids"])
        );
        assert_eq!(of(&resources, true), [(Resource::Nproc, 9), (Resource::Nofile, 7)]);
        assert_eq!(beyond(&resources, true), ["cpus"]);
    }
}
