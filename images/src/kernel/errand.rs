//! Running one program of a build: its output read line by line, itself and all it started ended on request.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, PipeReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::KernelError;

/// A longer line is taken for several.
const MAX_LINE: u64 = 4096;
/// Bytes of output that are kept in the log.
const MAX_LOG: u64 = 64 << 20;
/// Lines in an error message.
const TAIL: usize = 20;
/// How often a request to end is looked for.
const TICK: Duration = Duration::from_millis(100);
/// Time between the polite signal and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);

/// What a program needs to know of the build around it.
pub(super) struct Errand<'a> {
    /// What failed, when it fails.
    pub(super) step: &'static str,
    /// Where all output is appended.
    pub(super) log: &'a Path,
    /// Set: end it.
    pub(super) cancel: &'a AtomicBool,
}

impl Errand<'_> {
    /// Runs it to its end; `each` sees every line. Standard input is the caller's choice.
    pub(super) fn run(&self, mut command: Command, each: &mut dyn FnMut(&str)) -> Result<(), KernelError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let cannot_run = |source| KernelError::Run { program: program.clone(), source };
        let (reader, writer) = io::pipe().map_err(cannot_run)?;
        command.stdout(writer.try_clone().map_err(cannot_run)?).stderr(writer).process_group(0);
        let mut group = Group { leader: command.spawn().map_err(cannot_run)?, reaped: false };
        // It holds the pipe's other end.
        drop(command);
        let tail = self.relay(&lines(reader), each)?;
        if self.cancel.load(Ordering::Relaxed) {
            group.end();
            return Err(KernelError::Cancelled);
        }
        let status = group.wait().map_err(cannot_run)?;
        if status.success() { Ok(()) } else { Err(self.failed(status, &tail)) }
    }

    /// Passes lines on until there are no more or the build is to end; returns the last ones.
    fn relay(&self, lines: &Receiver<String>, each: &mut dyn FnMut(&str)) -> Result<VecDeque<String>, KernelError> {
        let opened = File::options().append(true).create(true).open(self.log);
        let mut log = opened.map_err(KernelError::io("open", self.log))?;
        let mut room = MAX_LOG;
        let mut tail = VecDeque::with_capacity(TAIL);
        while !self.cancel.load(Ordering::Relaxed) {
            match lines.recv_timeout(TICK) {
                Ok(line) => {
                    if let Some(rest) = room.checked_sub(line.len() as u64 + 1) {
                        room = rest;
                        writeln!(log, "{line}").map_err(KernelError::io("write", self.log))?;
                    }
                    each(&line);
                    if tail.len() == TAIL {
                        tail.pop_front();
                    }
                    tail.push_back(line);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(tail)
    }

    fn failed(&self, status: ExitStatus, tail: &VecDeque<String>) -> KernelError {
        let tail = tail.iter().map(|l| format!("  {l}")).collect::<Vec<_>>().join("\n");
        KernelError::Step { step: self.step, status: status.to_string(), tail, log: self.log.to_owned() }
    }
}

/// Reads lines in a thread of its own, so that a silent program can still be ended.
fn lines(reader: PipeReader) -> Receiver<String> {
    let (sender, receiver) = sync_channel(1024);
    thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while matches!(reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line), Ok(n) if n > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if sender.send(text).is_err() {
                break;
            }
        }
    });
    receiver
}

/// A program and all that it started. None of it survives this value.
struct Group {
    leader: Child,
    /// Its number may belong to somebody else by now.
    reaped: bool,
}

impl Group {
    fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.leader.wait()?;
        self.reaped = true;
        Ok(status)
    }

    fn signal(&self, signal: Signal) {
        // Nothing to do where the group is gone already.
        let _ = kill_process_group(Pid::from_child(&self.leader), signal);
    }

    /// Asks politely; what is still there after that ends with this value.
    fn end(self) {
        self.signal(Signal::TERM);
        let leader = WaitId::Pid(Pid::from_child(&self.leader));
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let start = Instant::now();
        while start.elapsed() < GRACE && matches!(waitid(leader.clone(), options), Ok(None)) {
            thread::sleep(TICK / 10);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.reaped {
            self.signal(Signal::KILL);
            let _ = self.leader.wait();
        }
    }
}
