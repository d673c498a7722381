//! TAP devices.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};

/// The device that makes TAP devices.
const CLONE_DEVICE: &CStr = c"/dev/net/tun";
/// Bytes of an interface name, with the ending NUL.
const NAME: usize = libc::IFNAMSIZ;

/// A TAP device, open without blocking: Ethernet frames, one each read and write.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
}

/// Why there is no TAP device.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// Not 1 to 15 bytes, or with a slash, a space or a NUL.
    #[error("{0:?} is no interface name")]
    Name(String),
    /// The device that makes them can't be opened.
    #[error("/dev/net/tun: {0}")]
    Open(#[source] io::Error),
    /// The system makes none: no right to in this network namespace, or the name is taken.
    #[error("tap device {name}: {source}")]
    Create {
        /// The interface's name.
        name: String,
        /// What the system says.
        source: io::Error,
    },
}

impl Tap {
    /// Makes a TAP device in the network namespace of the calling thread, which needs `CAP_NET_ADMIN` there. The
    /// device goes away with the descriptor. It is down and has no address yet.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn create(name: &str) -> Result<Self, TapError> {
        let bytes = name.as_bytes();
        let odd = |b: &u8| matches!(b, 0 | b'/' | b'%' | b':') || b.is_ascii_whitespace();
        if bytes.is_empty() || bytes.len() >= NAME || bytes.iter().any(odd) {
            return Err(TapError::Name(name.to_owned()));
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = open(CLONE_DEVICE, flags, Mode::empty()).map_err(|e| TapError::Open(e.into()))?;
        // SAFETY: all zeroes is a valid `ifreq`: it is integers and byte arrays throughout.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (place, &byte) in request.ifr_name.iter_mut().zip(bytes) {
            *place = byte as libc::c_char;
        }
        let kind = libc::IFF_TAP | libc::IFF_NO_PI;
        request.ifr_ifru.ifru_flags = kind as libc::c_short;
        // SAFETY: `fd` is open, TUNSETIFF reads and writes one `ifreq`, and `request` is one that outlives the call.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
        if result < 0 {
            return Err(TapError::Create { name: name.to_owned(), source: io::Error::last_os_error() });
        }
        Ok(Self { fd })
    }

    /// Takes over the descriptor of a TAP device that was made elsewhere with `IFF_TAP | IFF_NO_PI`, for instance in
    /// another process, and makes it non-blocking.
    ///
    /// # Errors
    /// What the system says.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Self { fd })
    }

    /// The descriptor, to send it to another process.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Reads one frame into the free capacity of `frame`.
    pub(crate) fn read(&self, frame: &mut Vec<u8>) -> io::Result<usize> {
        Ok(rustix::io::read(&self.fd, rustix::buffer::spare_capacity(frame))?)
    }

    /// Writes one frame.
    pub(crate) fn write(&self, frame: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(&self.fd, frame)?)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_are_refused() {
        for name in ["", "a/b", "a b", "sixteen-bytes-no", "a\0b", "tap%d", "a:1"] {
            assert!(matches!(Tap::create(name), Err(TapError::Name(_))), "{name:?}");
        }
    }
}
