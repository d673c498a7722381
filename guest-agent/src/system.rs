//! What a session does to the machine it runs on.

use std::io;
use std::os::fd::AsRawFd;

use pvisor_proto::{Failure, Mount, Network};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec, clock_settime};

use crate::{network, root};

/// Most bytes of one reseed.
const ENTROPY: usize = 512;

/// The machine, as far as a session changes it.
pub trait System {
    /// Builds the root and moves there.
    ///
    /// # Errors
    /// The mount that failed and why.
    fn mount(&mut self, mounts: &[Mount]) -> Result<(), Failure>;

    /// Sets the wall clock, in seconds and nanoseconds since the Unix epoch.
    ///
    /// # Errors
    /// The kernel's refusal.
    fn set_clock(&mut self, seconds: u64, nanos: u32) -> Result<(), Failure>;

    /// Configures the network card and the name servers.
    ///
    /// # Errors
    /// The step that failed and the kernel's refusal.
    fn configure_network(&mut self, network: &Network) -> Result<(), Failure>;

    /// Writes back all filesystems.
    fn sync(&mut self);

    /// Names the machine; more than 64 bytes of a name are cut off.
    ///
    /// # Errors
    /// The kernel's refusal.
    fn set_hostname(&mut self, name: &str) -> Result<(), Failure> {
        let name = name.as_bytes();
        rustix::system::sethostname(&name[..name.len().min(64)]).map_err(|e| failure(e, "host name"))
    }

    /// Mixes in random bytes, 1 to 512 of them, and makes the generator use them at once.
    ///
    /// # Errors
    /// The kernel's refusal.
    fn reseed(&mut self, entropy: &[u8]) -> Result<(), Failure> {
        reseed(entropy).map_err(|e| failure(e, "random number generator"))
    }
}

/// The guest's machine.
#[derive(Debug, Default)]
pub struct Guest;

impl System for Guest {
    fn mount(&mut self, mounts: &[Mount]) -> Result<(), Failure> {
        root::enter(mounts, &mut root::mount)
    }

    fn set_clock(&mut self, seconds: u64, nanos: u32) -> Result<(), Failure> {
        let tv_sec = i64::try_from(seconds).map_err(|_| failure(Errno::INVAL, "clock"))?;
        let time = Timespec { tv_sec, tv_nsec: i64::from(nanos) };
        clock_settime(ClockId::Realtime, time).map_err(|e| failure(e, "clock"))
    }

    fn configure_network(&mut self, network: &Network) -> Result<(), Failure> {
        network::configure(network)
    }

    fn sync(&mut self) {
        rustix::fs::sync();
    }
}

/// A machine that is not there, for tests of a session in a PID namespace: mounts, clock, network and sync are accepted and not
/// carried out.
#[derive(Debug, Default)]
pub struct Rehearsal;

impl System for Rehearsal {
    fn mount(&mut self, _mounts: &[Mount]) -> Result<(), Failure> {
        Ok(())
    }

    fn set_clock(&mut self, _seconds: u64, nanos: u32) -> Result<(), Failure> {
        if nanos < 1_000_000_000 { Ok(()) } else { Err(failure(Errno::INVAL, "clock")) }
    }

    fn configure_network(&mut self, _network: &Network) -> Result<(), Failure> {
        Ok(())
    }

    fn sync(&mut self) {}
}

/// A failure with the kernel's error.
pub fn failure(errno: Errno, what: &str) -> Failure {
    Failure { errno: errno.raw_os_error(), what: what.to_owned() }
}

fn reseed(entropy: &[u8]) -> Result<(), Errno> {
    /// `struct rand_pool_info` of the kernel, with room for its buffer.
    #[repr(C)]
    struct Pool {
        entropy_bits: libc::c_int,
        bytes: libc::c_int,
        buffer: [u8; ENTROPY],
    }
    const ADD: libc::Ioctl = libc::_IOW::<[libc::c_int; 2]>(b'R' as u32, 0x03);
    const RESEED: libc::Ioctl = libc::_IO(b'R' as u32, 0x07);

    if entropy.is_empty() || entropy.len() > ENTROPY {
        return Err(Errno::INVAL);
    }
    let length = libc::c_int::try_from(entropy.len()).map_err(|_| Errno::INVAL)?;
    let mut pool = Pool { entropy_bits: length * 8, bytes: length, buffer: [0; ENTROPY] };
    pool.buffer[..entropy.len()].copy_from_slice(entropy);
    let device = rustix::fs::open("/dev/urandom", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    // SAFETY: `pool` is laid out as the kernel expects, `bytes` of its buffer are set, and the kernel only reads it;
    // the second call takes no argument.
    let result = unsafe {
        match libc::ioctl(device.as_raw_fd(), ADD, &pool) {
            0 => libc::ioctl(device.as_raw_fd(), RESEED, 0),
            failed => failed,
        }
    };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// The error of the libc call that has just failed.
pub fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}
