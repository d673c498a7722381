//! Exec sinks: changes that make the host run something later; and what else is unusual enough to be looked at.

mod gitconfig;
mod places;
mod rules;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::Serialize;

use super::contents::{Content, Contents};
use super::entry::before_print;
use super::quote::quoted;
use crate::{Change, Fingerprint, Kind, RelPath};
use places::{Alias, Aliases};
use rules::{Check, Folded, Rule, in_git, matching};

/// Larger files are not looked into, and taken for the worst, in bytes.
const LIMIT: u64 = 1 << 20;
/// As many settings are named.
const NAMED: usize = 3;

/// How much a flag matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Danger {
    /// It deserves a look.
    Notice,
    /// The host runs something because of it although nobody asked for that; it is applied only where exec sinks are
    /// allowed.
    Dangerous,
}

/// What a flag is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FlagKind {
    /// A git hook, or what installs some.
    GitHook,
    /// Settings of git.
    GitConfig,
    /// What stands for a git directory.
    GitDirectory,
    /// What chooses filters of git.
    GitAttributes,
    /// Files that shells run.
    Shell,
    /// Files that a login session or its services run.
    Session,
    /// Logins, and programs that hand out credentials.
    Credentials,
    /// Files that editors run.
    Editor,
    /// Files that coding agents run or obey.
    Agent,
    /// Files that interpreters and debuggers run at their start.
    Interpreter,
    /// Files that package managers run.
    PackageManager,
    /// Files that build tools run.
    BuildTool,
    /// Files that run in continuous integration.
    Ci,
    /// Whoever runs it runs it as its owner or group.
    SetId,
    /// A device node.
    Device,
    /// A program that can't be read as text.
    BinaryProgram,
    /// A symbolic link that leads out of the project.
    LinkOutside,
}

/// Why a change deserves a look.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Flag {
    /// What it is about.
    pub kind: FlagKind,
    /// How much it matters.
    pub danger: Danger,
    /// For people: what is special, as the end of a sentence about the path.
    pub reason: String,
}

/// A change that makes the host run something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecSink {
    /// Which path.
    pub path: RelPath,
    /// Why.
    pub flag: Flag,
}

impl fmt::Display for ExecSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", quoted(self.path.as_bytes()), self.flag.reason)
    }
}

impl Serialize for ExecSink {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Form<'a> {
            path: pvisor_spec::OsBytes,
            #[serde(flatten)]
            flag: &'a Flag,
        }
        Form { path: self.path.as_bytes().to_vec().into(), flag: &self.flag }.serialize(serializer)
    }
}

/// What knows the sinks of one set of changes.
pub(crate) struct Sinks<'a> {
    contents: Contents<'a>,
    aliases: Aliases,
}

impl<'a> Sinks<'a> {
    /// For those changes, made in the project that `contents` reads.
    pub fn new(changes: &'a [Change], contents: Contents<'a>) -> Self {
        Self { contents, aliases: places::find(changes, contents) }
    }

    /// What is dangerous of some of the changes.
    pub fn dangerous(&self, some: impl Iterator<Item = &'a Change>) -> Vec<ExecSink> {
        let of = |change: &Change| {
            let flags = self.flags(change, before_print(change), false).into_iter();
            flags
                .filter(|flag| flag.danger == Danger::Dangerous)
                .map(|flag| ExecSink { path: change.path.clone(), flag })
                .collect::<Vec<_>>()
        };
        some.flat_map(of).collect()
    }

