//! Errors of the engine, sorted by whose fault they are.

use std::io;

/// Why a machine can't be built or stopped running.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// KVM refused something.
    #[error("the hypervisor failed: {0}")]
    Hypervisor(String),
    /// The guest's memory can't be had.
    #[error("the guest's memory can't be set up: {0}")]
    Memory(String),
    /// Something else in the engine.
    #[error("the VM engine failed: {0}")]
    Engine(String),
    /// A system call.
    #[error("{what}: {source}")]
    Io {
        /// What failed.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
}

impl From<msb_krun::Error> for EngineError {
    fn from(error: msb_krun::Error) -> Self {
        // The engine wraps its causes into text; the variant names of its own enums are all there is to tell them
        // apart by.
        let text = error.to_string();
        let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if has(&["Memory", "memory", "KernelDoesNotFit"]) {
            Self::Memory(text)
        } else if has(&["Kvm", "KVM", "Vcpu", "VmFd", "VmSetup", "Irq"]) {
            Self::Hypervisor(text)
        } else {
            Self::Engine(text)
        }
    }
}
