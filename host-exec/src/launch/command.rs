//! The last steps of a process on its way to being the command.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal};
use nix::unistd::{ForkResult, Gid, Pid, Uid};
use pvisor_spec::CommandEnd;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use serde::{Deserialize, Serialize};

use super::channel::{Channel, Failed, Report, Step};
use super::terminal;
use crate::plan::Plan;

/// What became of the attempt to start the command.
pub(crate) enum Start {
    /// It runs.
    Running(Pid),
    /// It can't run.
    Ended(CommandEnd),
}

/// Forks and executes the command in a process group of its own. `mask`: the signal mask that it gets.
pub(crate) fn start(
    plan: &Plan,
    alone: bool,
    mask: &SigSet,
    foreground: bool,
    channel: &Channel,
) -> Result<Start, Failed> {
    let process = |errno| Failed { step: Step::Process, errno };
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| process(e.raw_os_error()))?;
    let exec = Exec::new(plan);
    // SAFETY: this process has one thread, so the child may do anything that this process may.
    match unsafe { nix::unistd::fork() }.map_err(|e| process(e as i32))? {
        ForkResult::Child => {
            drop(reader);
            let trouble = become_command(plan, alone, &exec, mask, foreground, channel);
            // The other side takes an unreadable answer for a death before the start.
            let mut bytes = [0; MAX_TROUBLE];
            if let Ok(bytes) = postcard::to_slice(&trouble, &mut bytes) {
                let _ = rustix::io::write(&writer, bytes);
            }
            exit_now(127)
        }
        ForkResult::Parent { child } => {
            drop(writer);
            // Whoever of the two is first; the loser's error is that it was done already.
            let _ = nix::unistd::setpgid(child, child);
            match read_trouble(&reader) {
                None => Ok(Start::Running(child)),
                Some(trouble) => {
                    let _ = nix::sys::wait::waitpid(child, None);
                    match trouble {
                        Trouble::NotFound => Ok(Start::Ended(CommandEnd::NotFound)),
                        Trouble::NotExecutable => Ok(Start::Ended(CommandEnd::NotExecutable)),
                        Trouble::Step(failed) => Err(failed),
                    }
                }
            }
        }
    }
}

/// Ends the process without running anything that belongs to the process it was forked from.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit does not return and touches nothing.
    unsafe { libc::_exit(code) }
}

/// Why a process did not become the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Trouble {
    NotFound,
    NotExecutable,
    Step(Failed),
}

/// Longest trouble, in bytes.
const MAX_TROUBLE: usize = 32;

/// What the child wrote; `None`: it became the command, which closed the pipe.
fn read_trouble(reader: &OwnedFd) -> Option<Trouble> {
    let mut bytes = [0; MAX_TROUBLE];
    loop {
        match rustix::io::read(reader, &mut bytes) {
            Err(Errno::INTR) => {}
            Ok(length) => return postcard::from_bytes(bytes.get(..length)?).ok(),
            Err(_) => return None,
        }
    }
}

fn become_command(
    plan: &Plan,
    alone: bool,
    exec: &Exec,
    mask: &SigSet,
    foreground: bool,
    channel: &Channel,
) -> Trouble {
    let step = |step, errno: nix::Error| Trouble::Step(Failed { step, errno: errno as i32 });
    if let Err(e) = nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0)) {
        return step(Step::Process, e);
    }
    if foreground {
        terminal::give_to(nix::unistd::getpid());
    }
    if let Err(e) = channel.send(&Report::Born, None) {
        return Trouble::Step(Failed { step: Step::Process, errno: e.raw_os_error() });
    }
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(plan.umask));
    if let Err(failed) = take_shape(plan, alone) {
        return Trouble::Step(failed);
    }
    if let Err(e) = reset_signals(mask) {
        return step(Step::Process, e);
    }
    exec.run()
}

/// Makes this process what the command is to be: its user, and everything it is held to. `alone`: without namespaces.
pub(super) fn take_shape(plan: &Plan, alone: bool) -> Result<(), Failed> {
    let restriction =
        |(which, errno): (_, Errno)| Failed { step: Step::Restriction(which), errno: errno.raw_os_error() };
    plan.restrictions.install_first().map_err(restriction)?;
    take_identity(plan).map_err(|e| Failed { step: Step::Identity, errno: e as i32 })?;
    plan.restrictions.install_last(alone).map_err(restriction)
}

fn take_identity(plan: &Plan) -> nix::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        // Checked when the plan was made: it is this user's own identity.
        return Ok(());
    }
    if !plan.keeps_groups() {
        let groups: Vec<Gid> = plan.groups.iter().map(|g| Gid::from_raw(*g)).collect();
        nix::unistd::setgroups(&groups)?;
    }
    let (uid, gid) = (Uid::from_raw(plan.uid), Gid::from_raw(plan.gid));
    nix::unistd::setresgid(gid, gid, gid)?;
    nix::unistd::setresuid(uid, uid, uid)
}

fn reset_signals(mask: &SigSet) -> nix::Result<()> {
    // The Rust runtime ignores it for itself; what the caller ignores stays ignored.
    // SAFETY: the default action is no function that could misbehave.
    unsafe { nix::sys::signal::signal(Signal::SIGPIPE, SigHandler::SigDfl) }?;
    nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(mask), None)
}

/// Arguments of `execve`, with the pointers that it wants.
struct Exec {
    programs: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
}

impl Exec {
    fn new(plan: &Plan) -> Self {
        Self { programs: plan.programs.clone(), argv: plan.argv.clone(), env: plan.env.clone() }
    }

    /// Tries the programs in order; returns why none was executed.
    fn run(&self) -> Trouble {
        let mut found = false;
        for program in &self.programs {
            let Err(error) = nix::unistd::execve(program, &self.argv, &self.env);
            match Errno::from_raw_os_error(error as i32) {
                Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::STALE => found |= is_there(program),
                // A directory of the search path that is closed to the user has no program for him; a file that is
                // not executable may have a namesake further on.
                Errno::ACCESS => found |= self.programs.len() == 1 || is_there(program),
                _ => return Trouble::NotExecutable,
            }
        }
        if found { Trouble::NotExecutable } else { Trouble::NotFound }
    }
}

/// Whether a program is there although it was not found: its interpreter is not.
fn is_there(program: &CStr) -> bool {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(program.to_bytes())).metadata().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::restrict::Restriction;

    #[test]
    fn trouble_fits() {
        for trouble in
            [Trouble::NotFound, Trouble::Step(Failed { step: Step::Restriction(Restriction::Filter), errno: i32::MIN })]
        {
            let mut bytes = [0; MAX_TROUBLE];
            let bytes = postcard::to_slice(&trouble, &mut bytes).unwrap();
            assert_eq!(postcard::from_bytes(bytes), Ok(trouble));
        }
    }
}
