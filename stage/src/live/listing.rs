//! Merged directory listings.

use super::attr::{Facts, Source};
use super::{Entry, NodeId, Shared, Stage};
use crate::Errno;
use crate::lower::LowerEntry;
use crate::tree::Tree;

/// What the stage says of a directory's names.
struct Said {
    /// Names that the lower's listing does not decide, sorted; with the entry where there is one.
    names: Vec<(Box<[u8]>, Option<Entry>)>,
    facts: Facts,
}

fn said(tree: &Tree, id: NodeId) -> Result<Said, Errno> {
    let facts = Facts::of(tree, id)?;
    let dir = tree.dir(id).ok_or(Errno::NOTDIR)?;
    if dir.dead {
        return Err(Errno::NOENT);
    }
    let entry = |name: &[u8], id: NodeId| tree.get(id).map(|n| Entry { name: name.to_vec(), ino: n.ino, kind: n.kind });
    let slots = dir.slots.iter().map(|(name, slot)| (name.clone(), slot.node.and_then(|id| entry(name, id))));
    let mut names: Vec<_> = slots.collect();
    // Staged in place: it shows even where somebody removed the lower's, if there is more to it than the lower.
    for (name, known) in &dir.known {
        let own = known.adopted && !dir.slots.contains_key(name);
        if own && tree.get(known.node).is_some_and(|n| n.in_upper() || n.dir.is_some()) {
            names.push((name.clone(), entry(name, known.node)));
        }
    }
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
        let state = shared.state();
        let mut out: Vec<Entry> = said.names.iter().filter_map(|(_, entry)| entry.clone()).collect();
        let unsaid = |name: &[u8]| said.names.binary_search_by(|(n, _)| (**n).cmp(name)).is_err();
        for LowerEntry { name, ino, kind } in lower {
            if unsaid(&name) {
                out.push(Entry { name: name.into_vec(), ino: state.tree.lower_ino(dev, ino), kind });
            }
        }
        drop(state);
        out.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(out)
    }
}

impl Shared {
    fn unmasked(&self, dir: &[u8], mut entries: Vec<LowerEntry>) -> Vec<LowerEntry> {
        entries.retain(|e| {
            let path = if dir.is_empty() { e.name.to_vec() } else { [dir, b"/", &e.name[..]].concat() };
            !self.mask.hides(&path)
        });
        entries
    }
}
