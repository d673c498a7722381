//! The controlling terminal and who is in its foreground.
//!
//! All changes of the foreground are made with SIGTTOU blocked: a process outside the foreground may then make them.

use std::os::fd::OwnedFd;

use nix::unistd::Pid;
use rustix::fs::{Mode, OFlags};

/// The controlling terminal, where there is one.
fn open() -> Option<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open("/dev/tty", flags, Mode::empty()).ok()
}

/// The process group in the foreground.
pub(crate) fn foreground() -> Option<Pid> {
    nix::unistd::tcgetpgrp(open()?).ok()
}

/// Brings a process group of this session to the foreground. Without a terminal there is none to bring it to.
pub(crate) fn give_to(group: Pid) {
    if let Some(terminal) = open() {
        let _ = nix::unistd::tcsetpgrp(terminal, group);
    }
}
