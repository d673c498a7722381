//! New names.

use std::fs::File;

use super::attr::Facts;
use super::work::{Outcome, Work};
use super::{Attr, NewNode, NodeId, OpenFile, Shared, Stage};
use crate::journal::{FreshKind, Record};
use crate::{Errno, FileKind};

const SETGID: u32 = 0o2000;
/// Longest target of a symbolic link, in bytes.
const MAX_TARGET: usize = 4095;

impl Shared {
    /// Makes a node; the content of a regular file comes with it, open for reading and writing.
    fn create(
        &self,
        parent: NodeId,
        name: &[u8],
        kind: &FreshKind,
        new: &NewNode,
    ) -> Result<(Facts, Option<File>), Errno> {
        // The directory's own mode may be the lower's.
        let dir = self.attr_of(parent)?;
        let (mut mode, mut gid) = (new.mode & 0o7777, new.gid);
        if dir.mode & SETGID != 0 {
            gid = dir.gid;
            if *kind == FreshKind::Directory {
                mode |= SETGID;
            }
        }
        self.change(|work| {
            if work.find(parent, name)?.is_some() {
                return Err(Errno::EXIST.into());
            }
            work.adopt(parent)?;
            let id = work.state.tree.fresh_id();
            let content = if *kind == FreshKind::File { Some(self.upper.create(id)?) } else { None };
            let (node, parent, name, kind) = (id.0, parent.0, name.to_vec(), kind.clone());
            let made = work.record(&Record::Create { node, parent, name, kind, mode, uid: new.uid, gid, at: work.now });
            match made.and_then(|()| work.refer(id)) {
                Ok(facts) => Ok((facts, content)),
                Err(e) => {
                    self.drop_content(id);
                    Err(e.into())
                }
            }
        })
    }
}

impl Stage {
    fn make(&self, parent: NodeId, name: &[u8], kind: &FreshKind, new: &NewNode) -> Result<Attr, Errno> {
        let (facts, _) = self.shared.create(parent, name, kind, new)?;
        self.answer(facts.id)
    }

    /// A new, empty regular file, with one reference on it, open for reading and writing.
    ///
    /// # Errors
    /// As [`create_file`](Self::create_file).
    pub fn create_open(&self, parent: NodeId, name: &[u8], new: &NewNode) -> Result<(Attr, OpenFile), Errno> {
        let (facts, content) = self.shared.create(parent, name, &FreshKind::File, new)?;
        let attr = self.answer(facts.id)?;
        let opened = content.ok_or(Errno::IO).and_then(|content| self.adopt_open(facts.id, content));
        opened.map(|file| (attr, file)).inspect_err(|_| self.shared.release(facts.id, 1))
    }

    /// A new, empty regular file, with one reference on it.
    ///
    /// # Errors
    /// `EXIST`, `NOTDIR`, `NOENT` in a removed directory, `NAMETOOLONG`, `NOSPC`; `IO` once the journal is broken.
    pub fn create_file(&self, parent: NodeId, name: &[u8], new: &NewNode) -> Result<Attr, Errno> {
        self.make(parent, name, &FreshKind::File, new)
    }

    /// A new directory, with one reference on it.
    ///
    /// # Errors
    /// As [`create_file`](Self::create_file).
    pub fn make_dir(&self, parent: NodeId, name: &[u8], new: &NewNode) -> Result<Attr, Errno> {
        self.make(parent, name, &FreshKind::Directory, new)
    }

    /// A new symbolic link, with one reference on it. Its mode is 0777 whatever `new` says.
    ///
    /// # Errors
    /// As [`create_file`](Self::create_file); `NOENT` for an empty target, `NAMETOOLONG` for one over 4095 bytes.
    pub fn make_symlink(&self, parent: NodeId, name: &[u8], target: &[u8], new: &NewNode) -> Result<Attr, Errno> {
        if target.is_empty() {
            return Err(Errno::NOENT);
        }
        if target.len() > MAX_TARGET {
            return Err(Errno::NAMETOOLONG);
        }
        if target.contains(&0) {
            return Err(Errno::INVAL);
        }
        self.make(parent, name, &FreshKind::Symlink(target.to_vec()), &NewNode { mode: 0o777, ..*new })
    }

    /// What `mknod` makes: a regular file, pipe, socket or device, with one reference on it.
    ///
    /// # Errors
    /// As [`create_file`](Self::create_file); `PERM` for a directory, `INVAL` for a symbolic link.
    pub fn make_node(
        &self,
        parent: NodeId,
        name: &[u8],
        kind: FileKind,
        rdev: u64,
        new: &NewNode,
    ) -> Result<Attr, Errno> {
        let kind = match kind {
            FileKind::File => FreshKind::File,
            FileKind::Fifo => FreshKind::Fifo,
            FileKind::Socket => FreshKind::Socket,
            FileKind::CharDevice => FreshKind::CharDevice(rdev),
            FileKind::BlockDevice => FreshKind::BlockDevice(rdev),
            FileKind::Directory => return Err(Errno::PERM),
            FileKind::Symlink => return Err(Errno::INVAL),
        };
        self.make(parent, name, &kind, new)
    }

    /// Another name of a node, with one more reference on it.
    ///
    /// # Errors
    /// `PERM` for a directory, `NOENT` for a node without a name, `MLINK`, and as [`create_file`](Self::create_file).
    pub fn link(&self, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Attr, Errno> {
        self.shared.change(|work| link(work, node, parent, name))?;
        self.answer(node)
    }
}

fn link(work: &mut Work<'_>, id: NodeId, parent: NodeId, name: &[u8]) -> Outcome<()> {
    if work.node(id)?.kind == FileKind::Directory {
        return Err(Errno::PERM.into());
    }
    if work.find(parent, name)?.is_some() {
        return Err(Errno::EXIST.into());
    }
    work.pin(id)?;
    work.adopt(parent)?;
    let node = work.node(id)?;
    if node.nlink == 0 {
        return Err(Errno::NOENT.into());
    }
    if node.nlink >= u32::MAX / 2 {
        return Err(Errno::MLINK.into());
    }
    work.record(&Record::Link { node: id.0, parent: parent.0, name: name.to_vec(), at: work.now })?;
    work.refer(id)?;
    Ok(())
}
