//! Giving a file its owner, attributes, mode and time, in the order in which none undoes another.

use std::io;

use rustix::fd::AsFd;

use super::disk::Disk;
use crate::review::quoted;
use crate::{Errno, Fingerprint, Kind, Meta};

/// Makes the metadata `have` of an open file (`O_PATH` will do) `want`; the time only where it is given. Returns what
/// the kernel would not do: lower-case fragments.
pub(crate) fn wear(
    disk: Disk<'_>,
    fd: impl AsFd,
    (kind, have, want): (&Kind, &Meta, &Meta),
    mtime: Option<(i64, u32)>,
) -> io::Result<Vec<String>> {
    let mut refused = Vec::new();
    let (mut mode, mut target_mode) = (have.mode, want.mode);
    let uid = (have.uid != want.uid).then_some(want.uid);
    let gid = (have.gid != want.gid).then_some(want.gid);
    if uid.is_some() || gid.is_some() {
        match disk.set_owner(&fd, uid, gid) {
            Err(e) if is_refusal(&e) => {
                refused.push(format!("owner {}:{}: {e}", want.uid, want.gid));
                // A program must not run as somebody else than it was meant to.
                if !matches!(kind, Kind::Directory) {
                    target_mode &= 0o1777;
                }
            }
            done => done?,
        }
        // The kernel takes set-id bits away when the owner changes.
        mode &= 0o777;
    }
    if !matches!(kind, Kind::Symlink(_)) {
        refused.extend(wear_xattrs(disk, &fd, have, want)?);
        if mode != target_mode || have.mode != target_mode || !refused.is_empty() {
            match disk.set_mode(&fd, target_mode) {
                Err(e) if is_refusal(&e) => refused.push(format!("mode {:04o}: {e}", want.mode)),
                done => done?,
            }
        }
    }
    if let Some(mtime) = mtime {
        match disk.set_mtime(&fd, mtime) {
            Err(e) if is_refusal(&e) => refused.push(format!("time of modification: {e}")),
            done => done?,
        }
    }
    Ok(refused)
}

fn wear_xattrs(disk: Disk<'_>, fd: impl AsFd, have: &Meta, want: &Meta) -> io::Result<Vec<String>> {
    let mut refused = Vec::new();
    let mut note = |name: &[u8], done: io::Result<()>| match done {
        Err(e) if is_xattr_refusal(&e) => {
            refused.push(format!("extended attribute {}: {e}", quoted(name)));
            Ok(())
        }
        done => done,
    };
    for name in have.xattrs.keys().filter(|name| !want.xattrs.contains_key(*name)) {
        match disk.remove_xattr(&fd, name) {
            Err(e) if Errno::from_io_error(&e) == Some(Errno::NODATA) => {}
            done => note(name, done)?,
        }
    }
    for (name, value) in want.xattrs.iter().filter(|(name, value)| have.xattrs.get(*name) != Some(value)) {
        note(name, disk.set_xattr(&fd, name, value))?;
    }
    Ok(refused)
}

/// The kernel will not do it for this file or this caller, whatever is tried; everything else is a failure.
fn is_refusal(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::PERM | Errno::ACCESS | Errno::NOTSUP | Errno::INVAL))
}

/// The same for attributes, for which there is little room on some filesystems.
fn is_xattr_refusal(e: &io::Error) -> bool {
    is_refusal(e) || matches!(Errno::from_io_error(e), Some(Errno::NOSPC | Errno::TOOBIG | Errno::RANGE))
}

/// Whether `now` can be what a change of metadata from `before` to `after` leaves when it is cut off: each part is the
/// old or the new one.
pub(crate) fn is_between(now: &Fingerprint, before: &Fingerprint, after: &Fingerprint) -> bool {
    let (n, b, a) = (&now.meta, &before.meta, &after.meta);
    let modes = [b.mode, a.mode, b.mode & 0o777, b.mode | 0o700];
    let owners = (n.uid == b.uid || n.uid == a.uid) && (n.gid == b.gid || n.gid == a.gid);
    let names = n.xattrs.keys().chain(b.xattrs.keys()).chain(a.xattrs.keys());
    let xattrs = names.into_iter().all(|name| {
        let value = n.xattrs.get(name);
        value == b.xattrs.get(name) || value == a.xattrs.get(name)
    });
    now.kind == before.kind && modes.contains(&n.mode) && owners && xattrs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fault::Uninterrupted;
    use crate::apply::print::fingerprint;
    use rustix::fs::{CWD, Mode, OFlags, openat};

    #[test]
    fn everything_is_set_and_every_stop_on_the_way_is_recognised() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"x").unwrap();
        let fd = openat(CWD, &path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).unwrap();
        let before = fingerprint(&fd).unwrap().print;
        let mut after = before.clone();
        after.meta.mode = 0o755;
        after.meta.xattrs.insert(b"user.a".to_vec(), b"1".to_vec());
        assert!(is_between(&before, &before, &after));
        let disk = Disk::new(&Uninterrupted);
        let mtime = (1_000_000_000, 123_456_789);
        let refused = wear(disk, &fd, (&before.kind, &before.meta, &after.meta), Some(mtime)).unwrap();
        let now = fingerprint(&fd).unwrap().print;
        if refused.is_empty() {
            assert!(now.same(&after) && is_between(&now, &before, &after));
        }
        assert_eq!((now.meta.mtime, now.meta.mode), (mtime, 0o755));
        let mut other = now;
        other.meta.mode = 0o600;
        assert!(!is_between(&other, &before, &after));
    }
}
