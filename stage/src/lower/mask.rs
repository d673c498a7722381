//! Which parts of the lower do not show: hidden paths and boundaries.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

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
    hidden: GlobSet,
    any_hidden: bool,
    boundaries: BTreeSet<Vec<u8>>,
}

impl Mask {
    /// `hidden` are globs against absolute paths (`*` stays within a component, `**` does not), `boundaries` absolute directories; those outside `lower` are left out.
    pub fn new(lower: &Path, hidden: &[String], boundaries: &[PathBuf]) -> Result<Self, PatternError> {
        let mut set = GlobSetBuilder::new();
        for pattern in hidden {
            let glob = GlobBuilder::new(pattern).literal_separator(true).build();
            set.add(glob.map_err(|source| PatternError { pattern: pattern.clone(), source })?);
        }
        let wrong = |source| PatternError { pattern: hidden.join(" "), source };
        let mut prefix = lower.as_os_str().as_bytes().to_vec();
        if prefix.last() != Some(&b'/') {
            prefix.push(b'/');
        }
        let boundaries = boundaries
            .iter()
            .filter_map(|b| b.strip_prefix(lower).ok())
            .map(|b| b.as_os_str().as_bytes().to_vec())
            .collect();
        Ok(Self { prefix, hidden: set.build().map_err(wrong)?, any_hidden: !hidden.is_empty(), boundaries })
    }

    /// The lower path looks absent.
    pub fn hides(&self, path: &[u8]) -> bool {
        if !self.any_hidden || path.is_empty() {
            return false;
        }
        let whole = [&self.prefix[..], path].concat();
        self.hidden.is_match(Path::new(std::ffi::OsStr::from_bytes(&whole)))
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
