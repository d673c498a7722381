//! Archives in the `newc` format, which the kernel unpacks as its first root.
//!
//! An entry is a header of 13 fields as 8 hexadecimal digits after the magic `070701`, the name with a NUL, padding to 4
//! bytes, the content, padding to 4 bytes. The last one is called `TRAILER!!!`. All times are 0 and all owners root, so
//! equal content is an equal archive.

const MAGIC: &[u8] = b"070701";
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const CHARACTER: u32 = 0o020_000;

/// An archive that grows.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds a directory; its parent must have been added before.
    pub(crate) fn directory(&mut self, name: &str, permissions: u32) {
        self.entry(name, DIRECTORY | permissions, 2, (0, 0), b"");
    }

    /// Adds a regular file.
    pub(crate) fn file(&mut self, name: &str, permissions: u32, content: &[u8]) {
        self.entry(name, REGULAR | permissions, 1, (0, 0), content);
    }

    /// Adds a character device.
    pub(crate) fn device(&mut self, name: &str, permissions: u32, number: (u32, u32)) {
        self.entry(name, CHARACTER | permissions, 1, number, b"");
    }

    /// The whole archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entries = 0;
        self.entry("TRAILER!!!", 0, 1, (0, 0), b"");
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, links: u32, device: (u32, u32), content: &[u8]) {
        self.entries += u32::from(mode != 0);
        // The format's sizes have 32 bits; all content here is embedded in this program.
        let (size, name_size) = (content.len() as u32, name.len() as u32 + 1);
        let fields = [self.entries, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.bytes.extend_from_slice(MAGIC);
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_header_is_as_the_format_says() {
        let mut archive = Archive::default();
        archive.file("ab", 0o755, b"hello");
        let bytes = archive.finish();
        let header = "07070100000001000081ed0000000000000000000000010000000000000005000000000000000000000000\
                      000000000000000300000000";
        assert_eq!(&bytes[..110], header.as_bytes());
        assert_eq!(&bytes[110..124], b"ab\0\0\0\0hello\0\0\0");
        assert_eq!(bytes.len() % 4, 0);
    }

    /// Reads back with the program that everybody has; absent, the header test above has to do.
    #[test]
    fn cpio_reads_it_back() {
        let mut archive = Archive::default();
        archive.directory("dev", 0o755);
        archive.device("dev/console", 0o600, (5, 1));
        archive.file("init", 0o755, b"#!/bin/sh\nexit 0\n");
        archive.file("empty", 0o644, b"");
        let bytes = archive.finish();
        let Ok(mut cpio) = Command::new("cpio")
            .args(["--extract", "--list", "--verbose", "--numeric-uid-gid", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
        else {
            eprintln!("skipped: no cpio here");
            return;
        };
        cpio.stdin.take().unwrap().write_all(&bytes).unwrap();
        let out = cpio.wait_with_output().unwrap();
        assert!(out.status.success());
        let listing = String::from_utf8(out.stdout).unwrap();
        let lines: Vec<Vec<&str>> = listing.lines().map(|l| l.split_whitespace().collect()).collect();
        let columns: Vec<(&str, &str)> = lines.iter().map(|l| (l[0], *l.last().unwrap())).collect();
        let expected =
            [("drwxr-xr-x", "dev"), ("crw-------", "dev/console"), ("-rwxr-xr-x", "init"), ("-rw-r--r--", "empty")];
        assert_eq!(columns, expected);
        assert!(lines[1].contains(&"5,") && lines[1].contains(&"1"), "{listing}");
        assert_eq!(lines[2][4], "17");
    }
}
