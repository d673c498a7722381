//! Whether this machine's KVM runs guest kernels at speed.
//!
//! A nested hypervisor may offer a `/dev/kvm` that interprets kernel code one instruction at a time: every call
//! succeeds, and a guest takes minutes to boot, or never does. So a short counted loop is run in guest kernel mode and
//! in this process, and the two speeds are compared; being a ratio taken in one run, it means the same on a fast, a
//! busy and an emulated machine. A few instructions that guest kernels can't do without are tried as well.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod code;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod vm;

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use pvisor_spec::{Capability, CapabilityState, Refusal};

/// Guest kernel code slower than native code by more than this factor makes KVM unusable. Hardware stays under 3,
/// an emulated machine with SVM at about 5, interpreters of kernel code are in the thousands.
const SLOWEST: f64 = 50.0;

/// How long the whole measurement may take before it counts as hung. What decides is how many instructions are tried,
/// which is little for the slowest interpreter; a busy machine must not look like one.
const LIMIT: Duration = Duration::from_secs(5);

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Loops per second in guest kernel mode.
    pub guest: f64,
    /// Loops per second of the same loop in this process.
    pub native: f64,
    /// Instructions that the guest could not execute though the CPU can.
    pub unexecuted: Vec<&'static str>,
}

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The device can't be opened.
    #[error("/dev/kvm: {0}")]
    Open(#[source] io::Error),
    /// Another interface than the one there has been since 2007.
    #[error("KVM interface version {0}, not 12")]
    Version(i32),
    /// A call failed while the test guest was built.
    #[error("{what}: {source}")]
    Setup {
        /// Which call.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// The test guest stopped where it should not.
    #[error("the test guest stopped: {0}")]
    Stopped(String),
    /// The test guest did not come back in time.
    #[error("a loop of a few instructions in guest kernel mode did not end in {} s", .0.as_secs())]
    NoAnswer(Duration),
}

impl Measurement {
    /// How many times slower guest kernel code is than native code.
    pub fn slowdown(&self) -> f64 {
        if self.guest > 0.0 { self.native / self.guest } else { f64::INFINITY }
    }

    /// Whether a guest is worth starting.
    pub fn usable(&self) -> bool {
        self.unexecuted.is_empty() && self.slowdown() <= SLOWEST
    }

    /// The measurement in words: a lower-case fragment.
    pub fn describe(&self) -> String {
        let speed = format!(
            "guest kernel code runs at {} of native speed ({} of {} loops/s)",
            fraction(self.slowdown()),
            rate(self.guest),
            rate(self.native)
        );
        match self.unexecuted.as_slice() {
            [] => speed,
            some => format!("{speed}, and {} can't be executed there", some.join(", ")),
        }
    }
}

fn fraction(slowdown: f64) -> String {
    if slowdown < 2.0 { format!("{:.0} %", 100.0 / slowdown) } else { format!("1/{slowdown:.0}") }
}

fn rate(loops: f64) -> String {
    match loops {
        x if x >= 1e6 => format!("{:.0} million", x / 1e6),
        x if x >= 1e3 => format!("{:.0} thousand", x / 1e3),
        x => format!("{x:.0}"),
    }
}

/// Measures KVM, at most once per process: takes 0.1 s, more only where the answer is not clear at once.
///
/// # Errors
/// What kept it from being measured.
pub fn measure() -> Result<&'static Measurement, &'static ProbeError> {
    static ONCE: OnceLock<Result<Measurement, ProbeError>> = OnceLock::new();
    ONCE.get_or_init(platform_measure).as_ref()
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn platform_measure() -> Result<Measurement, ProbeError> {
    vm::measure(LIMIT)
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn platform_measure() -> Result<Measurement, ProbeError> {
    let _ = LIMIT;
    Err(ProbeError::Open(io::Error::from(io::ErrorKind::Unsupported)))
}

/// Decides from the measurement. `accept_slow`: only what makes a guest impossible counts.
///
/// # Errors
/// The fact, with the measurement, and the way out.
pub fn admit(accept_slow: bool) -> Result<(), Refusal> {
    match measure() {
        Ok(measured) if measured.usable() || accept_slow => Ok(()),
        Ok(measured) => Err(Refusal {
            reason: format!("/dev/kvm does not run guest kernels at speed: {}", measured.describe()),
            hint: "use a machine with hardware virtualization, --executor host, or --force-slow-kvm to try it anyway"
                .to_owned(),
        }),
        Err(ProbeError::NoAnswer(_)) if accept_slow => Ok(()),
        Err(error) => Err(Refusal { reason: error.to_string(), hint: hint(error) }),
    }
}

fn hint(error: &ProbeError) -> String {
    match error {
        ProbeError::Open(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            "give this user read and write access to /dev/kvm (usually: join the group kvm), or use --executor host"
        }
        ProbeError::Open(_) => {
            "turn on virtualization in the firmware or the outer hypervisor and load kvm_intel or kvm_amd, or use \
             --executor host"
        }
        _ => "use a machine with hardware virtualization, or --executor host",
    }
    .to_owned()
}

/// The lines `kvm` and `hvf` of `pvisor doctor`.
pub fn capabilities() -> [Capability; 2] {
    let (state, detail, hint) = match measure() {
        Ok(measured) if measured.usable() => (CapabilityState::Usable, measured.describe(), String::new()),
        Ok(measured) => (
            CapabilityState::Limited,
            format!("there, but unusable: {}", measured.describe()),
            "use a machine with hardware virtualization; runs fall back to the host executor".to_owned(),
        ),
        Err(error @ ProbeError::Open(_)) => (CapabilityState::Missing, error.to_string(), hint(error)),
        Err(error) => (CapabilityState::Limited, format!("there, but unusable: {error}"), hint(error)),
    };
    let kvm = Capability { name: "kvm".to_owned(), state, detail, hint };
    let hvf = Capability {
        name: "hvf".to_owned(),
        state: CapabilityState::Missing,
        detail: format!("the hypervisor framework of macOS; this is {}", std::env::consts::OS),
        hint: String::new(),
    };
    [kvm, hvf]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_and_the_instructions_decide() {
        let fast = Measurement { guest: 9e7, native: 1e8, unexecuted: vec![] };
        assert!(fast.usable());
        assert_eq!(
            fast.describe(),
            "guest kernel code runs at 90 % of native speed (90 million of 100 million loops/s)"
        );
        let emulated_machine = Measurement { guest: 2e5, native: 1e6, unexecuted: vec![] };
        assert!(emulated_machine.usable(), "slow, but no slower than the machine itself");
        let interpreter = Measurement { guest: 2e5, native: 1e8, unexecuted: vec![] };
        assert!(!interpreter.usable());
        assert!(interpreter.describe().contains("1/500 of native speed (200 thousand of"));
        let partial = Measurement { unexecuted: vec!["popcnt"], ..fast };
        assert!(!partial.usable() && partial.describe().ends_with("and popcnt can't be executed there"));
        assert!(!Measurement { guest: 0.0, native: 1.0, unexecuted: vec![] }.usable());
    }

    #[test]
    fn this_machine_gets_one_verdict_in_all_places() {
        let [kvm, hvf] = capabilities();
        assert_eq!((kvm.name.as_str(), hvf.name.as_str()), ("kvm", "hvf"));
        assert_eq!(admit(false).is_ok(), kvm.state == CapabilityState::Usable, "{}", kvm.detail);
        assert_eq!(kvm.hint.is_empty(), kvm.state == CapabilityState::Usable);
        if let Err(refusal) = admit(false) {
            assert!(!refusal.reason.is_empty() && refusal.hint.contains("--executor host"));
        }
    }
}
