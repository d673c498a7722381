//! Systems without an eventfd.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// A descriptor that is readable while it is raised.
#[derive(Debug)]
pub(crate) struct Signal {
    reader: UnixStream,
    writer: UnixStream,
}

impl Signal {
    /// A lowered one.
    pub(crate) fn new() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        Ok(Self { reader, writer })
    }

    /// Makes it readable.
    pub(crate) fn raise(&self) {
        // A full buffer means that it is readable already.
        let _ = (&self.writer).write(&[1]);
    }

    /// Makes it unreadable.
    pub(crate) fn lower(&self) {
        let mut sink = [0; 64];
        while matches!((&self.reader).read(&mut sink), Ok(n) if n == sink.len()) {}
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
