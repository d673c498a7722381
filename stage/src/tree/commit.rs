//! What each record does to the tree: first checked, then done.

use super::node::{Node, Slot};
use super::{Child, Misfit, Tree};
use crate::FileKind;
use crate::change::is_name;
use crate::journal::{FreshKind, HashState, Pin, Record};
use crate::live::NodeId;
use crate::lower::{MAX_XATTR_TOTAL, is_kept_xattr};
use crate::stat::{Stat, Time};

type Checked<T = ()> = Result<T, Misfit>;

fn ensure(fine: bool, what: &'static str) -> Checked {
    if fine { Ok(()) } else { Err(Misfit(what)) }
}

impl Tree {
    /// Whether the record fits. [`commit`](Self::commit) of a record that does is complete.
    pub fn check(&self, record: &Record) -> Checked {
        match record {
            Record::Adopt { node, parent, name, stat } => self.check_adopt(NodeId(*node), NodeId(*parent), name, stat),
            Record::Pin { node, pin } => self.check_pin(NodeId(*node), pin),
            Record::Hash { node, hash } => {
                let pin = self.known(NodeId(*node))?.pin.as_ref().ok_or(Misfit("a hash without a pin"))?;
                ensure(pin.hash == HashState::Pending, "a hash that nobody waits for")?;
                ensure(matches!(hash, HashState::Known(_) | HashState::Lost), "a hash that is none")
            }
            Record::Create { node, parent, name, kind, mode, .. } => {
                let fine = *node > 1 && *node < u64::MAX && self.get(NodeId(*node)).is_none();
                ensure(fine, "a new node with a used id")?;
                ensure(*mode <= 0o7777, "mode bits beyond the permissions")?;
                if let FreshKind::Symlink(target) = kind {
                    ensure(!target.is_empty() && target.len() < 4096 && !target.contains(&0), "a bad link target")?;
                }
                self.check_free(NodeId(*parent), name)
            }
            Record::Link { node, parent, name, .. } => {
                let target = self.known(NodeId(*node))?;
                ensure(target.kind != FileKind::Directory, "a second name for a directory")?;
                ensure(target.nlink < u32::MAX, "too many names")?;
                self.check_free(NodeId(*parent), name)
            }
            Record::Remove { parent, name, .. } => {
                let id = self.check_present(NodeId(*parent), name)?;
                self.check_empty(id)
            }
            Record::Rename { from, name, to, new_name, exchange, .. } => {
                self.check_rename((NodeId(*from), name), (NodeId(*to), new_name), *exchange)
            }
            Record::SetMeta { node, mode, atime, mtime, .. } => {
                self.known(NodeId(*node))?;
                let fine = |t: &Option<Time>| t.is_none_or(|(_, n)| n < 1_000_000_000);
                ensure(fine(atime) && fine(mtime), "a time that is none")?;
                ensure(mode.is_none_or(|m| m <= 0o7777), "mode bits beyond the permissions")
            }
            Record::SetXattr { node, name, value, .. } => {
                let node = self.known(NodeId(*node))?;
                ensure(is_kept_xattr(name), "an attribute that is not staged")?;
                let total: usize = node.xattrs.iter().flatten().map(|(n, v)| n.len() + v.len()).sum();
                ensure(total + name.len() + value.len() <= MAX_XATTR_TOTAL, "too many attributes")
            }
            Record::RemoveXattr { node, name, .. } => {
                self.known(NodeId(*node))?;
                ensure(is_kept_xattr(name), "an attribute that is not staged")
            }
            Record::Content { node } => {
                let node = self.known(NodeId(*node))?;
                ensure(node.kind == FileKind::File && !node.in_upper(), "content for what has it or can't have it")
            }
        }
    }

    fn known(&self, id: NodeId) -> Checked<&Node> {
        let node = self.get(id).ok_or(Misfit("an unknown node"))?;
        ensure(!node.is_passing(), "an unknown node")?;
        Ok(node)
    }

    fn check_adopt(&self, id: NodeId, parent: NodeId, name: &[u8], stat: &Stat) -> Checked {
        ensure(is_name(name), "a bad name")?;
        ensure(id.0 > 1 && id.0 < u64::MAX, "a bad node id")?;
        let dir = self.known(parent)?;
        ensure(dir.origin.is_some(), "adoption from a directory without a lower")?;
        let known = dir.dir.as_ref().ok_or(Misfit("adoption from what is no directory"))?.known.get(name);
        ensure(known.is_none_or(|k| !k.adopted && k.node == id), "adopted twice")?;
        let Some(node) = self.get(id) else { return Ok(()) };
        ensure(node.kind == stat.kind, "another kind than before")?;
        ensure(node.origin.is_some() && node.fresh.is_none(), "adoption of a new node")?;
        ensure(!node.adopted || node.kind != FileKind::Directory, "a second place of a directory")
    }

