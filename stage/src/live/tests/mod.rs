//! A stage over a small project, and what is asked of it.

mod content;
mod namespace;
mod preimages;
mod quota;
mod references;
mod resume;
mod saving;
mod view;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::{ChangeSet, FileKind, load_changes, seal};

/// A lower and a stage of it.
pub(super) struct Fixture {
    pub temp: TempDir,
    pub lower: PathBuf,
    pub stage: Stage,
}

pub(super) const NEW: NewNode = NewNode { mode: 0o644, uid: 0, gid: 0 };

impl Fixture {
    /// `fill` makes the lower's files; they are old enough when this returns for their hashes to wait.
    pub fn new(fill: impl FnOnce(&Path)) -> Self {
        Self::with(fill, |_| StageOptions::default())
    }

    pub fn with(fill: impl FnOnce(&Path), options: impl FnOnce(&Path) -> StageOptions) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let lower = temp.path().canonicalize().unwrap().join("lower");
        fs::create_dir(&lower).unwrap();
        fill(&lower);
        std::thread::sleep(Duration::from_millis(60));
        let stage = Stage::create(&temp.path().join("stage"), &lower, options(&lower)).unwrap();
        Self { temp, lower, stage }
    }

    pub fn dir(&self) -> PathBuf {
        self.temp.path().join("stage")
    }

    /// Node of a path.
    pub fn node(&self, path: &str) -> Result<NodeId, Errno> {
        let names = path.split('/').filter(|n| !n.is_empty());
        names.into_iter().try_fold(NodeId::ROOT, |dir, name| Ok(self.stage.lookup(dir, name.as_bytes())?.node))
    }

    pub fn attr(&self, path: &str) -> Result<Attr, Errno> {
        self.stage.attr(self.node(path)?)
    }

    pub fn open(&self, path: &str, access: Access) -> Result<OpenFile, Errno> {
        self.stage.open(self.node(path)?, access, false)
    }

    pub fn write(&self, path: &str, offset: u64, bytes: &[u8]) {
        assert_eq!(self.open(path, Access::Write).unwrap().write_at(bytes, offset), Ok(bytes.len()));
    }

    pub fn create(&self, dir: &str, name: &str, content: &[u8]) -> NodeId {
        let node = self.stage.create_file(self.node(dir).unwrap(), name.as_bytes(), &NEW).unwrap().node;
        let file = self.stage.open(node, Access::Write, false).unwrap();
        assert_eq!(file.write_at(content, 0), Ok(content.len()));
        node
    }

    pub fn unlink(&self, dir: &str, name: &str) -> Result<(), Errno> {
        self.stage.unlink(self.node(dir)?, name.as_bytes())
    }

    pub fn rename(&self, from: &str, name: &str, to: &str, new: &str) -> Result<(), Errno> {
        let (from, to) = (self.node(from)?, self.node(to)?);
        self.stage.rename(from, name.as_bytes(), to, new.as_bytes(), rustix::fs::RenameFlags::empty())
    }

    pub fn read(&self, path: &str) -> Vec<u8> {
        read(&self.open(path, Access::Read).unwrap())
    }

    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = self.stage.read_dir(self.node(path).unwrap()).unwrap();
        entries.into_iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()).collect()
    }

    /// Ends the use of the stage and seals it.
    pub fn seal(self) -> (TempDir, ChangeSet) {
        let dir = self.dir();
        let Self { temp, stage, .. } = self;
        drop(stage);
        seal(&dir).unwrap();
        (temp, load_changes(&dir).unwrap())
    }
}

pub(super) fn read(file: &OpenFile) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 16];
    let length = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(length);
    bytes
}

/// `path: before → after` of each change, with `-` for absent and `?` for lost.
pub(super) fn summary(changes: &ChangeSet) -> Vec<String> {
    let kind = |k: &crate::Kind| match k {
        crate::Kind::File { size, .. } => format!("file {size}"),
        other => format!("{other:?}").to_lowercase(),
    };
    let line = |c: &crate::Change| {
        let before = match &c.before {
            crate::Before::Absent => "-".to_owned(),
            crate::Before::Lost => "?".to_owned(),
            crate::Before::Present(print) => kind(&print.kind),
        };
        let after = c.after.as_ref().map_or("-".to_owned(), |a| kind(&a.print.kind));
        format!("{}: {before} > {after}", String::from_utf8_lossy(c.path.as_bytes()))
    };
    changes.changes.iter().map(line).collect()
}

/// A project with a bit of everything.
pub(super) fn project(lower: &Path) {
    fs::create_dir_all(lower.join("src/deep")).unwrap();
    fs::write(lower.join("src/main"), "main").unwrap();
    fs::write(lower.join("src/deep/leaf"), "leaf").unwrap();
    fs::write(lower.join("readme"), "read me").unwrap();
    std::os::unix::fs::symlink("readme", lower.join("link")).unwrap();
}
