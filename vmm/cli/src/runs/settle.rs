//! Ending what a supervisor that died could not end.

use std::fs;
use std::time::Duration;

use pvisor_spec::{Interruption, Outcome};

use super::claim::{THROWN_AWAY, close};
use super::{Phase, Run, now_ms};
use crate::bundle;
use crate::stages;

/// Kills the worker where it still lives, writes the bundle, and marks the run as over. The caller holds the run's
/// lock. What can't be done is told in the run's `trouble`; the next reader tries again.
pub(super) fn settle(mut run: Run) -> Run {
    if let Some(worker) = &run.record.worker
        && let Err(left) = worker.end(Duration::from_secs(5))
    {
        run.trouble = Some(left.message);
        return run;
    }
    for left in THROWN_AWAY.map(|name| run.dir.join(name)) {
        if left.exists()
            && let Err(e) = fs::remove_dir_all(&left)
        {
            run.trouble = Some(format!("can't remove {}: {e}", left.display()));
        }
    }
    if run.bundle.is_none() {
        // Without a worker nobody has made a stage: what is in the directory is somebody else's.
        let stage = run.stage_dir().filter(|_| run.record.worker.is_some());
        let stage = stage.map_or_else(bundle::no_stage, stages::record);
        let outcome = Outcome::Interrupted(Interruption {
            kind: "supervisor_lost".to_owned(),
            message: match run.record.phase {
                Phase::Preparing => "pvisor itself was ended before the command started".to_owned(),
                Phase::Running => "pvisor itself was ended while the command ran".to_owned(),
                Phase::Sealing | Phase::Ended => {
                    "pvisor itself was ended after the command, before its record was written".to_owned()
                }
            },
            hint: String::new(),
        });
        run.bundle =
            Some(bundle::compose(&run.record, run.record.receipts.clone(), Vec::new(), outcome, stage, now_ms()));
    }
    run.record.phase = Phase::Ended;
    if let Some(bundle) = &run.bundle
        && let Err(e) = close(&run.dir, &run.record, bundle)
    {
        run.trouble = Some(crate::report::chain(&e));
    }
    run
}
