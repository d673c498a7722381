//! Processes that descend from this one, where no process namespace holds them.

use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rustix::io::Errno;
use rustix::process::WaitOptions;

use super::stat::Stat;

/// Most rounds of killing without one that ended: some processes (those of another user) can't be killed.
const MAX_IDLE_ROUNDS: usize = 400;
/// Between two rounds.
const PAUSE: Duration = Duration::from_millis(5);

/// Kills all descendants. This process must be their subreaper: what a killed one leaves behind becomes its child.
pub(crate) fn kill_all() {
    let mut idle = 0;
    while idle < MAX_IDLE_ROUNDS {
        for child in children() {
            let _ = nix::sys::signal::kill(child, Signal::SIGKILL);
        }
        let mut ended = false;
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => ended = true,
                Err(Errno::CHILD) => return,
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => break,
            }
        }
        if ended {
            idle = 0;
        } else {
            idle += 1;
            std::thread::sleep(PAUSE);
        }
    }
}

/// The children of this process.
fn children() -> Vec<Pid> {
    let own = nix::unistd::getpid();
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| Stat::of(*pid).is_some_and(|stat| stat.parent == own.as_raw()))
        .map(Pid::from_raw)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_found_by_its_parent() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        assert!(children().contains(&Pid::from_raw(child.id().cast_signed())));
        let parent = |pid: i32| Stat::of(pid).map(|stat| stat.parent);
        assert_eq!(parent(child.id().cast_signed()), Some(std::process::id().cast_signed()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(parent(i32::MAX), None);
    }
}
