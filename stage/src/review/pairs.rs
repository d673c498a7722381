//! Where new files came from: renames and copies, by content alone.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::contents::{Content, Contents};
use super::entry::before_print;
use super::sink::spelled_git;
use crate::{Before, Change, ContentHash, Kind, RelPath};

/// Larger files are paired only where they are equal, in bytes.
const LARGE: u64 = 1 << 20;
/// As many bytes are read, and as many pieces compared, before the search is given up.
const BYTES: u64 = 64 << 20;
const STEPS: usize = 20_000_000;
/// As many files on each side are looked at.
const FILES: usize = 512;
/// Less of the larger file in common, in percent, and they are two files.
const ALIKE: u64 = 50;

/// Where a new file came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// Index of the change whose old content it was.
    pub source: usize,
    /// The source stays.
    pub copied: bool,
    /// How much of it is the same, in percent; 100: all.
    pub similarity: u8,
}

/// For each new file that had a source: which. `open`: the changes that are shown; `present`: those whose old content
/// the project still has.
pub(super) fn origins(
    changes: &[Change],
    open: &[usize],
    present: &[usize],
    contents: Contents<'_>,
) -> HashMap<usize, Origin> {
    let files = |at: &usize| !spelled_git(changes[*at].path.as_bytes(), false);
    let shown: HashSet<usize> = open.iter().copied().collect();
    let mut pairing = Pairing {
        changes,
        contents,
        added: open.iter().copied().filter(files).filter(|at| is_new_file(&changes[*at])).collect(),
        gone: open.iter().copied().filter(files).filter(|at| is_gone(&changes[*at])).collect(),
        kept: present
            .iter()
            .copied()
            .filter(files)
            .filter(|at| !(shown.contains(at) && is_gone(&changes[*at])))
            .collect(),
        found: HashMap::new(),
    };
    pairing.exact(true);
    pairing.exact(false);
    pairing.exact_copies();
    pairing.alike();
    pairing.found
}

fn is_new_file(change: &Change) -> bool {
    let file = |kind: &Kind| matches!(kind, Kind::File { size: 1.., .. });
    change.before == Before::Absent && change.after.as_ref().is_some_and(|a| file(&a.print.kind))
}

fn is_gone(change: &Change) -> bool {
    change.after.is_none() && old_file(change).is_some()
}

/// Hash and size of what was there.
fn old_file(change: &Change) -> Option<(ContentHash, u64)> {
    match &before_print(change)?.kind {
        Kind::File { size, hash } if *size > 0 => Some((*hash, *size)),
        _ => None,
    }
}

fn new_file(change: &Change) -> Option<(ContentHash, u64)> {
    match &change.after.as_ref()?.print.kind {
        Kind::File { size, hash } => Some((*hash, *size)),
        _ => None,
    }
}

fn name(path: &RelPath) -> Option<Vec<u8>> {
    path.split().map(|(_, name)| name.to_vec())
}

struct Pairing<'a> {
    changes: &'a [Change],
    contents: Contents<'a>,
    /// New files.
    added: Vec<usize>,
    /// Files that go and are not paired yet.
    gone: Vec<usize>,
    /// Changes after which the old path is still there.
    kept: Vec<usize>,
    found: HashMap<usize, Origin>,
}

