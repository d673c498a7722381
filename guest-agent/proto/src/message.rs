//! The messages. Variants are only ever appended; a changed variant is a new major version.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::{Bytes, Challenge, Key, Message, Proof};

/// Host to guest.
///
/// The frame's id of a request is fresh and its reply repeats it. `Stdin`, `StdinClose`, `Credit` and `OutputClose`
/// are no requests: they carry the id of the command's `Start`, and where that command is gone they mean nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuest {
    /// Begins an attachment: [`ToHost::Welcome`] or [`ToHost::Refused`]. Anything else before it is refused. A second
    /// one, from a process that took the guest over, ends [`ToGuest::Quiet`] and reopens the output windows.
    Hello(Hello),
    /// Builds the root of the guest and moves there: `Done` or `Failed`. Once only, before the first `Start`.
    Mounts(Vec<Mount>),
    /// Starts the command: `Started` or `StartFailed`. One at a time.
    Start(Box<Start>),
    /// Standard input of the command, within its window.
    Stdin(Bytes),
    /// End of standard input.
    StdinClose,
    /// The host passed on output and has room again.
    Credit {
        /// Of this stream.
        stream: Output,
        /// So many bytes.
        bytes: u32,
    },
    /// Nobody reads this output any more: close it, so that the command learns it as from a broken pipe.
    OutputClose(Output),
    /// The terminal's size changed: `Done` or `Failed`.
    Resize {
        /// Id of the command's `Start`.
        command: u64,
        /// New size.
        size: WindowSize,
    },
    /// A signal for the process group of the command: `Done` or `Failed`.
    Signal {
        /// Id of the command's `Start`.
        command: u64,
        /// Linux number.
        signal: u8,
    },
    /// Sets the guest's wall clock: `Done` or `Failed`.
    SetClock {
        /// Seconds since the Unix epoch.
        seconds: u64,
        /// Nanoseconds, below 1,000,000,000.
        nanos: u32,
    },
    /// Random bytes from the host, 1 to 512 of them, mixed in and used at once: `Done` or `Failed`.
    Reseed(Bytes),
    /// Writes back what the guest's filesystems hold: `Done` or `Failed`.
    Sync,
    /// Is anyone there: `Pong`.
    Ping,
    /// Says nothing more after `Quieted` until `Wake` or `Hello`, so that no message is on its way while the machine
    /// is captured.
    Quiet,
    /// Ends `Quiet`: `Done`.
    Wake,
    /// Kills every process, writes back, and ends the machine. No reply: the port closes.
    Shutdown,
    /// Configures the network card and the name servers: `Done` or `Failed`. After `Mounts`.
    Network(Box<Network>),
}

/// Guest to host. The frame's id is that of the request, or of the command's `Start`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToHost {
    /// The handshake succeeded.
    Welcome(Welcome),
    /// The handshake failed; the guest ends.
    Refused(Refused),
    /// The request was carried out.
    Done,
    /// The request was not carried out.
    Failed(Failure),
    /// The command runs.
    Started,
    /// The command does not run.
    StartFailed(StartFailed),
    /// Bytes from the command's standard output, or its terminal.
    Stdout(Bytes),
    /// Bytes from the command's standard error.
    Stderr(Bytes),
    /// The guest passed on this many bytes of standard input and has room again.
    StdinCredit(u32),
    /// The command closed its standard input; more of it would be thrown away.
    StdinClosed,
    /// The command ended, all of its output is sent, every other process is dead and the filesystems are written back.
    Exited(End),
    /// The host broke the protocol in this way; the guest ends.
    Error(String),
    /// Someone is there.
    Pong,
    /// Last message until `Wake` or `Hello`.
    Quieted,
}

impl Message for ToGuest {
    // Arguments and environment travel in one `Start`: Linux allows 6 MiB of them at the very most.
    const MAX_BODY: usize = 8 * 1024 * 1024;
}

