//! The short form of a review.

use std::collections::HashMap;
use std::io::{self, Write};

use super::entry::{ReviewEntry, Side, SideKind, Status, before_print};
use super::quote::quoted;
use super::{Danger, Review};
use crate::apply::below;
use crate::{Fingerprint, RelPath};

/// As many paths are named for one notice.
const FEW: usize = 10;
/// A directory that appears or goes with more files than this is one line.
const COLLAPSE: usize = 16;

pub(super) fn write(review: &Review, out: &mut dyn Write) -> io::Result<()> {
    let entries = &review.entries;
    let path = |entry: &ReviewEntry| -> RelPath { review.set.changes[entry.change].path.clone() };
    let paths: Vec<RelPath> = entries.iter().map(path).collect();
    let mut at = 0;
    while let Some(entry) = entries.get(at) {
        let inside = below(&paths, &paths[at], |p| p);
        if inside.len() > COLLAPSE && inside.start == at + 1 && alike(entry, &entries[inside.clone()]) {
            write_directory(entry, &entries[inside.clone()], out)?;
            at = inside.end;
            continue;
        }
        write_entry(review, entry, out)?;
        at += 1;
    }
    write_flags(entries, out)?;
    write_total(review, out)
}

/// The directory and all in it are new, or all in it goes with it.
fn alike(directory: &ReviewEntry, inside: &[ReviewEntry]) -> bool {
    let whole = matches!(directory.status, Status::Added | Status::Deleted);
    whole && directory.is_directory() && inside.iter().all(|entry| entry.status == directory.status)
}

fn write_directory(directory: &ReviewEntry, inside: &[ReviewEntry], out: &mut dyn Write) -> io::Result<()> {
    let files = inside.iter().filter(|entry| !entry.is_directory()).count();
    let sizes = inside.iter().filter_map(|entry| entry.after.as_ref().or(entry.before.as_ref())?.size);
    let total = sizes.fold(0, u64::saturating_add);
    let letter = directory.status.letter();
    writeln!(out, "{letter}  {}/  {files} files, {}", shown(directory.path.as_bytes()), size(total))
}

fn write_entry(review: &Review, entry: &ReviewEntry, out: &mut dyn Write) -> io::Result<()> {
    let name = shown(entry.path.as_bytes());
    let slash = if entry.is_directory() && entry.status != Status::TypeChanged { "/" } else { "" };
    write!(out, "{}  ", entry.status.letter())?;
    if let Some(from) = &entry.from {
        write!(out, "{} -> ", shown(from.as_bytes()))?;
    }
    writeln!(out, "{name}{slash}{}", details(review, entry))
}

/// What changed besides the name, with two spaces before it.
fn details(review: &Review, entry: &ReviewEntry) -> String {
    let parts = parts(review, entry);
    if parts.is_empty() { String::new() } else { format!("  {}", parts.join(", ")) }
}

/// What changed besides the name.
pub(super) fn parts(review: &Review, entry: &ReviewEntry) -> Vec<String> {
    let changes = &review.set.changes;
    let mut parts = Vec::new();
    match (&entry.before, &entry.after) {
        (None, Some(after)) => parts.extend(describe(after)),
        (Some(before), None) => parts.extend(describe(before)),
        (Some(before), Some(after)) => {
            compare(entry, before, after, &mut parts);
            let xattrs = |print: Option<&Fingerprint>| print.map(|p| p.meta.xattrs.clone());
            let change = &changes[entry.change];
            let origin = before_print(&changes[entry.origin.map_or(entry.change, |origin| origin.source)]);
            if xattrs(origin) != xattrs(change.after.as_ref().map(|a| &a.print)) {
                parts.push("extended attributes".to_owned());
            }
        }
        (None, None) => {}
    }
    if entry.lost {
        parts.push("changed while the command ran: can't be applied".to_owned());
    }
    if let Some(first) = review.first_name(entry) {
        parts.push(format!("the same file as {}", shown(first.as_bytes())));
    }
    parts
}

