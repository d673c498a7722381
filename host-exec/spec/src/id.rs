//! Run ids.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The name of one run: `run-` and a version 7 UUID, so that names sort by time of start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct RunId(Uuid);

/// The text is no run id.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no run id: expected run- and a UUID")]
pub struct ParseRunIdError(String);

impl RunId {
    /// A new id, later in order than all made before it by this process.
    #[allow(clippy::new_without_default, reason = "every call gives another value")]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// Milliseconds since the Unix epoch at which the id was made.
    pub fn unix_millis(&self) -> u64 {
        self.0.get_timestamp().map_or(0, |t| {
            let (seconds, nanos) = t.to_unix();
            seconds * 1000 + u64::from(nanos) / 1_000_000
        })
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run-{}", self.0.hyphenated())
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for RunId {
    type Err = ParseRunIdError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        s.strip_prefix("run-")
            .and_then(|rest| Uuid::try_parse(rest).ok())
            .map(Self)
            .ok_or_else(|| ParseRunIdError(s.to_owned()))
    }
}

impl TryFrom<String> for RunId {
    type Error = ParseRunIdError;

    fn try_from(s: String) -> Result<Self, Self::Error> {
        s.parse()
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back_from_text_and_sort_by_time() {
        let ids: Vec<RunId> = (0..100).map(|_| RunId::new()).collect();
        assert!(ids.is_sorted());
        for id in ids {
            assert_eq!(id.to_string().parse::<RunId>().unwrap(), id);
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "run-", "run-1", "0198b7c0-0000-7000-8000-000000000000", "run-../../etc"] {
            assert!(text.parse::<RunId>().is_err(), "{text}");
        }
    }
}
