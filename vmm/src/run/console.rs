//! The guest kernel's log: a file of bounded size, and its last lines for messages.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

/// File in the run's directory.
const LOG: &str = "console.log";
/// What was in the file before it became too long.
const OLDER: &str = "console.log.old";
/// Longest file in bytes; there are two at most.
const MOST: u64 = 512 << 10;
/// Bytes kept for messages.
const TAIL: usize = 8 << 10;
/// Lines and characters in a message.
const LINES: usize = 8;
const COLUMNS: usize = 160;

/// The log of one guest.
pub(super) struct Console {
    tail: Arc<Mutex<VecDeque<u8>>>,
    reader: OwnedFd,
    /// Kept open: a pipe without a writer would look ended.
    writer: OwnedFd,
}

impl Console {
    /// Starts to log into the run's directory, on a thread of its own.
    ///
    /// # Errors
    /// The file can't be made; no pipe or thread.
    pub(super) fn start(run_dir: &Path) -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let tail = Arc::new(Mutex::new(VecDeque::with_capacity(TAIL)));
        let console = Self { tail: Arc::clone(&tail), reader: reader.try_clone()?, writer };
        let mut log = Log::create(run_dir)?;
        thread::Builder::new().name("console".to_owned()).spawn(move || {
            let mut reader = File::from(reader);
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                log.append(&buffer[..length]);
                keep(&tail, &buffer[..length]);
            }
        })?;
        Ok(console)
    }

    /// The path that the engine opens to write to the log.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.writer.as_raw_fd()).into()
    }

    /// What the guest's kernel said at last, once all of it is read or `patience` is over.
    pub(super) fn last_words(&self, patience: Duration) -> LastWords {
        let deadline = Instant::now() + patience;
        while self.has_unread() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        LastWords::of(tail.make_contiguous())
    }

    fn has_unread(&self) -> bool {
        let mut fds = [PollFd::new(&self.reader, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }
}

fn keep(tail: &Mutex<VecDeque<u8>>, bytes: &[u8]) {
    let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
    tail.extend(bytes);
    let surplus = tail.len().saturating_sub(TAIL);
    tail.drain(..surplus);
}

struct Log {
    path: PathBuf,
    older: PathBuf,
    file: Option<File>,
    length: u64,
}

impl Log {
    fn create(run_dir: &Path) -> io::Result<Self> {
        let path = run_dir.join(LOG);
        let file = create(&path)?;
        Ok(Self { path, older: run_dir.join(OLDER), file: Some(file), length: 0 })
    }

    /// A log that can't be written, on a full disk for instance, is no reason to stop the guest.
    fn append(&mut self, bytes: &[u8]) {
        if self.length + bytes.len() as u64 > MOST {
            self.file = fs::rename(&self.path, &self.older).and_then(|()| create(&self.path)).ok();
            self.length = 0;
        }
        if let Some(file) = &mut self.file {
            self.length += bytes.len() as u64;
            let _ = file.write_all(bytes);
        }
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// The end of a guest's log, fit for a terminal.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LastWords {
    /// Why the kernel panicked, where it did.
    pub(super) panic: Option<String>,
    /// The last lines, oldest first.
    pub(super) lines: Vec<String>,
}

impl LastWords {
    fn of(tail: &[u8]) -> Self {
        const PANIC: &str = "Kernel panic - not syncing: ";
        let text = String::from_utf8_lossy(tail);
        let mut lines: Vec<String> = text.lines().map(printable).filter(|line| !line.is_empty()).collect();
        let mut panic = None;
        if let Some(at) = lines.iter().position(|line| line.contains(PANIC)) {
            panic = lines[at].split_once(PANIC).map(|(_, why)| why.to_owned());
            // What follows are registers and addresses.
            lines.truncate(at + 1);
        }
        let surplus = lines.len().saturating_sub(LINES);
        lines.drain(..surplus);
        Self { panic, lines }
    }

    /// The lines as the end of a message; empty where there are none.
    pub(super) fn quote(&self) -> String {
        match self.lines.as_slice() {
            [] => String::new(),
            lines => format!("; the guest's console ends with: {}", lines.join(" / ")),
        }
    }
}

/// A line without escape sequences and control characters, cut to a bearable length.
fn printable(line: &str) -> String {
    let mut out = String::new();
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            // `ESC [ parameters letter`; any other sequence is `ESC` and one character.
            if chars.next() == Some('[') {
                let _ = chars.find(|c| ('@'..='~').contains(c));
            }
        } else if c == '\t' {
            out.push(' ');
        } else if !c.is_control() {
            out.push(c);
        }
        if out.chars().count() >= COLUMNS {
            out.push('…');
            break;
        }
    }
    out.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_taken_out_and_the_panic_is_found() {
        let log = "[ 1.0] a\r\n\u{1b}[31m[ 1.1] Kernel panic - not syncing: sysrq triggered crash\u{1b}[0m\n\
            \n[ 1.2] \u{7}CPU: 0\u{1b}]x\n";
        let words = LastWords::of(log.as_bytes());
        assert_eq!(words.panic.as_deref(), Some("sysrq triggered crash"));
        assert_eq!(words.lines, ["[ 1.0] a", "[ 1.1] Kernel panic - not syncing: sysrq triggered crash"]);
        assert!(words.quote().ends_with("[ 1.0] a / [ 1.1] Kernel panic - not syncing: sysrq triggered crash"));
        let words = LastWords::of(b"\x1b[1mb\x1b]x\n\x07 \n\ttail\n");
        assert_eq!((words.panic, words.lines), (None, vec!["bx".to_owned(), " tail".to_owned()]));
        let empty = LastWords::of(b"");
        assert_eq!((empty.panic.clone(), empty.quote()), (None, String::new()));
        assert!(LastWords::of(&[b'x'; 5000]).lines[0].chars().count() <= COLUMNS + 1);
    }

    #[test]
    fn the_log_is_bounded_and_its_end_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let console = Console::start(dir.path()).unwrap();
        let mut engine = File::create(console.path()).unwrap();
        for i in 0..40_000 {
            writeln!(engine, "line number {i:010} of the log of a talkative guest").unwrap();
        }
        let words = console.last_words(Duration::from_secs(60));
        // The last bytes may have left the pipe, but not reached the tail yet.
        while !console.last_words(Duration::ZERO).quote().contains("0000039999") {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(words.panic.is_none());
        let length = |name| fs::metadata(dir.path().join(name)).unwrap().len();
        assert!(length(LOG) <= MOST && length(OLDER) <= MOST && length(OLDER) > MOST / 2);
    }
}
