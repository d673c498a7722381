//! What the host and the agent in the guest say to each other, and how it is framed on a byte stream.
//!
//! Plain data and pure functions: no I/O, no unsafe code, and none of the other crates. DESIGN.md has the order of
//! messages and the rules of flow control.

mod bytes;
mod credit;
mod frame;
mod handshake;
mod message;

pub use bytes::Bytes;
pub use credit::{CreditError, Grant, Window};
pub use frame::{Decoder, EncodeError, FrameError, HEADER, MAJOR, Message, encode};
pub use handshake::{Challenge, Key, MINOR, ParseKeyError, Proof, guest_proof, host_proof};
pub use message::{
    End, Failure, Hello, Mount, Network, Output, Refused, Rlimit, Running, Start, StartFailed, ToGuest, ToHost,
    Welcome, WindowSize, errno_text,
};

/// Name of the virtio-console port that the agent looks for.
pub const PORT_NAME: &str = "pvisor.agent";

/// Kernel command line parameter that carries the first [`Key`] in hexadecimal.
pub const KEY_PARAMETER: &str = "pvisor.secret";

/// Bytes of one stream that may be on their way, sent and not yet taken: standard input, standard output and standard
/// error each have a window of this size.
pub const WINDOW: u32 = 256 * 1024;

/// Most bytes of a stream in one message.
pub const CHUNK: usize = 32 * 1024;

/// Frame id of messages that belong to no request and no command.
pub const NO_ID: u64 = 0;
