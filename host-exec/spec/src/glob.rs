//! Globs that need no compiling.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

/// A glob against absolute paths with nothing special in it but `*`, which stands for any part of one component. Most globs
/// are such, and compiling one takes longer than matching it a thousand times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainGlob {
    components: Vec<String>,
}

impl PlainGlob {
    /// `None` where the glob says more than that, is not absolute, or has an empty component.
    #[must_use]
    pub fn new(glob: &str) -> Option<Self> {
        let components: Vec<String> = glob.strip_prefix('/')?.split('/').map(str::to_owned).collect();
        let plain = components.iter().all(|c| !c.is_empty() && c != "." && c != ".." && is_plain(c));
        plain.then_some(Self { components })
    }

    /// What is left to match of a path once `dir` is taken from its front; empty where the glob matches `dir` itself, `None`
    /// where it matches neither that nor anything below.
    #[must_use]
    pub fn within(&self, dir: &Path) -> Option<&[String]> {
        let mut rest = &self.components[..];
        for component in dir.components() {
            let name = match component {
                Component::RootDir => continue,
                Component::Normal(name) => name,
                _ => return None,
            };
            let (first, others) = rest.split_first()?;
            if !matches_name(first, name.as_bytes()) {
                return None;
            }
            rest = others;
        }
        Some(rest)
    }
}

/// Whether a component of a glob has nothing special in it but single `*`.
#[must_use]
pub fn is_plain(component: &str) -> bool {
    !component.contains(['?', '[', ']', '{', '}', '\\']) && !component.contains("**")
}

/// Whether a plain component matches a name.
#[must_use]
pub fn matches_name(component: &str, name: &[u8]) -> bool {
    let mut parts = component.as_bytes().split(|b| *b == b'*');
    let first = parts.next().unwrap_or_default();
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return name.is_empty() };
    for part in parts {
        // The first place that fits leaves most for what comes after.
        let Some(at) = name.windows(part.len().max(1)).position(|window| window.starts_with(part)) else {
            return false;
        };
        name = &name[at + part.len()..];
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_as_globs_say() {
        let cases: [(&str, &str, bool); 16] = [
            ("a", "a", true),
            ("a", "ab", false),
            ("", "", true),
            ("*", "", true),
            ("*", ".hidden", true),
            ("a*", "a", true),
            ("a*", "ba", false),
            ("*.pem", "key.pem", true),
            ("*.pem", ".pem", true),
            ("*.pem", "pem", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "abbc", true),
            ("a*b*c", "acb", false),
            ("*ab*ab*", "xabab", true),
            ("*ab*ab*", "xabb", false),
        ];
        for (glob, name, expected) in cases {
            assert_eq!(matches_name(glob, name.as_bytes()), expected, "{glob} {name}");
        }
    }

    #[test]
    fn only_what_is_plain_is_taken_for_it() {
        assert!(PlainGlob::new("/home/*/.authinfo*").is_some());
        for glob in
            ["home", "/", "//a", "/a/", "/a/**/b", "/a/**", "/a/b**", "/[*]", "/a?", "/{a,b}", "/a\\*", "/a/../b"]
        {
            assert_eq!(PlainGlob::new(glob), None, "{glob}");
        }
    }

    #[test]
    fn a_directory_takes_its_part_of_the_glob() {
        let glob = PlainGlob::new("/home/*/.ssh/id*").unwrap();
        let within = |dir: &str| glob.within(Path::new(dir)).map(<[String]>::len);
        assert_eq!(["/", "/home", "/home/me", "/home/me/.ssh"].map(within), [Some(4), Some(3), Some(2), Some(1)]);
        assert_eq!(within("/home/me/.ssh/id_rsa"), Some(0));
        assert_eq!(["/root", "/home/me/project", "/home/me/.ssh/id/deeper"].map(within), [None, None, None]);
    }
}
