//! Names whose files make somebody's tools run something.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::{Danger, FlagKind};
use crate::RelPath;

/// What decides besides the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// Nothing.
    Name,
    /// The settings of git that name a program.
    GitConfig,
    /// The scripts that a package manager runs by itself.
    PackageJson,
    /// Lines that Python runs at its start.
    Pth,
    /// Lines that name a filter or a driver.
    Attributes,
    /// A toolchain from a directory.
    RustToolchain,
}

/// A name and what it means.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    /// Components at the end of a path, lower-case; a `*` in one stands for anything; `**`: any number of them.
    pattern: &'static str,
    pub kind: FlagKind,
    pub danger: Danger,
    pub check: Check,
    /// What happens, as the end of a sentence about the path.
    pub reason: &'static str,
}

use Danger::{Dangerous, Notice};
use FlagKind as K;

const fn all<const N: usize>(
    patterns: [&'static str; N],
    kind: FlagKind,
    danger: Danger,
    reason: &'static str,
) -> [Rule; N] {
    let mut out = [Rule { pattern: "", kind, danger, check: Check::Name, reason }; N];
    let mut at = 0;
    while at < N {
        out[at].pattern = patterns[at];
        at += 1;
    }
    out
}

const fn checked(pattern: &'static str, kind: FlagKind, danger: Danger, check: Check, reason: &'static str) -> Rule {
    Rule { pattern, kind, danger, check, reason }
}

/// Dangerous is what runs although nobody asked for it: on `cd`, on opening an editor, at a login, with a `git` or
/// `cargo` command that is about something else. A notice is what runs when somebody builds or tests the project.
static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let mut rules = vec![
        checked(".git/**/config", K::GitConfig, Dangerous, Check::GitConfig, "git reads its settings from it"),
        checked(".git/**/config.worktree", K::GitConfig, Dangerous, Check::GitConfig, "git reads its settings from it"),
        checked(".gitconfig", K::GitConfig, Dangerous, Check::GitConfig, "git reads its settings from it"),
        checked(".config/git/config", K::GitConfig, Dangerous, Check::GitConfig, "git reads its settings from it"),
        checked(
            ".gitattributes",
            K::GitAttributes,
            Notice,
            Check::Attributes,
            "chooses filters that git is set up with",
        ),
        checked(
            ".git/info/attributes",
            K::GitAttributes,
            Notice,
            Check::Attributes,
            "chooses filters that git is set up with",
        ),
        checked("package.json", K::PackageManager, Notice, Check::PackageJson, "changes scripts"),
        checked("*.pth", K::Interpreter, Dangerous, Check::Pth, "python runs lines of it whenever it starts"),
        checked(
            "rust-toolchain.toml",
            K::BuildTool,
            Notice,
            Check::RustToolchain,
            "chooses the compiler that cargo runs",
        ),
        checked("rust-toolchain", K::BuildTool, Notice, Check::RustToolchain, "chooses the compiler that cargo runs"),
    ];
    rules.extend(all([".githooks/**", ".husky/**", ".lefthook/**"], K::GitHook, Dangerous, "git runs it as a hook"));
    rules.extend(all(
        [".pre-commit-config.yaml", ".pre-commit-config.yml", "lefthook.y*ml", ".lefthook.y*ml", ".overcommit.yml"],
        K::GitHook,
        Dangerous,
        "says what runs when git commits",
    ));
    rules.extend(all([".gitmodules", ".lfsconfig"], K::GitConfig, Notice, "tells git where to fetch from"));
    rules.extend(all(
        [".envrc", ".mise.toml", "mise.toml", ".mise/config.toml", ".config/mise/**", ".autoenv*"],
        K::Shell,
        Dangerous,
        "the shell runs it in this directory",
    ));
    rules.extend(all(
        [
            ".bashrc",
            ".bash_profile",
            ".bash_login",
            ".bash_logout",
            ".bash_aliases",
            ".profile",
            ".zshrc",
            ".zshenv",
            ".zprofile",
            ".zlogin",
            ".zlogout",
            ".kshrc",
            ".cshrc",
            ".tcshrc",
            ".inputrc",
            ".config/fish/**",
            ".config/bash/**",
            ".config/zsh/**",
            ".oh-my-zsh/**",
            ".tmux.conf",
            ".config/tmux/**",
            ".screenrc",
            ".direnvrc",
            ".config/direnv/**",
        ],
        K::Shell,
        Dangerous,
        "shells run it at their start",
    ));
    rules.extend(session());
    rules.extend(editors());
    rules.extend(interpreters());
    rules.extend(builds());
    rules
});

