//! Trees in memory, on disk, and as sets of changes.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};

use crate::apply::fault::{Effect, Interrupt};
use crate::apply::print::fingerprint;
use crate::{After, Before, Change, ChangeSet, Errno, Fingerprint, Kind, Meta, ObjectId, RelPath};

/// A time that nobody gets by accident.
pub(crate) const OLD: (i64, u32) = (1_111_111_111, 222_222_222);

/// What stands at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub body: Body,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: (i64, u32),
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Names with the same number are one file.
    pub link: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    File(Vec<u8>),
    Dir,
    Symlink(Vec<u8>),
    Fifo,
}

pub(crate) fn file(content: &str) -> Node {
    Node::new(Body::File(content.as_bytes().to_vec()), 0o644)
}

impl Node {
    pub fn new(body: Body, mode: u32) -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self { body, mode, uid, gid, mtime: OLD, xattrs: BTreeMap::new(), link: None }
    }

    pub fn dir() -> Self {
        Self::new(Body::Dir, 0o755)
    }

    pub fn symlink(target: &str) -> Self {
        Self::new(Body::Symlink(target.as_bytes().to_vec()), 0o777)
    }

    pub fn fifo() -> Self {
        Self::new(Body::Fifo, 0o640)
    }

    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    pub fn linked(mut self, group: u64) -> Self {
        self.link = Some(group);
        self
    }

    pub fn print(&self) -> Fingerprint {
        let kind = match &self.body {
            Body::File(bytes) => Kind::File { size: bytes.len() as u64, hash: *blake3::hash(bytes).as_bytes() },
            Body::Dir => Kind::Directory,
            Body::Symlink(target) => Kind::Symlink(target.clone()),
            Body::Fifo => Kind::Fifo,
        };
        let meta =
            Meta { mode: self.mode, uid: self.uid, gid: self.gid, mtime: self.mtime, xattrs: self.xattrs.clone() };
        Fingerprint { kind, meta }
    }
}

/// A whole tree without its root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree(pub BTreeMap<RelPath, Node>);

impl<const N: usize> From<[(&str, Node); N]> for Tree {
    fn from(nodes: [(&str, Node); N]) -> Self {
        let mut tree = Self::default();
        for (path, node) in nodes {
            tree.insert(path, node);
        }
        tree
    }
}

impl Tree {
    pub fn insert(&mut self, path: &str, node: Node) {
        self.0.insert(RelPath::new(path.as_bytes().to_vec()).unwrap(), node);
    }

