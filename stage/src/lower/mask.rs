//! Which parts of the lower do not show: hidden paths and boundaries.

use std::collections::{BTreeSet, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use pvisor_spec::{PlainGlob, matches_name};

/// A pattern of hidden paths that can't be used.
#[derive(Debug, thiserror::Error)]
#[error("bad pattern {pattern:?} of hidden paths")]
pub struct PatternError {
    /// The pattern.
    pub pattern: String,
    #[source]
    source: globset::Error,
}

/// Hidden paths and boundaries, as paths relative to the lower.
#[derive(Debug, Default)]
pub(crate) struct Mask {
    /// Absolute path of the lower with a slash at the end.
    prefix: Vec<u8>,
    /// Hidden paths.
    literal: HashSet<Vec<u8>>,
    /// Components of hidden paths, some with `*`.
    starred: Vec<Vec<String>>,
    /// Everything that is more than that, against absolute paths.
    compiled: Option<GlobSet>,
    boundaries: BTreeSet<Vec<u8>>,
}

impl Mask {
    /// `hidden` are globs against absolute paths (`*` stays within a component, `**` does not), `boundaries` absolute
    /// directories; those outside `lower` are left out.
    pub fn new(lower: &Path, hidden: &[String], boundaries: &[PathBuf]) -> Result<Self, PatternError> {
        let mut mask = Self { prefix: lower.as_os_str().as_bytes().to_vec(), ..Self::default() };
        if mask.prefix.last() != Some(&b'/') {
            mask.prefix.push(b'/');
        }
        let mut others = Vec::new();
        for pattern in hidden {
            match PlainGlob::new(pattern) {
                Some(glob) => mask.add(glob.within(lower).unwrap_or_default()),
                None => others.push(pattern),
            }
        }
        mask.compiled = compile(&others)?;
        mask.boundaries = boundaries
            .iter()
            .filter_map(|b| b.strip_prefix(lower).ok())
            .map(|b| b.as_os_str().as_bytes().to_vec())
            .collect();
        Ok(mask)
    }

    fn add(&mut self, components: &[String]) {
        if components.is_empty() {
            return;
        }
        if components.iter().any(|c| c.contains('*')) {
            self.starred.push(components.to_vec());
        } else {
            self.literal.insert(components.join("/").into_bytes());
        }
    }

    /// The lower path looks absent.
    pub fn hides(&self, path: &[u8]) -> bool {
        if path.is_empty() {
            return false;
        }
        self.literal.contains(path)
            || self.starred.iter().any(|components| matches(components, path))
            || self.compiled.as_ref().is_some_and(|set| {
                let whole = [&self.prefix[..], path].concat();
                set.is_match(Path::new(std::ffi::OsStr::from_bytes(&whole)))
            })
    }

    /// The lower directory looks empty.
    pub fn bounds(&self, path: &[u8]) -> bool {
        self.boundaries.contains(path)
    }

    /// A boundary lies at the lower path or below it.
    pub fn holds_boundary(&self, path: &[u8]) -> bool {
        let below = [path, b"/"].concat();
        self.bounds(path)
            || if path.is_empty() {
                !self.boundaries.is_empty()
            } else {
                self.boundaries.range(below.clone()..).next().is_some_and(|b| b.starts_with(&below))
            }
    }
}

fn compile(patterns: &[&String]) -> Result<Option<GlobSet>, PatternError> {
    let Some(first) = patterns.first() else { return Ok(None) };
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        let glob = GlobBuilder::new(pattern).literal_separator(true).build();
        set.add(glob.map_err(|source| PatternError { pattern: (*pattern).clone(), source })?);
    }
    set.build().map(Some).map_err(|source| PatternError { pattern: (*first).clone(), source })
}

fn matches(components: &[String], path: &[u8]) -> bool {
    let mut names = path.split(|b| *b == b'/');
    components.iter().all(|component| names.next().is_some_and(|name| matches_name(component, name)))
        && names.next().is_none()
}

#[cfg(test)]
mod tests {
    use globset::GlobMatcher;
    use proptest::prelude::*;

    use super::*;

    fn component() -> impl Strategy<Value = String> {
        "[ab*.]{1,3}".prop_filter("a name", |c| !c.contains("**") && c != "." && c != "..")
    }

    fn path(components: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
        proptest::collection::vec(components, 1..4).prop_map(|c| c.join("/"))
    }

    fn compiled(glob: &str) -> GlobMatcher {
        GlobBuilder::new(glob).literal_separator(true).build().unwrap().compile_matcher()
    }

    proptest! {
        #[test]
        fn what_is_not_compiled_hides_what_it_would_compiled(
            globs in proptest::collection::vec(path(component()), 1..4),
            lower in path("[ab.]{1,2}".prop_filter("a name", |c| c != "." && c != "..")),
            below in path("[ab.]{1,3}".prop_filter("a name", |c| c != "." && c != "..")),
        ) {
            let globs: Vec<String> = globs.into_iter().map(|g| format!("/{g}")).collect();
            let lower = PathBuf::from(format!("/{lower}"));
            let mask = Mask::new(&lower, &globs, &[]).unwrap();
            prop_assert!(mask.compiled.is_none());
            let expected = globs.iter().any(|glob| compiled(glob).is_match(lower.join(&below)));
            prop_assert_eq!(mask.hides(below.as_bytes()), expected);
        }
    }

    #[test]
    fn other_globs_are_compiled_and_bad_ones_named() {
        let mask = Mask::new(Path::new("/p"), &["/p/**/*.pem".into(), "/p/a/b".into(), "/q/c".into()], &[]).unwrap();
        for (path, hidden) in
            [("x/y.pem", true), ("y.pem", true), ("a/b", true), ("a", false), ("c", false), ("", false)]
        {
            assert_eq!(mask.hides(path.as_bytes()), hidden, "{path}");
        }
        let error = Mask::new(Path::new("/p"), &["/p/a".into(), "/p/[".into()], &[]).unwrap_err();
        assert_eq!(error.pattern, "/p/[");
    }
}
