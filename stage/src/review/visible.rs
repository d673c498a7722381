//! Output that can't play tricks on a terminal.

use std::io::{self, Write};

use super::quote::acts;

/// A longer line is written in parts.
const LINE: usize = 64 * 1024;

/// Passes text on with everything that a terminal would act on made visible: escape sequences, control bytes,
/// bidirectional overrides, invisible characters and bytes that are no UTF-8. Line feeds and tabs stay.
#[derive(Debug)]
pub struct Visible<W: Write> {
    inner: W,
    line: Vec<u8>,
}

impl<W: Write> Visible<W> {
    /// Writes to `inner`.
    pub fn new(inner: W) -> Self {
        Self { inner, line: Vec::new() }
    }

    fn pass(&mut self) -> io::Result<()> {
        let mut out = String::with_capacity(self.line.len());
        for chunk in self.line.utf8_chunks() {
            for c in chunk.valid().chars() {
                show(&mut out, c);
            }
            for byte in chunk.invalid() {
                out.push_str(&format!("<{byte:02X}>"));
            }
        }
        self.line.clear();
        self.inner.write_all(out.as_bytes())
    }
}

impl<W: Write> Write for Visible<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") || self.line.len() >= LINE {
                self.pass()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pass()?;
        self.inner.flush()
    }
}

fn show(out: &mut String, c: char) {
    match c {
        '\n' | '\t' => out.push(c),
        '\x7f' => out.push_str("^?"),
        '\0'..='\x1f' => {
            out.push('^');
            out.push(char::from(c as u8 + b'@'));
        }
        c if acts(c) => out.push_str(&format!("<U+{:04X}>", u32::from(c))),
        c => out.push(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_acts_on_a_terminal_gets_through() {
        let mut out = Vec::new();
        let mut visible = Visible::new(&mut out);
        visible.write_all(b"+ok\t\x1b[2K\rgone\n\xff").unwrap();
        visible.write_all("\u{202e}x\u{9b}31m\u{fc}".as_bytes()).unwrap();
        visible.flush().unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "+ok\t^[[2K^Mgone\n<FF><U+202E>x<U+009B>31m\u{fc}");
    }
}
