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

/// A size with a fitting unit, rounded up: `12 KiB`, `3.4 MiB`, `2.0 GiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 3] = ["MiB", "GiB", "TiB"];
    let kib = bytes.div_ceil(1024);
    if kib < 1024 {
        return format!("{kib} KiB");
    }
    let (mut tenths, mut unit) = ((kib * 10).div_ceil(1024), 0);
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        (tenths, unit) = (tenths.div_ceil(1024), unit + 1);
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
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

/// How long it is until then: `7 days`, `5 h`, `12 min`.
pub(crate) fn left(until_ms: u64, now_ms: u64) -> String {
    match until_ms.saturating_sub(now_ms).div_ceil(60_000) {
        m @ 0..120 => format!("{m} min"),
        m @ 120..2880 => format!("{} h", m / 60),
        m => count(m.div_ceil(1440), "day"),
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
    fn sizes_read_well() {
        for (bytes, text) in
            [(0, "0 KiB"), (1, "1 KiB"), (3 << 19, "1.5 MiB"), (2 << 30, "2.0 GiB"), (5 << 40, "5.0 TiB")]
        {
            assert_eq!(size(bytes), text);
        }
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
        assert_eq!(left(604_800_000, 1), "7 days");
        assert_eq!((left(7_200_001, 0), left(1, 0), left(0, 1)), ("2 h".into(), "1 min".into(), "0 min".into()));
    }
}