impl Message for ToHost {
    const MAX_BODY: usize = 64 * 1024;
}

/// The host's part of the handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Minor version of the host.
    pub minor: u16,
    /// Fresh random bytes.
    pub challenge: Challenge,
    /// [`crate::host_proof`] of the present key.
    pub proof: Proof,
    /// The key of the next handshake; the present one is worthless once this is accepted.
    pub next_key: Key,
}

/// The guest's part of the handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Minor version of the guest.
    pub minor: u16,
    /// [`crate::guest_proof`] of the same key and challenge.
    pub proof: Proof,
    /// Release of the guest's kernel.
    pub kernel: String,
    /// The command that runs already.
    pub running: Option<Running>,
}

/// A command that a new attachment finds running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// Frame id of its `Start`.
    pub command: u64,
    /// Bytes of standard input that may be sent now; `None`: its standard input is closed.
    pub stdin: Option<u32>,
}

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refused {
    /// The proof does not fit the guest's key.
    #[error("the guest has another key")]
    Key,
    /// The first message was no hello.
    #[error("the guest heard something else before the handshake")]
    Order,
}

/// One directory tree for the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Tag of the virtio-fs device.
    pub tag: String,
    /// Absolute path in the guest. The first mount is that of `/`.
    pub path: Bytes,
    /// Mounted read-only.
    pub read_only: bool,
}

/// The guest's network card. Nothing else gives it addresses: there is no DHCP and no router advertisement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// Its IPv4 address and the length of the prefix in bits.
    pub v4: (Ipv4Addr, u8),
    /// Default route and name server for IPv4.
    pub gateway_v4: Ipv4Addr,
    /// Its IPv6 address and the length of the prefix in bits.
    pub v6: (Ipv6Addr, u8),
    /// Default route and name server for IPv6.
    pub gateway_v6: Ipv6Addr,
}

/// A command to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Program and arguments; a program without a slash is looked up in `PATH` of `env`.
    pub argv: Vec<Bytes>,
    /// The whole environment, `NAME=value`.
    pub env: Vec<Bytes>,
    /// Working directory: absolute.
    pub cwd: Bytes,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary group ids.
    pub groups: Vec<u32>,
    /// File mode creation mask.
    pub umask: u32,
    /// Limits that differ from the guest's defaults.
    pub rlimits: Vec<Rlimit>,
    /// A terminal of this size instead of three pipes.
    pub tty: Option<WindowSize>,
    /// Name of the machine; empty: unchanged. Cut to 64 bytes.
    pub hostname: String,
}

/// One resource limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    /// Linux number of the resource (`RLIMIT_…`).
    pub resource: u8,
    /// Soft limit; `u64::MAX`: none.
    pub soft: u64,
    /// Hard limit; `u64::MAX`: none.
    pub hard: u64,
}

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

/// An output of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output {
    /// Standard output, or the terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Why a command does not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum StartFailed {
    /// No program of this name.
    #[error("no such program")]
    NotFound,
    /// There is one, but it can't be executed.
    #[error("the program can't be executed: {}", errno_text(*.0))]
    NotExecutable(i32),
    /// Something else.
    #[error(transparent)]
    Other(Failure),
}

/// A failed system call in the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{what}: {}", errno_text(*errno))]
pub struct Failure {
    /// Linux error number.
    pub errno: i32,
    /// What failed: a lower-case fragment.
    pub what: String,
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// With this status.
    Exited(u8),
    /// By this signal.
    Signaled(u8),
}

/// What a Linux error number of the guest means, in the words of this machine where it is a Linux too.
pub fn errno_text(errno: i32) -> String {
    if cfg!(target_os = "linux") {
        std::io::Error::from_raw_os_error(errno).to_string()
    } else {
        format!("Linux error {errno}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_reads_well() {
        let failure = Failure { errno: 2, what: "working directory".into() };
        assert!(StartFailed::Other(failure).to_string().starts_with("working directory: "));
    }
}
