//! Which of the changes are to be applied.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use super::target::is_dir;
use crate::{Before, Change, RelPath};

/// Which changes to apply: those that every given condition lets through, and what they can't go without: names of
/// the same file, new directories around them, everything inside of a directory that goes. Empty: all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// One of these paths, or below it.
    pub paths: Vec<RelPath>,
    /// Matched by one of these patterns, or below what is. `*` stays within a component, `**` does not; a pattern
    /// without a slash matches at any depth.
    pub include: Vec<String>,
    /// Not matched by any of these, nor below what is.
    pub exclude: Vec<String>,
}

/// The selection makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum SelectionError {
    /// Nothing at or below a path was changed.
    #[error("nothing changed at {}", crate::review::quoted(.0.as_bytes()))]
    Unchanged(RelPath),
    /// A pattern can't be understood.
    #[error("bad pattern {pattern:?}")]
    Pattern {
        /// Which.
        pattern: String,
        /// Why.
        source: globset::Error,
    },
}

impl Selection {
    /// The selected changes, sorted as they came.
    ///
    /// # Errors
    /// A pattern is bad, or a path names nothing that changed.
    pub(crate) fn choose<'c>(&self, changes: &'c [Change]) -> Result<Vec<&'c Change>, SelectionError> {
        let (include, exclude) = (compile(&self.include)?, compile(&self.exclude)?);
        for path in &self.paths {
            if !changes.iter().any(|c| c.path.is_within(path)) {
                return Err(SelectionError::Unchanged(path.clone()));
            }
        }
        let excluded: Vec<bool> = changes.iter().map(|c| matches(&exclude, &c.path)).collect();
        let named = |c: &Change| {
            (self.paths.is_empty() || self.paths.iter().any(|p| c.path.is_within(p)))
                && (self.include.is_empty() || matches(&include, &c.path))
        };
        let chosen = changes.iter().zip(&excluded).map(|(c, out)| named(c) && !out).collect();
        let chosen = Closure::new(changes, excluded).close(chosen);
        Ok(changes.iter().zip(chosen).filter_map(|(c, taken)| taken.then_some(c)).collect())
    }
}

fn compile(patterns: &[String]) -> Result<GlobSet, SelectionError> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        let wrong = |source| SelectionError::Pattern { pattern: pattern.clone(), source };
        let plain = pattern.trim_start_matches("./").trim_end_matches('/');
        let anchored = plain.contains('/');
        let plain = plain.trim_start_matches('/');
        let whole = if anchored { plain.to_owned() } else { format!("**/{plain}") };
        set.add(GlobBuilder::new(&whole).literal_separator(true).build().map_err(wrong)?);
    }
    set.build().map_err(|source| SelectionError::Pattern { pattern: patterns.join(" "), source })
}

/// Whether a pattern matches the path or a directory around it.
fn matches(set: &GlobSet, path: &RelPath) -> bool {
    let bytes = path.as_bytes();
    let ends = bytes.iter().enumerate().filter_map(|(at, b)| (*b == b'/').then_some(at)).chain([bytes.len()]);
    !set.is_empty() && ends.map(|end| OsStr::from_bytes(&bytes[..end])).any(|part| set.is_match(Path::new(part)))
}

/// What belongs together.
struct Closure<'c> {
    changes: &'c [Change],
    /// Never taken for the sake of a directory that goes; then the directory stays.
    excluded: Vec<bool>,
    index: HashMap<&'c RelPath, usize>,
    groups: BTreeMap<u64, Vec<usize>>,
}

impl<'c> Closure<'c> {
    fn new(changes: &'c [Change], excluded: Vec<bool>) -> Self {
        let mut groups: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (at, change) in changes.iter().enumerate() {
            if let Some(group) = change.after.as_ref().and_then(|a| a.link_group) {
                groups.entry(group).or_default().push(at);
            }
        }
        Self { changes, excluded, index: changes.iter().enumerate().map(|(at, c)| (&c.path, at)).collect(), groups }
    }

