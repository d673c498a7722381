//! What the command's own process is held to: limits, capabilities, Landlock, the filter of system calls. Installed by
//! the process itself, last thing before it becomes the command or the one that probes for it.

mod capabilities;
mod filter;
mod landlock;
mod limits;

use pvisor_spec::{Confinement, Resources, WorkerFailure};
use rustix::io::Errno;
use rustix::process::Resource;
use seccompiler::BpfProgram;
use serde::{Deserialize, Serialize};

use crate::capability;
use crate::failure::failure_from;
pub(crate) use landlock::Reach;

/// Names of controls that are installed here, as bundles have them.
pub(crate) const CAPABILITIES: &str = "no_capabilities";
pub(crate) const NO_NEW_PRIVS: &str = "no_new_privs";
pub(crate) const SECCOMP: &str = "seccomp";
pub(crate) const LANDLOCK: &str = "landlock";
pub(crate) const LIMITS: &str = "process_limits";

/// Everything that is installed, made before the first process.
pub(crate) struct Restrictions {
    drop_capabilities: bool,
    no_new_privs: bool,
    filters: Vec<BpfProgram>,
    limits: Vec<(Resource, u64)>,
    beyond_limits: Vec<&'static str>,
    reach: Option<Reaches>,
    /// Whether the kernel has Landlock.
    landlock_offered: bool,
}

/// What Landlock lets through.
pub(crate) struct Reaches {
    /// In a root made for the run.
    pub(crate) projected: Reach,
    /// In the host's own, where no namespace is to be had.
    pub(crate) alone: Reach,
}

/// One of the restrictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Restriction {
    Limits,
    Capabilities,
    NoNewPrivs,
    Landlock,
    Filter,
}

impl Restrictions {
    /// `uid`: the command's user. `with`: whether a control is installed, by its name.
    ///
    /// # Errors
    /// There is no filter for this machine.
    pub(crate) fn new(
        confinement: &Confinement,
        resources: &Resources,
        uid: u32,
        reach: Option<Reaches>,
        with: impl Fn(&str) -> bool,
    ) -> Result<Self, WorkerFailure> {
        // Who keeps capabilities wants to use them.
        let drop = !confinement.keep_capabilities;
        let filters = match drop && with(SECCOMP) {
            true => filter::programs(confinement).map_err(|e| failure_from("seccomp", &e, ""))?,
            false => Vec::new(),
        };
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let counted = limits::counts_processes(uid, &map);
        Ok(Self {
            drop_capabilities: drop && with(CAPABILITIES),
            no_new_privs: drop && with(NO_NEW_PRIVS),
            filters,
            limits: if with(LIMITS) { limits::of(resources, counted) } else { Vec::new() },
            beyond_limits: limits::beyond(resources, counted),
            reach: reach.filter(|_| with(LANDLOCK)),
            landlock_offered: capability::landlock_version().is_some(),
        })
    }

    /// Whether the command keeps no capability.
    pub(crate) fn drops_capabilities(&self) -> bool {
        self.drop_capabilities
    }

    /// Whether it can't gain any by executing a program.
    pub(crate) fn no_new_privs(&self) -> bool {
        self.no_new_privs
    }

    /// Whether system calls are filtered.
    pub(crate) fn filters_calls(&self) -> bool {
        !self.filters.is_empty()
    }

    /// Whether Landlock is to hold the command.
    pub(crate) fn wants_landlock(&self) -> bool {
        self.reach.is_some()
    }

    /// Whether it is installed. Where it is the second of two layers, a kernel that has none leaves the first; where it
    /// would be the only one, there is no going without. `alone`: without namespaces.
    pub(crate) fn has_landlock(&self, alone: bool) -> bool {
        self.wants_landlock() && (alone || self.landlock_offered)
    }

    /// What is limited, and to what.
    pub(crate) fn limits(&self) -> &[(Resource, u64)] {
        &self.limits
    }

    /// What is to be limited, but not by a limit of each process.
    pub(crate) fn beyond_limits(&self) -> &[&'static str] {
        &self.beyond_limits
    }

    /// The limit of open files.
    pub(crate) fn open_files(&self) -> Option<u64> {
        self.limits.iter().find(|(resource, _)| *resource == Resource::Nofile).map(|(_, limit)| *limit)
    }

    /// What takes rights that a change of identity may take away.
    pub(crate) fn install_first(&self) -> Result<(), (Restriction, Errno)> {
        limits::install(&self.limits).map_err(|e| (Restriction::Limits, e))?;
        if self.drop_capabilities {
            capabilities::empty_bounding_set().map_err(|e| (Restriction::Capabilities, e))?;
        }
        Ok(())
    }

    /// The rest, once the process is who the command is to be. `alone`: without namespaces.
    pub(crate) fn install_last(&self, alone: bool) -> Result<(), (Restriction, Errno)> {
        if self.no_new_privs {
            rustix::thread::set_no_new_privs(true).map_err(|e| (Restriction::NoNewPrivs, e))?;
        }
        if let Some(reach) = self.reach.as_ref().filter(|_| self.has_landlock(alone)) {
            let reach = if alone { &reach.alone } else { &reach.projected };
            landlock::install(reach).map_err(|e| (Restriction::Landlock, e))?;
        }
        // While there may still be a capability that it takes without `no_new_privs`. What follows it lets through.
        self.filters.iter().try_for_each(install_filter).map_err(|e| (Restriction::Filter, e))?;
        if self.drop_capabilities {
            capabilities::drop_all().map_err(|e| (Restriction::Capabilities, e))?;
        }
        Ok(())
    }
}

/// The library's own call would always set `no_new_privs` as well.
fn install_filter(program: &BpfProgram) -> Result<(), Errno> {
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::TOOBIG)?,
        // The kernel does not write there.
        filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    // SAFETY: the program outlives the call, its length is that of the vector, and its elements have the layout of the
    // kernel's structure.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) };
    if done == 0 { Ok(()) } else { Err(crate::launch::namespaces::last_errno()) }
}
