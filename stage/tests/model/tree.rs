//! What a tree looks like, to compare two.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use pvisor_stage::FileKind;

/// One file.
#[derive(Clone, PartialEq, Eq)]
pub struct Item {
    pub kind: FileKind,
    pub mode: u32,
    pub owner: (u32, u32),
    pub nlink: u32,
    pub mtime: (i64, u32),
    pub content: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head = String::from_utf8_lossy(&self.content[..self.content.len().min(32)]);
        write!(f, "{:?} {:o} {:?} nlink {} ", self.kind, self.mode, self.owner, self.nlink)?;
        write!(f, "mtime {:?} {} bytes {head:?} {:?}", self.mtime, self.content.len(), self.xattrs)
    }
}

/// What an open file shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub bytes: Vec<u8>,
    pub nlink: u32,
    pub size: u64,
}

/// Files by path with a leading slash; the root is the empty path.
pub type Tree = BTreeMap<String, Item>;

/// Times before this were set by a test.
const LONG_AGO: i64 = 1_000_000_000;

impl Item {
    /// Times of now can't be the same in both.
    fn blurred(&self) -> Self {
        let mtime = if self.mtime.0 < LONG_AGO && self.kind != FileKind::Directory { self.mtime } else { (0, 0) };
        Self { mtime, ..self.clone() }
    }
}

pub fn assert_same(ours: &Tree, theirs: &Tree, when: &str) {
    for (path, item) in theirs {
        let found = ours.get(path).unwrap_or_else(|| panic!("{when}: {path:?} is missing, should be {item:?}"));
        assert_eq!(found.blurred(), item.blurred(), "{when}: {path:?}");
    }
    let more: Vec<_> = ours.keys().filter(|p| !theirs.contains_key(*p)).collect();
    assert!(more.is_empty(), "{when}: too many: {more:?}");
}

/// The result of applying, with the same times where they were set, but for untouched content.
pub fn assert_applied(applied: &Tree, expected: &Tree) {
    let plain =
        |tree: &Tree| -> Tree { tree.iter().map(|(p, i)| (p.clone(), Item { mtime: (0, 0), ..i.clone() })).collect() };
    assert_same(&plain(applied), &plain(expected), "after the changes were applied");
}

pub fn snapshot(root: &Path) -> Tree {
    let mut tree = Tree::new();
    walk(root, "", &mut tree);
    tree
}

fn walk(at: &Path, path: &str, tree: &mut Tree) {
    let meta = fs::symlink_metadata(at).unwrap();
    let kind = meta.file_type();
    let kind = match kind {
        k if k.is_dir() => FileKind::Directory,
        k if k.is_symlink() => FileKind::Symlink,
        k if k.is_fifo() => FileKind::Fifo,
        _ => FileKind::File,
    };
    let content = match kind {
        FileKind::File => fs::read(at).unwrap(),
        FileKind::Symlink => fs::read_link(at).unwrap().into_os_string().into_encoded_bytes(),
        _ => Vec::new(),
    };
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(at, &mut names[..]).unwrap();
    let mut xattrs = BTreeMap::new();
    for name in names[..length].split(|b| *b == 0).filter(|n| n.starts_with(b"user.")) {
        let mut value = vec![0; 4096];
        let length = rustix::fs::lgetxattr(at, name, &mut value[..]).unwrap();
        xattrs.insert(name.to_vec(), value[..length].to_vec());
    }
    let item = Item {
        kind,
        mode: meta.mode() & 0o7777,
        owner: (meta.uid(), meta.gid()),
        nlink: u32::try_from(meta.nlink()).unwrap(),
        mtime: (meta.mtime(), u32::try_from(meta.mtime_nsec()).unwrap()),
        content,
        xattrs,
    };
    tree.insert(path.to_owned(), item);
    if kind == FileKind::Directory {
        for entry in fs::read_dir(at).unwrap() {
            let name = entry.unwrap().file_name();
            walk(&at.join(&name), &format!("{path}/{}", name.to_string_lossy()), tree);
        }
    }
}