    fn close(&self, mut chosen: Vec<bool>) -> Vec<bool> {
        let barred: BTreeSet<usize> = self.barred();
        for at in &barred {
            chosen[*at] = false;
        }
        let mut queue: Vec<usize> = (0..chosen.len()).filter(|at| chosen[*at]).collect();
        while let Some(at) = queue.pop() {
            for other in self.needs(at) {
                if !chosen[other] && !barred.contains(&other) {
                    chosen[other] = true;
                    queue.push(other);
                }
            }
        }
        chosen
    }

    /// Directories that can't go, because something in them is not to be touched; and all names of files of which one
    /// is excluded or can't take such a directory's place.
    fn barred(&self) -> BTreeSet<usize> {
        let held = (0..self.changes.len()).filter(|at| self.excluded[*at]);
        let mut barred: BTreeSet<usize> =
            held.flat_map(|at| self.ancestors(at)).filter(|at| goes_away(&self.changes[*at])).collect();
        let split = |names: &&Vec<usize>| names.iter().any(|at| barred.contains(at) || self.excluded[*at]);
        let waiting: Vec<usize> = self.groups.values().filter(split).flatten().copied().collect();
        barred.extend(waiting);
        barred
    }

    fn ancestors(&self, at: usize) -> Vec<usize> {
        let mut out = Vec::new();
        let mut path = self.changes[at].path.clone();
        while let Some((parent, _)) = path.split() {
            out.extend(self.index.get(&parent));
            path = parent;
        }
        out
    }

    fn needs(&self, at: usize) -> Vec<usize> {
        let change = &self.changes[at];
        let mut out = Vec::new();
        if change.after.is_some() {
            // A directory that was there before is there without the change of its metadata.
            out.extend(self.ancestors(at).into_iter().filter(|a| becomes_dir(&self.changes[*a])));
        }
        if let Some(group) = change.after.as_ref().and_then(|a| a.link_group) {
            out.extend_from_slice(self.groups.get(&group).map_or(&[], |g| g));
        }
        if goes_away(change) {
            out.extend(below(self.changes, &change.path, |c| &c.path));
        }
        out
    }
}

/// Where in a list sorted by path those below `path` are.
pub(crate) fn below<T>(sorted: &[T], path: &RelPath, key: impl Fn(&T) -> &RelPath) -> std::ops::Range<usize> {
    let mut prefix = path.as_bytes().to_vec();
    if !prefix.is_empty() {
        prefix.push(b'/');
    }
    // The root is not below itself.
    let start = sorted.partition_point(|item| key(item).as_bytes() < &prefix[..] || key(item).as_bytes().is_empty());
    let length = sorted[start..].partition_point(|item| key(item).as_bytes().starts_with(&prefix));
    start..start + length
}

/// A directory is removed or replaced by something else.
fn goes_away(change: &Change) -> bool {
    let was = matches!(&change.before, Before::Present(p) if is_dir(&p.kind));
    was && !change.after.as_ref().is_some_and(|a| is_dir(&a.print.kind))
}

