//! What goes wrong between host and guest.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pvisor_proto::{CreditError, EncodeError, Failure, FrameError, Refused};
use pvisor_spec::{CommandEnd, WorkerFailure};

/// An error of the conversation with the guest's agent. It may be reported to several callers, so it can be cloned.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AgentError {
    /// Nobody in the guest answered the hello in time.
    #[error("the agent in the guest did not answer within {0:?}")]
    HandshakeTimeout(Duration),
    /// The agent was built for another version of the protocol.
    #[error(
        "the agent in the guest speaks version {found} of the protocol, this pvisor version {}",
        pvisor_proto::MAJOR
    )]
    Version {
        /// Major version of the agent.
        found: u8,
    },
    /// The agent refused the hello.
    #[error("the agent refused the handshake")]
    Refused(#[source] Refused),
    /// Who answered does not know the key of this run.
    #[error("what answered in the guest does not know this run's key")]
    Impostor,
    /// The guest's bytes are no messages.
    #[error("the guest broke the agent protocol")]
    Frame(#[source] FrameError),
    /// The guest broke the rules of flow control.
    #[error("the guest broke the agent protocol's flow control")]
    Credit(#[source] CreditError),
    /// A reply of the wrong kind.
    #[error("the guest answered {request} with something else")]
    Unexpected {
        /// What was asked.
        request: &'static str,
    },
    /// The agent says that this side broke the protocol.
    #[error("the agent gave up: {0}")]
    GaveUp(String),
    /// The port closed.
    #[error("the guest is gone")]
    Lost(#[source] Option<Arc<io::Error>>),
    /// No reply in time.
    #[error("the guest did not answer {request} within {after:?}")]
    Timeout {
        /// What was asked.
        request: &'static str,
        /// How long.
        after: Duration,
    },
    /// The guest could not do it.
    #[error("the guest could not do {request}")]
    Failed {
        /// What was asked.
        request: &'static str,
        /// What the guest says.
        #[source]
        failure: Failure,
    },
    /// No program of this name in the guest.
    #[error("no such program")]
    NotFound,
    /// The program can't be executed in the guest.
    #[error("the program can't be executed: {}", pvisor_proto::errno_text(*.0))]
    NotExecutable(i32),
    /// The guest could not start the command.
    #[error("the guest could not start the command")]
    Start(#[source] Failure),
    /// Arguments and environment are beyond what a guest takes.
    #[error("arguments and environment are too large for a guest")]
    TooLarge(#[source] EncodeError),
    /// The host gave out no random bytes, or no thread or descriptor for the relay.
    #[error("cannot set up the relay to the guest")]
    Local(#[source] Arc<io::Error>),
}

impl AgentError {
    /// A word for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::HandshakeTimeout(_) | Self::Version { .. } | Self::Refused(_) | Self::Impostor => "handshake",
            Self::Frame(_) | Self::Credit(_) | Self::Unexpected { .. } | Self::GaveUp(_) => "guest_protocol",
            Self::Lost(_) => "guest_lost",
            Self::Timeout { .. } => "guest_timeout",
            Self::Failed { .. } => "guest_setup",
            Self::NotFound | Self::NotExecutable(_) | Self::Start(_) => "start",
            Self::TooLarge(_) => "command_too_large",
            Self::Local(_) => "internal",
        }
    }

    /// What the person can try; may be empty.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::HandshakeTimeout(_) => "see the guest's console in the run's directory (pvisor logs)",
            Self::Version { .. } => "rebuild the guest image with this pvisor",
            Self::Lost(_) => "see the guest's console in the run's directory (pvisor logs); more --memory may help",
            Self::TooLarge(_) => "pass long lists in a file or on standard input",
            _ => "",
        }
    }

    /// How the command ended, where the error is the command's own: no such program, or not executable.
    pub fn command_end(&self) -> Option<CommandEnd> {
        match self {
            Self::NotFound => Some(CommandEnd::NotFound),
            Self::NotExecutable(_) => Some(CommandEnd::NotExecutable),
            _ => None,
        }
    }

    pub(super) fn local(error: impl Into<io::Error>) -> Self {
        Self::Local(Arc::new(error.into()))
    }
}

impl From<FrameError> for AgentError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Version { found } => Self::Version { found },
            other => Self::Frame(other),
        }
    }
}

impl From<CreditError> for AgentError {
    fn from(error: CreditError) -> Self {
        Self::Credit(error)
    }
}

impl From<AgentError> for WorkerFailure {
    fn from(error: AgentError) -> Self {
        let mut message = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(inner) = cause {
            message = format!("{message}: {inner}");
            cause = inner.source();
        }
        Self { kind: error.kind().to_owned(), message, hint: error.hint().to_owned() }
    }
}
