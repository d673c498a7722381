//! Metadata: putting it together and setting it.

use std::fs::File;
use std::sync::Arc;

use rustix::fs::Timestamps;
use rustix::time::Timespec;

use super::{Attr, NodeId, SetAttr, SetTime, Shared, Stage};
use crate::journal::{FreshKind, Record};
use crate::stat::{InodeKey, Stat, Time};
use crate::tree::{MetaChange, Tree};
use crate::{Errno, FileKind};

/// Largest size of a file, in bytes: what a signed offset can say.
const MAX_SIZE: u64 = i64::MAX as u64;

/// Where the rest of a node's metadata is.
#[derive(Debug)]
pub(super) enum Source {
    Upper,
    Lower(Arc<[u8]>),
    Fresh { size: u64, rdev: u64 },
}

/// What the tree knows of a node: enough to go on without the lock.
#[derive(Debug)]
pub(super) struct Facts {
    pub id: NodeId,
    pub kind: FileKind,
    pub source: Source,
    pub ino: u64,
    key: Option<InodeKey>,
    base: Option<Stat>,
    meta: MetaChange,
    /// For what the stage counts itself.
    nlink: Option<u32>,
    subdirs: i64,
    dead: bool,
    adopted: bool,
}

impl Facts {
    pub fn of(tree: &Tree, id: NodeId) -> Result<Self, Errno> {
        let node = tree.get(id).ok_or(Errno::STALE)?;
        let source = match (&node.origin, &node.fresh) {
            _ if node.in_upper() => Source::Upper,
            (Some(origin), _) => Source::Lower(Arc::clone(origin)),
            (None, Some(FreshKind::Symlink(target))) => Source::Fresh { size: target.len() as u64, rdev: 0 },
            (None, Some(FreshKind::CharDevice(rdev) | FreshKind::BlockDevice(rdev))) => {
                Source::Fresh { size: 0, rdev: *rdev }
            }
            (None, Some(FreshKind::Directory)) => Source::Fresh { size: 4096, rdev: 0 },
            (None, _) => Source::Fresh { size: 0, rdev: 0 },
        };
        let counted = !node.is_passing() && node.kind != FileKind::Directory;
        Ok(Self {
            id,
            kind: node.kind,
            source,
            ino: node.ino,
            key: node.key,
            base: node.base,
            meta: node.meta,
            nlink: counted.then_some(node.nlink),
            subdirs: node.dir.as_ref().map_or(0, |d| d.subdirs),
            dead: node.is_dead(),
            adopted: node.adopted,
        })
    }

    /// A look at the lower shows the file that this node is.
    pub fn accepts(&self, stat: &Stat) -> bool {
        stat.kind == self.kind && (self.adopted || self.key == Some(stat.key()))
    }

    fn nlink(&self, lower: Option<u32>) -> u32 {
        if let Some(nlink) = self.nlink {
            return nlink;
        }
        match (self.kind, lower) {
            (FileKind::Directory, _) if self.dead => 0,
            // A file system that does not count.
            (FileKind::Directory, Some(0 | 1)) => 1,
            (FileKind::Directory, lower) => {
                u32::try_from(i64::from(lower.unwrap_or(2)) + self.subdirs).unwrap_or(2).max(2)
            }
            (_, lower) => lower.unwrap_or(1),
        }
    }

    fn attr(&self, stat: &Stat, bounded: bool) -> Attr {
        let (meta, base) = (&self.meta, self.base.as_ref());
        let in_upper = matches!(self.source, Source::Upper);
        // The upper file's own mode and owner mean nothing.
        let owner = if in_upper { base } else { Some(stat) };
        let newest = |set: Option<Time>, seen: Time| set.map_or(seen, |t| t.max(seen));
        Attr {
            node: self.id,
            ino: self.ino,
            kind: self.kind,
            mode: meta.mode.or(owner.map(|s| s.mode)).unwrap_or(0),
            nlink: self.nlink(if bounded { None } else { Some(stat.nlink) }),
            uid: meta.uid.or(owner.map(|s| s.uid)).unwrap_or(0),
            gid: meta.gid.or(owner.map(|s| s.gid)).unwrap_or(0),
            rdev: stat.rdev,
            size: stat.size,
            blocks: stat.blocks,
            atime: if in_upper { stat.atime } else { meta.atime.unwrap_or(stat.atime) },
            mtime: if in_upper { stat.mtime } else { meta.mtime.unwrap_or(stat.mtime) },
            ctime: newest(meta.ctime, stat.ctime),
            in_lower: !in_upper,
        }
    }

    fn fresh_attr(&self, size: u64, rdev: u64) -> Attr {
        let meta = &self.meta;
        let time = |t: Option<Time>| t.unwrap_or_default();
        Attr {
            node: self.id,
            ino: self.ino,
            kind: self.kind,
            mode: meta.mode.unwrap_or(0),
            nlink: self.nlink(None),
            uid: meta.uid.unwrap_or(0),
            gid: meta.gid.unwrap_or(0),
            rdev,
            size,
            blocks: size.div_ceil(4096) * 8,
            atime: time(meta.atime),
            mtime: time(meta.mtime),
            ctime: time(meta.ctime),
            in_lower: false,
        }
    }
}

