//! Changes put on a directory in the simplest way, without any care.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pvisor_stage::{After, Before, Change, ChangeSet, FileKind, Kind, RelPath};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Timestamps, Uid, XattrFlags};
use rustix::time::Timespec;

use crate::tree::Tree;

fn place(root: &Path, path: &RelPath) -> PathBuf {
    if path.as_bytes().is_empty() { root.to_owned() } else { root.join(OsStr::from_bytes(path.as_bytes())) }
}

fn key(path: &RelPath) -> String {
    let text = String::from_utf8_lossy(path.as_bytes());
    if text.is_empty() { String::new() } else { format!("/{text}") }
}

fn kind(kind: &Kind) -> FileKind {
    match kind {
        Kind::File { .. } => FileKind::File,
        Kind::Directory => FileKind::Directory,
        Kind::Symlink(_) => FileKind::Symlink,
        Kind::Fifo => FileKind::Fifo,
        Kind::Socket => FileKind::Socket,
        Kind::CharDevice(_) => FileKind::CharDevice,
        Kind::BlockDevice(_) => FileKind::BlockDevice,
    }
}

/// Preimages are what was there, every difference is named, and nothing else is.
pub fn check(changes: &ChangeSet, original: &Tree, expected: &Tree) {
    let groups = changes.changes.iter().filter_map(|c| c.after.as_ref()?.link_group);
    let mut sizes = HashMap::new();
    groups.for_each(|g| *sizes.entry(g).or_insert(0) += 1);
    for Change { path, before, after } in &changes.changes {
        match before {
            Before::Absent => assert!(!original.contains_key(&key(path)), "{path:?} was there"),
            Before::Lost => panic!("{path:?} is lost"),
            Before::Present(print) => {
                let was = &original[&key(path)];
                assert_eq!(
                    (was.kind, was.mode, was.owner),
                    (kind(&print.kind), print.meta.mode, (print.meta.uid, print.meta.gid))
                );
                assert_eq!(was.xattrs, print.meta.xattrs, "{path:?}");
                if let Kind::File { size, hash } = print.kind {
                    assert_eq!((size, hash), (was.content.len() as u64, *blake3::hash(&was.content).as_bytes()));
                }
                let companion = after.as_ref().and_then(|a| a.link_group).is_some_and(|g| sizes[&g] > 1);
                let same = after.as_ref().is_some_and(|a| a.print.same(print));
                assert!(!same || companion, "{path:?} is no change");
            }
        }
        match after {
            None => assert!(!expected.contains_key(&key(path)), "{path:?} is there"),
            Some(after) => {
                let is = &expected[&key(path)];
                if let Kind::File { size, hash } = after.print.kind {
                    assert_eq!(
                        (size, hash),
                        (is.content.len() as u64, *blake3::hash(&is.content).as_bytes()),
                        "{path:?}"
                    );
                    assert_eq!(after.print.meta.mtime, is.mtime, "{path:?}");
                }
            }
        }
    }
    assert!(changes.changes.is_sorted_by(|a, b| a.path < b.path));
}

/// Deletes, then makes, then sets metadata.
pub fn apply(changes: &ChangeSet, stage: &Path, target: &Path) {
    for change in changes.changes.iter().rev() {
        let at = place(target, &change.path);
        let Before::Present(before) = &change.before else { continue };
        let stays = change.after.as_ref().is_some_and(|a| match &before.kind {
            Kind::File { .. } => kind(&a.print.kind) == FileKind::File && a.object.is_none(),
            other => a.print.kind == *other,
        });
        match (stays, &before.kind) {
            (true, _) => {}
            (false, Kind::Directory) => fs::remove_dir(&at).unwrap(),
            (false, _) => fs::remove_file(&at).unwrap(),
        }
    }
    let afters: BTreeMap<_, _> = changes.changes.iter().filter_map(|c| Some((&c.path, c.after.as_ref()?))).collect();
    let mut groups: HashMap<u64, PathBuf> = HashMap::new();
    // Names that stay come first: the others are linked to them.
    let staying = afters.iter().filter(|(path, _)| place(target, path).symlink_metadata().is_ok());
    for (path, after) in staying {
        if let Some(group) = after.link_group {
            groups.entry(group).or_insert_with(|| place(target, path));
        }
    }
    for (path, after) in &afters {
        make(&place(target, path), after, stage, &mut groups);
    }
    for (path, after) in afters.iter().rev() {
        finish(&place(target, path), after);
    }
}

fn make(at: &Path, after: &After, stage: &Path, groups: &mut HashMap<u64, PathBuf>) {
    if let (Ok(is), Some(first)) = (at.symlink_metadata(), after.link_group.and_then(|g| groups.get(&g)))
        && is.ino() != first.symlink_metadata().unwrap().ino()
    {
        fs::remove_file(at).unwrap();
    }
    if at.symlink_metadata().is_ok() {
        return;
    }
    if let Some(group) = after.link_group {
        if let Some(first) = groups.get(&group) {
            return rustix::fs::linkat(CWD, first, CWD, at, AtFlags::empty()).unwrap();
        }
        groups.insert(group, at.to_owned());
    }
    match &after.print.kind {
        Kind::File { .. } => {
            let object = after.object.expect("a new file has content");
            fs::copy(stage.join("upper").join(format!("{:x}", object.0)), at).map(drop).unwrap();
        }
        Kind::Directory => fs::create_dir(at).unwrap(),
        Kind::Symlink(target) => std::os::unix::fs::symlink(OsStr::from_bytes(target), at).unwrap(),
        Kind::Fifo => rustix::fs::mknodat(CWD, at, FileType::Fifo, Mode::from(0o600), 0).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn finish(at: &Path, after: &After) {
    let meta = &after.print.meta;
    let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
    rustix::fs::chownat(CWD, at, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).unwrap();
    let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let modified = Timespec { tv_sec: meta.mtime.0, tv_nsec: meta.mtime.1.into() };
    let times = Timestamps { last_access: omit, last_modification: modified };
    rustix::fs::utimensat(CWD, at, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    if matches!(after.print.kind, Kind::Symlink(_)) {
        return;
    }
    rustix::fs::chmodat(CWD, at, Mode::from(meta.mode), AtFlags::empty()).unwrap();
    for attribute in ["user.one", "user.two"] {
        match meta.xattrs.get(attribute.as_bytes()) {
            Some(value) => rustix::fs::setxattr(at, attribute, value, XattrFlags::empty()).unwrap(),
            None => drop(rustix::fs::removexattr(at, attribute)),
        }
    }
}
