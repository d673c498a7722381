//! What a guest kernel is made of besides its source. All of it is in the key, so a change builds anew.

use std::path::PathBuf;

use super::source::PACKAGE;
use super::toolchain::{KERNEL_TOOLS, Tool};
use crate::Digest;

/// The configuration of a guest kernel: what is not in it is off.
pub const FRAGMENT: &str = include_str!("../../kernel/pvisor.config");

/// Raised with every change of how a kernel is built that its other inputs do not show.
pub(super) const VERSION: u32 = 1;

/// How to build.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) fragment: &'static str,
    pub(super) tools: &'static [Tool],
    /// Where the distribution puts its source archive.
    pub(super) installed: PathBuf,
    /// Lines that the compile step prints, about.
    pub(super) lines: u32,
    /// MiB that a build takes at its largest.
    pub(super) space: u64,
}

impl Recipe {
    pub(super) fn guest() -> Self {
        Self {
            fragment: FRAGMENT,
            tools: &KERNEL_TOOLS,
            installed: PathBuf::from(format!("/usr/src/{PACKAGE}.tar.xz")),
            lines: 1550,
            space: 2048,
        }
    }

    pub(super) fn fragment_digest(&self) -> Digest {
        Digest::of(self.fragment.as_bytes())
    }

    /// The key of a kernel built from `source` by the tools of `version`.
    pub(super) fn key(&self, source: Digest, version: &str) -> Digest {
        let mut hasher = blake3::Hasher::new();
        let source = source.to_string();
        let recipe = VERSION.to_string();
        for part in ["pvisor guest kernel", "x86_64", &recipe, &source, self.fragment, version] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        hasher.finalize().into()
    }

    /// Lines of the fragment that `config`, the result, does not hold to.
    pub(super) fn unmet(&self, config: &str) -> Vec<String> {
        let holds = |line: &&str| match line.strip_prefix("# ").and_then(|l| l.strip_suffix(" is not set")) {
            Some(name) => !config.lines().any(|l| l.strip_prefix(name).is_some_and(|rest| rest.starts_with('='))),
            None if line.starts_with("CONFIG_") => config.lines().any(|l| l == *line),
            None => true,
        };
        self.fragment.lines().filter(|l| !holds(l)).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_input_is_in_the_key() {
        let recipe = Recipe::guest();
        let other = Recipe { fragment: "CONFIG_X=y\n", ..Recipe::guest() };
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let keys = [recipe.key(a, "gcc 1"), recipe.key(b, "gcc 1"), recipe.key(a, "gcc 2"), other.key(a, "gcc 1")];
        assert_eq!(HashSet::from(keys).len(), 4);
    }

    #[test]
    fn what_the_configuration_dropped_is_named() {
        let fragment = "# a comment\nCONFIG_A=y\nCONFIG_B=\"x\"\n# CONFIG_C is not set\n";
        let recipe = Recipe { fragment, ..Recipe::guest() };
        assert!(recipe.unmet("CONFIG_A=y\nCONFIG_B=\"x\"\nCONFIG_CC=y\n").is_empty());
        assert_eq!(
            recipe.unmet("CONFIG_AA=y\nCONFIG_B=\"y\"\nCONFIG_C=y\n"),
            ["CONFIG_A=y", "CONFIG_B=\"x\"", "# CONFIG_C is not set"]
        );
    }

    #[test]
    fn the_fragment_says_each_thing_once() {
        let mut names = HashSet::new();
        for line in FRAGMENT.lines().filter(|l| l.starts_with("CONFIG_") || l.ends_with(" is not set")) {
            let name = line.trim_start_matches("# ").split(['=', ' ']).next().unwrap();
            assert!(names.insert(name), "{name} twice");
        }
        for needed in ["CONFIG_VIRTIO_FS", "CONFIG_VIRTIO_CONSOLE", "CONFIG_VIRTIO_MMIO_CMDLINE_DEVICES"] {
            assert!(names.contains(needed));
        }
    }
}