impl Pairing<'_> {
    /// Equal contents of files that go and new ones, one to one. Those that kept their name are to come first.
    fn exact(&mut self, same_name: bool) {
        let mut sources: HashMap<ContentHash, Vec<usize>> = HashMap::new();
        for at in &self.gone {
            sources.entry(old_file(&self.changes[*at]).unwrap_or_default().0).or_default().push(*at);
        }
        for at in self.open() {
            let Some((hash, _)) = new_file(&self.changes[at]) else { continue };
            let Some(candidates) = sources.get_mut(&hash) else { continue };
            let fits = |old: &usize| !same_name || name(&self.changes[*old].path) == name(&self.changes[at].path);
            if let Some(found) = candidates.iter().position(fits) {
                let source = candidates.remove(found);
                self.take(at, Origin { source, copied: false, similarity: 100 });
            }
        }
    }

    /// New files that are as another one was: one that stays, or one that was renamed already.
    fn exact_copies(&mut self) {
        let renamed = self.found.values().map(|origin| origin.source);
        let mut sources: HashMap<ContentHash, usize> = HashMap::new();
        for at in self.kept.iter().copied().chain(renamed) {
            if let Some((hash, _)) = old_file(&self.changes[at]) {
                sources.entry(hash).or_insert(at);
            }
        }
        for at in self.open() {
            let source = new_file(&self.changes[at]).and_then(|(hash, _)| sources.get(&hash));
            // A further name of the same file is no copy.
            if let Some(source) = source.copied().filter(|source| !self.linked(at, *source)) {
                self.take(at, Origin { source, copied: true, similarity: 100 });
            }
        }
    }

    fn linked(&self, a: usize, b: usize) -> bool {
        let group = |at: usize| self.changes[at].after.as_ref().and_then(|after| after.link_group);
        group(a).is_some() && group(a) == group(b)
    }

    /// Contents that have much in common. Files that go are preferred, then files that kept their name.
    fn alike(&mut self) {
        let mut budget = Budget { bytes: BYTES, steps: STEPS };
        let edited = |at: &usize| self.changes[*at].after.as_ref().is_none_or(|after| after.object.is_some());
        let kept: Vec<usize> =
            self.kept.iter().copied().filter(edited).filter(|at| small(old_file(&self.changes[*at]))).collect();
        let gone: Vec<usize> = self.gone.iter().copied().filter(|at| small(old_file(&self.changes[*at]))).collect();
        let new: Vec<usize> =
            self.open().into_iter().filter(|at| small(new_file(&self.changes[*at]))).take(FILES).collect();
        if new.is_empty() || gone.is_empty() && kept.is_empty() {
            return;
        }
        let new: Vec<(usize, Pieces)> =
            new.into_iter().filter_map(|at| Some((at, self.new_pieces(at, &mut budget)?))).collect();
        let mut scores = Vec::new();
        for (sources, copied) in [(gone, false), (kept, true)] {
            for source in sources.into_iter().take(FILES) {
                let Some(old) = self.old_pieces(source, &mut budget) else { continue };
                for (at, pieces) in &new {
                    let Some(similarity) = old.similarity(pieces, &mut budget) else { continue };
                    let moved = name(&self.changes[source].path) == name(&self.changes[*at].path);
                    if !self.linked(*at, source) {
                        scores.push((copied, std::cmp::Reverse((similarity, moved)), *at, source));
                    }
                }
            }
        }
        scores.sort_unstable();
        let mut used = HashSet::new();
        for (copied, std::cmp::Reverse((similarity, _)), at, source) in scores {
            if !self.found.contains_key(&at) && (copied || used.insert(source)) {
                self.take(at, Origin { source, copied, similarity });
            }
        }
    }

    fn open(&self) -> Vec<usize> {
        self.added.iter().copied().filter(|at| !self.found.contains_key(at)).collect()
    }

    fn take(&mut self, at: usize, origin: Origin) {
        self.gone.retain(|old| *old != origin.source || origin.copied);
        self.found.insert(at, origin);
    }

    fn new_pieces(&self, at: usize, budget: &mut Budget) -> Option<Pieces> {
        self.pieces(&Content::after(&self.changes[at], None)?, budget)
    }

    fn old_pieces(&self, at: usize, budget: &mut Budget) -> Option<Pieces> {
        let change = &self.changes[at];
        self.pieces(&Content::before(&change.path, before_print(change)?)?, budget)
    }

    fn pieces(&self, content: &Content<'_>, budget: &mut Budget) -> Option<Pieces> {
        budget.bytes = budget.bytes.checked_sub(content.size())?;
        Some(Pieces::of(&self.contents.load(content, LARGE).ok()?))
    }
}

fn small(file: Option<(ContentHash, u64)>) -> bool {
    file.is_some_and(|(_, size)| size <= LARGE)
}

struct Budget {
    bytes: u64,
    steps: usize,
}

/// The lines of a content, or its parts of 64 bytes where they are longer, as hashes with the bytes that each makes up.
struct Pieces {
    size: u64,
    sorted: Vec<(u64, u64)>,
}

impl Pieces {
    fn of(content: &[u8]) -> Self {
        let lines = content.split_inclusive(|b| *b == b'\n').flat_map(|line| line.chunks(64));
        let mut sorted: Vec<(u64, u64)> = lines.map(|piece| (hash(piece), piece.len() as u64)).collect();
        sorted.sort_unstable();
        sorted.dedup_by(|next, first| {
            let same = next.0 == first.0;
            if same {
                first.1 += next.1;
            }
            same
        });
        Self { size: content.len() as u64, sorted }
    }

    /// Percent of the larger one that both have; `None`: too little, or the search took too long already.
    fn similarity(&self, other: &Self, budget: &mut Budget) -> Option<u8> {
        let (least, most) = (self.size.min(other.size), self.size.max(other.size));
        if least * 100 < most * ALIKE {
            return None;
        }
        budget.steps = budget.steps.checked_sub(self.sorted.len() + other.sorted.len())?;
        let (mut a, mut b, mut common) = (0, 0, 0);
        while let (Some(left), Some(right)) = (self.sorted.get(a), other.sorted.get(b)) {
            match left.0.cmp(&right.0) {
                std::cmp::Ordering::Less => a += 1,
                std::cmp::Ordering::Greater => b += 1,
                std::cmp::Ordering::Equal => {
                    common += left.1.min(right.1);
                    (a, b) = (a + 1, b + 1);
                }
            }
        }
        let percent = common * 100 / most.max(1);
        // All of it would be the same content.
        (percent >= ALIKE).then(|| u8::try_from(percent.min(99)).unwrap_or(99))
    }
}

fn hash(piece: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    piece.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similarity_goes_by_what_both_have_whatever_its_order() {
        let budget = || Budget { bytes: 0, steps: 1000 };
        let of = |a: &str, b: &str| Pieces::of(a.as_bytes()).similarity(&Pieces::of(b.as_bytes()), &mut budget());
        assert_eq!(of("one\ntwo\nthree\nfour\n", "one\ntwo\nthree\nfive\n"), Some(73));
        assert_eq!(of("a\nb\nc\n", "c\nb\na\n"), Some(99));
        assert_eq!(of("a\nb\nc\n", "x\ny\nz\n"), None);
        assert_eq!(of("a\n", "a\nb\nc\nd\n"), None);
        assert_eq!(Pieces::of(b"a\n").similarity(&Pieces::of(b"a\n"), &mut Budget { bytes: 0, steps: 1 }), None);
    }
}
