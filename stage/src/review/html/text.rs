//! Text as a page can show it.

use std::fmt::Write;

use maud::PreEscaped;

use super::super::quote::acts;

/// Longer lines are cut, in characters.
const LINE: usize = 2000;

/// The bytes with everything that means something in HTML escaped, and everything that does not show, or that moves
/// what is around it, made visible. Tabs stay.
pub(super) fn visible(bytes: &[u8]) -> PreEscaped<String> {
    let mut out = String::with_capacity(bytes.len() + 16);
    append(&mut out, bytes);
    PreEscaped(out)
}

/// A line whose part from `start` to `end` is what changed in it.
pub(super) fn marked(line: &[u8], (start, end): (usize, usize)) -> PreEscaped<String> {
    let mut out = String::with_capacity(line.len() + 32);
    append(&mut out, &line[..start]);
    if end > start {
        out.push_str("<mark>");
        append(&mut out, &line[start..end]);
        out.push_str("</mark>");
    }
    append(&mut out, &line[end..]);
    PreEscaped(out)
}

fn append(out: &mut String, bytes: &[u8]) {
    let mut room = LINE;
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if room == 0 {
                break;
            }
            room -= 1;
            show(out, c);
        }
        for byte in chunk.invalid().iter().take(room) {
            room -= 1;
            sign(out, &format!("{byte:02X}"), "byte that is no text");
        }
        if room == 0 {
            let _ = write!(out, "<span class=\"x\">\u{2026} {} bytes in all</span>", bytes.len());
            return;
        }
    }
}

fn show(out: &mut String, c: char) {
    match c {
        '&' => out.push_str("&amp;"),
        '<' => out.push_str("&lt;"),
        '>' => out.push_str("&gt;"),
        '"' => out.push_str("&quot;"),
        '\'' => out.push_str("&#39;"),
        '\t' => out.push(c),
        '\r' => sign(out, "CR", "carriage return"),
        '\x1b' => sign(out, "ESC", "escape character"),
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}' => {
            sign(out, &format!("U+{:04X}", u32::from(c)), "changes the direction of text");
        }
        c if acts(c) || is_odd_space(c) => sign(out, &format!("U+{:04X}", u32::from(c)), "does not show"),
        c => out.push(c),
    }
}

/// Spaces that are none to a compiler, and fillers.
fn is_odd_space(c: char) -> bool {
    matches!(c, '\u{a0}' | '\u{115f}' | '\u{1160}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3164}'
        | '\u{ffa0}' | '\u{fe00}'..='\u{fe0f}' | '\u{fff0}'..='\u{fffb}')
}

fn sign(out: &mut String, text: &str, title: &str) {
    // A string takes everything that is written to it.
    let _ = write!(out, "<span class=\"x\" title=\"{title}\">{text}</span>");
}

/// Where two lines differ: the parts between what they begin and what they end with. Whole lines that have little in
/// common are not marked.
pub(super) fn difference(old: &[u8], new: &[u8]) -> Option<((usize, usize), (usize, usize))> {
    let least = old.len().min(new.len());
    let boundary = |line: &[u8], at: usize| at >= line.len() || line[at] & 0xc0 != 0x80;
    let mut start = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    while !boundary(old, start) || !boundary(new, start) {
        start -= 1;
    }
    let same = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    let mut end = same.min(least - start);
    while !boundary(old, old.len() - end) || !boundary(new, new.len() - end) {
        end -= 1;
    }
    let common = start + end;
    let blank = old[..start].iter().all(u8::is_ascii_whitespace);
    let enough = common * 3 >= old.len().max(new.len()) && !(blank && end == 0);
    enough.then_some(((start, old.len() - end), (start, new.len() - end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gets_through_that_is_markup_or_can_not_be_seen() {
        let text = visible("</script>&\"'\t\u{202e}x\u{200b}\u{1b}\u{feff}".as_bytes()).0;
        assert!(text.starts_with("&lt;/script&gt;&amp;&quot;&#39;\t<span"), "{text}");
        for sign in ["U+202E", "U+200B", "ESC", "U+FEFF"] {
            assert!(text.contains(&format!(">{sign}</span>")), "{sign}: {text}");
        }
        assert!(!text.chars().any(acts_here), "{text}");
        assert!(visible(b"\xff<").0.contains(">FF</span>&lt;"));
    }

    fn acts_here(c: char) -> bool {
        c != '\t' && acts(c)
    }

    #[test]
    fn long_lines_are_cut_and_say_so() {
        let text = visible(&vec![b'x'; 1 << 20]).0;
        assert!(text.len() < 3000 && text.contains("1048576 bytes in all"), "{}", text.len());
    }

    #[test]
    fn what_changed_in_a_line_is_between_what_both_have() {
        assert_eq!(difference(b"let a = 1;", b"let b = 1;"), Some(((4, 5), (4, 5))));
        assert_eq!(difference(b"f(a)", b"f(a, a)"), Some(((3, 3), (3, 6))));
        assert_eq!(difference(b"abc", b"xyz"), None);
        assert_eq!(difference(b"aa", b"a"), Some(((1, 2), (1, 1))));
        let (old, new) = ("say \u{e4} now", "say \u{e5} now");
        assert_eq!(difference(old.as_bytes(), new.as_bytes()), Some(((4, 6), (4, 6))));
    }
}
