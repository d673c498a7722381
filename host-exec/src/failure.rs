//! What broke, as the supervisor hears it.

use std::fmt::Write;

use pvisor_spec::WorkerFailure;

/// A failure with a word for programs, a text and a hint.
pub(crate) fn failure(kind: &str, message: impl Into<String>, hint: impl Into<String>) -> WorkerFailure {
    WorkerFailure { kind: kind.to_owned(), message: message.into(), hint: hint.into() }
}

/// A failure whose text is a whole chain of causes.
pub(crate) fn failure_from(kind: &str, error: &(dyn std::error::Error + 'static), hint: &str) -> WorkerFailure {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing to a string does not fail.
        let _ = write!(message, ": {error}");
        cause = error.source();
    }
    failure(kind, message, hint)
}
