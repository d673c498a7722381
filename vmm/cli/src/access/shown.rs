//! Questions in words. What they are about was chosen by the command: nothing of it may drive the terminal, look like
//! something else, or push the rest out of sight.

use std::fmt::Write as _;

use pvisor_spec::{AnswerScope, Subject};

use crate::supervisor::Prompt;

/// Most characters of a name that are shown; of a longer one the middle is left out.
const MOST: usize = 120;

/// The name of what a question is about, on one line.
pub(crate) fn subject_text(subject: &Subject) -> String {
    match subject {
        Subject::Host(rule) => shown(rule),
        Subject::Path(path) => shown(&path.display().to_string()),
    }
}

/// How far an answer holds.
pub(crate) fn scope_text(scope: AnswerScope) -> &'static str {
    match scope {
        AnswerScope::Run => "in this run",
        AnswerScope::Workspace => "in this project",
        AnswerScope::User => "in every project",
    }
}

/// The question.
pub(super) fn prompt(subject: &Subject) -> Prompt {
    let name = subject_text(subject);
    let what = match subject {
        Subject::Host(rule) => match rule.strip_prefix("host.pvisor.internal:") {
            Some(port) => format!("port {} of this machine ({name})", shown(port)),
            None => format!("{name} on the network"),
        },
        Subject::Path(_) => format!("{name} and what is below it"),
    };
    let text = format!(
        "pvisor: the command wants to reach {what}; it waits\n\
         \x20 y   yes, in this run    yw  yes, in this project    yu  yes, in every project\n\
         \x20 n   no, in this run     nw  no, in this project     nu  no, in every project\n\
         \x20 q   no, and to everything else that this run would ask"
    );
    Prompt { text, line: format!("pvisor: reach {name}? [y/yw/yu/n/nw/nu/q] ") }
}

/// Printable text of one line: everything that is not a letter of the Latin alphabet or an ASCII sign is written as
/// its number, so that nothing looks like what it is not.
fn shown(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if c == ' ' || c.is_ascii_graphic() || matches!(c, '\u{c0}'..='\u{24f}') {
            out.push(c);
        } else {
            let _ = write!(out, "{}", c.escape_unicode());
        }
    }
    let length = out.chars().count();
    if length <= MOST {
        return out;
    }
    let half = (MOST - 3) / 2;
    let start: String = out.chars().take(half).collect();
    let end: String = out.chars().skip(length - half).collect();
    format!("{start} … {end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Subject {
        Subject::Path(text.into())
    }

    #[test]
    fn names_can_not_drive_the_terminal_or_look_like_something_else() {
        for (name, text) in [
            ("/a\x1b[2J\nb", "/a\\u{1b}[2J\\u{a}b"),
            ("/\u{202e}gpj", "/\\u{202e}gpj"),
            ("/zero\u{200b}width", "/zero\\u{200b}width"),
            ("/раsswd", "/\\u{440}\\u{430}sswd"),
            ("/Zürich", "/Zürich"),
        ] {
            assert_eq!(subject_text(&path(name)), text);
        }
        let prompt = prompt(&path("/x\npvisor: reach nothing? [y]"));
        assert_eq!(prompt.text.lines().count(), 4, "{}", prompt.text);
        assert!(prompt.line.starts_with("pvisor: reach /x\\u{a}pvisor"));
    }

    #[test]
    fn long_names_keep_both_ends() {
        let text = subject_text(&path(&format!("/start/{}/end", "x".repeat(5000))));
        assert!(text.chars().count() <= MOST && text.starts_with("/start/") && text.ends_with("/end"), "{text}");
    }

    #[test]
    fn ports_of_this_machine_are_called_so() {
        let text = prompt(&Subject::Host("host.pvisor.internal:5432".into())).text;
        assert!(text.contains("port 5432 of this machine"), "{text}");
    }
}
