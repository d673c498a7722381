//! The command's network, from what was asked for.

use pvisor_host_exec::{EgressError, check_egress};
use pvisor_spec::{EgressDefault, EgressSpec, ExecutorKind, NetworkMode, PublishSpec, Subject};

use super::confine;
use crate::access::Remembered;
use crate::args::RunArgs;

/// Word for all public addresses among the destinations that are allowed.
const PUBLIC: &str = "public";

/// The network that the arguments ask for: under a preset nothing but what is named, what a profile opens (`granted`),
/// and what `remembered` answers opened where the person is asked.
///
/// # Errors
/// A destination that is none.
pub(super) fn network(
    args: &RunArgs,
    granted: &[String],
    remembered: &[Remembered],
) -> Result<NetworkMode, EgressError> {
    let named = names_policy(args);
    if args.overlaynet_deny_all {
        return Ok(NetworkMode::DenyAll);
    }
    if !(named || args.ask) && (granted.is_empty() || !is_confined(args)) {
        return Ok(if is_confined(args) { NetworkMode::DenyAll } else { NetworkMode::Host });
    }
    // Whoever names only what is denied has the rest, except under a preset.
    let rest = named && args.overlaynet_allow.is_empty() && !confine::preset(args);
    let public = rest || args.overlaynet_allow.iter().any(|text| text == PUBLIC);
    let allowed = args.overlaynet_allow.iter().filter(|text| *text != PUBLIC);
    let egress = EgressSpec {
        default: if public { EgressDefault::Public } else { EgressDefault::Nothing },
        allow: allowed.chain(granted).cloned().chain(answered(remembered, true)).collect(),
        deny: args.overlaynet_deny.clone(),
        limit: args.overlaynet_limit.map(|rate| rate.0),
        publish: args.publish.iter().map(|p| PublishSpec { host: p.host, port: p.port }).collect(),
        ask: args.ask,
        refused: answered(remembered, false).collect(),
    };
    check_egress(&egress)?;
    Ok(NetworkMode::Egress(egress))
}

/// The hosts that answers were about.
pub(super) fn answered(remembered: &[Remembered], allowed: bool) -> impl Iterator<Item = String> {
    let of = remembered.iter().filter(move |answer| answer.allowed == allowed);
    of.filter_map(|answer| match &answer.subject {
        Subject::Host(rule) => Some(rule.clone()),
        Subject::Path(_) => None,
    })
}

/// Whether the arguments keep the command from the host's network.
pub(super) fn is_confined(args: &RunArgs) -> bool {
    args.overlaynet_deny_all || confine::preset(args) || names_policy(args)
}

fn names_policy(args: &RunArgs) -> bool {
    !args.overlaynet_allow.is_empty()
        || !args.overlaynet_deny.is_empty()
        || args.overlaynet_limit.is_some()
        || !args.publish.is_empty()
}

/// The network on that executor. A guest never has the host's: where nothing was asked for, public addresses are
/// within its reach and nothing else.
pub(super) fn network_on(kind: ExecutorKind, asked: &NetworkMode) -> NetworkMode {
    match (kind, asked) {
        (ExecutorKind::Krun, NetworkMode::Host) => {
            NetworkMode::Egress(EgressSpec { default: EgressDefault::Public, ..EgressSpec::default() })
        }
        _ => asked.clone(),
    }
}
