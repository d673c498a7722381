//! The net changes: the staged view against the preimages, path by path.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::SealedContent;
use crate::journal::{FreshKind, HashState, Pin};
use crate::live::NodeId;
use crate::tree::{Misfit, Node, Tree, join};
use crate::{After, Before, Change, ContentHash, FileKind, Fingerprint, Kind, Meta, ObjectId, RelPath};

/// Paths that the stage says something of.
pub(crate) type View = BTreeMap<Vec<u8>, NodeId>;

/// Entries of a directory that the stage knows: its own, and adopted ones of the lower.
pub(crate) fn children(tree: &Tree, dir: NodeId) -> Vec<(Box<[u8]>, NodeId)> {
    let Some(dir) = tree.dir(dir) else { return Vec::new() };
    let own = dir.slots.iter().filter_map(|(name, slot)| Some((name.clone(), slot.node?)));
    let in_place = dir.known.iter().filter(|(name, k)| k.adopted && !dir.slots.contains_key(*name));
    own.chain(in_place.map(|(name, k)| (name.clone(), k.node))).collect()
}

/// All paths that the stage knows, with their nodes. Everything else is as the lower has it.
pub(crate) fn view(tree: &Tree) -> Result<View, Misfit> {
    let mut view = View::from([(Vec::new(), NodeId::ROOT)]);
    let mut stack = vec![(Vec::new(), NodeId::ROOT)];
    let mut entered = BTreeSet::from([NodeId::ROOT]);
    while let Some((path, dir)) = stack.pop() {
        for (name, id) in children(tree, dir) {
            let path = join(&path, &name);
            if tree.dir(id).is_some() {
                if !entered.insert(id) {
                    return Err(Misfit("a directory is in two places"));
                }
                stack.push((path.clone(), id));
            }
            view.insert(path, id);
        }
    }
    Ok(view)
}

/// Paths in the lower of all adopted nodes.
fn places(tree: &Tree) -> View {
    let mut places = View::from([(Vec::new(), NodeId::ROOT)]);
    for (id, node) in &tree.nodes {
        places.extend(tree.lower_paths(node).map(|path| (path, *id)));
    }
    places
}

/// What a pinned lower node was.
fn print_of(pin: &Pin) -> Result<Option<Fingerprint>, Misfit> {
    let stat = &pin.stat;
    let kind = match stat.kind {
        FileKind::File => match pin.hash {
            HashState::Known(hash) => Kind::File { size: stat.size, hash },
            HashState::Lost => return Ok(None),
            HashState::Pending | HashState::None => return Err(Misfit("a preimage without its hash")),
        },
        FileKind::Directory => Kind::Directory,
        FileKind::Symlink => Kind::Symlink(pin.target.clone().ok_or(Misfit("a link without its target"))?),
        FileKind::Fifo => Kind::Fifo,
        FileKind::Socket => Kind::Socket,
        FileKind::CharDevice => Kind::CharDevice(stat.rdev),
        FileKind::BlockDevice => Kind::BlockDevice(stat.rdev),
    };
    let meta = Meta { mode: stat.mode, uid: stat.uid, gid: stat.gid, mtime: stat.mtime, xattrs: pin.xattrs.clone() };
    Ok(Some(Fingerprint { kind, meta }))
}

/// Computes changes; see [`net_changes`].
struct Net<'a> {
    tree: &'a Tree,
    contents: &'a HashMap<NodeId, SealedContent>,
    view: View,
    places: View,
    /// Names of each node that is no directory.
    names: HashMap<NodeId, u32>,
}

/// Every path whose staged state differs from what the command found, sorted by path. A name of a hard-linked file
/// that is as it was is among them where another of its names is new, so that the two can be linked.
pub(crate) fn net_changes(tree: &Tree, contents: &HashMap<NodeId, SealedContent>) -> Result<Vec<Change>, Misfit> {
    let view = view(tree)?;
    let mut names = HashMap::new();
    for id in view.values() {
        *names.entry(*id).or_insert(0) += 1;
    }
    let net = Net { tree, contents, places: places(tree), view, names };
    net.run()
}

