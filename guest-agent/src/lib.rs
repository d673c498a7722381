//! The agent in the guest: process 1 of the machine, and the only one that talks to the host.
//!
//! [`init`] is the whole program. It prepares the machine, finds its port and serves one [`serve`] session on it, which
//! builds the root, starts the command and relays its streams. When the session ends, however it ends, the machine
//! does. [`serve`] works over any descriptor and any [`System`], so it is tested without a machine.
#![allow(unsafe_code)]

mod boot;
mod command;
mod console;
mod network;
mod port;
mod reaper;
mod root;
mod session;
mod spawn;
mod system;

pub use boot::init;
pub use root::{Mounter, Tree, enter as enter_root, mount};
pub use session::{Ended, serve};
pub use system::{Guest, Rehearsal, System};