    /// What there is to say about a change. `before`: what the command found there, or where it was renamed or copied
    /// from; `binary`: its new content is no text.
    pub fn flags(&self, change: &Change, before: Option<&Fingerprint>, binary: bool) -> Vec<Flag> {
        let Some(after) = change.after.as_ref().map(|a| &a.print) else { return Vec::new() };
        let is_dir = matches!(after.kind, Kind::Directory);
        let mut out = if is_dir { Vec::new() } else { self.sinks(change, &after.kind) };
        let mode = |print: &Fingerprint| print.meta.mode;
        let changed = before.is_none_or(|b| b.kind != after.kind) || before_print(change).is_none();
        if !is_dir && (mode(after) & 0o6000 & !before.map_or(0, mode) != 0 || changed && mode(after) & 0o6000 != 0) {
            out.push(flag(FlagKind::SetId, Danger::Dangerous, "runs with the rights of its owner or group"));
        }
        match &after.kind {
            Kind::File { .. } if binary && mode(after) & 0o111 != 0 => {
                out.push(flag(FlagKind::BinaryProgram, Danger::Notice, "is a program that can't be read as text"));
            }
            Kind::Symlink(target) if leads_out(&change.path, target) => {
                out.push(flag(FlagKind::LinkOutside, Danger::Notice, "is a link that leads out of the project"));
            }
            Kind::CharDevice(_) | Kind::BlockDevice(_) => {
                out.push(flag(FlagKind::Device, Danger::Dangerous, "is a device node"));
            }
            _ => {}
        }
        out.sort_by_key(|flag| std::cmp::Reverse(flag.danger));
        out
    }

    /// By its own name, and by every other place that it stands for.
    fn sinks(&self, change: &Change, kind: &Kind) -> Vec<Flag> {
        let link = matches!(kind, Kind::Symlink(_));
        let named = |path: &Folded| -> Vec<Flag> {
            let rules = matching(path, link);
            git_directory(path, link)
                .into_iter()
                .chain(rules.iter().filter_map(|rule| self.judge(change, rule)))
                .collect()
        };
        let mut out = named(&Folded::new(&change.path));
        for alias in self.aliases.of(&change.path) {
            let (mut flags, via) = match alias {
                Alias::Path(path, via) => (named(&Folded::of(&path)), via),
                Alias::Program(via) => (vec![flag(FlagKind::GitConfig, Danger::Dangerous, "git runs it")], via),
            };
            for flag in &mut flags {
                flag.reason = format!("{} (by way of {})", flag.reason, quoted(&via));
            }
            out.extend(flags);
        }
        out.sort();
        out.dedup_by(|a, b| a.kind == b.kind && a.danger == b.danger);
        out
    }

    /// The flag that a rule gives, where the content bears it out.
    fn judge(&self, change: &Change, rule: &Rule) -> Option<Flag> {
        let plain = || flag(rule.kind, rule.danger, rule.reason);
        if rule.check == Check::Name {
            return Some(plain());
        }
        let origin = before_print(change).map(|before| (&change.path, before));
        let new = Content::after(change, origin).map(|content| (matches!(content, Content::Link(_)), content));
        let new = match new {
            Some((false, content)) => self.contents.load(&content, LIMIT).ok(),
            // A link is read by whoever follows it.
            Some((true, _)) | None => None,
        };
        let old = origin.and_then(|(path, print)| Content::before(path, print));
        let old = old.and_then(|content| self.contents.load(&content, LIMIT).ok()).unwrap_or_default();
        // What can't be read is taken for the worst.
        let Some(new) = new else { return Some(Flag { danger: worst(rule), ..plain() }) };
        match rule.check {
            Check::Name => Some(plain()),
            Check::GitConfig => Some(git_config(&old, &new, rule)),
            Check::PackageJson => package_json(&old, &new),
            Check::Pth => {
                lines(&new).any(|line| line.starts_with("import ") || line.starts_with("import\t")).then(plain)
            }
            Check::Attributes => {
                let word = |line: &str| ["filter", "diff=", "merge="].iter().any(|word| line.contains(word));
                lines(&new).any(|line| word(&line)).then(plain)
            }
            Check::RustToolchain => {
                let path = lines(&new).any(|line| line.split('=').next().is_some_and(|key| key.contains("path")));
                let danger = if path { Danger::Dangerous } else { rule.danger };
                Some(Flag { danger, ..plain() })
            }
        }
    }
}

fn flag(kind: FlagKind, danger: Danger, reason: &str) -> Flag {
    Flag { kind, danger, reason: reason.to_owned() }
}

/// What a rule says where its file can't be read.
fn worst(rule: &Rule) -> Danger {
    if rule.check == Check::Attributes { rule.danger } else { Danger::Dangerous }
}