fn session() -> Vec<Rule> {
    let mut rules = Vec::new();
    rules.extend(all(
        [
            ".config/systemd/user/**",
            ".local/share/systemd/user/**",
            ".config/autostart/**",
            ".config/environment.d/**",
            ".config/plasma-workspace/**",
            ".local/share/dbus-1/services/**",
            ".local/share/applications/*.desktop",
            "library/launchagents/**",
            ".xinitrc",
            ".xprofile",
            ".xsession",
            ".xsessionrc",
            ".pam_environment",
        ],
        K::Session,
        Dangerous,
        "the session starts what it says",
    ));
    rules.extend(all([".local/bin/**"], K::Session, Dangerous, "stands where commands are looked up"));
    rules.extend(all(
        [
            ".ssh/authorized_keys*",
            ".ssh/config",
            ".ssh/config.d/**",
            ".ssh/rc",
            ".ssh/environment",
            ".rhosts",
            ".shosts",
            ".gnupg/*.conf",
        ],
        K::Credentials,
        Dangerous,
        "decides who logs in, or what runs for it",
    ));
    rules.extend(all(
        [".docker/config.json", ".kube/config", ".aws/config", ".netrc"],
        K::Credentials,
        Dangerous,
        "names the programs that hand out credentials",
    ));
    rules
}

fn editors() -> Vec<Rule> {
    let mut rules = Vec::new();
    rules.extend(all(
        [
            ".vscode/tasks.json",
            ".vscode/settings.json",
            ".vscode/launch.json",
            ".vscode/mcp.json",
            ".cursor/mcp.json",
            ".cursor/hooks.json",
            "*.code-workspace",
            ".idea/runconfigurations/**",
            ".idea/workspace.xml",
            ".idea/watchertasks.xml",
            ".idea/externaldependencies.xml",
            ".idea/tools/**",
            ".run/*.run.xml",
            ".zed/tasks.json",
            ".zed/settings.json",
            ".fleet/run.json",
            ".sublime-project",
            "*.sublime-project",
            ".dir-locals.el",
            ".dir-locals-2.el",
            ".emacs",
            ".emacs.d/**",
            ".vimrc",
            ".gvimrc",
            ".exrc",
            ".nvimrc",
            ".nvim.lua",
            ".vim/**",
            ".config/nvim/**",
            ".helix/**",
        ],
        K::Editor,
        Dangerous,
        "an editor runs what it says when the project is opened",
    ));
    rules.extend(all([".vscode/extensions.json"], K::Editor, Notice, "recommends extensions of the editor"));
    rules.extend(all(
        [".devcontainer/**", ".devcontainer.json"],
        K::Editor,
        Dangerous,
        "an editor runs its commands on the host when it opens the container",
    ));
    rules.extend(all(
        [
            ".mcp.json",
            ".claude/settings*.json",
            ".claude/hooks/**",
            ".gemini/settings.json",
            ".codex/config.toml",
            ".codex/hooks.json",
        ],
        K::Agent,
        Dangerous,
        "an agent runs the programs that it names",
    ));
    rules.extend(all(
        [
            "agents.md",
            "claude.md",
            "gemini.md",
            ".cursorrules",
            ".cursor/rules/**",
            ".claude/commands/**",
            ".claude/agents/**",
            ".claude/skills/**",
            ".github/copilot-instructions.md",
            ".windsurfrules",
        ],
        K::Agent,
        Notice,
        "an agent takes instructions from it",
    ));
    rules
}

fn interpreters() -> Vec<Rule> {
    let mut rules = Vec::new();
    rules.extend(all(
        [
            "sitecustomize.py",
            "usercustomize.py",
            ".pythonrc",
            ".pythonrc.py",
            ".pythonstartup",
            ".ipython/profile_default/startup/**",
            ".jupyter/*.py",
            ".rprofile",
            ".irbrc",
            ".pryrc",
            ".ghci",
            ".ocamlinit",
            ".octaverc",
            ".gdbinit",
            ".lldbinit",
            ".psqlrc",
            ".sqliterc",
            ".mailcap",
        ],
        K::Interpreter,
        Dangerous,
        "a program runs it at its start",
    ));
    rules
}