    fn check_pin(&self, id: NodeId, pin: &Pin) -> Checked {
        let node = self.known(id)?;
        ensure(node.adopted && node.pin.is_none(), "a pin for what is new or has one")?;
        ensure(node.kind == pin.stat.kind, "another kind than before")?;
        ensure((node.kind == FileKind::File) == (pin.hash != HashState::None), "a hash for what has no content")?;
        ensure((node.kind == FileKind::Symlink) == pin.target.is_some(), "a target for what is no link")?;
        ensure(pin.xattrs.keys().all(|n| is_kept_xattr(n)), "an attribute that is not staged")
    }

    fn check_dir(&self, id: NodeId) -> Checked {
        let dir = self.known(id)?.dir.as_ref().ok_or(Misfit("an entry in what is no directory"))?;
        ensure(!dir.dead, "an entry in a removed directory")
    }

    fn check_free(&self, parent: NodeId, name: &[u8]) -> Checked {
        ensure(is_name(name), "a bad name")?;
        self.check_dir(parent)?;
        ensure(!matches!(self.child(parent, name), Child::Node(_)), "a name that is taken")
    }

    fn check_present(&self, parent: NodeId, name: &[u8]) -> Checked<NodeId> {
        self.check_dir(parent)?;
        match self.child(parent, name) {
            Child::Node(id) => Ok(id),
            Child::Gone | Child::Unsaid => Err(Misfit("a name that is not there")),
        }
    }

    /// No directory, or one without entries as far as the records say.
    fn check_empty(&self, id: NodeId) -> Checked {
        let Some(dir) = self.dir(id) else { return Ok(()) };
        let in_slots = dir.slots.values().any(|s| s.node.is_some());
        let in_place = dir.known.iter().any(|(name, k)| k.adopted && !dir.slots.contains_key(name));
        ensure(!in_slots && !in_place, "a removed directory that is not empty")
    }

    fn check_rename(&self, (from, name): (NodeId, &[u8]), (to, new): (NodeId, &[u8]), exchange: bool) -> Checked {
        let moved = self.check_present(from, name)?;
        ensure(is_name(new), "a bad name")?;
        self.check_dir(to)?;
        ensure(self.dir(moved).is_none() || !self.is_within(to, moved), "a directory moved into itself")?;
        let Child::Node(other) = self.child(to, new) else {
            return ensure(!exchange, "an exchange with nothing");
        };
        ensure(other != moved, "a move onto the same node")?;
        if exchange {
            return ensure(self.dir(other).is_none() || !self.is_within(from, other), "a directory moved into itself");
        }
        ensure(self.dir(other).is_some() == self.dir(moved).is_some(), "a directory over a file or the reverse")?;
        self.check_empty(other)
    }

    /// Does what the record says. It must have passed [`check`](Self::check).
    pub fn commit(&mut self, record: &Record) {
        match record {
            Record::Adopt { node, parent, name, stat } => self.adopt(NodeId(*node), NodeId(*parent), name, stat),
            Record::Pin { node, pin } => self.with(*node, |n| n.pin = Some(pin.clone())),
            Record::Hash { node, hash } => self.with(*node, |n| {
                if let Some(pin) = &mut n.pin {
                    pin.hash = *hash;
                }
            }),
            Record::Create { node, parent, name, kind, mode, uid, gid, at } => {
                self.create(NodeId(*node), NodeId(*parent), kind, (*mode, *uid, *gid), *at);
                self.attach(NodeId(*parent), name, NodeId(*node));
                self.touch(NodeId(*parent), *at);
            }
            Record::Link { node, parent, name, at } => {
                self.with(*node, |n| {
                    n.nlink = n.nlink.saturating_add(1);
                    n.meta.ctime = Some(*at);
                });
                self.attach(NodeId(*parent), name, NodeId(*node));
                self.touch(NodeId(*parent), *at);
            }
            Record::Remove { parent, name, at } => {
                if let Some(id) = self.detach(NodeId(*parent), name) {
                    self.drop_name(id, *at);
                }
                self.touch(NodeId(*parent), *at);
            }
            Record::Rename { from, name, to, new_name, exchange, at } => {
                self.rename((NodeId(*from), name), (NodeId(*to), new_name), *exchange, *at);
            }
            Record::SetMeta { node, mode, uid, gid, atime, mtime, at } => self.with(*node, |n| {
                let meta = &mut n.meta;
                meta.mode = mode.or(meta.mode);
                meta.uid = uid.or(meta.uid);
                meta.gid = gid.or(meta.gid);
                meta.atime = atime.or(meta.atime);
                meta.mtime = mtime.or(meta.mtime);
                meta.ctime = Some(*at);
            }),
            Record::SetXattr { node, name, value, at } => self.with(*node, |n| {
                own_xattrs(n).insert(name.clone(), value.clone());
                n.meta.ctime = Some(*at);
            }),
            Record::RemoveXattr { node, name, at } => self.with(*node, |n| {
                own_xattrs(n).remove(name);
                n.meta.ctime = Some(*at);
            }),
            Record::Content { node } => self.with(*node, |n| {
                if let Some(body) = &n.body {
                    body.set_upper();
                }
            }),
        }
    }

