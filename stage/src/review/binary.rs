//! Binary contents as git puts them into a patch: deflated, in base 85.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use sha1::{Digest, Sha1};

/// Bytes in one line.
const LINE: usize = 52;
const DIGITS: &[u8; 85] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
/// What stands for nothing in an index line.
const NOTHING: &str = "0000000000000000000000000000000000000000";

/// Writes both contents, so that the patch can be taken back too.
pub(super) fn write(old: &[u8], new: &[u8], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "GIT binary patch")?;
    literal(new, out)?;
    literal(old, out)
}

fn literal(content: &[u8], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "literal {}", content.len())?;
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(content)?;
    for line in encoder.finish()?.chunks(LINE) {
        let length = u8::try_from(line.len()).unwrap_or(0);
        let mut text = vec![if length <= 26 { b'A' + length - 1 } else { b'a' + length - 27 }];
        for four in line.chunks(4) {
            let mut bytes = [0; 4];
            bytes[..four.len()].copy_from_slice(four);
            let mut number = u32::from_be_bytes(bytes);
            let mut digits = [0; 5];
            for digit in digits.iter_mut().rev() {
                *digit = DIGITS[(number % 85) as usize];
                number /= 85;
            }
            text.extend_from_slice(&digits);
        }
        text.push(b'\n');
        out.write_all(&text)?;
    }
    out.write_all(b"\n")
}

/// The name that git gives to a content, in repositories of SHA-1.
pub(super) fn object_name(content: Option<&[u8]>) -> String {
    content.map_or(NOTHING.to_owned(), |content| {
        let mut hasher = Sha1::new();
        hasher.update(format!("blob {}\0", content.len()));
        hasher.update(content);
        super::entry::hex(&hasher.finalize())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_git() {
        assert_eq!(object_name(Some(b"hello\n")), "ce013625030ba8dba906f756967f9e9ca394464a");
        assert_eq!(object_name(Some(b"")), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
    }

    #[test]
    fn lines_carry_their_length_and_groups_of_four() {
        let mut out = Vec::new();
        literal(&(0..=255).collect::<Vec<u8>>(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.strip_prefix("literal 256\n").unwrap().lines().collect();
        let (last, full) = lines[..lines.len() - 1].split_last().unwrap();
        assert!(full.iter().all(|line| line.starts_with('z') && line.len() == 66), "{text}");
        assert!(last.len() % 5 == 1 && last.len() <= 66 && lines.last() == Some(&""), "{text}");
    }
}
