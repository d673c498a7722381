//! A machine: its fixed set of devices, and running it.

use std::path::PathBuf;

use msb_krun::VmBuilder;
use pvisor_proto::PORT_NAME;

use super::{EngineError, GuestFilesystem, Network, Port, kernel};

/// Everything that a machine is built from. The devices are attached in this order, always all of them, because a
/// checkpoint fits only a machine with the same ones in the same places: rng, hvc0 (kernel log), hvc1 (agent port),
/// one virtio-fs for each filesystem, eth0. (The engine adds its generation counter at the end.)
pub struct Topology {
    /// Number of virtual CPUs, at least 1.
    pub cpus: u8,
    /// Memory in MiB, without the kernel's own pages.
    pub memory_mib: u32,
    /// What is added to the kernel command line; printable ASCII.
    pub command_line: String,
    /// Where the kernel log goes: opened for writing by the engine.
    pub console: PathBuf,
    /// The agent's stream.
    pub agent: Port,
    /// Tag and filesystem of each virtio-fs device.
    pub filesystems: Vec<(String, GuestFilesystem)>,
    /// The other end of the network card.
    pub network: Network,
    /// Called once when the guest has ended by itself, with the engine's exit code, on a thread that the machine
    /// needs: what it returns to is the end of the process.
    pub on_exit: Box<dyn Fn(i32) + Send>,
}

/// A machine that is built, but does not run yet.
pub struct Machine(msb_krun::Vm);

impl Machine {
    /// Builds the machine. The kernel must be installed.
    ///
    /// # Errors
    /// A topology that the engine refuses.
    pub fn build(topology: Topology) -> Result<Self, EngineError> {
        let Topology { cpus, memory_mib, command_line, console, agent, filesystems, network, on_exit } = topology;
        let backend = network.backend().map_err(|source| EngineError::Io { what: "create a network card", source })?;
        let mut builder = VmBuilder::new()
            .machine(|machine| {
                machine
                    .vcpus(cpus)
                    .memory_mib(memory_mib as usize)
                    .nested_virt(false)
                    .balloon(false)
                    .msb_metrics(false)
                    .enable_inet_hijack(false)
                    .rng(true)
            })
            .kernel(|kernel| kernel.cmdline(&command_line))
            .console(|ports| ports.output(console).custom(PORT_NAME, Box::new(agent)))
            .net(|net| net.custom(backend))
            .on_placement(|_| kernel::release_installed())
            .on_exit(on_exit);
        for (tag, filesystem) in filesystems {
            builder = builder.fs(|fs| fs.tag(&tag).custom(Box::new(filesystem)));
        }
        let mut vm = builder.build()?;
        vm.set_private_memory_boot(true);
        Ok(Self(vm))
    }

    /// Runs the machine on this thread. Where the guest ends by itself the whole process ends, after `on_exit`, without
    /// destructors; so this returns errors only.
    pub fn run(self) -> EngineError {
        match self.0.enter() {
            Ok(never) => match never {},
            Err(error) => error.into(),
        }
    }
}
