//! Paths that stand for others: links, `.git` files and git's own settings lead from a dangerous name to a harmless one.

use std::collections::{BTreeSet, HashMap};

use super::super::contents::{Content, Contents, Found};
use super::super::entry::before_print;
use super::gitconfig;
use super::rules::{self, Folded};
use crate::{Change, Kind, RelPath};

/// Longest chain of links.
const HOPS: usize = 40;
/// Most directories that are asked for a `.git`, and most entries of a hooks directory.
const MOST: usize = 4096;
/// Longest `.git` file and the like, and longest configuration, in bytes.
const SHORT: u64 = 4096;
const CONFIG: u64 = 1 << 20;

/// What else a path is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alias {
    /// That path; and what leads there.
    Path(Vec<u8>, Vec<u8>),
    /// A program that git runs; and what says so.
    Program(Vec<u8>),
}

/// Where in the project dangerous names lead to.
#[derive(Debug, Default)]
pub(super) struct Aliases(HashMap<RelPath, BTreeSet<Alias>>);

impl Aliases {
    fn insert(&mut self, at: RelPath, alias: Alias) {
        // The root is where everything is.
        if !at.as_bytes().is_empty() {
            self.0.entry(at).or_default().insert(alias);
        }
    }

    fn stand_for(&mut self, at: RelPath, place: &[u8], via: &[u8]) {
        self.insert(at, Alias::Path(place.to_vec(), via.to_vec()));
    }

    /// All that a path stands for, by itself or by a directory around it.
    pub fn of(&self, path: &RelPath) -> Vec<Alias> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let mut out = Vec::new();
        for dir in upwards(path) {
            let rest = &path.as_bytes()[dir.as_bytes().len()..];
            out.extend(self.0.get(&dir).into_iter().flatten().map(|alias| match alias {
                Alias::Path(place, via) => Alias::Path([place, rest].concat(), via.clone()),
                Alias::Program(via) => Alias::Program(via.clone()),
            }));
        }
        out
    }
}

/// The path, and every directory around it but the root.
fn upwards(path: &RelPath) -> impl Iterator<Item = RelPath> {
    let start = Some(path.clone()).filter(|p| !p.as_bytes().is_empty());
    std::iter::successors(start, |p| p.split().map(|(parent, _)| parent).filter(|p| !p.as_bytes().is_empty()))
}

/// Finds them: a number of looks that goes with the number of changes, not with the size of the project.
pub(super) fn find(changes: &[Change], contents: Contents<'_>) -> Aliases {
    let index = changes.iter().enumerate().map(|(at, change)| (&change.path, at)).collect();
    let mut finder = Finder { view: View { changes, contents, index }, aliases: Aliases::default() };
    finder.links();
    let mut git_dirs = finder.git_dirs();
    let mut seen = BTreeSet::new();
    while let Some((dir, work)) = git_dirs.pop() {
        if seen.len() < MOST && seen.insert(dir.clone()) {
            git_dirs.extend(finder.git_dir(&dir, &work).map(|common| (common, work)));
        }
    }
    finder.aliases
}

struct Finder<'a> {
    view: View<'a>,
    aliases: Aliases,
}

