//! Linux: eventfd and TAP devices.

mod signal;
mod tap;

pub(crate) use signal::Signal;
pub use tap::{Tap, TapError};
