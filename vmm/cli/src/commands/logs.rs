//! `pvisor logs`.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use pvisor_host_exec::{FLOW_LOG, FlowLine};
use pvisor_spec::{ExecutorKind, ExitCode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::surroundings;
use crate::args::LogsArgs;
use crate::report::{Failure, answer, plain, plain_path};
use crate::runs::{Run, Store};

/// Most that is held at once, in bytes; longer lines are cut into several.
const BLOCK: usize = 64 << 10;
/// Time between two looks at a log that grows.
const PAUSE: Duration = Duration::from_millis(200);

pub(super) fn logs(args: &LogsArgs) -> Result<u8, Failure> {
    let (ambient, store) = surroundings()?;
    let run = store.find(&args.run, &ambient.cwd)?;
    let path = if args.network { run.dir.join(FLOW_LOG) } else { run.console_log() };
    if !args.network
        // What was in the log before it became too long for one file.
        && let Ok(older) = File::open(path.with_extension("log.old"))
    {
        let mut show = Show::console();
        answer(|out| show.all(older, out))?;
    }
    let Some(mut log) = open(&path, &run, &store, args)? else { return Err(nothing_there(&run, args)) };
    let start = run.record.started_ms;
    let mut show = if args.network { Show::network(start, args.json) } else { Show::console() };
    loop {
        // Looked at before the log is read, so that nothing written until the end is missed.
        let live = args.follow && store.read(run.id)?.is_live();
        answer(|out| show.rest(&mut log, out))?;
        if !live || reader_left() {
            answer(|out| show.end(out))?;
            return Ok(ExitCode::OK);
        }
        thread::sleep(PAUSE);
    }
}

/// Whether nobody reads what is printed any more.
fn reader_left() -> bool {
    let stdout = io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}

/// The log; waits for it where the person wants to follow a run that has none yet.
fn open(path: &Path, run: &Run, store: &Store, args: &LogsArgs) -> Result<Option<File>, Failure> {
    loop {
        match File::open(path) {
            Ok(log) => return Ok(Some(log)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(Failure::new("no_log", format!("can't read {}: {e}", plain_path(path)))),
        }
        if !args.follow || !store.read(run.id)?.is_live() {
            return Ok(None);
        }
        thread::sleep(PAUSE);
    }
}

fn nothing_there(run: &Run, args: &LogsArgs) -> Failure {
    if args.network {
        let failure = Failure::new("no_log", format!("{} has no log of its network", run.id));
        return failure.hint("there is one where the command had a network of its own: in a VM, or under a policy");
    }
    let failure = Failure::new("no_log", format!("{} has no console log", run.id));
    match run.record.spec.executor == Some(ExecutorKind::Krun) {
        true => failure.hint("its guest did not get as far as to say something"),
        false => failure.hint("only guests have a console; the command's own output went where pvisor's did"),
    }
}

/// How a log is printed.
enum Show {
    /// As it is into a file or a pipe; on a terminal without what would drive it, for a guest may say anything.
    Console { raw: bool, pending: Vec<u8> },
    /// A line of words for each event, after the time since `start`, or the events as they are.
    Network { start: u64, json: bool, pending: Vec<u8> },
}

impl Show {
    fn console() -> Self {
        Self::Console { raw: !io::stdout().is_terminal(), pending: Vec::new() }
    }

    fn network(start: u64, json: bool) -> Self {
        Self::Network { start, json, pending: Vec::new() }
    }

    fn all(&mut self, mut log: File, out: &mut dyn Write) -> io::Result<()> {
        self.rest(&mut log, out)?;
        self.end(out)
    }

    /// What has been added.
    fn rest(&mut self, log: &mut File, out: &mut dyn Write) -> io::Result<()> {
        let mut block = vec![0; BLOCK];
        loop {
            let length = log.read(&mut block)?;
            if length == 0 {
                return Ok(());
            }
            self.add(&block[..length], out)?;
        }
    }

    fn add(&mut self, bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
        if let Self::Console { raw: true, .. } = self {
            return out.write_all(bytes);
        }
        self.pending().extend_from_slice(bytes);
        while let Some(end) = self.pending().iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.pending().drain(..=end).collect();
            self.line(&line, out)?;
        }
        if self.pending().len() >= BLOCK { self.end(out) } else { Ok(()) }
    }

    /// A last line without an end.
    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let line = std::mem::take(self.pending());
        if line.is_empty() { Ok(()) } else { self.line(&line, out) }
    }

    fn pending(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Console { pending, .. } | Self::Network { pending, .. } => pending,
        }
    }

    fn line(&self, line: &[u8], out: &mut dyn Write) -> io::Result<()> {
        let text = String::from_utf8_lossy(line);
        match self {
            Self::Console { .. } => out.write_all(plain(&text.replace("\r\n", "\n")).as_bytes()),
            // Only what is an event of ours is passed on: a run that was killed may have left half of one.
            Self::Network { start, json, .. } => match serde_json::from_str::<FlowLine>(&text) {
                Ok(event) if *json => writeln!(out, "{}", serde_json::to_string(&event)?),
                Ok(event) => {
                    let since = event.time_ms.saturating_sub(*start);
                    writeln!(out, "{:>5}.{:03} {}", since / 1000, since % 1000, plain(&event.to_string()))
                }
                Err(_) => Ok(()),
            },
        }
    }
}