impl Finder<'_> {
    /// Links whose names rules know: those of the root that were there before, and all that are new.
    fn links(&mut self) {
        for place in rules::places() {
            if let Ok(path) = RelPath::new(place.as_bytes().to_vec()) {
                self.link(&path);
            }
        }
        let new = self.view.changes.iter().filter(|c| {
            c.after.as_ref().is_some_and(|a| matches!(a.print.kind, Kind::Symlink(_)))
                && !rules::matching(&Folded::new(&c.path), true).is_empty()
        });
        for path in new.map(|c| c.path.clone()).collect::<Vec<_>>() {
            self.link(&path);
        }
    }

    fn link(&mut self, path: &RelPath) {
        if let (Found::Link(target), Some((dir, _))) = (self.view.find(path), path.split())
            && let Some(at) = self.view.resolve(&dir, &target)
        {
            self.aliases.stand_for(at, path.as_bytes(), path.as_bytes());
        }
    }

    /// Git directories with another name than `.git`, and those with it, each with the directory that it is used in.
    fn git_dirs(&mut self) -> Vec<(RelPath, RelPath)> {
        let mut out = Vec::new();
        let mut around: BTreeSet<RelPath> = BTreeSet::from([RelPath::default()]);
        for change in self.view.changes {
            around.extend(upwards(&change.path).skip(1).take_while(|dir| !around.contains(dir)).collect::<Vec<_>>());
            if around.len() > MOST {
                break;
            }
        }
        for dir in around {
            out.extend(self.pointed_at(&dir));
            if self.is_bare(&dir) {
                self.aliases.stand_for(dir.clone(), b".git", dir.as_bytes());
                out.push((dir.clone(), dir));
            }
        }
        out
    }

    /// Where a directory's `.git` leads.
    fn pointed_at(&mut self, dir: &RelPath) -> Option<(RelPath, RelPath)> {
        let name = dir.join(b".git").ok()?;
        let at = match self.view.find(&name) {
            Found::Nothing => return None,
            Found::Directory => return Some((name, dir.clone())),
            Found::Link(target) => self.view.resolve(dir, &target)?,
            Found::File => {
                let content = self.view.read(&name, SHORT)?;
                self.view.resolve(dir, content.strip_prefix(b"gitdir:")?.trim_ascii())?
            }
        };
        self.aliases.stand_for(at.clone(), b".git", name.as_bytes());
        Some((at, dir.clone()))
    }

    /// A directory that git takes for a repository's own, whatever its name.
    fn is_bare(&self, dir: &RelPath) -> bool {
        let has = |name: &[u8]| dir.join(name).is_ok_and(|path| !matches!(self.view.find(&path), Found::Nothing));
        let named = Folded::new(dir).parts().iter().any(|part| part == ".git");
        // Only where something of it changed.
        let touched = |name: &[u8]| dir.join(name).is_ok_and(|path| self.view.touched(&path));
        let touched = touched(b"config") || touched(b"hooks") || touched(b"HEAD") || touched(b"config.worktree");
        !named && touched && !dir.as_bytes().is_empty() && has(b"HEAD") && (has(b"objects") || has(b"commondir"))
    }

    /// What a git directory's own files name; the directory that it shares the rest of its files with.
    fn git_dir(&mut self, dir: &RelPath, work: &RelPath) -> Option<RelPath> {
        for name in ["hooks", "config", "config.worktree"] {
            let Ok(path) = dir.join(name.as_bytes()) else { continue };
            if let Found::Link(target) = self.view.find(&path)
                && let Some(at) = self.view.resolve(dir, &target)
            {
                self.aliases.stand_for(at, format!(".git/{name}").as_bytes(), path.as_bytes());
            }
            if name != "hooks" {
                self.config(&path, dir, work);
            }
        }
        if let Ok(hooks) = dir.join(b"hooks") {
            self.hooks(&hooks);
        }
        let common = dir.join(b"commondir").ok().and_then(|path| self.view.read(&path, SHORT))?;
        let at = self.view.resolve(dir, common.trim_ascii())?;
        self.aliases.stand_for(at.clone(), b".git", dir.as_bytes());
        Some(at)
    }

    /// Links in a directory of hooks.
    fn hooks(&mut self, dir: &RelPath) {
        for (name, path) in self.view.links_in(dir) {
            let Found::Link(target) = self.view.find(&path) else { continue };
            if let Some(at) = self.view.resolve(dir, &target) {
                self.aliases.stand_for(at, &[b".git/hooks/", &name[..]].concat(), path.as_bytes());
            }
        }
    }

    /// What a configuration names: directories of hooks, other configurations, programs.
    fn config(&mut self, path: &RelPath, git: &RelPath, work: &RelPath) {
        let mut open = vec![path.clone()];
        let mut seen = BTreeSet::new();
        while let Some(path) = open.pop() {
            if seen.len() >= HOPS || !seen.insert(path.clone()) {
                continue;
            }
            let Some(content) = self.view.read(&path, CONFIG) else { continue };
            for setting in gitconfig::parse(&content).iter().filter(|setting| setting.runs()) {
                let via = format!("{} in {}", setting.key(), String::from_utf8_lossy(path.as_bytes()));
                let value = setting.value.as_bytes();
                if setting.is_include() {
                    let dir = path.split().map(|(dir, _)| dir).unwrap_or_default();
                    if let Some(at) = self.view.resolve(&dir, value) {
                        self.aliases.stand_for(at.clone(), b".git/config", via.as_bytes());
                        open.push(at);
                    }
                    continue;
                }
                if setting.is_hooks_path() {
                    for base in [work, git] {
                        if let Some(at) = self.view.resolve(base, value) {
                            self.aliases.stand_for(at.clone(), b".git/hooks", via.as_bytes());
                            self.hooks(&at);
                        }
                    }
                    continue;
                }
                self.programs(&setting.value, work, via.as_bytes());
            }
        }
    }

    /// Words of a command line that are paths of changes.
    fn programs(&mut self, line: &str, work: &RelPath, via: &[u8]) {
        let words =
            line.split(|c: char| c.is_whitespace() || "!\"'();|&=<>`$".contains(c)).filter(|word| !word.is_empty());
        for word in words {
            if let Some(at) = self.view.resolve(work, word.as_bytes()).filter(|at| self.view.index.contains_key(at)) {
                self.aliases.insert(at, Alias::Program(via.to_vec()));
            }
        }
    }
}