impl Net<'_> {
    fn run(&self) -> Result<Vec<Change>, Misfit> {
        let mut changes = Vec::new();
        let mut unchanged = Vec::new();
        let mut linked = BTreeSet::new();
        let paths: BTreeSet<&Vec<u8>> = self.view.keys().chain(self.places.keys()).collect();
        for path in paths {
            let Some((change, differs)) = self.change(path)? else { continue };
            let group = change.after.as_ref().and_then(|a| a.link_group);
            if !differs {
                unchanged.push((group, change));
                continue;
            }
            // The lower does not have this name for this node.
            let new_name = self.places.get(path) != self.view.get(path);
            linked.extend(group.filter(|_| new_name));
            changes.push(change);
        }
        let companions = unchanged.into_iter().filter(|(group, _)| group.is_some_and(|g| linked.contains(&g)));
        changes.extend(companions.map(|(_, change)| change));
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(changes)
    }

    /// What happened at a path, and whether that is a difference; `None` for what was only walked through.
    fn change(&self, path: &[u8]) -> Result<Option<(Change, bool)>, Misfit> {
        let (was, is) = (self.places.get(path), self.view.get(path));
        let mut untouched_content = false;
        let before = match was {
            None => Before::Absent,
            Some(id) => {
                let node = self.node(*id)?;
                let Some(pin) = &node.pin else {
                    return if is == was { Ok(None) } else { Err(Misfit("a path changed without a preimage")) };
                };
                // Nobody but the journal's reader can tell that a lost content does not matter here.
                untouched_content = is == was && !node.in_upper() && only_times(node, pin);
                print_of(pin)?.map_or(Before::Lost, Before::Present)
            }
        };
        if untouched_content && before == Before::Lost {
            return Ok(None);
        }
        let after = is.map(|id| self.after(*id, is == was, &before)).transpose()?;
        let differs = match (&before, &after) {
            (Before::Absent, None) => return Ok(None),
            (Before::Present(b), Some(a)) => !b.same(&a.print),
            _ => true,
        };
        let path = RelPath::new(path.to_vec()).map_err(|_| Misfit("a bad path"))?;
        Ok(Some((Change { path, before, after }, differs)))
    }

    fn node(&self, id: NodeId) -> Result<&Node, Misfit> {
        self.tree.get(id).ok_or(Misfit("an unknown node"))
    }

    fn after(&self, id: NodeId, in_place: bool, before: &Before) -> Result<After, Misfit> {
        let node = self.node(id)?;
        let mut print = match (&node.fresh, &node.pin) {
            (Some(fresh), _) => fresh_print(fresh),
            (None, Some(pin)) => pinned_print(pin)?,
            (None, None) => return Err(Misfit("a path changed without a preimage")),
        };
        let meta = &mut print.meta;
        meta.mode = node.meta.mode.unwrap_or(meta.mode);
        meta.uid = node.meta.uid.unwrap_or(meta.uid);
        meta.gid = node.meta.gid.unwrap_or(meta.gid);
        meta.mtime = node.meta.mtime.unwrap_or(meta.mtime);
        if let Some(xattrs) = &node.xattrs {
            meta.xattrs.clone_from(xattrs);
        }
        let mut object = None;
        if node.in_upper() {
            let content = self.contents.get(&id).ok_or(Misfit("a staged content is not sealed"))?;
            meta.mtime = content.mtime;
            print.kind = Kind::File { size: content.size, hash: content.hash };
            let as_before = matches!(before, Before::Present(b) if b.kind == print.kind);
            object = (!as_before).then_some(ObjectId(id.0));
        } else if node.kind == FileKind::File && !in_place && readable(node) {
            return Err(Misfit("a moved file without content"));
        }
        let many = node.kind != FileKind::Directory && self.names.get(&id).is_some_and(|n| *n > 1);
        Ok(After { print, object, link_group: many.then_some(id.0) })
    }
}

/// Its content could be read, so a place elsewhere has it.
fn readable(node: &Node) -> bool {
    node.pin.as_ref().is_none_or(|p| p.hash != HashState::Lost)
}

fn only_times(node: &Node, pin: &Pin) -> bool {
    let same = |set: Option<u32>, was: u32| set.is_none_or(|s| s == was);
    let (meta, stat) = (&node.meta, &pin.stat);
    same(meta.mode, stat.mode)
        && same(meta.uid, stat.uid)
        && same(meta.gid, stat.gid)
        && node.xattrs.as_ref().is_none_or(|x| *x == pin.xattrs)
}

fn fresh_print(fresh: &FreshKind) -> Fingerprint {
    let kind = match fresh {
        FreshKind::File => Kind::File { size: 0, hash: ContentHash::default() },
        FreshKind::Directory => Kind::Directory,
        FreshKind::Symlink(target) => Kind::Symlink(target.clone()),
        FreshKind::Fifo => Kind::Fifo,
        FreshKind::Socket => Kind::Socket,
        FreshKind::CharDevice(rdev) => Kind::CharDevice(*rdev),
        FreshKind::BlockDevice(rdev) => Kind::BlockDevice(*rdev),
    };
    Fingerprint { kind, meta: Meta::default() }
}

/// A lost content is shown with a hash of zeros.
fn pinned_print(pin: &Pin) -> Result<Fingerprint, Misfit> {
    match print_of(pin)? {
        Some(print) => Ok(print),
        None => {
            let known = Pin { hash: HashState::Known(ContentHash::default()), ..pin.clone() };
            print_of(&known)?.ok_or(Misfit("a preimage without its hash"))
        }
    }
}
