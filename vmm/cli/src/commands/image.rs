//! `pvisor image`.

use pvisor_images::{Artefact, Cache, CacheError, KernelRequest, KernelSource};
use pvisor_spec::{ExitCode, OsBytes};
use serde::Serialize;

use crate::args::{ImageCommand, ImageNameArgs, JsonArgs, KernelArgs};
use crate::artefacts::{self, kernel_failure};
use crate::report::{Failure, answer, answer_json, chain, count, plain, plain_path};

/// One artefact, for programs.
#[derive(Serialize)]
struct Row<'a> {
    kind: &'a str,
    name: &'a str,
    digest: Option<String>,
    size: u64,
    path: Option<OsBytes>,
    current: bool,
    detail: &'a str,
}

#[derive(Serialize)]
struct Listing<'a> {
    images: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Built {
    path: OsBytes,
    release: String,
    digest: String,
}

#[derive(Serialize)]
struct Removed {
    removed: Vec<String>,
}

pub(super) fn image(command: &ImageCommand) -> Result<u8, Failure> {
    match command {
        ImageCommand::Kernel(args) => kernel(args),
        ImageCommand::List(args) => list(args),
        ImageCommand::Rm(args) => remove(args),
        ImageCommand::Gc(args) => collect(args),
    }
}

fn kernel(args: &KernelArgs) -> Result<u8, Failure> {
    let cache = cache()?;
    let source = args.source.clone().map_or(KernelSource::Distribution, KernelSource::Path);
    let kernel = artefacts::build_kernel(&cache, |cancel| KernelRequest { source, ..KernelRequest::new(cancel) })
        .map_err(|e| kernel_failure(&e))?;
    if args.json {
        let digest = kernel.manifest().key.to_string();
        answer_json(&Built { path: kernel.path().into(), release: kernel.release().to_owned(), digest })?;
    } else {
        answer(|out| writeln!(out, "{} {}", kernel.release(), plain_path(&kernel.path())))?;
    }
    Ok(ExitCode::OK)
}

fn list(args: &JsonArgs) -> Result<u8, Failure> {
    let artefacts = pvisor_images::list(&cache()?).map_err(|e| cache_failure(&e))?;
    if args.json {
        answer_json(&Listing { images: artefacts.iter().map(row).collect() })?;
    } else {
        answer(|out| {
            writeln!(out, "{:10} {:44} {:32} {:>10}  NOTE", "KIND", "NAME", "DIGEST", "SIZE")?;
            artefacts.iter().try_for_each(|artefact| writeln!(out, "{}", line(artefact)))
        })?;
    }
    Ok(ExitCode::OK)
}

fn remove(args: &ImageNameArgs) -> Result<u8, Failure> {
    let name = pvisor_images::remove(&cache()?, &args.name).map_err(|e| cache_failure(&e))?;
    tell_removed(args.json, vec![name])
}

fn collect(args: &JsonArgs) -> Result<u8, Failure> {
    tell_removed(args.json, pvisor_images::collect_garbage(&cache()?).map_err(|e| cache_failure(&e))?)
}

fn tell_removed(json: bool, removed: Vec<String>) -> Result<u8, Failure> {
    if json {
        answer_json(&Removed { removed })?;
    } else {
        answer(|out| {
            removed.iter().try_for_each(|name| writeln!(out, "{}", plain(name)))?;
            writeln!(out, "{} removed", count(removed.len() as u64, "image"))
        })?;
    }
    Ok(ExitCode::OK)
}

fn row(artefact: &Artefact) -> Row<'_> {
    Row {
        kind: artefact.kind.word(),
        name: &artefact.name,
        digest: artefact.digest.map(|d| d.to_string()),
        size: artefact.size,
        path: artefact.path.clone().map(OsBytes::from),
        current: artefact.current,
        detail: &artefact.detail,
    }
}

fn line(artefact: &Artefact) -> String {
    let digest = artefact.digest.map_or_else(|| "-".to_owned(), |d| d.short());
    let note = if artefact.current { artefact.detail.clone() } else { format!("{} (not used)", artefact.detail) };
    let size = format!("{}.{} MiB", artefact.size >> 20, ((artefact.size & 0xf_ffff) * 10) >> 20);
    format!("{:10} {:44} {digest:32} {size:>10}  {}", artefact.kind.word(), plain(&artefact.name), plain(note.trim()))
}

fn cache() -> Result<Cache, Failure> {
    Cache::of_user().map_err(|e| cache_failure(&e))
}

fn cache_failure(error: &CacheError) -> Failure {
    let failure = Failure::new("image_cache", chain(error));
    match error {
        CacheError::NoSuchArtefact(_) | CacheError::Ambiguous { .. } => {
            failure.hint("`pvisor image list` has the names")
        }
        CacheError::Io { .. } => failure.hint("set PVISOR_IMAGES to a directory that you can write"),
        CacheError::NoPlace | CacheError::Damaged { .. } => failure,
    }
}