/// The project as it will be.
struct View<'a> {
    changes: &'a [Change],
    contents: Contents<'a>,
    index: HashMap<&'a RelPath, usize>,
}

impl View<'_> {
    fn find(&self, path: &RelPath) -> Found {
        let Some(at) = self.index.get(path) else {
            // Nothing is below what is new but what is new.
            let new = upwards(path).skip(1).find_map(|dir| self.index.get(&dir));
            let fresh = new.is_some_and(|at| before_print(&self.changes[*at]).is_none());
            return if fresh { Found::Nothing } else { self.contents.find(path) };
        };
        match self.changes[*at].after.as_ref().map(|after| &after.print.kind) {
            None => Found::Nothing,
            Some(Kind::Directory) => Found::Directory,
            Some(Kind::Symlink(target)) => Found::Link(target.clone()),
            Some(_) => Found::File,
        }
    }

    /// Something at the path or below it changed.
    fn touched(&self, path: &RelPath) -> bool {
        self.index.contains_key(path) || !crate::apply::below(self.changes, path, |c| &c.path).is_empty()
    }

    fn read(&self, path: &RelPath, limit: u64) -> Option<Vec<u8>> {
        match self.index.get(path) {
            None => self.contents.read_project(path, limit),
            Some(at) => {
                let change = &self.changes[*at];
                let origin = before_print(change).map(|before| (&change.path, before));
                self.contents.load(&Content::after(change, origin)?, limit).ok()
            }
        }
    }

    /// Names that are links.
    fn links_in(&self, dir: &RelPath) -> Vec<(Vec<u8>, RelPath)> {
        let project = self.contents.project.and_then(|p| p.names(dir).ok()).unwrap_or_default();
        let new = crate::apply::below(self.changes, dir, |c| &c.path).filter_map(|at| self.changes[at].path.split());
        let new = new.filter(|(parent, _)| parent == dir).map(|(_, name)| name.to_vec());
        let names: BTreeSet<Vec<u8>> = project.into_iter().take(MOST).map(Into::into).chain(new).collect();
        names.into_iter().filter_map(|name| Some((name.clone(), dir.join(&name).ok()?))).collect()
    }

    /// Follows a path from a directory through all links; `None`: it leads out of the project, or nowhere.
    fn resolve(&self, from: &RelPath, path: &[u8]) -> Option<RelPath> {
        let mut at = from.clone();
        let mut rest: Vec<Vec<u8>> = Vec::new();
        let mut hops = 0;
        self.turn(&mut at, &mut rest, path)?;
        while let Some(part) = rest.pop() {
            match &part[..] {
                b"" | b"." => continue,
                b".." => {
                    at = at.split()?.0;
                    continue;
                }
                _ => {}
            }
            let next = at.join(&part).ok()?;
            match self.find(&next) {
                Found::Link(target) => {
                    hops += 1;
                    if hops > HOPS {
                        return None;
                    }
                    self.turn(&mut at, &mut rest, &target)?;
                }
                _ => at = next,
            }
        }
        Some(at)
    }

    /// Puts a path in front of what is left to follow.
    fn turn(&self, at: &mut RelPath, rest: &mut Vec<Vec<u8>>, path: &[u8]) -> Option<()> {
        let mut path = path;
        if path.starts_with(b"/") {
            let root = self.contents.project?.path().as_os_str();
            path =
                path.strip_prefix(root.as_encoded_bytes()).filter(|rest| rest.is_empty() || rest.starts_with(b"/"))?;
            *at = RelPath::default();
        }
        rest.extend(path.split(|b| *b == b'/').rev().map(<[u8]>::to_vec));
        Some(())
    }
}