impl Shared {
    /// Completes the facts; `seen`: the lower was looked at just now.
    pub(super) fn attr(&self, facts: &Facts, seen: Option<&Stat>) -> Result<Attr, Errno> {
        let path = match &facts.source {
            Source::Fresh { size, rdev } => return Ok(facts.fresh_attr(*size, *rdev)),
            Source::Upper => {
                let stat = self.upper.stat(facts.id).map_err(|e| if e == Errno::NOENT { Errno::STALE } else { e })?;
                return Ok(facts.attr(&stat, false));
            }
            Source::Lower(path) => path,
        };
        let looked = match seen {
            Some(stat) => Ok(*stat),
            None => self.lower.stat(path),
        };
        let stat = match (looked, &facts.base) {
            // A staged directory, link or device outlives its lower.
            (Err(Errno::NOENT), Some(base)) if facts.kind != FileKind::File => *base,
            (Ok(stat), Some(base)) if stat.kind != facts.kind && facts.kind != FileKind::File => *base,
            (other, _) => other?,
        };
        if !facts.accepts(&stat) {
            return Err(Errno::STALE);
        }
        Ok(facts.attr(&stat, self.mask.bounds(path)))
    }

    /// Where one name of a hard link is gone from the lower: goes by another one.
    pub(super) fn rebind(&self, tree: &mut Tree, id: NodeId) {
        let Some(node) = tree.get(id) else { return };
        if node.origin.is_none() || node.dir.is_some() {
            return;
        }
        let found = tree.lower_paths(node).find(|p| self.lower.stat(p).is_ok_and(|s| node.key == Some(s.key())));
        if let (Some(path), Some(node)) = (found, tree.get_mut(id)) {
            node.origin = Some(path.into());
        }
    }

    pub(super) fn attr_of(&self, id: NodeId) -> Result<Attr, Errno> {
        let facts = Facts::of(&self.state().tree, id)?;
        match self.attr(&facts, None) {
            // Its content moved to upper since the facts were taken, or its name in the lower is another now.
            Err(Errno::STALE | Errno::NOENT) => {
                let mut state = self.state();
                self.rebind(&mut state.tree, id);
                let facts = Facts::of(&state.tree, id)?;
                drop(state);
                self.attr(&facts, None)
            }
            other => other,
        }
    }
}

impl Stage {
    /// Metadata of a node.
    ///
    /// # Errors
    /// `STALE` for a node that is unknown or whose lower file was replaced by another; what the lower says.
    pub fn attr(&self, node: NodeId) -> Result<Attr, Errno> {
        self.shared.attr_of(node)
    }

    /// Sets metadata; a size is set first.
    ///
    /// # Errors
    /// `ISDIR` and `INVAL` for a size of what has none, `INVAL` for a second's worth of nanoseconds, `FBIG`, `NOSPC`, what the file system says.
    pub fn set_attr(&self, node: NodeId, change: &SetAttr) -> Result<Attr, Errno> {
        if let Some(size) = change.size {
            self.shared.resize(node, size)?;
        }
        let SetAttr { mode, uid, gid, atime, mtime, .. } = *change;
        if mode.is_some() || uid.is_some() || gid.is_some() || atime.is_some() || mtime.is_some() {
            self.shared.set_meta(node, change)?;
        }
        self.shared.attr_of(node)
    }
}

impl Shared {
    fn resize(&self, node: NodeId, size: u64) -> Result<(), Errno> {
        let kind = self.state().tree.get(node).ok_or(Errno::STALE)?.kind;
        match kind {
            FileKind::File => {}
            FileKind::Directory => return Err(Errno::ISDIR),
            _ => return Err(Errno::INVAL),
        }
        if size > MAX_SIZE {
            return Err(Errno::FBIG);
        }
        self.copy_up(node, size)?;
        self.unshare(node, &*self.body(node)?, size)?;
        let file = self.upper.content(node, true)?;
        self.truncate(node, &file, size)
    }

    /// Sets the length of a staged content. A longer one has a hole at its end, which takes no space.
    pub(super) fn truncate(&self, id: NodeId, file: &File, size: u64) -> Result<(), Errno> {
        rustix::fs::ftruncate(file, size)?;
        if let Some(quota) = &self.quota {
            quota.give_back(id);
            quota.count(id, file);
        }
        Ok(())
    }

    fn set_meta(&self, id: NodeId, change: &SetAttr) -> Result<(), Errno> {
        let odd = |t: Option<SetTime>| matches!(t, Some(SetTime::At(_, n)) if n >= 1_000_000_000);
        if odd(change.atime) || odd(change.mtime) {
            return Err(Errno::INVAL);
        }
        if change.mtime.is_some()
            && let Ok(body) = self.body(id)
        {
            // The time is the file's.
            self.unshare(id, &body, u64::MAX)?;
        }
        self.change(|work| {
            work.pin(id)?;
            let at = work.now;
            let time = |t: SetTime| match t {
                SetTime::Now => at,
                SetTime::At(s, n) => (s, n),
            };
            let (mut atime, mut mtime) = (change.atime.map(time), change.mtime.map(time));
            if work.node(id)?.in_upper() && (atime.is_some() || mtime.is_some()) {
                self.upper.set_times(id, &timestamps(atime, mtime))?;
                (atime, mtime) = (None, None);
            }
            let (mode, uid, gid) = (change.mode.map(|m| m & 0o7777), change.uid, change.gid);
            work.record(&Record::SetMeta { node: id.0, mode, uid, gid, atime, mtime, at })?;
            Ok(())
        })
    }
}

/// For `utimensat`: what is `None` stays.
pub(crate) fn timestamps(atime: Option<Time>, mtime: Option<Time>) -> Timestamps {
    let spec = |t: Option<Time>| match t {
        Some((tv_sec, nsec)) => Timespec { tv_sec, tv_nsec: i64::from(nsec) },
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
    };
    Timestamps { last_access: spec(atime), last_modification: spec(mtime) }
}
