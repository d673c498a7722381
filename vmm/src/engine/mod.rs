//! The VM engine: everything that knows `msb_krun` by name.

mod bounce;
mod error;
mod filesystem;
mod kernel;
mod log;
mod machine;
mod net;
mod port;

pub use error::EngineError;
pub use filesystem::GuestFilesystem;
pub use kernel::{Kernel, KernelError};
pub use log::{keep_log, kept_log};
pub use machine::{Machine, Topology};
pub use net::Network;
pub use port::{Port, PortCloser, PortReader, PortWriter, port};
