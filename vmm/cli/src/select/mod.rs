//! Choosing the executor: what was asked for, what this machine can, and never less than was asked for.

use std::os::fd::OwnedFd;

use pvisor_host_exec::HostExecutor;
use pvisor_spec::{Executor, ExecutorKind, ExecutorRequest, GuestRoot, Interruption, Refusal, RunSpec};
use pvisor_vmm::KrunExecutor;

/// The executor of a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Which one.
    pub(crate) kind: ExecutorKind,
    /// Why: a fragment.
    pub(crate) reason: String,
    /// Whether the person did not ask for exactly this one, and should know why it is not a VM.
    pub(crate) fell_back: bool,
}

/// The executor of that kind, to probe or to work with. `answers`: where answers to its questions come from.
///
/// # Errors
/// This version has none.
pub(crate) fn executor(
    kind: ExecutorKind,
    force_slow_kvm: bool,
    answers: Option<OwnedFd>,
) -> Result<Box<dyn Executor>, Refusal> {
    match kind {
        ExecutorKind::Host => Ok(Box::new(answers.map_or_else(HostExecutor::default, HostExecutor::answered_from))),
        ExecutorKind::Krun => Ok(Box::new(KrunExecutor::new(force_slow_kvm))),
        ExecutorKind::Oci => Err(Refusal {
            reason: "it is not in this version".to_owned(),
            hint: "use --executor krun or --executor host".to_owned(),
        }),
    }
}

/// Chooses the executor of a run.
///
/// # Errors
/// The one that was asked for can't run here, none can, or it lacks a control that was asked for.
pub(crate) fn select(spec: &RunSpec) -> Result<Selection, Interruption> {
    let probe = |kind| match kind {
        // What it probes is the mount of a stage.
        ExecutorKind::Host if spec.stage.is_none() => Ok(()),
        kind => executor(kind, spec.force_slow_kvm, None)?.probe(),
    };
    let selection = choose(spec.requested, probe)?;
    match lacking(selection.kind, spec) {
        Some(lacking) => Err(lacking),
        None => Ok(selection),
    }
}

/// What was asked for and this executor does not do: refused rather than left out.
fn lacking(kind: ExecutorKind, spec: &RunSpec) -> Option<Interruption> {
    let lacking = |kind: &str, message: &str, hint: &str| {
        Some(Interruption { kind: kind.to_owned(), message: message.to_owned(), hint: hint.to_owned() })
    };
    if kind != ExecutorKind::Host {
        let granted = spec.sources.profile.as_ref().map_or(&[][..], |grant| &grant.mounts);
        return match spec.confinement.mounts.iter().all(|mount| granted.contains(mount)) {
            true => None,
            false => lacking(
                "mount",
                "a guest of this version has no mounts of the host's",
                "use --executor host, or leave --mount out: a guest can read what is not secret anyway",
            ),
        };
    }
    if spec.root != GuestRoot::Host {
        return lacking(
            "rootfs",
            "a command on the host can't have a root filesystem of its own",
            "use --executor krun, or leave --rootfs out",
        );
    }
    if spec.command.tty {
        return lacking(
            "tty",
            "the host executor of this version gives the command no terminal of its own",
            "leave --tty out: the command uses the terminal that pvisor runs on",
        );
    }
    None
}

fn choose(
    requested: ExecutorRequest,
    probe: impl Fn(ExecutorKind) -> Result<(), Refusal>,
) -> Result<Selection, Interruption> {
    let (kind, reason, fell_back) = match requested {
        ExecutorRequest::Only(kind) => {
            probe(kind).map_err(|refusal| Interruption {
                kind: kind.to_string(),
                message: format!("the {kind} executor can't run here: {refusal}"),
                hint: refusal.hint,
            })?;
            (kind, "asked for by name".to_owned(), false)
        }
        ExecutorRequest::Auto => match probe(ExecutorKind::Krun) {
            Ok(()) => (ExecutorKind::Krun, "this machine runs VMs at speed".to_owned(), false),
            Err(no_vm) => {
                probe(ExecutorKind::Host).map_err(|refusal| Interruption {
                    kind: "no_executor".to_owned(),
                    message: format!("no executor can run here; a VM: {no_vm}; the host: {refusal}"),
                    hint: refusal.hint,
                })?;
                (ExecutorKind::Host, format!("no VM here: {no_vm}"), true)
            }
        },
    };
    Ok(Selection { kind, reason, fell_back })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(usable: &[ExecutorKind]) -> impl Fn(ExecutorKind) -> Result<(), Refusal> {
        move |kind| match usable.contains(&kind) {
            true => Ok(()),
            false => Err(Refusal { reason: format!("no {kind}"), hint: "none".to_owned() }),
        }
    }

    #[test]
    fn auto_takes_the_vm_and_says_why_not() {
        use ExecutorKind::{Host, Krun};
        let both = choose(ExecutorRequest::Auto, only(&[Host, Krun])).unwrap();
        assert_eq!((both.kind, both.fell_back), (Krun, false));
        let host = choose(ExecutorRequest::Auto, only(&[Host])).unwrap();
        assert_eq!((host.kind, host.fell_back), (Host, true));
        assert!(host.reason.contains("no krun"), "{}", host.reason);
    }

    #[test]
    fn what_was_named_is_never_replaced() {
        let refused = choose(ExecutorRequest::Only(ExecutorKind::Krun), only(&[ExecutorKind::Host]));
        assert_eq!(refused.unwrap_err().kind, "krun");
    }

    #[test]
    fn where_nothing_runs_every_reason_is_told() {
        let refused = choose(ExecutorRequest::Auto, only(&[])).unwrap_err();
        assert!(refused.message.contains("no krun") && refused.message.contains("no host"), "{refused:?}");
    }
}