    pub fn write(&self, root: &Path) {
        fs::create_dir_all(root).unwrap();
        let mut first: HashMap<u64, PathBuf> = HashMap::new();
        for (path, node) in &self.0 {
            let at = on_disk(root, path);
            if let Some(existing) = node.link.and_then(|g| first.get(&g)) {
                fs::hard_link(existing, &at).unwrap();
                continue;
            }
            match &node.body {
                Body::File(bytes) => fs::write(&at, bytes).unwrap(),
                Body::Dir => fs::create_dir(&at).unwrap(),
                Body::Symlink(target) => symlink(std::ffi::OsStr::from_bytes(target), &at).unwrap(),
                Body::Fifo => {
                    rustix::fs::mknodat(CWD, &at, rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
                }
            }
            first.extend(node.link.map(|g| (g, at)));
        }
        for (path, node) in self.0.iter().rev() {
            node.dress(&on_disk(root, path));
        }
    }

    pub fn read(root: &Path) -> Self {
        let mut tree = Self::default();
        let mut inodes: HashMap<u64, Vec<RelPath>> = HashMap::new();
        tree.read_dir(root, &RelPath::default(), &mut inodes);
        let mut groups: Vec<_> = inodes.into_values().filter(|names| names.len() > 1).collect();
        groups.sort();
        for (group, names) in groups.into_iter().enumerate() {
            for name in names {
                tree.0.get_mut(&name).unwrap().link = Some(group as u64 + 1);
            }
        }
        tree
    }

    fn read_dir(&mut self, root: &Path, dir: &RelPath, inodes: &mut HashMap<u64, Vec<RelPath>>) {
        for entry in fs::read_dir(on_disk(root, dir)).unwrap() {
            let name = entry.unwrap().file_name().into_vec();
            let path = dir.join(&name).unwrap();
            let at = on_disk(root, &path);
            let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW;
            let fd = rustix::fs::openat(CWD, &at, flags, Mode::empty()).unwrap();
            let sight = fingerprint(&fd).unwrap();
            let body = match sight.print.kind {
                Kind::File { .. } => Body::File(fs::read(&at).unwrap()),
                Kind::Directory => Body::Dir,
                Kind::Symlink(target) => Body::Symlink(target),
                Kind::Fifo => Body::Fifo,
                other => unreachable!("{other:?}"),
            };
            let meta = sight.print.meta;
            let (is_dir, is_file) = (body == Body::Dir, matches!(body, Body::File(_)));
            let node = Node {
                body,
                mode: meta.mode,
                uid: meta.uid,
                gid: meta.gid,
                mtime: meta.mtime,
                xattrs: meta.xattrs,
                link: None,
            };
            self.0.insert(path.clone(), node);
            if is_dir {
                self.read_dir(root, &path, inodes);
            } else if is_file {
                inodes.entry(sight.stat.ino).or_default().push(path);
            }
        }
    }

    /// Names of one file with the lowest free numbers, single ones without, so that trees can be compared.
    pub fn normal(&self) -> Self {
        let mut groups: BTreeMap<u64, Vec<RelPath>> = BTreeMap::new();
        for (path, node) in &self.0 {
            groups.entry(node.link.unwrap_or(u64::MAX)).or_default().push(path.clone());
        }
        groups.remove(&u64::MAX);
        let mut groups: Vec<_> = groups.into_values().filter(|names| names.len() > 1).collect();
        groups.sort();
        let mut tree = self.clone();
        tree.0.values_mut().for_each(|node| node.link = None);
        for (number, names) in groups.into_iter().enumerate() {
            names.iter().for_each(|name| tree.0.get_mut(name).unwrap().link = Some(number as u64 + 1));
        }
        tree
    }

    /// The same with every directory's time forgotten that `keep` does not name.
    pub fn without_directory_times(&self, keep: impl Fn(&RelPath) -> bool) -> Self {
        let mut tree = self.normal();
        for (path, node) in &mut tree.0 {
            if node.body == Body::Dir && !keep(path) {
                node.mtime = OLD;
            }
        }
        tree
    }
}

impl Node {
    fn dress(&self, at: &Path) {
        rustix::fs::chownat(
            CWD,
            at,
            Some(Uid::from_raw(self.uid)),
            Some(Gid::from_raw(self.gid)),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .unwrap();
        for (name, value) in &self.xattrs {
            rustix::fs::lsetxattr(at, &name[..], value, XattrFlags::empty()).unwrap();
        }
        if !matches!(self.body, Body::Symlink(_)) {
            rustix::fs::chmodat(CWD, at, Mode::from_raw_mode(self.mode), AtFlags::empty()).unwrap();
        }
        let at_time = Timespec { tv_sec: self.mtime.0, tv_nsec: self.mtime.1.into() };
        let times = Timestamps { last_access: at_time, last_modification: at_time };
        rustix::fs::utimensat(CWD, at, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

/// Names only what differs.
fn assert_same(now: &Tree, expected: &Tree) {
    let paths = now.0.keys().chain(expected.0.keys()).filter(|p| now.0.get(*p) != expected.0.get(*p));
    let differing: BTreeMap<String, _> =
        paths.map(|p| (crate::review::quoted(p.as_bytes()), (now.0.get(p), expected.0.get(p)))).collect();
    assert!(differing.is_empty(), "now and expected: {differing:#?}");
}

pub(crate) fn on_disk(root: &Path, path: &RelPath) -> PathBuf {
    root.join(std::ffi::OsStr::from_bytes(path.as_bytes()))
}

/// A project with `before`, and a sealed stage beside it that makes it `after`.
pub(crate) struct Bench {
    pub base: tempfile::TempDir,
    pub target: PathBuf,
    pub stage: PathBuf,
    pub set: ChangeSet,
}

impl Bench {
    pub fn new(before: &Tree, after: &Tree) -> Self {
        Self::at(tempfile::tempdir().unwrap(), before, after, None)
    }

    /// With the project on a filesystem of its own; `None`: there is none here.
    pub fn on_another_mount(before: &Tree, after: &Tree) -> Option<Self> {
        let elsewhere = tempfile::Builder::new().tempdir_in("/dev/shm").ok()?;
        let base = tempfile::tempdir().unwrap();
        if fs::metadata(elsewhere.path()).unwrap().dev() == fs::metadata(base.path()).unwrap().dev() {
            return None;
        }
        let target = elsewhere.keep();
        Some(Self::at(base, before, after, Some(target)))
    }

    /// With the project at a path of that base.
    pub fn around(base: tempfile::TempDir, before: &Tree, after: &Tree, target: PathBuf) -> Self {
        Self::at(base, before, after, Some(target))
    }

    fn at(base: tempfile::TempDir, before: &Tree, after: &Tree, target: Option<PathBuf>) -> Self {
        let target = target.unwrap_or_else(|| base.path().join("project"));
        let stage = base.path().join("stage");
        // What is there is taken as it is.
        if !fs::exists(&target).unwrap() || fs::read_dir(&target).unwrap().next().is_none() {
            before.write(&target);
        }
        fs::create_dir_all(stage.join("upper")).unwrap();
        fs::create_dir(stage.join("work")).unwrap();
        fs::write(stage.join("lock"), "").unwrap();
        fs::write(stage.join("journal"), crate::layout::JOURNAL_ENVELOPE.wrap(b"")).unwrap();
        let set = ChangeSet { lower: target.clone(), seal: [7; 32], changes: changes(before, after, &stage) };
        Self { base, target, stage, set }
    }

    pub fn assert_target(&self, expected: &Tree) {
        let named = |path: &RelPath| self.set.changes.iter().any(|c| c.path == *path && c.after.is_some());
        let now = Tree::read(&self.target).without_directory_times(named);
        assert_same(&now, &expected.without_directory_times(named));
    }

    pub fn assert_target_but_directory_times(&self, expected: &Tree) {
        let now = Tree::read(&self.target).without_directory_times(|_| false);
        assert_same(&now, &expected.without_directory_times(|_| false));
    }

    pub fn assert_no_leftovers(&self) {
        let names = |dir: &Path| {
            let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
            entries.filter(|n| n.contains("pvisor") || n.contains(".new")).collect::<Vec<_>>()
        };
        assert_eq!(fs::read_dir(self.stage.join("work")).unwrap().count(), 0);
        for dir in [&self.target, &self.stage, self.target.parent().unwrap()] {
            assert!(names(dir).is_empty(), "{:?}", names(dir));
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !self.target.starts_with(self.base.path()) {
            let _ = fs::remove_dir_all(&self.target);
        }
    }
}

/// What a sealed stage would say, with its contents written to `upper`.
fn changes(before: &Tree, after: &Tree, stage: &Path) -> Vec<Change> {
    let (before, after) = (&before.normal().0, &after.normal().0);
    let mut paths: Vec<&RelPath> = before.keys().chain(after.keys()).collect();
    paths.sort();
    paths.dedup();
    let mut objects: HashMap<u64, ObjectId> = HashMap::new();
    let mut next = 16;
    let mut out = Vec::new();
    for path in paths {
        let (old, new) = (before.get(path), after.get(path));
        let relinked = new.is_some_and(|n| n.link.is_some()) && old.map(|o| o.link) != new.map(|n| n.link);
        if old.zip(new).is_some_and(|(old, new)| old.print().same(&new.print())) && !relinked {
            continue;
        }
        let after = new.map(|new| {
            let content = match &new.body {
                Body::File(bytes) if old.is_none_or(|o| o.body != new.body) => Some(bytes),
                _ => None,
            };
            let object = content.map(|bytes| {
                let id = new.link.and_then(|g| objects.get(&g).copied()).unwrap_or_else(|| {
                    next += 1;
                    fs::write(stage.join(format!("upper/{next:x}")), bytes).unwrap();
                    ObjectId(next)
                });
                objects.extend(new.link.map(|g| (g, id)));
                id
            });
            After { print: new.print(), object, link_group: new.link }
        });
        let before = old.map_or(Before::Absent, |old| Before::Present(old.print()));
        out.push(Change { path: path.clone(), before, after });
    }
    out
}

/// Counts effects.
#[derive(Default)]
pub(super) struct Counter(Mutex<HashMap<Effect, u64>>);

impl Counter {
    pub fn count(&self, effect: Effect) -> u64 {
        self.0.lock().unwrap().get(&effect).copied().unwrap_or(0)
    }

    pub fn total(&self) -> u64 {
        self.0.lock().unwrap().values().sum()
    }
}

impl Interrupt for Counter {
    fn before(&self, effect: Effect) -> io::Result<()> {
        *self.0.lock().unwrap().entry(effect).or_default() += 1;
        Ok(())
    }
}

/// Lets so many effects happen and then no more, as if the process had been killed.
pub(super) struct Kill(AtomicU64);

impl Kill {
    pub fn after(effects: u64) -> Self {
        Self(AtomicU64::new(effects))
    }
}

impl Interrupt for Kill {
    fn before(&self, _: Effect) -> io::Result<()> {
        let left = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| Some(left.saturating_sub(1)));
        if left == Ok(0) { Err(io::Error::other("killed")) } else { Ok(()) }
    }
}

/// Fails one effect, as a full disk would, and lets all others happen.
pub(super) struct FullDisk(AtomicU64);

impl FullDisk {
    pub fn at(effect: u64) -> Self {
        Self(AtomicU64::new(effect))
    }
}

impl Interrupt for FullDisk {
    fn before(&self, _: Effect) -> io::Result<()> {
        let at = self.0.fetch_sub(1, Ordering::SeqCst);
        if at == 0 { Err(Errno::NOSPC.into()) } else { Ok(()) }
    }
}

/// A filesystem without `RENAME_EXCHANGE`.
pub(super) struct NoExchange;

impl Interrupt for NoExchange {
    fn before(&self, effect: Effect) -> io::Result<()> {
        if effect == Effect::Exchange { Err(Errno::INVAL.into()) } else { Ok(()) }
    }
}

/// A filesystem that can't swap names, and a process that is killed on it.
pub(super) struct KillNoExchange(pub Kill);

impl Interrupt for KillNoExchange {
    fn before(&self, effect: Effect) -> std::io::Result<()> {
        self.0.before(effect)?;
        NoExchange.before(effect)
    }
}

/// Does something the moment before an effect, as somebody else would.
pub(super) struct Meddler<F: Fn(Effect) + Sync>(pub F);

impl<F: Fn(Effect) + Sync> Interrupt for Meddler<F> {
    fn before(&self, effect: Effect) -> io::Result<()> {
        (self.0)(effect);
        Ok(())
    }
}