fn lines(content: &[u8]) -> impl Iterator<Item = String> {
    content.split(|b| *b == b'\n').map(|line| String::from_utf8_lossy(line).trim_start_matches('\u{feff}').to_owned())
}

/// Hooks and pointers of a git directory, whether the repository's own, a submodule's or a worktree's.
fn git_directory(path: &Folded, link: bool) -> Option<Flag> {
    let inside = in_git(path.parts())?;
    let name = inside.last().map_or("", |name| &**name);
    let dangerous = |kind, reason| Some(flag(kind, Danger::Dangerous, reason));
    if inside.is_empty() {
        return dangerous(FlagKind::GitDirectory, "tells git where the real directory is");
    }
    if link && matches!(name, "hooks" | "modules" | "worktrees" | "info") {
        return dangerous(FlagKind::GitDirectory, "stands for a part of git's own directory");
    }
    // Git never runs its samples.
    if inside[..inside.len() - 1].iter().any(|part| part == "hooks") && !name.ends_with(".sample") {
        return dangerous(FlagKind::GitHook, "git runs it as a hook");
    }
    match name {
        "commondir" | "gitdir" => dangerous(FlagKind::GitDirectory, "tells git where its hooks and settings are"),
        "git-rebase-todo" => dangerous(FlagKind::GitHook, "git runs its lines when the rebase goes on"),
        _ => None,
    }
}

fn git_config(old: &[u8], new: &[u8], rule: &Rule) -> Flag {
    let programs = gitconfig::new_programs(old, new);
    if programs.is_empty() {
        return flag(rule.kind, Danger::Notice, rule.reason);
    }
    let mut keys: Vec<String> = programs.iter().take(NAMED).map(|s| quoted(s.key().as_bytes())).collect();
    if programs.len() > NAMED {
        keys.push(format!("{} more", programs.len() - NAMED));
    }
    flag(rule.kind, Danger::Dangerous, &format!("makes git run something: {}", keys.join(", ")))
}

/// Scripts of the manifest that changed; those that an install runs are dangerous.
fn package_json(old: &[u8], new: &[u8]) -> Option<Flag> {
    const INSTALL: &[&str] = &[
        "preinstall",
        "install",
        "postinstall",
        "preprepare",
        "prepare",
        "postprepare",
        "prepublish",
        "dependencies",
        "pnpm:devpreinstall",
    ];
    let scripts = |content: &[u8]| -> Option<serde_json::Map<String, serde_json::Value>> {
        let content = content.strip_prefix("\u{feff}".as_bytes()).unwrap_or(content);
        let value: serde_json::Value = serde_json::from_slice(content).ok()?;
        Some(value.get("scripts").and_then(|s| s.as_object()).cloned().unwrap_or_default())
    };
    let Some(now) = scripts(new) else {
        return Some(flag(FlagKind::PackageManager, Danger::Notice, "can't be read as a manifest"));
    };
    let was = scripts(old).unwrap_or_default();
    let changed: Vec<&String> =
        now.iter().filter(|(name, s)| was.get(*name) != Some(*s)).map(|(name, _)| name).collect();
    let install = changed.iter().find(|name| INSTALL.contains(&&*name.to_ascii_lowercase()));
    match (install, changed.first()) {
        (Some(name), _) => {
            let reason = format!("an install runs its script {}", quoted(name.as_bytes()));
            Some(flag(FlagKind::PackageManager, Danger::Dangerous, &reason))
        }
        (None, Some(name)) => {
            let reason = format!("changes the script {}", quoted(name.as_bytes()));
            Some(flag(FlagKind::PackageManager, Danger::Notice, &reason))
        }
        (None, None) => None,
    }
}

/// Git takes the path for its own directory, or the link for a list of submodules.
pub(super) fn spelled_git(path: &[u8], link: bool) -> bool {
    let folded = Folded::of(path);
    let parts = folded.parts();
    parts.iter().any(|part| part == ".git") || link && parts.last().is_some_and(|part| part == ".gitmodules")
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