fn builds() -> Vec<Rule> {
    let mut rules = Vec::new();
    rules.extend(all(
        [".cargo/config", ".cargo/config.toml", ".cargo/bin/**"],
        K::BuildTool,
        Dangerous,
        "cargo runs the wrappers, linkers and runners that it names",
    ));
    rules.extend(all(
        [
            ".npmrc",
            ".yarnrc",
            ".yarnrc.yml",
            ".yarn/releases/**",
            ".yarn/plugins/**",
            ".pnpmfile.cjs",
            ".pnpmfile.mjs",
            "pnpmfile.js",
            "bunfig.toml",
        ],
        K::PackageManager,
        Dangerous,
        "a package manager runs what it names, or fetches from where it says",
    ));
    rules.extend(all(
        [".gradle/init.gradle*", ".gradle/init.d/**", ".mvn/extensions.xml", ".mvn/jvm.config", ".mvn/maven.config"],
        K::BuildTool,
        Dangerous,
        "the build tool loads it whatever it is asked",
    ));
    rules.extend(all(
        [
            "makefile",
            "gnumakefile",
            "*.mk",
            "justfile",
            ".justfile",
            "taskfile.y*ml",
            "cmakelists.txt",
            "build.rs",
            "setup.py",
            "conftest.py",
            "noxfile.py",
            "tox.ini",
            "rakefile",
            "gruntfile.js",
            "gulpfile.*",
            "build.gradle*",
            "settings.gradle*",
            "gradlew",
            "mvnw",
            "gradle/wrapper/**",
            ".mvn/wrapper/**",
            ".bazelrc",
            "tools/bazel",
            "configure",
        ],
        K::BuildTool,
        Notice,
        "runs when the project is built or tested",
    ));
    rules.extend(all([".env"], K::Shell, Notice, "sets variables of tools that read it"));
    rules.extend(all(
        [
            ".github/workflows/**",
            ".github/actions/**",
            ".gitlab-ci.yml",
            ".circleci/**",
            "jenkinsfile",
            "azure-pipelines.yml",
            ".travis.yml",
            ".drone.yml",
            ".buildkite/**",
        ],
        K::Ci,
        Notice,
        "runs where the project is built for others, once it is pushed",
    ));
    rules
}

/// Rules by the last component that is written out, and those that have none.
struct Index {
    named: HashMap<&'static str, Vec<Rule>>,
    open: Vec<Rule>,
}

static INDEX: LazyLock<Index> = LazyLock::new(|| {
    let mut index = Index { named: HashMap::new(), open: Vec::new() };
    for rule in RULES.iter() {
        let solid = rule.pattern.strip_suffix("/**").unwrap_or(rule.pattern);
        let last = solid.rsplit('/').next().unwrap_or(solid);
        if last.contains('*') {
            index.open.push(*rule);
        } else {
            index.named.entry(last).or_default().push(*rule);
        }
    }
    index
});

/// A path as the most forgiving filesystem compares it: case folded, without the characters that HFS+ ignores, the dots
/// and spaces that NTFS drops, its streams and its short name for `.git`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Folded(Vec<String>);

impl Folded {
    pub fn new(path: &RelPath) -> Self {
        Self::of(path.as_bytes())
    }

    pub fn of(path: &[u8]) -> Self {
        Self(path.split(|b| *b == b'/').filter(|part| !part.is_empty()).map(fold).collect())
    }

    pub fn parts(&self) -> &[String] {
        &self.0
    }
}

fn fold(component: &[u8]) -> String {
    let text = String::from_utf8_lossy(component);
    let seen = text.chars().filter(|c| !is_ignored(*c));
    // Upwards first: then a long s is an s, as case-insensitive filesystems have it.
    let text: String = seen.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
    let text = text.split(':').next().unwrap_or_default().trim_end_matches([' ', '.']);
    if text == "git~1" { ".git".to_owned() } else { text.to_owned() }
}

fn is_ignored(c: char) -> bool {
    matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}')
}

/// The rules that fit the path. `link`: it is a symbolic link, so that it also stands for what rules say of paths below
/// it.
pub(super) fn matching(path: &Folded, link: bool) -> Vec<Rule> {
    let parts = path.parts();
    let named = parts.iter().filter_map(|part| INDEX.named.get(&**part)).flatten();
    let mut out: Vec<Rule> = named.chain(&INDEX.open).filter(|rule| fits(rule.pattern, parts)).copied().collect();
    // What stands for a git directory is told of already.
    if link && parts.last().is_some_and(|last| last != ".git") {
        let prefix = |rule: &&Rule| rule.danger == Dangerous && is_prefix(rule.pattern, parts);
        out.extend(RULES.iter().filter(prefix).take(1));
    }
    out
}

