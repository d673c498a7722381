//! Limits of each process: the floor where there is no control group to hold all of them together.

use pvisor_spec::Resources;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const MIB: u64 = 1 << 20;

/// The kernel's name of each limit and its value.
pub(crate) fn of(resources: &Resources) -> Vec<(Resource, u64)> {
    let all = [
        (Resource::Data, resources.memory_mib.map(|mib| u64::from(mib) * MIB)),
        (Resource::Nproc, resources.pids.map(u64::from)),
        (Resource::Nofile, resources.open_files.map(u64::from)),
        (Resource::Fsize, resources.file_size_mib.map(|mib| u64::from(mib) * MIB)),
        (Resource::Cpu, resources.cpu_time_s.map(u64::from)),
    ];
    all.into_iter().filter_map(|(resource, limit)| Some((resource, limit?))).collect()
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
