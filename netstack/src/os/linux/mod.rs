//! Linux: eventfd, TAP devices, rtnetlink.

mod interface;
mod signal;
mod tap;

pub use interface::{Configured, InterfaceError, bring_loopback_up, configure_interface};
pub(crate) use signal::Signal;
pub use tap::{Tap, TapError};
