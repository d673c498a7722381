//! `pvisor checkpoint`: savepoints of a run's stage.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use pvisor_spec::{ControlAnswer, ControlRequest, ExecutorKind, ExitCode, StageState};
use pvisor_stage::{
    Collected, Savepoint, SavepointError, collect_savepoints, create_savepoint, delete_savepoint, restore_savepoint,
    savepoint, savepoints, verify_savepoint,
};
use serde::Serialize;

use super::surroundings;
use crate::args::{CheckpointCommand, CollectArgs, CreateArgs, RestoreArgs, RunNameArgs, SavepointArgs};
use crate::report::{Failure, ago, answer, answer_json, chain, count, plain, size};
use crate::resolve::Ambient;
use crate::runs::{ControlError, Entry, Run, Store, ask, now_ms};
use crate::stages::{self, hex, savepoint_failure, sealed};

/// One savepoint, for programs.
#[derive(Serialize)]
struct Row {
    name: String,
    created_ms: u64,
    /// BLAKE3 of the seal that the stage had; none where its run went on or had broken off.
    seal: Option<String>,
    changes: Option<u64>,
    contents: u64,
    bytes: u64,
    /// How long the command was held still for it, where it has just been made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pause_ms: Option<u64>,
}

#[derive(Serialize)]
struct Broken {
    name: String,
    reason: String,
}

#[derive(Serialize)]
struct List {
    savepoints: Vec<Row>,
    damaged: Vec<Broken>,
}

#[derive(Serialize)]
struct Restored {
    name: String,
    seal: String,
    changes: u64,
}

#[derive(Serialize)]
struct Cleaned {
    savepoints: u64,
    files: u64,
}

pub(super) fn checkpoint(command: &CheckpointCommand) -> Result<u8, Failure> {
    match command {
        CheckpointCommand::Create(args) => create(args),
        CheckpointCommand::List(args) => list(args),
        CheckpointCommand::Show(args) => show(args),
        CheckpointCommand::Verify(args) => verify(args),
        CheckpointCommand::Restore(args) => restore(args),
        CheckpointCommand::Delete(args) => delete(args),
        CheckpointCommand::Gc(args) => gc(args),
    }
}

/// The stage of a run, for who only reads its savepoints.
fn stage_of(name: &OsStr) -> Result<PathBuf, Failure> {
    let (ambient, store) = surroundings()?;
    Ok(match live(name, &ambient, &store) {
        Some(run) => stage_dir(&run)?.to_owned(),
        None => stages::find(name, &store, &ambient)?.dir,
    })
}

/// The stage of a run, which need not be sealed but must be over.
fn place(name: &OsStr) -> Result<(Store, PathBuf, Option<Run>), Failure> {
    let (ambient, store) = surroundings()?;
    if let Some(run) = live(name, &ambient, &store) {
        return Err(Failure::new("run_goes_on", format!("{} is still going on", run.id))
            .hint("wait for its end, or end it with `pvisor kill`")
            .code(ExitCode::UNSUPPORTED));
    }
    let target = stages::find(name, &store, &ambient)?;
    Ok((store, target.dir, target.run))
}

/// The run of that name, if it goes on.
fn live(name: &OsStr, ambient: &Ambient, store: &Store) -> Option<Run> {
    store.find(name, &ambient.cwd).ok().filter(Run::is_live)
}

fn stage_dir(run: &Run) -> Result<&Path, Failure> {
    run.stage_dir().ok_or_else(|| {
        Failure::new("no_stage", format!("{} has no stage", run.id)).hint("`pvisor run --stage DIR` stages changes")
    })
}

fn create(args: &CreateArgs) -> Result<u8, Failure> {
    let (ambient, store) = surroundings()?;
    if let Some(run) = live(&args.run, &ambient, &store) {
        let (made, pause_ms) = create_live(&run, args)?;
        return one(&Row { pause_ms: Some(pause_ms), ..row(&made) }, &made, args.json, "made");
    }
    let dir = stages::find(&args.run, &store, &ambient)?.dir;
    let made = create_savepoint(&dir, args.name.as_deref(), now_ms()).map_err(|e| savepoint_failure(&e))?;
    one(&row(&made), &made, args.json, "made")
}

/// Has the worker of a run that goes on save it.
fn create_live(run: &Run, args: &CreateArgs) -> Result<(Savepoint, u64), Failure> {
    let dir = stage_dir(run)?;
    if run.record.spec.executor == Some(ExecutorKind::Krun) {
        let message = format!("{} goes on in a VM, and savepoints of those are not supported yet", run.id);
        return Err(Failure::new("unsupported", message)
            .hint("wait for its end, or end it with `pvisor kill`: runs that are over can be saved")
            .code(ExitCode::UNSUPPORTED));
    }
    if let Some(name) = &args.name {
        // What is wrong with a name is told the same way as of runs that are over.
        match savepoint(dir, name) {
            Ok(_) => return Err(savepoint_failure(&SavepointError::Exists(name.clone()))),
            Err(e @ SavepointError::Name(_)) => return Err(savepoint_failure(&e)),
            Err(_) => {}
        }
    }
    let request = ControlRequest::Save { name: args.name.clone(), pause_limit_ms: args.max_pause.0 };
    match ask(run, &request) {
        Ok(ControlAnswer::Saved(saved)) => {
            let made = savepoint(dir, &saved.name).map_err(|e| savepoint_failure(&e))?;
            Ok((made, saved.pause_ms))
        }
        Ok(ControlAnswer::Failed(failed)) => Err(Failure::new(&failed.kind, failed.message).hint(failed.hint)),
        Err(e) => Err(match e {
            ControlError::Absent(_) => Failure::new("run_goes_on", format!("{}: {}", run.id, chain(&e)))
                .hint("its command has not begun, or is just over: try it again")
                .code(ExitCode::UNSUPPORTED),
            ControlError::Io(_) | ControlError::Malformed => {
                Failure::new("control", format!("{}: {}", run.id, chain(&e)))
                    .hint("`pvisor status` tells whether the run still goes on; nothing half saved is ever used")
            }
        }),
    }
}

