//! The descriptors that a command's streams are relayed from and to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pvisor_proto::WindowSize;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

/// Standard input, output and error of a relay.
#[derive(Debug)]
pub struct Stdio {
    /// Read until its end or until the command wants no more. Bytes that were read and not wanted are gone.
    pub stdin: OwnedFd,
    /// Gets standard output, or all output of a terminal.
    pub stdout: OwnedFd,
    /// Gets standard error.
    pub stderr: OwnedFd,
}

impl Stdio {
    /// Duplicates of this process's own descriptors 0, 1 and 2. They share their flags with the originals, and so with
    /// the person's shell; nothing here changes them.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn inherit() -> io::Result<Self> {
        Ok(Self {
            stdin: io::stdin().as_fd().try_clone_to_owned()?,
            stdout: io::stdout().as_fd().try_clone_to_owned()?,
            stderr: io::stderr().as_fd().try_clone_to_owned()?,
        })
    }
}

/// Size of a terminal; `None`: it is none, or it does not know.
pub fn terminal_size(fd: BorrowedFd<'_>) -> Option<WindowSize> {
    let size = tcgetwinsize(fd).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some(WindowSize { rows: size.ws_row, columns: size.ws_col })
}

/// A terminal of the host in raw mode, so that every key reaches the terminal in the guest, Ctrl-C among them. Dropping
/// it restores the mode; a process that ends without that leaves the terminal raw, so whoever started it should keep
/// one of these as well.
#[derive(Debug)]
pub struct RawTerminal {
    fd: OwnedFd,
    before: Termios,
}

impl RawTerminal {
    /// Puts the terminal into raw mode; `None`: it is none.
    ///
    /// # Errors
    /// The terminal refuses.
    pub fn enter(fd: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        if !isatty(fd) {
            return Ok(None);
        }
        let before = tcgetattr(fd)?;
        let mut raw = before.clone();
        raw.make_raw();
        let fd = fd.try_clone_to_owned()?;
        tcsetattr(&fd, OptionalActions::Drain, &raw)?;
        Ok(Some(Self { fd, before }))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that hung up has no mode to restore.
        let _ = tcsetattr(&self.fd, OptionalActions::Drain, &self.before);
    }
}