    fn with(&mut self, id: u64, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.get_mut(NodeId(id)) {
            change(node);
        }
    }

    fn adopt(&mut self, id: NodeId, parent: NodeId, name: &[u8], stat: &Stat) {
        if self.get(id).is_none() {
            self.insert_lower(id, parent, name, stat);
            self.skip_ids(id.0);
        }
        self.add_place(id, parent, name, true);
        self.with(id.0, |n| {
            if !n.adopted {
                n.adopted = true;
                n.base = Some(*stat);
                n.nlink = stat.nlink;
            }
        });
    }

    fn create(&mut self, id: NodeId, parent: NodeId, kind: &FreshKind, (mode, uid, gid): (u32, u32, u32), at: Time) {
        let mut node = Node::new(kind.kind(), Self::fresh_ino(id), parent);
        node.fresh = Some(kind.clone());
        node.nlink = 1;
        let meta = &mut node.meta;
        (meta.mode, meta.uid, meta.gid) = (Some(mode), Some(uid), Some(gid));
        (meta.atime, meta.mtime, meta.ctime) = (Some(at), Some(at), Some(at));
        if let Some(body) = &node.body {
            body.set_upper();
        }
        self.nodes.insert(id, node);
        self.skip_ids(id.0);
    }

    /// Entries of the directory changed.
    fn touch(&mut self, dir: NodeId, at: Time) {
        self.with(dir.0, |n| {
            n.meta.mtime = Some(at);
            n.meta.ctime = Some(at);
        });
    }

    fn attach(&mut self, parent: NodeId, name: &[u8], id: NodeId) {
        if let Some(dir) = self.dir_mut(id) {
            dir.parent = parent;
            self.count_subdir(parent, 1);
        }
        let Some(dir) = self.dir_mut(parent) else { return };
        let covers = dir.covers(name);
        dir.slots.insert(name.into(), Slot { node: Some(id), covers });
    }

    fn detach(&mut self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        let Child::Node(id) = self.child(parent, name) else { return None };
        if self.dir(id).is_some() {
            self.count_subdir(parent, -1);
        }
        let dir = self.dir_mut(parent)?;
        if dir.covers(name) {
            dir.slots.insert(name.into(), Slot { node: None, covers: true });
        } else {
            dir.slots.remove(name);
        }
        Some(id)
    }

    fn count_subdir(&mut self, parent: NodeId, by: i64) {
        if let Some(dir) = self.dir_mut(parent) {
            dir.subdirs += by;
        }
    }

    fn drop_name(&mut self, id: NodeId, at: Time) {
        self.with(id.0, |n| {
            n.nlink = n.nlink.saturating_sub(1);
            n.meta.ctime = Some(at);
            if let Some(dir) = &mut n.dir {
                dir.dead = true;
            }
        });
    }

    fn rename(&mut self, (from, name): (NodeId, &[u8]), (to, new): (NodeId, &[u8]), exchange: bool, at: Time) {
        let Some(moved) = self.detach(from, name) else { return };
        if let Some(other) = self.detach(to, new) {
            if exchange {
                self.attach(from, name, other);
                self.with(other.0, |n| n.meta.ctime = Some(at));
            } else {
                self.drop_name(other, at);
            }
        }
        self.attach(to, new, moved);
        self.with(moved.0, |n| n.meta.ctime = Some(at));
        self.touch(from, at);
        self.touch(to, at);
    }
}

impl super::Directory {
    fn covers(&self, name: &[u8]) -> bool {
        self.slots.get(name).is_some_and(|s| s.covers) || self.known.get(name).is_some_and(|k| k.adopted)
    }
}

fn own_xattrs(node: &mut Node) -> &mut crate::lower::Xattrs {
    let pinned = || node.pin.as_ref().map(|p| p.xattrs.clone()).unwrap_or_default();
    node.xattrs.get_or_insert_with(pinned)
}
