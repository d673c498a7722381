//! The only way out of a sandbox: Ethernet frames in, host sockets out, a policy in between.

mod config;
mod dns;
mod engine;
mod event;
mod limit;
mod link;
mod os;
mod policy;
mod stack;

pub use config::{Capacity, LinkConfig, Publish, StackConfig, Upstream};
pub use dns::Binding;
pub use event::{Direction, EventSink, Flow, FlowEnd, NetEvent, Protocol};
pub use link::{Link, SendError};
pub use os::raise_descriptor_limit;
#[cfg(target_os = "linux")]
pub use os::{Configured, InterfaceError, Tap, TapError, bring_loopback_up, configure_interface};
pub use policy::{
    AddressClass, Cidr, DefaultVerdict, HOST_ALIAS, LocalAddresses, Name, NameError, ParseRuleError, Policy, Reason,
    Rule, RuleFault, Verdict, classify,
};
pub use stack::{Answerer, Handle, NetStack, StartError};
