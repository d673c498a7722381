//! The settings in a git configuration that make git run a program. Reads more than git would rather than less.

use std::collections::BTreeSet;

/// One setting: its key in lower case but for the subsection, and its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Setting {
    pub section: String,
    pub sub: String,
    pub name: String,
    pub value: String,
}

/// Most that are read of one file.
const MOST: usize = 10_000;

impl Setting {
    /// As a person writes it.
    pub fn key(&self) -> String {
        let Self { section, sub, name, .. } = self;
        if sub.is_empty() { format!("{section}.{name}") } else { format!("{section}.{sub}.{name}") }
    }

    /// Another file whose settings count too.
    pub fn is_include(&self) -> bool {
        matches!(&*self.section, "include" | "includeif") && self.name == "path"
    }

    /// A directory of programs.
    pub fn is_hooks_path(&self) -> bool {
        self.section == "core" && self.name == "hookspath"
    }

    /// Git runs the value, or something that it names.
    pub fn runs(&self) -> bool {
        let (section, sub, name) = (&*self.section, &*self.sub, &*self.name);
        let switch = matches!(
            &*self.value.to_ascii_lowercase(),
            "" | "true" | "false" | "yes" | "no" | "on" | "off" | "1" | "0"
        );
        match (section, name) {
            ("core", "fsmonitor") | ("interactive", "difffilter") => !switch,
            (
                "core",
                "hookspath"
                | "sshcommand"
                | "editor"
                | "pager"
                | "askpass"
                | "gitproxy"
                | "alternaterefscommand"
                | "worktree",
            )
            | ("filter", "clean" | "smudge" | "process")
            | ("diff", "command" | "textconv" | "external")
            | ("merge", "driver")
            | ("mergetool" | "difftool" | "browser" | "man" | "guitool", "cmd" | "path")
            | ("credential", "helper")
            | ("gpg", "program" | "defaultkeycommand")
            | ("sequence", "editor")
            | ("include" | "includeif", "path")
            | ("remote", "uploadpack" | "receivepack" | "vcs" | "proxy")
            | ("uploadpack", "packobjectshook")
            | ("trailer", "command" | "cmd")
            | ("init", "templatedir")
            | ("sendemail", "sendmailcmd" | "tocmd" | "cccmd" | "headercmd" | "smtpserver")
            | ("imap", "tunnel")
            | ("gc", "recentobjectshook")
            | ("hook", "command")
            | ("protocol", "allow") => true,
            ("pager", _) => !switch,
            // A shell command only with a `!`; written as `alias.x` or as `[alias "x"] command`.
            ("alias", _) => self.value.trim_start().starts_with('!'),
            ("submodule", "update") => self.value.trim_start().starts_with('!'),
            ("remote", "url" | "pushurl") => is_transport(&self.value),
            ("url", "insteadof" | "pushinsteadof") => is_transport(sub),
            ("extensions", "worktreeconfig") => !matches!(&*self.value, "false" | "no" | "off" | "0"),
            _ => false,
        }
    }
}

/// `ext::command` and other helpers.
fn is_transport(url: &str) -> bool {
    let scheme = url.split("::").next().unwrap_or_default();
    url.contains("::") && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'+')
}

/// All settings of a file.
pub(super) fn parse(content: &[u8]) -> BTreeSet<Setting> {
    let text = String::from_utf8_lossy(content);
    let mut reader = Reader { rest: text.trim_start_matches('\u{feff}').chars().peekable() };
    let mut out = BTreeSet::new();
    let (mut section, mut sub) = (String::new(), String::new());
    while let Some(c) = reader.rest.next() {
        match c {
            '#' | ';' => reader.skip_line(),
            '[' => (section, sub) = reader.header(),
            c if c.is_alphanumeric() => {
                let (name, value) = reader.setting(c);
                out.insert(Setting { section: section.clone(), sub: sub.clone(), name, value });
                if out.len() >= MOST {
                    break;
                }
            }
            _ => {}
        }
    }
    out
}

struct Reader<'t> {
    rest: std::iter::Peekable<std::str::Chars<'t>>,
}

