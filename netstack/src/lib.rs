//! The only way out of a sandbox: Ethernet frames in, host sockets out, a policy in between.

mod policy;

pub use policy::{
    AddressClass, Cidr, DefaultVerdict, HOST_ALIAS, LocalAddresses, Name, NameError, ParseRuleError, Policy, Reason,
    Rule, RuleFault, Verdict, classify,
};
