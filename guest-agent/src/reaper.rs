//! Children: the notice that one has ended, and the end itself. Orphans of the whole machine are among them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use pvisor_proto::End;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, wait};

/// Write end of the pipe that the handler of SIGCHLD writes to.
static NOTICE: AtomicI32 = AtomicI32::new(-1);

/// Reaps the children of this process.
pub struct Reaper {
    notice: OwnedFd,
}

extern "C" fn on_child(_signal: libc::c_int) {
    // SAFETY: `write` is async-signal-safe, the byte outlives the call, and errno is put back, so that the interrupted
    // code does not see it change.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        libc::write(NOTICE.load(Ordering::Relaxed), c"!".as_ptr().cast(), 1);
        *errno = before;
    }
}

impl Reaper {
    /// Installs the handler of SIGCHLD and ignores SIGPIPE. Once per process.
    pub fn install() -> io::Result<Self> {
        let (notice, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        NOTICE.store(write.into_raw_fd(), Ordering::Relaxed);
        set_handler(libc::SIGCHLD, on_child as *const () as libc::sighandler_t)?;
        set_handler(libc::SIGPIPE, libc::SIG_IGN)?;
        Ok(Self { notice })
    }

    /// Readable when children may have ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.notice.as_fd()
    }

    /// One child that has ended.
    pub fn next(&self) -> Option<(Pid, End)> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if let Some(end) = end_of(status) {
                        return Some((pid, end));
                    }
                }
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Takes back the notice, so that the next one shows. Before asking [`Reaper::next`].
    pub fn acknowledge(&self) {
        let mut bytes = [0; 64];
        while matches!(read(&self.notice, &mut bytes), Ok(64)) {}
    }

    /// Kills every process of the machine but this one and waits until they are gone, up to `limit`; false: some are
    /// not. Must be process 1: of the machine, or of a PID namespace.
    pub fn kill_all(&self, limit: Duration) -> bool {
        if std::process::id() != 1 {
            return false;
        }
        let deadline = Instant::now() + limit;
        loop {
            // SAFETY: no memory is involved; as process 1 this reaches only processes of the own namespace.
            unsafe { libc::kill(-1, libc::SIGKILL) };
            self.acknowledge();
            loop {
                match wait(WaitOptions::NOHANG) {
                    Err(Errno::CHILD) => return true,
                    Ok(Some(_)) | Err(Errno::INTR) => {}
                    Ok(None) | Err(_) => break,
                }
            }
            if Instant::now() >= deadline {
                return false;
            }
            let pause = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            let _ = poll(&mut [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)], Some(&pause));
        }
    }
}

fn end_of(status: rustix::process::WaitStatus) -> Option<End> {
    if let Some(code) = status.exit_status() {
        return Some(End::Exited(u8::try_from(code & 0xff).unwrap_or(u8::MAX)));
    }
    status.terminating_signal().map(|signal| End::Signaled(u8::try_from(signal).unwrap_or(0)))
}

fn set_handler(signal: libc::c_int, handler: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: a zeroed sigaction is a valid one; the handler is async-signal-safe or SIG_IGN; the pointers are valid
    // for the call.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_RESTART | libc::SA_NOCLDSTOP;
        libc::sigaction(signal, &action, std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
