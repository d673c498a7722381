//! What a guest's run has installed.

use pvisor_host_exec::Egress;
use pvisor_spec::{Control, Dimension, GuestRoot, KnownBy, Level, Receipt, WorkerJob};

use super::machine::Size;

fn receipt(control: &str, dimensions: &[Dimension], known_by: KnownBy, detail: String) -> Receipt {
    Receipt {
        control: Control(control.to_owned()),
        dimensions: dimensions.to_vec(),
        level: Level::Enforced,
        known_by,
        detail,
    }
}

/// Once the agent has answered: the command will run on this kernel.
pub(super) fn guest_kernel(release: &str) -> Receipt {
    use Dimension::{Devices, FilesystemRead, FilesystemWrite, Subprocess};
    let detail = format!("kernel {release} of the guest's own answered with the run's key");
    receipt("guest_kernel", &[FilesystemRead, FilesystemWrite, Subprocess, Devices], KnownBy::Observed, detail)
}

/// Once the guest has mounted its filesystems.
pub(super) fn filesystems(job: &WorkerJob) -> [Receipt; 3] {
    let lower = match &job.spec.root {
        GuestRoot::Host => "/".to_owned(),
        GuestRoot::Dir(dir) => dir.display().to_string(),
    };
    let stage = job.spec.stage.as_ref().map(|stage| stage.dir.display().to_string()).unwrap_or_default();
    [
        receipt(
            "guest_root",
            &[Dimension::FilesystemWrite],
            KnownBy::Returned,
            format!("{lower} of the host is read only; what the guest changes in it is thrown away"),
        ),
        receipt(
            "stage",
            &[Dimension::FilesystemWrite],
            KnownBy::Returned,
            format!("changes in {} go to {stage}", job.spec.project.display()),
        ),
        receipt(
            "hidden_paths",
            &[Dimension::FilesystemRead, Dimension::Secrets],
            KnownBy::Returned,
            format!("{} patterns of paths look absent in the guest's root", job.hidden.len()),
        ),
    ]
}

/// Once the guest has configured its card.
pub(super) fn network(egress: &Egress) -> Receipt {
    egress.receipt("guest_network", "the guest's only network card leads to the run's own network", KnownBy::Returned)
}

/// Follows from the machine's devices.
pub(super) fn no_network() -> Receipt {
    let detail = "the guest's network card leads nowhere: every frame is dropped".to_owned();
    receipt("guest_network", &[Dimension::Network], KnownBy::Assumed, detail)
}

/// What the machine was built with.
pub(super) fn resources(size: Size) -> Receipt {
    let detail = format!("{} virtual CPUs, {} MiB of memory; disk space is not limited", size.cpus, size.memory_mib);
    receipt("machine_size", &[Dimension::Resources], KnownBy::Returned, detail)
}