/// Paths without a `*` that dangerous rules name, and the directories around them.
pub(super) fn places() -> Vec<&'static str> {
    let dangerous = RULES.iter().filter(|rule| rule.danger == Dangerous);
    let solid = dangerous.map(|rule| rule.pattern.strip_suffix("/**").unwrap_or(rule.pattern));
    let prefixes = solid.flat_map(|path| {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]).collect::<Vec<_>>();
        ends.into_iter().map(move |end| &path[..end])
    });
    let mut out: Vec<&str> = prefixes.filter(|path| !path.contains('*')).collect();
    out.sort_unstable();
    out.dedup();
    out
}

fn fits(pattern: &str, parts: &[String]) -> bool {
    if let Some(dir) = pattern.strip_suffix("/**") {
        let dir: Vec<&str> = dir.split('/').collect();
        return parts.len() > dir.len()
            && parts[..parts.len() - 1].windows(dir.len()).any(|window| all_fit(&dir, window));
    }
    if let Some((dir, name)) = pattern.split_once("/**/") {
        let inside = if dir == ".git" { in_git(parts) } else { None };
        return inside.and_then(<[String]>::last).is_some_and(|last| last == name);
    }
    let pattern: Vec<&str> = pattern.split('/').collect();
    parts.len() >= pattern.len() && all_fit(&pattern, &parts[parts.len() - pattern.len()..])
}

/// The components below a git directory, where they are not those of a branch or an object, which may have any name.
pub(super) fn in_git(parts: &[String]) -> Option<&[String]> {
    let inside = &parts[parts.iter().position(|part| part == ".git")? + 1..];
    let free = inside.first().is_some_and(|first| matches!(&**first, "refs" | "logs" | "objects"));
    (!free).then_some(inside)
}

/// Whether the path ends with a true beginning of the pattern.
fn is_prefix(pattern: &str, parts: &[String]) -> bool {
    let pattern: Vec<&str> = pattern.split('/').collect();
    (1..pattern.len()).any(|n| parts.len() >= n && all_fit(&pattern[..n], &parts[parts.len() - n..]))
}

fn all_fit(pattern: &[&str], parts: &[String]) -> bool {
    pattern.iter().zip(parts).all(|(pattern, part)| match pattern.split_once('*') {
        None => pattern == part,
        Some((start, end)) => part.len() >= start.len() + end.len() && part.starts_with(start) && part.ends_with(end),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn danger(path: &str) -> Option<Danger> {
        matching(&Folded::of(path.as_bytes()), false).iter().map(|rule| rule.danger).max()
    }

    #[test]
    fn names_are_found_at_any_depth_and_in_any_spelling() {
        for path in [
            ".envrc",
            "a/b/.envrc",
            ".ENVRC",
            ".envrc.",
            ".envrc ::$DATA",
            "x/.vscode/tasks.json",
            ".VSCode/Tasks.JSON",
            ".hu\u{17f}\u{212a}y/pre-commit",
            ".claude/settings.local.json",
            ".idea/runConfigurations/x.xml",
            ".idea/runConfigurations/deep/x.xml",
            ".ssh/authorized_keys2",
            ".v\u{200c}scode/settings.json",
            ".config/systemd/user/default.target.wants/x.service",
            "venv/lib/python3.12/site-packages/sitecustomize.py",
        ] {
            assert_eq!(danger(path), Some(Danger::Dangerous), "{path}");
        }
        for path in ["Makefile", "x/build.rs", ".github/workflows/ci.yml", "AGENTS.md", "rules.mk"] {
            assert_eq!(danger(path), Some(Danger::Notice), "{path}");
        }
        for path in
            ["my.envrc", "settings.json", ".claude/notes.md", "git/hooks/x", "husky/x", ".husky", "vscode/tasks.json"]
        {
            assert_eq!(danger(path), None, "{path}");
        }
    }

    #[test]
    fn a_link_stands_for_what_rules_name_below_it() {
        let link = |path: &str| matching(&Folded::of(path.as_bytes()), true).len();
        for path in [".vscode", ".config", ".config/systemd", ".husky", "sub/.ssh", ".idea"] {
            assert_eq!(link(path), 1, "{path}");
        }
        for path in ["src", "config", "a/b"] {
            assert_eq!(link(path), 0, "{path}");
        }
    }

    #[test]
    fn patterns_are_folded_themselves_and_few() {
        for rule in RULES.iter() {
            let solid = rule.pattern.strip_suffix("/**").unwrap_or(rule.pattern);
            assert_eq!(Folded::of(solid.as_bytes()).parts().join("/"), solid);
        }
        let places = places();
        assert!(places.contains(&".vscode") && places.contains(&".vscode/tasks.json") && places.len() < 200);
    }
}
