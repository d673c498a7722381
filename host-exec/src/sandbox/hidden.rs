//! Which existing paths match the globs of secrets.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use globset::{Glob, GlobMatcher};
use pvisor_spec::{PlainGlob, is_plain, matches_name};

/// Most entries of directories that are looked at for one glob.
const MOST_ENTRIES: usize = 100_000;

/// The existing paths that a glob matches: absolute, `*` within one component, `**` for any number of them; below
/// `within` alone, and without following symbolic links there. `None` where there are too many to look at.
pub(super) fn existing(glob: &str, within: &[PathBuf]) -> Option<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut budget = MOST_ENTRIES;
    if glob.contains("**") {
        let Ok(glob) = Glob::new(glob) else { return Some(found) };
        let matcher = glob.compile_matcher();
        for top in within {
            walk(top, &matcher, &mut budget, &mut found)?;
        }
        return Some(found);
    }
    if let Some(plain) = PlainGlob::new(glob) {
        for top in within {
            if let Some(rest) = plain.within(top) {
                let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
                descend(top.clone(), &rest, &mut budget, &mut found)?;
            }
        }
        return Some(found);
    }
    let components: Vec<&str> = glob.split('/').filter(|c| !c.is_empty()).collect();
    descend(PathBuf::from("/"), &components, &mut budget, &mut found)?;
    found.retain(|path| within.iter().any(|top| path.starts_with(top)));
    Some(found)
}

fn descend(at: PathBuf, rest: &[&str], budget: &mut usize, found: &mut Vec<PathBuf>) -> Option<()> {
    let Some((first, rest)) = rest.split_first() else {
        found.push(at);
        return Some(());
    };
    if !first.contains(['*', '?', '[', '{', '\\']) {
        let path = at.join(first);
        if path.symlink_metadata().is_ok() {
            descend(path, rest, budget, found)?;
        }
        return Some(());
    }
    let Some(matcher) = Matcher::new(first) else { return Some(()) };
    for entry in at.read_dir().into_iter().flatten().flatten() {
        *budget = budget.checked_sub(1)?;
        if matcher.is_match(&entry.file_name()) {
            descend(entry.path(), rest, budget, found)?;
        }
    }
    Some(())
}

/// One component of a glob.
enum Matcher<'a> {
    Plain(&'a str),
    Compiled(GlobMatcher),
}

impl<'a> Matcher<'a> {
    fn new(component: &'a str) -> Option<Self> {
        if is_plain(component) {
            return Some(Self::Plain(component));
        }
        Glob::new(component).ok().map(|glob| Self::Compiled(glob.compile_matcher()))
    }

    fn is_match(&self, name: &OsStr) -> bool {
        match self {
            Self::Plain(component) => matches_name(component, name.as_bytes()),
            Self::Compiled(glob) => glob.is_match(name),
        }
    }
}

fn walk(at: &Path, matcher: &GlobMatcher, budget: &mut usize, found: &mut Vec<PathBuf>) -> Option<()> {
    if matcher.is_match(at) {
        found.push(at.to_owned());
        return Some(());
    }
    if !at.symlink_metadata().is_ok_and(|m| m.is_dir()) {
        return Some(());
    }
    for entry in at.read_dir().into_iter().flatten().flatten() {
        *budget = budget.checked_sub(1)?;
        walk(&entry.path(), matcher, budget, found)?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_find_what_is_there_and_nothing_outside() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        for file in ["a/.ssh/id", "b/.ssh/id", "b/deep/er/key.pem", "plain"] {
            std::fs::create_dir_all(top.join(file).parent().unwrap()).unwrap();
            std::fs::write(top.join(file), "").unwrap();
        }
        let find = |glob: &str, within: &[&str]| {
            let within: Vec<PathBuf> = within.iter().map(|w| top.join(w)).collect();
            let mut found = existing(&format!("{}/{glob}", top.display()), &within).unwrap();
            found.sort();
            found.iter().map(|p| p.strip_prefix(&top).unwrap().display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(find("*/.ssh", &["a", "b"]), ["a/.ssh", "b/.ssh"]);
        assert_eq!(find("*/.ssh", &["a"]), ["a/.ssh"]);
        assert_eq!(find("**/*.pem", &["b"]), ["b/deep/er/key.pem"]);
        assert!(find("**/*.pem", &["a"]).is_empty());
        assert!(find("no/such", &[""]).is_empty());
    }
}
