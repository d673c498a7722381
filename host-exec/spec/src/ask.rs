//! Questions to the person while a command runs, and their answers.

use serde::{Deserialize, Serialize};

use crate::OsBytes;

/// What a question is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A destination, as a rule of the network policy: `example.com`, `192.0.2.1:443`, `host.pvisor.internal:5432`.
    Host(String),
    /// A path of the host: absolute. It stands for what is below it as well.
    Path(OsBytes),
}

/// A question that waits for its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Counted from 1 in each run.
    pub number: u32,
    /// What the command wants to reach.
    pub subject: Subject,
}

/// How far an answer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AnswerScope {
    /// In this run.
    Run,
    /// In every run on this project.
    Workspace,
    /// In every run of this user.
    User,
}

/// Where an answer came from. All but the person's are no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AnsweredBy {
    /// The person at the terminal.
    Person,
    /// Nobody answered in time.
    Timeout,
    /// The person interrupted the question, or the run was told to end.
    Interrupt,
    /// There was no terminal to ask on, or it belonged to somebody else.
    NoTerminal,
    /// The person had said that nothing more is to be asked.
    AskedEnough,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// Of the question.
    pub number: u32,
    /// Whether the command may.
    pub allowed: bool,
    /// How far that holds.
    pub scope: AnswerScope,
    /// Where it came from.
    pub by: AnsweredBy,
}

/// What a bundle says of a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AnswerRecord {
    /// When it was answered: milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// What the command wanted to reach.
    pub subject: Subject,
    /// Whether it might.
    pub allowed: bool,
    /// How far that holds.
    pub scope: AnswerScope,
    /// Where the answer came from.
    pub by: AnsweredBy,
}
