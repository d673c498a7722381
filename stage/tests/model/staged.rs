//! The same operations on a stage, the way a kernel would drive it.

use std::cell::RefCell;
use std::sync::Arc;

use pvisor_stage::{
    Access, Attr, Errno, FileKind, NewNode, NodeId, OpenFile, RenameFlags, SetAttr, SetTime, Stage, XattrFlags,
};

use crate::operation::{Names, Operation};
use crate::tree::{Item, Seen, Tree};

pub struct Staged {
    stage: Arc<Stage>,
    /// References held.
    held: RefCell<Vec<NodeId>>,
    files: RefCell<Vec<(OpenFile, bool)>>,
}

impl Staged {
    pub fn new(stage: Arc<Stage>) -> Self {
        Self { stage, held: RefCell::default(), files: RefCell::default() }
    }

    fn look(&self, parent: NodeId, name: &[u8]) -> Result<Attr, Errno> {
        let attr = self.stage.lookup(parent, name)?;
        self.held.borrow_mut().push(attr.node);
        Ok(attr)
    }

    fn keep(&self, made: Result<Attr, Errno>) -> Result<NodeId, Errno> {
        let attr = made?;
        self.held.borrow_mut().push(attr.node);
        Ok(attr.node)
    }

    fn parent<'a>(&self, names: &'a Names) -> Result<(NodeId, &'a [u8]), Errno> {
        let (last, above) = names.split_last().unwrap();
        let mut dir = NodeId::ROOT;
        for name in above {
            let attr = self.look(dir, name.as_bytes())?;
            if attr.kind != FileKind::Directory {
                return Err(Errno::NOTDIR);
            }
            dir = attr.node;
        }
        Ok((dir, last.as_bytes()))
    }

    fn find(&self, names: &Names) -> Result<Attr, Errno> {
        let (dir, name) = self.parent(names)?;
        self.look(dir, name)
    }

    fn open(&self, names: &Names, truncate: bool) -> Result<OpenFile, Errno> {
        let attr = self.find(names)?;
        self.stage.open(attr.node, Access::Write, truncate)
    }

    fn set(&self, names: &Names, change: &SetAttr) -> Result<(), Errno> {
        self.stage.set_attr(self.find(names)?.node, change).map(drop)
    }

    fn remove_all(&self, dir: NodeId, name: &[u8]) -> Result<(), Errno> {
        let attr = self.look(dir, name)?;
        if attr.kind != FileKind::Directory {
            return self.stage.unlink(dir, name);
        }
        for entry in self.stage.read_dir(attr.node)? {
            self.remove_all(attr.node, &entry.name)?;
        }
        self.stage.rmdir(dir, name)
    }

    fn held_read(&self, at: usize) -> Result<Seen, Errno> {
        let files = self.files.borrow();
        let (file, _) = files.get(at).ok_or(Errno::BADF)?;
        let attr = self.stage.attr(file.node())?;
        let mut bytes = vec![0; usize::try_from(attr.size).unwrap() + 1];
        let length = file.read_at(&mut bytes, 0)?;
        bytes.truncate(length);
        Ok(Seen { bytes, nlink: attr.nlink, size: attr.size })
    }

    pub fn run(&self, operation: &Operation) -> Result<Option<Seen>, Errno> {
        use Operation::*;
        match operation {
            HeldRead(n) => self.held_read(*n).map(Some),
            other => self.change(other).map(|()| None),
        }
    }

    fn change(&self, operation: &Operation) -> Result<(), Errno> {
        use Operation::*;
        let new = |mode: u32| NewNode { mode, uid: 0, gid: 0 };
        match operation {
            HeldRead(_) => Ok(()),
            Hold(p, write) => {
                let access = if *write { Access::ReadWrite } else { Access::Read };
                let file = self.stage.open(self.find(p)?.node, access, false)?;
                self.files.borrow_mut().push((file, *write));
                Ok(())
            }
            HeldWrite(n, offset, bytes) => {
                let files = self.files.borrow();
                files.get(*n).ok_or(Errno::BADF)?.0.write_at(bytes, *offset).map(drop)
            }
            HeldTruncate(n, size) => {
                let files = self.files.borrow();
                let (file, write) = files.get(*n).ok_or(Errno::BADF)?;
                if !write {
                    return Err(Errno::BADF);
                }
                self.stage.set_attr(file.node(), &SetAttr { size: Some(*size), ..Default::default() }).map(drop)
            }
            Release(n) => {
                let mut files = self.files.borrow_mut();
                if *n < files.len() {
                    files.remove(*n);
                }
                Ok(())
            }
            Create(p, mode) => {
                let (dir, name) = self.parent(p)?;
                self.keep(self.stage.create_file(dir, name, &new(*mode))).map(drop)
            }
            Write(p, offset, bytes) => self.open(p, false)?.write_at(bytes, *offset).map(drop),
            Append(p, bytes) => {
                let file = self.open(p, false)?;
                let end = self.stage.attr(file.node())?.size;
                file.write_at(bytes, end).map(drop)
            }
            Rewrite(p, bytes) => self.open(p, true)?.write_at(bytes, 0).map(drop),
            Truncate(p, size) => self.set(p, &SetAttr { size: Some(*size), ..Default::default() }),
            Mkdir(p, mode) => {
                let (dir, name) = self.parent(p)?;
                self.keep(self.stage.make_dir(dir, name, &new(*mode))).map(drop)
            }
            Rmdir(p) => self.parent(p).and_then(|(dir, name)| self.stage.rmdir(dir, name)),
            Unlink(p) => self.parent(p).and_then(|(dir, name)| self.stage.unlink(dir, name)),
            RemoveAll(p) => self.parent(p).and_then(|(dir, name)| self.remove_all(dir, name)),
            Rename(a, b, flags) => {
                let ((from, name), (to, new)) = (self.parent(a)?, self.parent(b)?);
                self.stage.rename(from, name, to, new, RenameFlags::from_bits_retain(*flags))
            }
            Symlink(p, target) => {
                let (dir, name) = self.parent(p)?;
                self.keep(self.stage.make_symlink(dir, name, target.as_bytes(), &new(0o777))).map(drop)
            }
            Fifo(p) => {
                let (dir, name) = self.parent(p)?;
                self.keep(self.stage.make_node(dir, name, FileKind::Fifo, 0, &new(0o644))).map(drop)
            }
            Link(a, b) => {
                let ((from, name), (to, new)) = (self.parent(a)?, self.parent(b)?);
                let node = self.look(from, name)?;
                // The kernel looks the new name up first.
                match self.look(to, new) {
                    Ok(_) => return Err(Errno::EXIST),
                    Err(Errno::NOENT) => {}
                    Err(e) => return Err(e),
                }
                self.keep(self.stage.link(node.node, to, new)).map(drop)
            }
            Chmod(p, mode) => {
                if self.find(p)?.kind == FileKind::Symlink {
                    return Err(Errno::OPNOTSUPP);
                }
                self.set(p, &SetAttr { mode: Some(*mode), ..Default::default() })
            }
            Chown(p, uid, gid) => self.set(p, &SetAttr { uid: Some(*uid), gid: Some(*gid), ..Default::default() }),
            SetMtime(p, s) => self.set(p, &SetAttr { mtime: Some(SetTime::At(*s, 77)), ..Default::default() }),
            SetXattr(p, name, value, flags) => {
                let flags = XattrFlags::from_bits_retain(*flags);
                self.stage.set_xattr(self.find(p)?.node, name.as_bytes(), value, flags)
            }
            RemoveXattr(p, name) => self.stage.remove_xattr(self.find(p)?.node, name.as_bytes()),
            Forget => {
                for node in self.held.borrow_mut().drain(..) {
                    self.stage.forget(node, 1);
                }
                Ok(())
            }
        }
    }

    /// The merged view.
    pub fn snapshot(&self) -> Tree {
        let mut tree = Tree::new();
        tree.insert(String::new(), self.item(NodeId::ROOT, self.stage.attr(NodeId::ROOT).unwrap()));
        self.walk(NodeId::ROOT, "", &mut tree);
        tree
    }

    fn walk(&self, dir: NodeId, path: &str, tree: &mut Tree) {
        for entry in self.stage.read_dir(dir).unwrap() {
            let attr = self.stage.lookup(dir, &entry.name).unwrap_or_else(|e| panic!("{path}: listed, but {e}"));
            assert_eq!((attr.ino, attr.kind), (entry.ino, entry.kind), "{path}: {entry:?}");
            let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            tree.insert(path.clone(), self.item(attr.node, attr));
            if attr.kind == FileKind::Directory {
                assert_eq!(self.stage.parent(attr.node).unwrap(), dir, "{path}");
                self.walk(attr.node, &path, tree);
            }
            self.stage.forget(attr.node, 1);
        }
    }

    fn item(&self, node: NodeId, attr: Attr) -> Item {
        let content = match attr.kind {
            FileKind::File => {
                let file = self.stage.open(node, Access::Read, false).unwrap();
                let mut bytes = vec![0; usize::try_from(attr.size).unwrap() + 1];
                let got = file.read_at(&mut bytes, 0).unwrap();
                bytes.truncate(got);
                bytes
            }
            FileKind::Symlink => self.stage.read_link(node).unwrap(),
            _ => Vec::new(),
        };
        let names = self.stage.list_xattr(node).unwrap();
        let value = |n: &Vec<u8>| self.stage.get_xattr(node, n).unwrap();
        Item {
            kind: attr.kind,
            mode: attr.mode,
            owner: (attr.uid, attr.gid),
            nlink: attr.nlink,
            mtime: attr.mtime,
            content,
            xattrs: names.iter().map(|n| (n.clone(), value(n))).collect(),
        }
    }
}
