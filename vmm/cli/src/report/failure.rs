//! The one shape of every failure that a person sees.

use pvisor_spec::{ExitCode, Interruption};
use serde::Serialize;

use super::{answer_json, plain, say};

/// What went wrong, what to try, and the exit code that goes with it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Failure {
    /// A word for programs.
    pub(crate) kind: String,
    /// The whole chain of causes, outermost first: a lower-case fragment.
    pub(crate) message: String,
    /// What the person can try, each a fragment; may be empty.
    pub(crate) hints: Vec<String>,
    /// The exit code.
    #[serde(skip)]
    pub(crate) code: u8,
    /// More for programs, beside the three fields above.
    #[serde(flatten)]
    details: serde_json::Map<String, serde_json::Value>,
}

impl Failure {
    /// A failure without a hint, exit code 1.
    pub(crate) fn new(kind: &str, message: impl Into<String>) -> Self {
        Self {
            kind: kind.to_owned(),
            message: message.into(),
            hints: Vec::new(),
            code: ExitCode::ERROR,
            details: serde_json::Map::new(),
        }
    }

    /// The failure with one more thing to try; an empty hint adds nothing.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        let hint = hint.into();
        if !hint.is_empty() {
            self.hints.push(hint);
        }
        self
    }

    /// The failure with another exit code.
    pub(crate) fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// The failure with one more field for programs.
    pub(crate) fn detail(mut self, name: &str, value: &impl Serialize) -> Self {
        if let Ok(value) = serde_json::to_value(value) {
            self.details.insert(name.to_owned(), value);
        }
        self
    }

    /// Tells the person: one paragraph on standard error, or one JSON document on standard output.
    pub(crate) fn tell(&self, json: bool) {
        if json {
            // The answer's reader may be gone; the exit code still tells.
            let _ = answer_json(self);
            return;
        }
        say(&format!("error: {}", self.paragraph()));
    }

    /// The failure on standard error, where standard output belongs to someone else.
    pub(crate) fn tell_aside(&self, json: bool) {
        if json {
            super::say_json(self);
        } else {
            say(&format!("error: {}", self.paragraph()));
        }
    }

    /// Message and hints as one paragraph.
    fn paragraph(&self) -> String {
        let mut text = plain(&self.message);
        for hint in &self.hints {
            text.push_str("\n  ");
            text.push_str(&plain(hint));
        }
        text
    }
}

impl From<Interruption> for Failure {
    fn from(i: Interruption) -> Self {
        Self::new(&i.kind, i.message).hint(i.hint).code(ExitCode::FAILED)
    }
}

impl From<&Failure> for Interruption {
    fn from(failure: &Failure) -> Self {
        Self {
            kind: failure.kind.clone(),
            message: failure.message.clone(),
            hint: failure.hints.first().cloned().unwrap_or_default(),
        }
    }
}

/// An error and its causes, outermost first, joined by colons; a cause that its parent already quotes is not repeated.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Middle);

    #[derive(Debug, thiserror::Error)]
    #[error("middle: {0}")]
    struct Middle(#[source] std::io::Error);

    #[test]
    fn each_cause_is_told_once() {
        let error = Outer(Middle(std::io::Error::other("disk on fire")));
        assert_eq!(chain(&error), "outer: middle: disk on fire");
    }

    #[test]
    fn a_failure_is_json_of_three_fields() {
        let failure = Failure::new("stage_in_use", "it is").hint("wait").hint("");
        let json = serde_json::to_value(&failure).unwrap();
        assert_eq!(json, serde_json::json!({"kind": "stage_in_use", "message": "it is", "hints": ["wait"]}));
    }
}
