//! Failures of a run, as the supervisor is told of them.

use std::error::Error;

use pvisor_spec::WorkerFailure;

use crate::engine::{EngineError, KernelError};

/// A failure with a text of its own.
pub(super) fn failure(kind: &str, message: impl Into<String>, hint: &str) -> WorkerFailure {
    WorkerFailure { kind: kind.to_owned(), message: message.into(), hint: hint.to_owned() }
}

/// The whole chain of causes, outermost first.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.ends_with(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

/// A failure of the host's own doing: a system call, a thread.
pub(super) fn internal(what: &str, error: &dyn Error) -> WorkerFailure {
    failure("internal", format!("{what}: {}", chain(error)), "")
}

impl From<EngineError> for WorkerFailure {
    fn from(error: EngineError) -> Self {
        let (kind, hint) = match &error {
            EngineError::Hypervisor(_) => ("kvm", "pvisor doctor tells what KVM can do here"),
            EngineError::Memory(_) => ("memory", "ask for less with --memory, or free some"),
            EngineError::Engine(_) => ("engine", ""),
            EngineError::Io { .. } => ("internal", ""),
        };
        failure(kind, chain(&error), hint)
    }
}

impl From<KernelError> for WorkerFailure {
    fn from(error: KernelError) -> Self {
        let (kind, hint) = match &error {
            KernelError::Memory { .. } => ("memory", "ask for more with --memory"),
            KernelError::Taken => ("internal", ""),
            KernelError::Io { .. } | KernelError::Format { .. } => ("kernel", "build it anew with pvisor image kernel"),
        };
        failure(kind, format!("the guest can't be loaded: {}", chain(&error)), hint)
    }
}