impl Reader<'_> {
    fn skip_line(&mut self) {
        for c in self.rest.by_ref() {
            if c == '\n' {
                return;
            }
        }
    }

    /// After the opening bracket: `name]`, `name "sub"]` or, as it was written once, `name.sub]`.
    fn header(&mut self) -> (String, String) {
        let (mut name, mut sub, mut quoted) = (String::new(), String::new(), false);
        while let Some(c) = self.rest.next() {
            match c {
                '"' => quoted = !quoted,
                '\\' if quoted => sub.extend(self.rest.next()),
                ']' if !quoted => break,
                '\n' => break,
                c if quoted => sub.push(c),
                c if c.is_whitespace() => {}
                c => name.extend(c.to_lowercase()),
            }
        }
        if let Some((section, old)) = name.clone().split_once('.') {
            return (section.to_owned(), if sub.is_empty() { old.to_owned() } else { sub });
        }
        (name, sub)
    }

    /// A name that begins with `first`, and its value; without one it is true.
    fn setting(&mut self, first: char) -> (String, String) {
        let mut name: String = first.to_lowercase().collect();
        while let Some(c) = self.rest.next_if(|c| c.is_alphanumeric() || *c == '-') {
            name.extend(c.to_lowercase());
        }
        while self.rest.next_if(|c| *c == ' ' || *c == '\t').is_some() {}
        if self.rest.next_if_eq(&'=').is_none() {
            return (name, "true".to_owned());
        }
        (name, self.value())
    }

    fn value(&mut self) -> String {
        let (mut value, mut quoted) = (String::new(), false);
        while let Some(c) = self.rest.next() {
            match c {
                '\n' => break,
                '"' => quoted = !quoted,
                '#' | ';' if !quoted => {
                    self.skip_line();
                    break;
                }
                '\\' => match self.rest.next() {
                    Some('n') => value.push('\n'),
                    Some('t') => value.push('\t'),
                    Some('b') => {
                        value.pop();
                    }
                    // A line that goes on.
                    Some('\n') | None => {}
                    Some('\r') => {
                        self.rest.next_if_eq(&'\n');
                    }
                    Some(other) => value.push(other),
                },
                c => value.push(c),
            }
        }
        value.trim().to_owned()
    }
}

/// Settings of `new` that make git run something and are not in `old`.
pub(super) fn new_programs(old: &[u8], new: &[u8]) -> Vec<Setting> {
    let old = parse(old);
    parse(new).into_iter().filter(|setting| setting.runs() && !old.contains(setting)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(new: &str) -> Vec<String> {
        new_programs(b"", new.as_bytes()).iter().map(Setting::key).collect()
    }

    #[test]
    fn whatever_makes_git_run_something_is_found_however_it_is_written() {
        for (text, key) in [
            ("[core]\n\thooksPath = x\n", "core.hookspath"),
            ("[CORE] HooksPath=x", "core.hookspath"),
            ("\u{feff}[core]\nhookspath\t=\tx", "core.hookspath"),
            ("[core]\n fsmonitor = ./evil \\\n  more", "core.fsmonitor"),
            ("[core] # comment ]\n; another\n sshCommand = \"a ; b\" # c", "core.sshcommand"),
            ("[filter \"a b\"]\nclean = x", "filter.a b.clean"),
            ("[filter.old]\nsmudge = x", "filter.old.smudge"),
            ("[alias]\nst = \"!sh -c x\"", "alias.st"),
            ("[alias \"st\"]\ncommand = !x", "alias.st.command"),
            ("[include]\npath = ../x", "include.path"),
            ("[includeIf \"gitdir:~/\"]\npath = x", "includeif.gitdir:~/.path"),
            ("[remote \"o\"]\nurl = ext::sh -c x", "remote.o.url"),
            ("[url \"ext::sh \"]\ninsteadOf = https://", "url.ext::sh .insteadof"),
            ("[pager]\nlog = x", "pager.log"),
            ("[submodule \"s\"]\nupdate = !x", "submodule.s.update"),
            ("[user]\nname = x [core]\n[core]editor=x", "core.editor"),
            ("[a]\nb\r\n[core]\r\nhooksPath = x\r\n", "core.hookspath"),
            ("[credential \"https://x\"]\nhelper = !x", "credential.https://x.helper"),
        ] {
            assert_eq!(keys(text), [key], "{text}");
        }
    }

    #[test]
    fn what_a_clone_or_a_branch_writes_is_nothing_to_run() {
        let text = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tfsmonitor = true\n\
            [remote \"origin\"]\n\turl = https://example.org/x.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n\
            [branch \"main\"]\n\tremote = origin\n[alias]\n\tst = status\n[pager]\n\tlog = false\n# hooksPath = x\n";
        assert_eq!(keys(text), [""; 0]);
    }

    #[test]
    fn only_what_is_new_counts() {
        let old = b"[core]\nhooksPath = .husky\n";
        assert!(new_programs(old, b"[core]\nbare = false\nhooksPath = .husky\n").is_empty());
        assert_eq!(new_programs(old, b"[core]\nhooksPath = evil\n").len(), 1);
    }
}
