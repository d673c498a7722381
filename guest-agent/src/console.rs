//! Diagnostics: lines on the machine's console, which the host keeps in a file.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};
use rustix::io::write;

static CONSOLE: OnceLock<OwnedFd> = OnceLock::new();

/// Opens the console; without one, lines go to standard error.
pub fn open() {
    let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    if let Ok(fd) = rustix::fs::open("/dev/console", flags, Mode::empty()) {
        let _ = CONSOLE.set(fd);
    }
}

/// Writes one line. What can't be written is nobody's to know.
pub fn report(line: fmt::Arguments<'_>) {
    let line = format!("pvisor-agent: {line}\n");
    let _ = match CONSOLE.get() {
        Some(fd) => write(fd, line.as_bytes()),
        None => write(rustix::stdio::stderr(), line.as_bytes()),
    };
}