/// A directory appears where there was none.
fn becomes_dir(change: &Change) -> bool {
    let was = matches!(&change.before, Before::Present(p) if is_dir(&p.kind));
    !was && change.after.as_ref().is_some_and(|a| is_dir(&a.print.kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{After, Fingerprint, Kind, Meta, ObjectId};

    fn rel(text: &str) -> RelPath {
        RelPath::new(text.as_bytes().to_vec()).unwrap()
    }

    fn print(kind: Kind) -> Fingerprint {
        Fingerprint { kind, meta: Meta::default() }
    }

    fn change(path: &str, before: Option<Kind>, after: Option<Kind>, group: Option<u64>) -> Change {
        Change {
            path: rel(path),
            before: before.map_or(Before::Absent, |k| Before::Present(print(k))),
            after: after.map(|k| After { print: print(k), object: Some(ObjectId(9)), link_group: group }),
        }
    }

    fn file() -> Option<Kind> {
        Some(Kind::File { size: 0, hash: [0; 32] })
    }

    fn dir() -> Option<Kind> {
        Some(Kind::Directory)
    }

    fn chosen(changes: &[Change], paths: &[&str], include: &[&str], exclude: &[&str]) -> Vec<String> {
        let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        let paths = paths.iter().map(|p| rel(p)).collect();
        let selection = Selection { paths, include: owned(include), exclude: owned(exclude) };
        let chosen = selection.choose(changes).unwrap();
        chosen.iter().map(|c| String::from_utf8_lossy(c.path.as_bytes()).into_owned()).collect()
    }

    #[test]
    fn patterns_match_at_any_depth_or_anchored() {
        let changes = [
            change("a.log", None, file(), None),
            change("src/a.log", None, file(), None),
            change("src/main.rs", None, file(), None),
            change("target/src/x", None, file(), None),
        ];
        assert_eq!(chosen(&changes, &[], &[], &["*.log"]), ["src/main.rs", "target/src/x"]);
        assert_eq!(chosen(&changes, &[], &["src"], &["*.log"]), ["src/main.rs", "target/src/x"]);
        assert_eq!(chosen(&changes, &[], &["/src/**"], &[]), ["src/a.log", "src/main.rs"]);
        assert_eq!(chosen(&changes, &["src"], &["*.rs"], &[]), ["src/main.rs"]);
        assert_eq!(chosen(&changes, &[], &[], &[]).len(), 4);
    }

    #[test]
    fn a_new_file_brings_its_new_directories() {
        let changes = [
            change("n", None, dir(), None),
            change("n/m", None, dir(), None),
            change("n/m/f", None, file(), None),
            change("n/other", None, file(), None),
        ];
        assert_eq!(chosen(&changes, &["n/m/f"], &[], &[]), ["n", "n/m", "n/m/f"]);
    }

    #[test]
    fn names_of_one_file_stay_together() {
        let changes = [
            change("a", None, file(), Some(3)),
            change("b", None, file(), None),
            change("d", None, dir(), None),
            change("d/c", None, file(), Some(3)),
        ];
        assert_eq!(chosen(&changes, &["a"], &[], &[]), ["a", "d", "d/c"]);
        // One that is excluded is never taken for the sake of another.
        assert_eq!(chosen(&changes, &[], &[], &["d/c"]), ["b", "d"]);
        assert_eq!(chosen(&changes, &["a"], &[], &["c"]), [""; 0]);
    }

    #[test]
    fn a_directory_goes_with_all_its_content_or_not_at_all() {
        let changes = [
            change("d", dir(), None, None),
            change("d/a", file(), None, None),
            change("d/e", dir(), None, None),
            change("d/e/keep.log", file(), None, None),
        ];
        assert_eq!(chosen(&changes, &[], &["/d"], &[]).len(), 4);
        assert_eq!(chosen(&changes, &[], &[], &["*.log"]), ["d/a"]);
    }

    #[test]
    fn what_is_below_a_path_is_found_past_names_that_sort_between() {
        let sorted = ["", "a", "a-b", "a/b", "a/b/c", "a0", "b"].map(rel);
        assert_eq!(below(&sorted, &rel("a"), |p| p), 3..5);
        assert_eq!(below(&sorted, &rel(""), |p| p), 1..7);
        assert!(below(&sorted, &rel("c"), |p| p).is_empty());
    }

    #[test]
    fn names_of_a_file_wait_for_the_one_that_can_not_come_yet() {
        let changes = [
            change("a", None, file(), Some(1)),
            change("d", dir(), file(), Some(1)),
            change("d/kept", file(), None, None),
            change("d/other", file(), None, None),
        ];
        assert_eq!(chosen(&changes, &[], &[], &["kept"]), ["d/other"]);
        assert_eq!(chosen(&changes, &["a"], &[], &[]).len(), 4);
    }

    #[test]
    fn a_path_that_did_not_change_is_an_error() {
        let changes = [change("ab", None, file(), None)];
        let selection = Selection { paths: vec![rel("a")], ..Selection::default() };
        assert!(matches!(selection.choose(&changes), Err(SelectionError::Unchanged(_))));
        let selection = Selection { include: vec!["[".to_owned()], ..Selection::default() };
        assert!(matches!(selection.choose(&changes), Err(SelectionError::Pattern { .. })));
    }
}
