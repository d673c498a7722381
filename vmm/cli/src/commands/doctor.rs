//! `pvisor doctor`.

use pvisor_images::{Cache, find_kernel};
use pvisor_spec::{Capability, CapabilityState, ExitCode};
use serde::Serialize;

use crate::args::JsonArgs;
use crate::report::{Failure, answer, answer_json, chain, plain};

#[derive(Serialize)]
struct Answer {
    capabilities: Vec<Capability>,
}

pub(super) fn doctor(args: &JsonArgs) -> Result<u8, Failure> {
    let told = Answer { capabilities: all() };
    if args.json {
        answer_json(&told)?;
    } else {
        answer(|out| told.capabilities.iter().try_for_each(|c| writeln!(out, "{}", text(c))))?;
    }
    Ok(ExitCode::OK)
}

/// Everything, strongest executor first.
fn all() -> Vec<Capability> {
    let mut all: Vec<Capability> = pvisor_vmm::probe::capabilities().into();
    all.push(kernel());
    all.extend(pvisor_host_exec::all());
    all.extend(pvisor_oci::runtimes());
    all
}

fn kernel() -> Capability {
    let capability = |state, detail: String, hint: &str| Capability {
        name: "guest_kernel".to_owned(),
        state,
        detail,
        hint: hint.to_owned(),
    };
    let build = "`pvisor image kernel` builds it, and the first run in a VM does so by itself";
    match Cache::of_user().and_then(|cache| find_kernel(&cache)) {
        Ok(Some(kernel)) => match kernel.verify() {
            Ok(()) => {
                let detail = format!("{} in {}", kernel.release(), kernel.path().display());
                capability(CapabilityState::Usable, detail, "")
            }
            Err(e) => capability(CapabilityState::Limited, chain(&e), build),
        },
        Ok(None) => capability(CapabilityState::Missing, "none built yet".to_owned(), build),
        Err(e) => {
            capability(CapabilityState::Missing, chain(&e), "set PVISOR_IMAGES to a directory that you can write")
        }
    }
}

fn text(capability: &Capability) -> String {
    let state = match capability.state {
        CapabilityState::Usable => "ok",
        CapabilityState::Limited => "limited",
        CapabilityState::Missing => "missing",
    };
    let mut text = format!("{:8}{:20}{}", state, capability.name, plain(&capability.detail));
    if !capability.hint.is_empty() {
        text.push_str(&format!("\n{:28}{}", "", plain(&capability.hint)));
    }
    text
}
