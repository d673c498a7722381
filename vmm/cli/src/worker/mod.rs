//! The worker: this program in a process of its own, which carries out one run and nothing else.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::signal::{SigSet, Signal as NamedSignal};
use pvisor_spec::{ExecutorKind, WorkerEvent, WorkerFailure, WorkerJob};
use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal};

use crate::args::WorkerArgs;
use crate::report::chain;
use crate::select;
use crate::supervisor::MAX_LINE;

/// Largest job in bytes: an environment of a few MiB, every byte of it escaped, still fits.
const MAX_JOB: u64 = 32 << 20;

/// Why there is nothing to work on.
#[derive(Debug, thiserror::Error)]
enum JobError {
    #[error("can't open descriptor {fd}")]
    Open { fd: i32, source: io::Error },
    #[error("can't close the descriptors of others")]
    Close(#[source] io::Error),
    #[error("can't be made to end with the supervisor")]
    Bind(#[source] rustix::io::Errno),
    #[error("can't set the signal mask")]
    Mask(#[source] nix::Error),
    #[error("the supervisor is gone")]
    Orphan,
    #[error("can't read the job")]
    Read(#[source] io::Error),
    #[error("the job is over {MAX_JOB} bytes long")]
    TooLong,
    #[error("the job is not understood")]
    Malformed(#[source] serde_json::Error),
}

/// Carries out the job on the given descriptors; the exit code says only whether that could be reported.
pub(crate) fn work(args: &WorkerArgs) -> u8 {
    let (job, events) = match bind(args).and_then(|()| open_pipes(args)) {
        Ok(pipes) => pipes,
        Err(e) => {
            crate::report::say(&format!("error: the worker can't start: {}", chain(&e)));
            return pvisor_spec::ExitCode::FAILED;
        }
    };
    let events = Arc::new(Mutex::new(events));
    let last_word = match read_job(job) {
        Ok((job, answers)) => carry_out(job, answers, &events),
        Err(e) => WorkerEvent::Failed(internal(chain(&e))),
    };
    report(&events, &last_word);
    pvisor_spec::ExitCode::OK
}

fn carry_out(job: WorkerJob, answers: OwnedFd, events: &Arc<Mutex<File>>) -> WorkerEvent {
    let Some(kind) = job.spec.executor else {
        return WorkerEvent::Failed(internal("no executor was selected".to_owned()));
    };
    if kind == ExecutorKind::Krun
        && let Err(e) = set_dumpable_behavior(DumpableBehavior::NotDumpable)
    {
        // The guest's memory must not be read by other processes of the same user.
        return WorkerEvent::Failed(internal(format!("can't hide the worker's memory: {e}")));
    }
    let executor = match select::executor(kind, job.spec.force_slow_kvm, Some(answers)) {
        Ok(executor) => executor,
        Err(refusal) => {
            let kind = "executor".to_owned();
            return WorkerEvent::Failed(WorkerFailure { kind, message: refusal.reason, hint: refusal.hint });
        }
    };
    let sink = Arc::clone(events);
    match executor.work(job, Arc::new(move |event| report(&sink, &event))) {
        Ok(end) => WorkerEvent::Ended(end),
        Err(failure) => WorkerEvent::Failed(failure),
    }
}

/// Sends one event. Where the supervisor is gone nobody is told: this process is about to die of it.
fn report(events: &Mutex<File>, event: &WorkerEvent) {
    let Ok(mut line) = serde_json::to_vec(event) else { return };
    line.push(b'\n');
    if line.len() > MAX_LINE {
        let failure = internal("an event was too long to report".to_owned());
        return report(events, &WorkerEvent::Failed(failure));
    }
    // One write under the lock, so that lines of several threads don't mix.
    let _ = events.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line);
}

fn internal(message: String) -> WorkerFailure {
    WorkerFailure { kind: "internal".to_owned(), message, hint: String::new() }
}

/// Makes this process end with its supervisor, and hear signals as the supervisor's caller would. First of all: even opening a pipe waits for the other side.
fn bind(args: &WorkerArgs) -> Result<(), JobError> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(JobError::Bind)?;
    // It may have died before that call.
    if rustix::process::getppid().map(|p| p.as_raw_nonzero().get()) != Some(args.supervisor) {
        return Err(JobError::Orphan);
    }
    let mut mask = SigSet::empty();
    for number in &args.blocked {
        mask.add(NamedSignal::try_from(*number).map_err(JobError::Mask)?);
    }
    mask.thread_set_mask().map_err(JobError::Mask)
}

/// Opens both pipes anew, so that they are closed on exec, and closes every descriptor that was inherited but the
/// three standard streams.
fn open_pipes(args: &WorkerArgs) -> Result<(File, File), JobError> {
    let path = |fd: i32| format!("/proc/self/fd/{fd}");
    let job = File::open(path(args.job)).map_err(|source| JobError::Open { fd: args.job, source })?;
    let events = File::options().write(true).open(path(args.events));
    let events = events.map_err(|source| JobError::Open { fd: args.events, source })?;
    close_inherited().map_err(JobError::Close)?;
    Ok((job, events))
}

/// Whatever this process has opened itself is closed on exec; what is not so marked was inherited.
fn close_inherited() -> io::Result<()> {
    let open: Vec<i32> =
        fs::read_dir("/proc/self/fd")?.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}"));
        // Gone already: the descriptor of the directory listing itself.
        let Ok(info) = info else { continue };
        if !closed_on_exec(&info) {
            let _ = nix::unistd::close(fd);
        }
    }
    Ok(())
}

/// Whether the `flags` line of a descriptor's `fdinfo`, in octal, has `O_CLOEXEC`.
fn closed_on_exec(info: &str) -> bool {
    let flags = info.lines().find_map(|l| l.strip_prefix("flags:")).map(str::trim);
    let flags = flags.and_then(|f| u32::from_str_radix(f, 8).ok()).unwrap_or_default();
    flags & rustix::fs::OFlags::CLOEXEC.bits() != 0
}

/// The job: the first line. Answers come after questions, so nothing of them can be there yet; they are read from what
/// this returns.
fn read_job(pipe: File) -> Result<(WorkerJob, OwnedFd), JobError> {
    let mut json = Vec::new();
    let mut lines = BufReader::new(pipe).take(MAX_JOB + 1);
    lines.read_until(b'\n', &mut json).map_err(JobError::Read)?;
    if json.len() as u64 > MAX_JOB {
        return Err(JobError::TooLong);
    }
    let job = serde_json::from_slice(&json).map_err(JobError::Malformed)?;
    Ok((job, lines.into_inner().into_inner().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_is_read_from_octal() {
        assert!(closed_on_exec("pos:\t0\nflags:\t02000000\nmnt_id:\t1\n"));
        assert!(!closed_on_exec("pos:\t0\nflags:\t0100002\n"));
        assert!(!closed_on_exec(""));
    }
}
