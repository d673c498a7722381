//! The slot of the guest's network card.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use msb_krun::backends::net::{NetBackend, ReadError, WriteError};
use rustix::event::{EventfdFlags, eventfd};

/// What is at the other end of the guest's network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Nothing: every frame is dropped and none ever comes. The card is there all the same, because the set of
    /// devices of a machine can't change between its checkpoint and its restore.
    Sealed,
}

impl Network {
    pub(super) fn backend(self) -> io::Result<Box<dyn NetBackend + Send>> {
        match self {
            Self::Sealed => {
                let idle = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
                Ok(Box::new(SealedBackend { idle }))
            }
        }
    }
}

struct SealedBackend {
    /// Never readable.
    idle: OwnedFd,
}

impl NetBackend for SealedBackend {
    fn read_frame(&mut self, _buf: &mut [u8]) -> Result<usize, ReadError> {
        Err(ReadError::NothingRead)
    }

    fn write_frame(&mut self, _header_length: usize, _buf: &mut [u8]) -> Result<(), WriteError> {
        Ok(())
    }

    fn has_unfinished_write(&self) -> bool {
        false
    }

    fn try_finish_write(&mut self, _header_length: usize, _buf: &[u8]) -> Result<(), WriteError> {
        Ok(())
    }

    fn supports_quiesce(&self) -> bool {
        true
    }

    fn raw_socket_fd(&self) -> RawFd {
        self.idle.as_raw_fd()
    }
}
