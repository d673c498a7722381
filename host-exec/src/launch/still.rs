//! Holding every process of a command still, and letting go of those that were not stopped before.
//!
//! Process 1 of the namespace stops all of it with one call, which forks can't get away from. Who was stopped already,
//! by job control for instance, has the signal pending and keeps it; all others took it, and go on afterwards, children
//! before their parents, so that no shell finds a job of its own stopped.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::channel::{Channel, Order};
use super::stat::{Stat, is_gone};

/// Between two looks at the processes.
const STEP: Duration = Duration::from_millis(1);

/// Why the processes could not be held.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StillError {
    /// One of them does not stop.
    #[error("process {pid} ({name}) did not stop in time")]
    Restless { pid: i32, name: String },
    /// One of them went on by itself, or rather because somebody told it to.
    #[error("process {pid} ({name}) was continued meanwhile")]
    Continued { pid: i32, name: String },
    /// Process 1 is not there any more.
    #[error("the process that holds the run's namespaces is gone")]
    Silent,
    /// The process table can't be read.
    #[error("{what}")]
    Unreadable {
        what: String,
        #[source]
        source: io::Error,
    },
}

/// Processes that are held still. They go on when this is dropped.
#[derive(Debug)]
pub(crate) struct Still {
    /// Process 1 of their namespace, as this process counts.
    first: Pid,
    /// Those that are to go on, children before their parents.
    stopped: Vec<Pid>,
}

impl Still {
    /// Holds all processes of the namespace whose process 1 is `first` and hears orders at the other end of `channel`.
    ///
    /// # Errors
    /// At `deadline` one of them still moves; all go on then.
    pub(crate) fn hold(channel: &Channel, first: Pid, deadline: Instant) -> Result<Self, StillError> {
        order(channel)?;
        let mut processes = Vec::new();
        let look = |processes: &mut Vec<Process>| {
            *processes = Process::below(first)?;
            restless(processes).map(|moving| moving.map(Process::named))
        };
        let looked = loop {
            let looked = look(&mut processes);
            if matches!(looked, Ok(None)) || Instant::now() >= deadline {
                break looked;
            }
            std::thread::sleep(STEP);
        };
        // From here on they go on, whatever comes. One that takes the signal only later is let go of it as well.
        let stopped = processes.iter().rev().filter(|p| !p.was_stopped_before()).map(|p| p.pid).collect();
        let still = Self { first, stopped };
        match looked? {
            None => Ok(still),
            Some((pid, name)) => Err(StillError::Restless { pid, name }),
        }
    }

    /// Whether they are still held.
    ///
    /// # Errors
    /// One of them is not.
    pub(crate) fn check(&self) -> Result<(), StillError> {
        match restless(&Process::below(self.first)?)? {
            None => Ok(()),
            Some(process) => {
                let (pid, name) = process.named();
                Err(StillError::Continued { pid, name })
            }
        }
    }

    /// Inode numbers of all files that they have mapped to be shared, of whatever file system.
    ///
    /// # Errors
    /// A process does not let itself be looked at.
    pub(crate) fn mapped_files(&self) -> Result<HashSet<u64>, StillError> {
        let mut files = HashSet::new();
        for process in Process::below(self.first)? {
            let path = format!("/proc/{}/maps", raw(process.pid));
            match std::fs::read(&path) {
                Ok(maps) => files.extend(maps.split(|b| *b == b'\n').filter_map(shared_file)),
                Err(e) if is_gone(&e) => {}
                Err(e) => return Err(unreadable(&path, e)),
            }
        }
        Ok(files)
    }
}

/// Has process 1 stop all others, and returns when it has.
fn order(channel: &Channel) -> Result<(), StillError> {
    let (mut done, sent) = io::pipe().map_err(|source| unreadable("no pipe to be had", source))?;
    channel.send(&Order::Stop, Some(sent.as_fd())).map_err(|_| StillError::Silent)?;
    drop(sent);
    // Closed over there, if only by the end of process 1. Not to wait for it would be to have them stopped some time.
    done.read_to_end(&mut Vec::new()).map(drop).map_err(|source| unreadable("the pipe", source))
}

impl Drop for Still {
    fn drop(&mut self) {
        for pid in &self.stopped {
            // It may have been killed meanwhile.
            let _ = kill_process(*pid, Signal::CONT);
        }
    }
}

/// The inode number in a line of `maps`, if the mapping is shared and of a file: `address perms offset device inode path`.
fn shared_file(line: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(line.get(..line.len().min(160))?).unwrap_or_else(|e| {
        // The path comes last and may hold anything.
        std::str::from_utf8(&line[..e.valid_up_to()]).unwrap_or_default()
    });
    let mut fields = line.split_ascii_whitespace().skip(1);
    let shared = fields.next()?.as_bytes().get(3) == Some(&b's');
    let inode = fields.nth(2)?.parse().ok()?;
    (shared && inode != 0).then_some(inode)
}

/// One process.
#[derive(Debug)]
struct Process {
    pid: Pid,
    parent: i32,
    name: String,
}

impl Process {
    /// All that descend from `first`, parents before their children.
    fn below(first: Pid) -> Result<Vec<Self>, StillError> {
        let mut of: HashMap<i32, Vec<Self>> = HashMap::new();
        let entries = std::fs::read_dir("/proc").map_err(|e| unreadable("/proc", e))?;
        for entry in entries {
            let name = entry.map_err(|e| unreadable("/proc", e))?.file_name();
            let Some(pid) = name.to_str().and_then(|n| n.parse().ok()).and_then(Pid::from_raw) else { continue };
            if let Some(process) = Self::read(pid)? {
                of.entry(process.parent).or_default().push(process);
            }
        }
        let mut found = of.remove(&raw(first)).unwrap_or_default();
        let mut next = 0;
        while let Some(process) = found.get(next) {
            found.extend(of.remove(&raw(process.pid)).unwrap_or_default());
            next += 1;
        }
        Ok(found)
    }

