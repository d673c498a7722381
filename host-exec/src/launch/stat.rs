//! What the kernel says of a process or thread in its `stat` file.

use std::io;

/// The first fields.
#[derive(Debug)]
pub(super) struct Stat {
    /// The name that it goes by, which it can choose.
    pub(super) name: String,
    /// As the kernel writes it: `R`, `S`, `T` …
    pub(super) state: u8,
    /// Process id of its parent.
    pub(super) parent: i32,
}

impl Stat {
    /// Reads one; `None`: the process is gone.
    ///
    /// # Errors
    /// It can't be read.
    pub(super) fn read(path: &str) -> io::Result<Option<Self>> {
        match std::fs::read(path) {
            Ok(line) => Ok(Self::parse(&line)),
            Err(e) if is_gone(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// That of a process; `None` also where it does not let itself be looked at.
    pub(super) fn of(pid: i32) -> Option<Self> {
        Self::read(&format!("/proc/{pid}/stat")).ok().flatten()
    }

    fn parse(line: &[u8]) -> Option<Self> {
        // The name is in parentheses and can hold anything.
        let open = line.iter().position(|b| *b == b'(')?;
        let close = line.iter().rposition(|b| *b == b')')?;
        let name = String::from_utf8_lossy(line.get(open + 1..close)?).into_owned();
        let mut fields = line[close + 1..].split(|b| *b == b' ').filter(|f| !f.is_empty());
        let state = *fields.next()?.first()?;
        let parent = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        Some(Self { name, state, parent })
    }
}

/// Whether an error of `/proc` means that the process is not there any more.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_hold_anything() {
        let stat = Stat::parse(b"12 (a) R (b) S 7 12 12 0 -1").unwrap();
        assert_eq!((&*stat.name, stat.state, stat.parent), ("a) R (b", b'S', 7));
        assert!(Stat::parse(b"12 nonsense").is_none() && Stat::parse(b"").is_none());
    }
}
