//! Merged directory listings.

use std::sync::Arc;

use super::attr::{Facts, Source};
use super::{Entry, NodeId, Shared, Stage};
use crate::lower::LowerEntry;
use crate::tree::{Tree, join};
use crate::{Errno, FileKind};

/// What the stage says of one name.
enum Saying {
    /// Absent.
    Gone,
    /// There.
    Is(Entry),
    /// A file that is where the lower has it, content and all: there if it still is.
    InPlace(Entry),
    /// A file that was moved, whose content is in the lower at this path: there if it still is.
    Moved(Entry, Arc<[u8]>),
}

/// What the stage says of a directory's names.
struct Said {
    /// Sorted.
    names: Vec<(Box<[u8]>, Saying)>,
    facts: Facts,
}

fn said(tree: &Tree, id: NodeId) -> Result<Said, Errno> {
    let facts = Facts::of(tree, id)?;
    let dir = tree.dir(id).ok_or(Errno::NOTDIR)?;
    if dir.dead {
        return Err(Errno::NOENT);
    }
    let say = |name: &[u8], id: NodeId, in_place: bool| {
        let Some(node) = tree.get(id) else { return Saying::Gone };
        let entry = Entry { name: name.to_vec(), ino: node.ino, kind: node.kind };
        match &node.origin {
            Some(_) if node.kind != FileKind::File || node.in_upper() => Saying::Is(entry),
            Some(_) if in_place => Saying::InPlace(entry),
            Some(origin) => Saying::Moved(entry, Arc::clone(origin)),
            None => Saying::Is(entry),
        }
    };
    let slots =
        dir.slots.iter().map(|(name, s)| (name.clone(), s.node.map_or(Saying::Gone, |id| say(name, id, false))));
    let in_place = dir.known.iter().filter(|(name, k)| k.adopted && !dir.slots.contains_key(*name));
    let in_place = in_place.map(|(name, k)| (name.clone(), say(name, k.node, true)));
    let mut names: Vec<_> = slots.chain(in_place).collect();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(Said { names, facts })
}

impl Stage {
    /// All names in a directory, sorted, without `.` and `..`. References are not taken.
    ///
    /// # Errors
    /// `NOTDIR`; `NOENT` for a removed directory; `STALE` for an unknown node; what the lower says.
    pub fn read_dir(&self, node: NodeId) -> Result<Vec<Entry>, Errno> {
        let shared = &*self.shared;
        let said = said(&shared.state().tree, node)?;
        let (lower, dev) = match &said.facts.source {
            Source::Lower(path) if !shared.mask.bounds(path) => match shared.lower.list(path) {
                Ok(found) => (shared.unmasked(path, found.0), found.1),
                // A staged directory whose lower is gone has just what is staged.
                Err(Errno::NOENT) => (Vec::new(), 0),
                Err(e) => return Err(e),
            },
            _ => (Vec::new(), 0),
        };
        let mut out = Vec::with_capacity(lower.len() + said.names.len());
        for (_, saying) in &said.names {
            match saying {
                Saying::Is(entry) => out.push(entry.clone()),
                Saying::Moved(entry, origin) if shared.is_file(origin) => out.push(entry.clone()),
                _ => {}
            }
        }
        let state = shared.state();
        for LowerEntry { name, ino, kind } in lower {
            match said.names.binary_search_by(|(n, _)| n.cmp(&name)).map(|at| &said.names[at].1) {
                Err(_) => out.push(Entry { ino: state.tree.lower_ino(dev, ino), name: name.into_vec(), kind }),
                Ok(Saying::InPlace(entry)) if kind == FileKind::File => out.push(entry.clone()),
                Ok(_) => {}
            }
        }
        drop(state);
        out.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(out)
    }
}

impl Shared {
    fn is_file(&self, path: &[u8]) -> bool {
        self.lower.stat(path).is_ok_and(|s| s.kind == FileKind::File)
    }

    fn unmasked(&self, dir: &[u8], mut entries: Vec<LowerEntry>) -> Vec<LowerEntry> {
        entries.retain(|e| !self.mask.hides(&join(dir, &e.name)));
        entries
    }
}
