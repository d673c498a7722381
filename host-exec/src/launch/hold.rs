//! Holding the command while the person is asked: nothing of it runs, so nothing of it can write to the terminal, read
//! from it, or take it.
//!
//! For process 1 of a process namespace only: there a signal to all reaches all, even what has left the command's group
//! and session, and nothing else.

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

use super::stat::Stat;

/// How long it may take for processes to stop: those that wait for a disk do it later, but can't do anything before.
const PATIENCE: Duration = Duration::from_millis(300);

/// What is held.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Processes that were stopped already, and stay so.
    stopped: HashSet<i32>,
}

impl Held {
    /// Stops every process of this namespace but this one.
    pub(super) fn hold() -> Self {
        let stopped = processes().filter(|(_, state)| *state == b'T').map(|(pid, _)| pid).collect();
        signal(-1, libc::SIGSTOP);
        let deadline = Instant::now() + PATIENCE;
        while processes().any(|(_, state)| matches!(state, b'R' | b'S')) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        Self { stopped }
    }

    /// Lets them go on.
    pub(super) fn release(self) {
        if self.stopped.is_empty() {
            return signal(-1, libc::SIGCONT);
        }
        for (pid, _) in processes().filter(|(pid, _)| !self.stopped.contains(pid)) {
            signal(pid, libc::SIGCONT);
        }
    }
}

/// Every process but this one, and its state as the kernel writes it.
fn processes() -> impl Iterator<Item = (i32, u8)> {
    let own = std::process::id().cast_signed();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok().filter(|pid| *pid != own)?;
        Some((pid, Stat::of(pid)?.state))
    })
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: kill reads its arguments only.
    unsafe { libc::kill(pid, signal) };
}
