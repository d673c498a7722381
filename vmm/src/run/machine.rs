//! From the job to a machine that can run.

use std::path::Path;
use std::thread;

use pvisor_spec::{OsBytes, Resources, WorkerFailure, WorkerJob};

use super::console::Console;
use super::failure::failure;
use super::stages::Stages;
use crate::agent::Key;
use crate::engine::{GuestFilesystem, Kernel, Machine, Network, Port, Topology};

/// Tags of the virtio-fs devices, in the order of their attachment.
pub(super) const ROOT_TAG: &str = "pvisor-root";
/// See [`ROOT_TAG`].
pub(super) const PROJECT_TAG: &str = "pvisor-project";

const DEFAULT_CPUS: u8 = 2;
const DEFAULT_MEMORY_MIB: u32 = 2048;
const LEAST_MEMORY_MIB: u32 = 128;

/// The machine's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) cpus: u8,
    pub(super) memory_mib: u32,
}

impl Size {
    /// What was asked for, or the defaults; no more virtual CPUs than the host has.
    pub(super) fn of(resources: Resources) -> Result<Self, WorkerFailure> {
        let host = thread::available_parallelism().map_or(1, |n| u8::try_from(n.get()).unwrap_or(u8::MAX));
        let memory_mib = resources.memory_mib.unwrap_or(DEFAULT_MEMORY_MIB);
        if memory_mib < LEAST_MEMORY_MIB {
            let message = format!("{memory_mib} MiB of memory are too little for a guest");
            return Err(failure("memory", message, "ask for at least 128 MiB with --memory"));
        }
        Ok(Self { cpus: resources.cpus.unwrap_or(DEFAULT_CPUS).clamp(1, host), memory_mib })
    }
}

/// Loads the guest's kernel and makes it that of this process; the size that fits it.
pub(super) fn load_kernel(job: &WorkerJob, size: Size) -> Result<Size, WorkerFailure> {
    let kernel = Kernel::load(given(&job.kernel, "kernel")?, given(&job.initramfs, "initramfs")?)?;
    let memory_mib = kernel.fit_memory(size.memory_mib)?;
    kernel.install()?;
    Ok(Size { memory_mib, ..size })
}

fn given<'a>(path: &'a Option<OsBytes>, what: &str) -> Result<&'a Path, WorkerFailure> {
    let missing = || failure("kernel", format!("no guest {what} was given"), "build one with pvisor image kernel");
    path.as_ref().map(OsBytes::as_path).ok_or_else(missing)
}

/// Builds the machine.
pub(super) fn build(
    size: Size,
    key: &Key,
    console: &Console,
    agent: Port,
    stages: &Stages,
    network: Network,
    on_exit: Box<dyn Fn(i32) + Send>,
) -> Result<Machine, WorkerFailure> {
    Ok(Machine::build(Topology {
        cpus: size.cpus,
        memory_mib: size.memory_mib,
        // An oops that leaves the guest half alive would look like a command that takes long.
        command_line: format!("oops=panic {}={}", pvisor_proto::KEY_PARAMETER, key.to_hex()),
        console: console.path(),
        agent,
        filesystems: vec![
            (ROOT_TAG.to_owned(), GuestFilesystem::new(stages.root.clone())),
            (PROJECT_TAG.to_owned(), GuestFilesystem::new(stages.project.clone())),
        ],
        network,
        on_exit,
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_within_what_the_host_and_a_guest_can() {
        let size = Size::of(Resources::default()).unwrap();
        assert!(size.cpus >= 1 && size.cpus <= 2 && size.memory_mib == 2048);
        assert_eq!(
            Size::of(Resources { cpus: Some(0), memory_mib: Some(128), ..Resources::default() }).unwrap().cpus,
            1
        );
        let host = thread::available_parallelism().unwrap().get().min(255);
        assert_eq!(usize::from(Size::of(Resources { cpus: Some(255), ..Resources::default() }).unwrap().cpus), host);
        assert_eq!(Size::of(Resources { memory_mib: Some(127), ..Resources::default() }).unwrap_err().kind, "memory");
    }
}