fn show(args: &SavepointArgs) -> Result<u8, Failure> {
    let dir = stage_of(&args.run)?;
    let found = savepoint(&dir, &args.name).map_err(|e| savepoint_failure(&e))?;
    one(&row(&found), &found, args.json, "")
}

fn verify(args: &SavepointArgs) -> Result<u8, Failure> {
    let dir = stage_of(&args.run)?;
    let whole = verify_savepoint(&dir, &args.name).map_err(|e| savepoint_failure(&e))?;
    one(&row(&whole), &whole, args.json, "whole")
}

fn one(row: &Row, savepoint: &Savepoint, json: bool, done: &str) -> Result<u8, Failure> {
    if json {
        answer_json(row)?;
    } else {
        answer(|out| {
            line(out, savepoint)?;
            match (done, row.pause_ms) {
                ("", _) => Ok(()),
                (done, None) => writeln!(out, "{done}"),
                (done, Some(pause)) => writeln!(out, "{done}; the command was held still for {pause} ms"),
            }
        })?;
    }
    Ok(ExitCode::OK)
}

fn list(args: &RunNameArgs) -> Result<u8, Failure> {
    let dir = stage_of(&args.run)?;
    let (whole, broken) = savepoints(&dir).map_err(|e| savepoint_failure(&e))?;
    if args.json {
        let broken = broken.iter().map(|(name, e)| Broken { name: name.clone(), reason: crate::report::chain(e) });
        answer_json(&List { savepoints: whole.iter().map(row).collect(), damaged: broken.collect() })?;
    } else {
        answer(|out| {
            if whole.is_empty() && broken.is_empty() {
                return writeln!(out, "no savepoints");
            }
            for savepoint in &whole {
                line(out, savepoint)?;
            }
            for (name, error) in &broken {
                writeln!(out, "{name:16}  {}", plain(&crate::report::chain(error)))?;
            }
            Ok(())
        })?;
    }
    Ok(ExitCode::OK)
}

fn restore(args: &RestoreArgs) -> Result<u8, Failure> {
    let (store, dir, run) = place(&args.run)?;
    let (name, seal) = restore_savepoint(&dir, args.name.as_deref()).map_err(|e| savepoint_failure(&e))?;
    if let Some(run) = &run {
        store.amend(run, |record| record.sealed_later = Some(sealed(&seal)))?;
    }
    let changes = count(seal.changes, "change");
    if args.json {
        answer_json(&Restored { name, seal: hex(&seal.digest), changes: seal.changes })?;
    } else {
        answer(|out| writeln!(out, "the stage is what it was at savepoint {name}: {changes}, sealed"))?;
    }
    Ok(ExitCode::OK)
}

fn delete(args: &SavepointArgs) -> Result<u8, Failure> {
    let (_, dir, _) = place(&args.run)?;
    let gone = delete_savepoint(&dir, &args.name).map_err(|e| savepoint_failure(&e))?;
    if args.json {
        answer_json(&Cleaned { savepoints: gone.savepoints, files: gone.files })?;
    } else {
        answer(|out| writeln!(out, "the savepoint {} is gone", args.name))?;
    }
    Ok(ExitCode::OK)
}

fn gc(args: &CollectArgs) -> Result<u8, Failure> {
    let mut all = Collected::default();
    match &args.run {
        Some(name) => {
            let (_, dir, _) = place(name)?;
            all = collect_savepoints(&dir).map_err(|e| savepoint_failure(&e))?;
        }
        None => {
            let (_, store) = surroundings()?;
            for entry in store.entries()? {
                let Entry::Run(run) = entry else { continue };
                let there = matches!(run.stage_state(), StageState::Sealed | StageState::Unsealed);
                let dir = run.stage_dir().filter(|_| there && !run.is_live());
                // A stage that is in use, or was removed by hand, has nothing to be cleaned up now.
                if let Some(Ok(of)) = dir.map(collect_savepoints) {
                    all = Collected { savepoints: all.savepoints + of.savepoints, files: all.files + of.files };
                }
            }
        }
    }
    if args.json {
        answer_json(&Cleaned { savepoints: all.savepoints, files: all.files })?;
    } else {
        answer(|out| writeln!(out, "{} that nobody can use removed", count(all.savepoints, "savepoint")))?;
    }
    Ok(ExitCode::OK)
}

fn row(savepoint: &Savepoint) -> Row {
    Row {
        name: savepoint.name.clone(),
        created_ms: savepoint.created_ms,
        seal: savepoint.seal.map(|(digest, _)| hex(&digest)),
        changes: savepoint.seal.map(|(_, changes)| changes),
        contents: savepoint.contents,
        bytes: savepoint.bytes,
        pause_ms: None,
    }
}

fn line(out: &mut dyn Write, savepoint: &Savepoint) -> io::Result<()> {
    let state = match savepoint.seal {
        Some((_, changes)) => count(changes, "change"),
        None => "not sealed".to_owned(),
    };
    writeln!(
        out,
        "{:16}  {:12}  {:18}  {} in {}",
        savepoint.name,
        ago(savepoint.created_ms, now_ms()),
        state,
        size(savepoint.bytes),
        count(savepoint.contents, "file"),
    )
}