fn describe(side: &Side) -> Option<String> {
    match (side.kind, side.size, &side.target) {
        (SideKind::Directory, ..) => None,
        (SideKind::File, Some(bytes), _) => Some(size(bytes)),
        (_, _, Some(target)) => Some(format!("symbolic link to {}", quoted(target.as_bytes()))),
        (kind, ..) => Some(kind.to_string()),
    }
}

fn compare(entry: &ReviewEntry, before: &Side, after: &Side, parts: &mut Vec<String>) {
    if before.kind != after.kind {
        parts.push(format!("{} -> {}", before.kind, after.kind));
    } else if let Some(similarity) = entry.similarity.filter(|n| *n < 100) {
        parts.push(format!("{similarity}% the same"));
    } else if entry.status == Status::Modified {
        match (before.size, after.size, &after.target) {
            (Some(old), Some(new), _) => parts.push(format!("{} -> {}", size(old), size(new))),
            (_, _, Some(target)) => parts.push(format!("symbolic link to {}", quoted(target.as_bytes()))),
            _ => {}
        }
    }
    if before.mode != after.mode && after.kind != SideKind::Symlink {
        parts.push(format!("mode {} -> {}", before.mode, after.mode));
    }
    if (before.uid, before.gid) != (after.uid, after.gid) {
        parts.push(format!("owner {}:{} -> {}:{}", before.uid, before.gid, after.uid, after.gid));
    }
}

/// Dangerous ones first. A reason that many paths have is given for the first few.
fn write_flags(entries: &[ReviewEntry], out: &mut dyn Write) -> io::Result<()> {
    for danger in [Danger::Dangerous, Danger::Notice] {
        let mark = if danger == Danger::Dangerous { "!!" } else { "! " };
        let mut told: HashMap<&str, usize> = HashMap::new();
        for (entry, flag) in entries.iter().flat_map(|entry| entry.flags.iter().map(move |flag| (entry, flag))) {
            if flag.danger != danger {
                continue;
            }
            let count = told.entry(&flag.reason).or_default();
            *count += 1;
            if danger == Danger::Dangerous || *count <= FEW {
                writeln!(out, "{mark} {}  {}", shown(entry.path.as_bytes()), flag.reason)?;
            }
        }
        let mut more: Vec<_> = told.into_iter().filter(|(_, n)| danger == Danger::Notice && *n > FEW).collect();
        more.sort_unstable();
        for (reason, count) in more {
            writeln!(out, "{mark} and {} more: {reason}", count - FEW)?;
        }
    }
    Ok(())
}

fn write_total(review: &Review, out: &mut dyn Write) -> io::Result<()> {
    let count = |status| review.entries.iter().filter(|entry| entry.status == status).count();
    let words: Vec<String> = Status::ALL
        .into_iter()
        .filter_map(|status| Some(count(status)).filter(|n| *n > 0).map(|n| format!("{n} {}", status.word())))
        .collect();
    let total = review.entries.len();
    match total {
        0 => write!(out, "no changes")?,
        1 => write!(out, "1 change: {}", words.join(", "))?,
        _ => write!(out, "{total} changes: {}", words.join(", "))?,
    }
    if review.applied > 0 {
        write!(out, "; {} applied already", review.applied)?;
    }
    if review.left > 0 {
        write!(out, "; {} not selected", review.left)?;
    }
    writeln!(out)?;
    match review.dangerous() {
        0 => Ok(()),
        1 => writeln!(out, "1 of them makes the host run something: apply takes it with --allow-exec-sinks only"),
        n => writeln!(out, "{n} of them make the host run something: apply takes them with --allow-exec-sinks only"),
    }
}

/// The project's own directory has no name in it.
fn shown(path: &[u8]) -> String {
    if path.is_empty() { ".".to_owned() } else { quoted(path) }
}

pub(super) fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        // One decimal, cut off.
        Some((shift, unit)) => format!("{}.{} {unit}", bytes >> shift, ((bytes & ((1 << shift) - 1)) * 10) >> shift),
        None if bytes == 1 => "1 byte".to_owned(),
        None => format!("{bytes} bytes"),
    }
}
