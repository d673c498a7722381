//! `pvisor checkpoint`: savepoints of a run's stage.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::PathBuf;

use pvisor_spec::{ExitCode, StageState};
use pvisor_stage::{
    Collected, Savepoint, collect_savepoints, create_savepoint, delete_savepoint, restore_savepoint, savepoint,
    savepoints, verify_savepoint,
};
use serde::Serialize;

use super::surroundings;
use crate::args::{CheckpointCommand, CollectArgs, CreateArgs, RestoreArgs, RunNameArgs, SavepointArgs};
use crate::report::{Failure, ago, answer, answer_json, count, plain, size};
use crate::runs::{Entry, Run, Store, now_ms};
use crate::stages::{self, hex, savepoint_failure, sealed};

/// One savepoint, for programs.
#[derive(Serialize)]
struct Row {
    name: String,
    created_ms: u64,
    /// BLAKE3 of the seal that the stage had; none where its run had broken off.
    seal: Option<String>,
    changes: Option<u64>,
    contents: u64,
    bytes: u64,
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

/// The stage of a run, which need not be sealed but must be over.
fn place(name: &OsStr) -> Result<(Store, PathBuf, Option<Run>), Failure> {
    let (ambient, store) = surroundings()?;
    if let Ok(run) = store.find(name, &ambient.cwd)
        && run.is_live()
    {
        return Err(Failure::new("run_goes_on", format!("{} is still going on", run.id))
            .hint("savepoints are made of runs that are over: wait for its end, or end it with `pvisor kill`")
            .code(ExitCode::UNSUPPORTED));
    }
    let target = stages::find(name, &store, &ambient)?;
    Ok((store, target.dir, target.run))
}

fn create(args: &CreateArgs) -> Result<u8, Failure> {
    let (_, dir, _) = place(&args.run)?;
    let made = create_savepoint(&dir, args.name.as_deref(), now_ms()).map_err(|e| savepoint_failure(&e))?;
    one(&made, args.json, "made")
}

fn show(args: &SavepointArgs) -> Result<u8, Failure> {
    let (_, dir, _) = place(&args.run)?;
    let found = savepoint(&dir, &args.name).map_err(|e| savepoint_failure(&e))?;
    one(&found, args.json, "")
}

fn verify(args: &SavepointArgs) -> Result<u8, Failure> {
    let (_, dir, _) = place(&args.run)?;
    let whole = verify_savepoint(&dir, &args.name).map_err(|e| savepoint_failure(&e))?;
    one(&whole, args.json, "whole")
}

fn one(savepoint: &Savepoint, json: bool, done: &str) -> Result<u8, Failure> {
    if json {
        answer_json(&row(savepoint))?;
    } else {
        answer(|out| {
            line(out, savepoint)?;
            if done.is_empty() { Ok(()) } else { writeln!(out, "{done}") }
        })?;
    }
    Ok(ExitCode::OK)
}

fn list(args: &RunNameArgs) -> Result<u8, Failure> {
    let (_, dir, _) = place(&args.run)?;
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
    }
}

fn line(out: &mut dyn Write, savepoint: &Savepoint) -> io::Result<()> {
    let state = match savepoint.seal {
        Some((_, changes)) => count(changes, "change"),
        None => "its run broke off".to_owned(),
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
