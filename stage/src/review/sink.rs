//! Changes that can make the person's own tools run something later, or that are unusual enough to be looked at.

use serde::Serialize;

use crate::{Change, Fingerprint, Kind, RelPath};

/// Why a change deserves a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Flag {
    /// Git, an editor, a shell or an agent runs it, or what it says, without being asked.
    RunsLater,
    /// Whoever runs it runs it as its owner or group.
    SetId,
    /// A new program that can't be read as text.
    BinaryProgram,
    /// A symbolic link that leads out of the project.
    LinkOutside,
    /// A device node.
    Device,
}

impl Flag {
    /// For people: what is special, as the end of a line.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::RunsLater => "makes other tools run something",
            Self::SetId => "runs with the rights of its owner or group",
            Self::BinaryProgram => "is a new binary program",
            Self::LinkOutside => "is a link that leads out of the project",
            Self::Device => "is a device node",
        }
    }
}

/// What there is to say about a change. `binary`: its new content is no text.
pub(super) fn flags(change: &Change, before: Option<&Fingerprint>, binary: bool) -> Vec<Flag> {
    let Some(after) = change.after.as_ref().map(|a| &a.print) else { return Vec::new() };
    let is_dir = matches!(after.kind, Kind::Directory);
    let mut out = Vec::new();
    if !is_dir && runs_later(&change.path) {
        out.push(Flag::RunsLater);
    }
    let mode = |print: &Fingerprint| print.meta.mode;
    if !is_dir && mode(after) & 0o6000 & !before.map_or(0, mode) != 0 {
        out.push(Flag::SetId);
    }
    match &after.kind {
        Kind::File { .. } if binary && mode(after) & 0o111 != 0 => out.push(Flag::BinaryProgram),
        Kind::Symlink(target) if leads_out(&change.path, target) => out.push(Flag::LinkOutside),
        Kind::CharDevice(_) | Kind::BlockDevice(_) => out.push(Flag::Device),
        _ => {}
    }
    out
}

/// Files at the end of a path, at any depth.
const FILES: &[&str] = &[
    ".git/config",
    ".git/info/attributes",
    ".gitattributes",
    ".gitmodules",
    ".envrc",
    ".mcp.json",
    ".cursor/mcp.json",
    ".vscode/tasks.json",
    ".vscode/settings.json",
    ".vscode/launch.json",
    ".vscode/mcp.json",
    ".cargo/config",
    ".cargo/config.toml",
    ".pre-commit-config.yaml",
];

/// Directories somewhere in a path.
const DIRECTORIES: &[&str] = &[".git/hooks/", ".husky/", ".devcontainer/", ".github/workflows/"];

/// Compared without regard to case, as some filesystems do.
fn runs_later(path: &RelPath) -> bool {
    let lower = path.as_bytes().to_ascii_lowercase();
    let text = format!("/{}", String::from_utf8_lossy(&lower));
    let ends = |name: &str| text.ends_with(&format!("/{name}"));
    let (dir, name) = text.rsplit_once('/').unwrap_or_default();
    let claude = dir.ends_with("/.claude") && name.starts_with("settings") && name.ends_with(".json");
    // A submodule's or worktree's own git directory lies below `.git`.
    let nested = text.contains("/.git/") && (dir.ends_with("/hooks") || name == "config" || name == "config.worktree");
    // A `.git` that is a file or a link says where the real one is.
    claude
        || nested
        || name == ".git"
        || FILES.iter().any(|file| ends(file))
        || DIRECTORIES.iter().any(|dir| text.contains(&format!("/{dir}")))
}

/// Whether a link's target is absolute or climbs above the project's root.
fn leads_out(path: &RelPath, target: &[u8]) -> bool {
    if target.starts_with(b"/") {
        return true;
    }
    let mut depth = path.as_bytes().iter().filter(|b| **b == b'/').count();
    for part in target.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." if depth == 0 => return true,
            b".." => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{After, Before, Meta};

    fn rel(text: &str) -> RelPath {
        RelPath::new(text.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn files_that_tools_run_are_found_at_any_depth_and_in_any_case() {
        for path in [
            ".git/hooks/post-commit",
            "sub/.git/config",
            ".git/modules/x/hooks/post-checkout",
            ".GIT/Hooks/pre-push",
            ".envrc",
            "a/.vscode/tasks.json",
            ".claude/settings.local.json",
            ".mcp.json",
            "sub/.git",
            ".gitattributes",
        ] {
            assert!(runs_later(&rel(path)), "{path}");
        }
        for path in [".git/objects/ab/cd", "git/hooks/x", "my.envrc", "settings.json", ".claude/notes.json"] {
            assert!(!runs_later(&rel(path)), "{path}");
        }
    }

    #[test]
    fn links_out_of_the_project_are_told_from_those_within() {
        for (path, target) in [("l", "/etc/passwd"), ("l", ".."), ("a/l", "../../x"), ("a/b/l", "../x/../../../y")] {
            assert!(leads_out(&rel(path), target.as_bytes()), "{path} {target}");
        }
        for (path, target) in [("l", "x"), ("a/l", "../x"), ("a/b/l", "../../x/y"), ("a/l", "./b/..")] {
            assert!(!leads_out(&rel(path), target.as_bytes()), "{path} {target}");
        }
    }

    #[test]
    fn set_id_bits_and_binary_programs_are_flagged_when_they_are_new() {
        let print =
            |mode| Fingerprint { kind: Kind::File { size: 1, hash: [0; 32] }, meta: Meta { mode, ..Meta::default() } };
        let after = Some(After { print: print(0o4755), object: None, link_group: None });
        let change = Change { path: rel("x"), before: Before::Absent, after };
        assert_eq!(flags(&change, None, true), [Flag::SetId, Flag::BinaryProgram]);
        assert_eq!(flags(&change, Some(&print(0o4755)), false), []);
    }
}