    fn named(&self) -> (i32, String) {
        (raw(self.pid), self.name.clone())
    }

    fn read(pid: Pid) -> Result<Option<Self>, StillError> {
        let path = format!("/proc/{}/stat", raw(pid));
        let Some(stat) = Stat::read(&path).map_err(|e| unreadable(&path, e))? else { return Ok(None) };
        Ok(Some(Self { pid, parent: stat.parent, name: stat.name }))
    }

    /// It was stopped before: the signal to stop is still pending. A debugger's stop is none that it would come out of by
    /// itself, so the signal has to be taken back there.
    fn was_stopped_before(&self) -> bool {
        let dir = format!("/proc/{}", raw(self.pid));
        let is_stopped = Stat::of(raw(self.pid)).is_some_and(|stat| stat.state == b'T');
        let status = std::fs::read_to_string(format!("{dir}/status")).unwrap_or_default();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
        let pending = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        is_stopped && pending & (1 << (libc::SIGSTOP - 1)) != 0
    }

    /// State and number of each thread.
    fn threads(&self) -> Result<Vec<(u8, i32)>, StillError> {
        let path = format!("/proc/{}/task", raw(self.pid));
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(e) if is_gone(&e) => return Ok(Vec::new()),
            Err(e) => return Err(unreadable(&path, e)),
        };
        let mut threads = Vec::new();
        for entry in entries {
            let entry = match entry {
                Err(e) if is_gone(&e) => break,
                entry => entry.map_err(|e| unreadable(&path, e))?,
            };
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let stat = format!("{path}/{name}/stat");
            if let (Some(stat), Ok(thread)) = (Stat::read(&stat).map_err(|e| unreadable(&stat, e))?, name.parse()) {
                threads.push((stat.state, thread));
            }
        }
        Ok(threads)
    }
}

/// A process that is not still.
fn restless(processes: &[Process]) -> Result<Option<&Process>, StillError> {
    for process in processes {
        for (state, thread) in process.threads()? {
            let still = match state {
                b'T' | b't' | b'Z' | b'X' => true,
                // It started a child that uses its memory until it executes a program, and waits for that.
                b'D' => lent_its_memory(processes, process.pid, thread)?,
                _ => false,
            };
            if !still {
                return Ok(Some(process));
            }
        }
    }
    Ok(None)
}

fn lent_its_memory(processes: &[Process], pid: Pid, thread: i32) -> Result<bool, StillError> {
    for child in processes.iter().filter(|p| p.parent == raw(pid)) {
        let stopped = child.threads()?.iter().all(|(state, _)| *state == b'T');
        if stopped && same_memory(thread, raw(child.pid)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn same_memory(a: i32, b: i32) -> bool {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: kcmp with this type reads its arguments only.
    unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_VM, 0, 0) == 0 }
}

fn raw(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

fn unreadable(what: &str, source: io::Error) -> StillError {
    StillError::Unreadable { what: what.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_mappings_of_files_are_told_from_others() {
        let line = |line: &str| shared_file(line.as_bytes());
        assert_eq!(line("7f1-7f2 rw-s 00000000 00:31 1234 /p/with spaces"), Some(1234));
        assert_eq!(line("7f1-7f2 r--s 00001000 00:31 99 /p"), Some(99));
        assert_eq!(line("7f1-7f2 rw-p 00000000 00:31 1234 /p"), None);
        assert_eq!(line("7f1-7f2 rw-s 00000000 00:00 0"), None);
        assert_eq!(shared_file(b"7f1-7f2 rw-s 00000000 00:31 12 /\xff\xfe"), Some(12));
        assert_eq!(shared_file(b""), None);
    }

    /// The test's own children stand for those of process 1.
    #[test]
    fn who_was_stopped_before_stays_so() {
        let spawn = || std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let (mut runs, mut rests) = (spawn(), spawn());
        let pid = |child: &std::process::Child| Pid::from_raw(child.id().cast_signed()).unwrap();
        let state = |child: &std::process::Child| Stat::of(raw(pid(child))).unwrap().state;
        let until = |child: &std::process::Child, wanted: u8| {
            let start = Instant::now();
            while state(child) != wanted {
                assert!(start.elapsed() < Duration::from_secs(10));
                std::thread::sleep(STEP);
            }
        };
        kill_process(pid(&rests), Signal::STOP).unwrap();
        until(&rests, b'T');
        for child in [&runs, &rests] {
            kill_process(pid(child), Signal::STOP).unwrap();
        }
        until(&runs, b'T');
        let own = rustix::process::getpid();
        let mine = |p: &Process| p.pid == pid(&runs) || p.pid == pid(&rests);
        let processes: Vec<Process> = Process::below(own).unwrap().into_iter().filter(mine).collect();
        assert_eq!(processes.len(), 2);
        assert!(restless(&processes).unwrap().is_none());
        let stopped = processes.iter().filter(|p| !p.was_stopped_before()).map(|p| p.pid).collect();
        drop(Still { first: own, stopped });
        until(&runs, b'S');
        assert_eq!(state(&rests), b'T');
        assert_eq!(restless(&processes).unwrap().map(|p| p.pid), Some(pid(&runs)));
        for child in [&mut runs, &mut rests] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
