//! Small pieces of text for people.

use std::fmt::Write as _;
use std::path::Path;

/// Text without control characters, so that a name chosen by a command can't drive the person's terminal. Line breaks
/// and tabs stay.
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if (c.is_control() && c != '\n' && c != '\t') || is_bidi_control(c) {
            let _ = write!(out, "{}", c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// Characters that reorder the text around them.
fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A path for one line of text.
pub(crate) fn plain_path(path: &Path) -> String {
    plain(&path.display().to_string()).replace('\n', "\\n")
}

/// `1 change`, `5 changes`.
pub(crate) fn count(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// A length of time with a fitting unit: `340 ms`, `1.2 s`, `5 min 3 s`, `2 h 7 min`.
pub(crate) fn span(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        60_000..3_600_000 => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1000),
        _ => format!("{} h {} min", ms / 3_600_000, ms % 3_600_000 / 60_000),
    }
}

/// How long ago, roughly: `just now`, `5 min ago`, `3 days ago`.
pub(crate) fn ago(then_ms: u64, now_ms: u64) -> String {
    match now_ms.saturating_sub(then_ms) / 1000 {
        0..60 => "just now".to_owned(),
        s @ 60..3600 => format!("{} min ago", s / 60),
        s @ 3600..86_400 => format!("{} h ago", s / 3600),
        s => format!("{} ago", count(s / 86_400, "day")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_not_sent() {
        assert_eq!(plain("a\x1b[2Jb\u{202e}c"), "a\\u{1b}[2Jb\\u{202e}c");
        assert_eq!(plain("two\nlines\tand a tab"), "two\nlines\tand a tab");
        assert_eq!(plain_path(Path::new("new\nline")), "new\\nline");
    }

    #[test]
    fn lengths_of_time_read_well() {
        assert_eq!(span(340), "340 ms");
        assert_eq!(span(1250), "1.2 s");
        assert_eq!(span(303_000), "5 min 3 s");
        assert_eq!(span(7_620_000), "2 h 7 min");
        assert_eq!(ago(0, 59_999), "just now");
        assert_eq!(ago(0, 86_400_000), "1 day ago");
        assert_eq!(ago(10, 0), "just now");
    }
}
