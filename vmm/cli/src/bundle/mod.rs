//! Composing the Run Bundle.

use pvisor_spec::{
    BUNDLE_SCHEMA, Bundle, Observation, OsBytes, Outcome, Probe, Receipt, RunSpec, Safety, StageRecord, StageState,
};

use crate::runs::RunRecord;

/// The record of a run that is over.
pub(crate) fn compose(
    record: &RunRecord,
    receipts: Vec<Receipt>,
    probes: Vec<Probe>,
    outcome: Outcome,
    stage: StageRecord,
    ended_ms: u64,
) -> Bundle {
    let observations = Observation::from_receipts(&receipts, &record.spec.needs);
    let safety = Safety::from_observations(&observations);
    let mut bundle = Bundle {
        schema: BUNDLE_SCHEMA.to_owned(),
        written_by: concat!("pvisor ", env!("CARGO_PKG_VERSION")).to_owned(),
        spec: record.spec.clone(),
        executor: record.spec.executor,
        selection: record.selection.clone(),
        started_ms: record.started_ms,
        ended_ms,
        outcome,
        receipts,
        probes,
        observations,
        safety,
        stage,
        answers: record.answers.clone(),
        digest: String::new(),
    };
    bundle.digest = bundle.compute_digest();
    bundle
}

/// What a bundle says where the run had no stage.
pub(crate) fn no_stage() -> StageRecord {
    StageRecord { state: StageState::None, changes: None, seal: None }
}

/// The spec as it is kept: variables by name alone, since their values may be credentials.
pub(crate) fn without_values(spec: &RunSpec) -> RunSpec {
    let mut kept = spec.clone();
    for variable in &mut kept.command.env {
        let name = variable.as_bytes().split(|b| *b == b'=').next().unwrap_or_default().to_vec();
        *variable = OsBytes::from(name);
    }
    kept
}
