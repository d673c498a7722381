//! Names as they can be shown: as git quotes them, so that no byte of a name acts on a terminal.

use std::fmt::Write;

/// The name as it is where it is plain, else in double quotes with C escapes: control bytes, quotes, backslashes, and
/// what is no UTF-8 or does not show (bidirectional overrides among them).
pub(crate) fn quoted(name: &[u8]) -> String {
    let inner = escaped(name);
    if inner.as_bytes() == name { inner } else { format!("\"{inner}\"") }
}

/// The same with a prefix inside of the quotes.
pub(crate) fn quoted_with(prefix: &str, name: &[u8]) -> String {
    let inner = escaped(name);
    if inner.as_bytes() == name { format!("{prefix}{inner}") } else { format!("\"{prefix}{inner}\"") }
}

fn escaped(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            escape_char(&mut out, c);
        }
        octal(&mut out, chunk.invalid());
    }
    out
}

fn escape_char(out: &mut String, c: char) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\t' => out.push_str("\\t"),
        '\r' => out.push_str("\\r"),
        '\x07' => out.push_str("\\a"),
        '\x08' => out.push_str("\\b"),
        '\x0b' => out.push_str("\\v"),
        '\x0c' => out.push_str("\\f"),
        c if acts(c) => octal(out, c.encode_utf8(&mut [0; 4]).as_bytes()),
        c => out.push(c),
    }
}

/// Whether a terminal may do something else with the character than show it where it is.
pub(crate) fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

fn octal(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // A string takes everything that is written to it.
        let _ = write!(out, "\\{byte:03o}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_stay_and_others_are_quoted_as_git_does() {
        assert_eq!(quoted(b"src/main.rs"), "src/main.rs");
        assert_eq!(quoted("g\u{fc}nther x".as_bytes()), "g\u{fc}nther x");
        assert_eq!(quoted(b"a\"b\\c\n\x1b[31m\xff"), r#""a\"b\\c\n\033[31m\377""#);
        assert_eq!(quoted_with("a/", b"t\tb"), r#""a/t\tb""#);
        assert_eq!(quoted("\u{202e}exe".as_bytes()), r#""\342\200\256exe""#);
    }
}
