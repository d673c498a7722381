//! Naming a process so that a later one with the same number is never mistaken for it.

use std::fs;
use std::time::Duration;

use pvisor_spec::WorkerFailure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// One process of one boot of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessRef {
    /// Its number.
    pub(crate) pid: i32,
    /// When it started, in clock ticks since boot.
    start_ticks: u64,
    /// The boot's id.
    boot_id: String,
}

impl ProcessRef {
    /// The process of that number that lives now.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        Some(Self { pid, start_ticks: start_ticks(pid)?, boot_id: boot_id()? })
    }

    /// This process.
    pub(crate) fn own() -> Option<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// A handle on it, where it is alive: a zombie is not.
    fn open(&self) -> Option<OwnedFd> {
        if boot_id()? != self.boot_id {
            return None;
        }
        let handle = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // Read after the handle was taken: the number can't have changed hands in between.
        (start_ticks(self.pid)? == self.start_ticks && !ended(&handle, Duration::ZERO)).then_some(handle)
    }

    /// Whether it is alive.
    pub(crate) fn is_alive(&self) -> bool {
        self.open().is_some()
    }

    /// Sends a signal; `false` where it is not alive.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        self.open().is_some_and(|handle| pidfd_send_signal(&handle, signal).is_ok())
    }

    /// Kills it and waits for its end.
    ///
    /// # Errors
    /// It is still there after `patience`.
    pub(crate) fn end(&self, patience: Duration) -> Result<(), WorkerFailure> {
        let Some(handle) = self.open() else { return Ok(()) };
        let sent = pidfd_send_signal(&handle, Signal::KILL);
        if sent.is_ok() && ended(&handle, patience) || !self.is_alive() {
            return Ok(());
        }
        Err(WorkerFailure {
            kind: "process_left".to_owned(),
            message: format!("process {} can't be ended", self.pid),
            hint: format!("end it by hand: kill -9 {}", self.pid),
        })
    }

    /// Waits for its end; `false` where it is still there after `patience`.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        self.open().is_none_or(|handle| ended(&handle, patience))
    }
}

fn ended(handle: &OwnedFd, patience: Duration) -> bool {
    let timeout = Timespec::try_from(patience).ok();
    let mut fds = [PollFd::new(handle, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref())).is_ok_and(|n| n > 0)
}

/// Field 22 of `/proc/PID/stat`; the name in field 2 may hold anything, so fields count from its last parenthesis.
fn start_ticks(pid: i32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.iter().rposition(|b| *b == b')')? + 1;
    let fields = std::str::from_utf8(&stat[after_name..]).ok()?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_alive_until_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = ProcessRef::of(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(process.is_alive());
        assert!(!process.wait(Duration::from_millis(1)));
        process.end(Duration::from_secs(60)).unwrap();
        assert!(!process.is_alive());
        child.wait().unwrap();
        assert!(!process.is_alive() && !process.signal(Signal::TERM));
        process.end(Duration::ZERO).unwrap();
    }

    #[test]
    fn another_process_of_the_same_number_is_not_it() {
        let own = ProcessRef::own().unwrap();
        let earlier = ProcessRef { start_ticks: own.start_ticks + 1, ..own.clone() };
        let other_boot = ProcessRef { boot_id: "another".to_owned(), ..own.clone() };
        assert!(own.is_alive() && !earlier.is_alive() && !other_boot.is_alive());
    }
}
