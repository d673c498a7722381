//! Starting the command: everything is prepared before the fork, so that the child only makes system calls.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;

use pvisor_proto::{Bytes, Rlimit, Start, StartFailed, WindowSize};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::system::{failure, last_errno};

/// Where programs are looked up without a `PATH`.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

/// A started command and this side of its streams, all of them non-blocking.
pub struct Spawned {
    /// Its process, leader of a session and a process group of its own.
    pub pid: Pid,
    /// Takes standard input.
    pub stdin: OwnedFd,
    /// Gives standard output, or all output of the terminal.
    pub stdout: OwnedFd,
    /// Gives standard error; `None`: a terminal has it all.
    pub stderr: Option<OwnedFd>,
}

/// What the child does between fork and exec.
#[derive(Clone, Copy)]
#[repr(i32)]
enum Step {
    Session,
    Descriptors,
    Terminal,
    Limits,
    User,
    Directory,
    Program,
    Interpreter,
}

impl Step {
    const ALL: [Self; 8] = [
        Self::Session,
        Self::Descriptors,
        Self::Terminal,
        Self::Limits,
        Self::User,
        Self::Directory,
        Self::Program,
        Self::Interpreter,
    ];

    fn what(self) -> &'static str {
        match self {
            Self::Session => "new session",
            Self::Descriptors => "standard descriptors",
            Self::Terminal => "terminal",
            Self::Limits => "resource limits",
            Self::User => "user and groups",
            Self::Directory => "working directory",
            Self::Program => "program",
            Self::Interpreter => "interpreter",
        }
    }
}

/// Starts a command.
///
/// # Errors
/// There is no such program, it can't be executed, or a step before it failed.
pub fn spawn(start: &Start) -> Result<Spawned, StartFailed> {
    let mut plan = Plan::new(start)?;
    let (ours, theirs) = streams(start).map_err(|e| other(e, "streams"))?;
    let (status, report) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| other(e, "streams"))?;
    plan.descriptors = theirs.raw();
    plan.report = report.as_raw_fd();
    // SAFETY: this process has one thread (in tests the others hold no lock that the child takes), and the child only
    // makes system calls on what `plan` has prepared before it ends or becomes another program.
    let pid = match unsafe { libc::fork() } {
        -1 => return Err(other(last_errno(), "process")),
        0 => plan.run(),
        pid => pid,
    };
    let pid = Pid::from_raw(pid).ok_or_else(|| other(Errno::SRCH, "process"))?;
    drop((theirs, report));
    match read_failure(&status) {
        None => Ok(Spawned { pid, stdin: ours.stdin, stdout: ours.stdout, stderr: ours.stderr }),
        Some((step, errno)) => Err(explain(step, errno)),
    }
}

/// What the child said before it gave up; `None`: the command runs.
fn read_failure(status: &OwnedFd) -> Option<(Step, Errno)> {
    let mut said = [0; 8];
    let mut length = 0;
    while length < said.len() {
        match read(status, &mut said[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    if length < said.len() {
        return None;
    }
    let [a, b, c, d, e, f, g, h] = said;
    let step = usize::try_from(i32::from_ne_bytes([a, b, c, d])).ok();
    let step = step.and_then(|s| Step::ALL.get(s)).copied().unwrap_or(Step::Program);
    Some((step, Errno::from_raw_os_error(i32::from_ne_bytes([e, f, g, h]))))
}

struct Ours {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
}

enum Theirs {
    Pipes(OwnedFd, OwnedFd, OwnedFd),
    Terminal(OwnedFd),
}

impl Theirs {
    fn raw(&self) -> [RawFd; 3] {
        match self {
            Self::Pipes(stdin, stdout, stderr) => [stdin.as_raw_fd(), stdout.as_raw_fd(), stderr.as_raw_fd()],
            Self::Terminal(slave) => [slave.as_raw_fd(); 3],
        }
    }
}

fn streams(start: &Start) -> Result<(Ours, Theirs), Errno> {
    if let Some(size) = start.tty {
        let (master, slave) = terminal(size, start.uid)?;
        let stdin = master.try_clone().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::MFILE))?;
        return Ok((Ours { stdin, stdout: master, stderr: None }, Theirs::Terminal(slave)));
    }
    let (stdin_read, stdin) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stdout, stdout_write) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr, stderr_write) = pipe_with(PipeFlags::CLOEXEC)?;
    for fd in [&stdin, &stdout, &stderr] {
        set_nonblocking(fd)?;
    }
    let owner = rustix::process::Uid::from_raw(start.uid);
    for fd in [&stdin_read, &stdout_write, &stderr_write] {
        // So that the command may open its own /dev/stdin and /dev/stderr. Pipes of the own process can always be
        // handed on; where they can't be, only that is lost.
        let _ = rustix::fs::fchown(fd, Some(owner), None);
    }
    Ok((Ours { stdin, stdout, stderr: Some(stderr) }, Theirs::Pipes(stdin_read, stdout_write, stderr_write)))
}

/// A new terminal that belongs to the user: the side of this process and that of the command.
fn terminal(size: WindowSize, uid: u32) -> Result<(OwnedFd, OwnedFd), Errno> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    resize(&master, size)?;
    rustix::fs::fchown(&slave, Some(rustix::process::Uid::from_raw(uid)), None)?;
    set_nonblocking(&master)?;
    Ok((master, slave))
}

/// Sets the size of a terminal.
pub fn resize(terminal: &OwnedFd, size: WindowSize) -> Result<(), Errno> {
    tcsetwinsize(terminal, Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 })
}

fn set_nonblocking(fd: &OwnedFd) -> Result<(), Errno> {
    fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)
}

/// Everything that the child needs, in the form that system calls take.
struct Plan {
    programs: Vec<CString>,
    /// Whether a `PATH` was searched.
    searched: bool,
    cwd: CString,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    umask: u32,
    rlimits: Vec<Rlimit>,
    terminal: bool,
    /// Arguments with a free place before them: a script without `#!` is run as `/bin/sh script arguments`.
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    descriptors: [RawFd; 3],
    report: RawFd,
    /// What `argv` and `env` point to.
    _strings: Vec<CString>,
}

impl Plan {
    fn new(start: &Start) -> Result<Self, StartFailed> {
        let invalid = |what: &str| other(Errno::INVAL, what);
        let program = start.argv.first().ok_or_else(|| invalid("empty command"))?;
        if !start.cwd.0.starts_with(b"/") {
            return Err(invalid("working directory is not absolute"));
        }
        let mut strings = Vec::with_capacity(start.argv.len() + start.env.len());
        let mut argv = vec![ptr::null()];
        argv.extend(pointers(&start.argv, &mut strings).ok_or_else(|| invalid("zero byte in an argument"))?);
        let mut env = Vec::new();
        env.extend(pointers(&start.env, &mut strings).ok_or_else(|| invalid("zero byte in the environment"))?);
        let searched = !program.0.contains(&b'/');
        let programs = candidates(&program.0, &start.env).ok_or_else(|| invalid("zero byte in PATH"))?;
        let cwd = CString::new(start.cwd.0.clone()).map_err(|_| invalid("zero byte in the working directory"))?;
        Ok(Self {
            programs,
            searched,
            cwd,
            uid: start.uid,
            gid: start.gid,
            groups: start.groups.clone(),
            umask: start.umask,
            rlimits: start.rlimits.clone(),
            terminal: start.tty.is_some(),
            argv,
            env,
            descriptors: [-1; 3],
            report: -1,
            _strings: strings,
        })
    }

    /// The child's part: never returns. Allocates nothing.
    fn run(&mut self) -> ! {
        let (step, errno) = self.become_command();
        let mut said = [0; 8];
        said[..4].copy_from_slice(&(step as i32).to_ne_bytes());
        said[4..].copy_from_slice(&errno.raw_os_error().to_ne_bytes());
        // SAFETY: the bytes outlive the call; `_exit` runs nothing of this process.
        unsafe {
            libc::write(self.report, said.as_ptr().cast(), said.len());
            libc::_exit(127)
        }
    }

    /// Becomes the command; what it returns is why not.
    fn become_command(&mut self) -> (Step, Errno) {
        match self.prepare() {
            Ok(()) => self.execute(),
            Err(step) => (step, last_errno()),
        }
    }

    /// Takes on everything that the command inherits. On an error, `errno` says why.
    fn prepare(&self) -> Result<(), Step> {
        let check = |result: libc::c_long, step: Step| if result < 0 { Err(step) } else { Ok(()) };
        // SAFETY: system calls on numbers and on memory that `self` owns. User and groups are set by raw system calls:
        // the C library's wrappers would signal threads that a forked child does not have.
        unsafe {
            check(libc::setsid().into(), Step::Session)?;
            for (to, from) in self.descriptors.iter().enumerate() {
                check(libc::dup2(*from, to as RawFd).into(), Step::Descriptors)?;
            }
            if self.terminal {
                check(libc::ioctl(0, libc::TIOCSCTTY, 0).into(), Step::Terminal)?;
            }
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            reset_signals();
            reset_oom_score();
            for limit in &self.rlimits {
                let value = libc::rlimit64 { rlim_cur: limit.soft, rlim_max: limit.hard };
                let none = ptr::null_mut::<libc::rlimit64>();
                let result = libc::syscall(libc::SYS_prlimit64, 0, libc::c_uint::from(limit.resource), &value, none);
                check(result, Step::Limits)?;
            }
            check(libc::syscall(libc::SYS_setgroups, self.groups.len(), self.groups.as_ptr()), Step::User)?;
            check(libc::syscall(libc::SYS_setresgid, self.gid, self.gid, self.gid), Step::User)?;
            check(libc::syscall(libc::SYS_setresuid, self.uid, self.uid, self.uid), Step::User)?;
            libc::umask(self.umask & 0o777);
            check(libc::chdir(self.cwd.as_ptr()).into(), Step::Directory)
        }
    }

    /// Tries the programs in turn, as `execvp` does.
    fn execute(&mut self) -> (Step, Errno) {
        const SHELL: &CStr = c"/bin/sh";
        let Self { programs, argv, env, searched, .. } = self;
        // SAFETY: a C string. What this user can't see, as in a directory closed to them, is not there for them.
        let is_seen = |program: &CStr| unsafe { libc::access(program.as_ptr(), libc::F_OK) } == 0;
        let mut failed = (Step::Program, Errno::NOENT);
        for program in programs.iter() {
            let [shell, arguments @ ..] = argv.as_mut_slice() else { break };
            // SAFETY: `program` is a C string; `arguments` and `env` are arrays of pointers to C strings in `_strings`
            // that end with a null pointer.
            unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), env.as_ptr()) };
            match last_errno() {
                Errno::NOENT if is_seen(program) => failed = (Step::Interpreter, Errno::NOENT),
                Errno::NOENT | Errno::NOTDIR => {}
                Errno::ACCESS if *searched => {
                    if is_seen(program) {
                        failed = (Step::Program, Errno::ACCESS);
                    }
                }
                Errno::NOEXEC => {
                    // Text that does not say what runs it: the script takes the place of argv[0].
                    *shell = SHELL.as_ptr();
                    if let Some(first) = arguments.first_mut() {
                        *first = program.as_ptr();
                    }
                    // SAFETY: as above; the array now begins with the shell.
                    unsafe { libc::execve(SHELL.as_ptr(), argv.as_ptr(), env.as_ptr()) };
                    return (Step::Program, Errno::NOEXEC);
                }
                other => return (Step::Program, other),
            }
        }
        failed
    }
}

/// What the child's last words mean.
fn explain(step: Step, errno: Errno) -> StartFailed {
    match (step, errno) {
        (Step::Program, Errno::NOENT | Errno::NOTDIR) => StartFailed::NotFound,
        (Step::Interpreter, _)
        | (
            Step::Program,
            Errno::ACCESS | Errno::PERM | Errno::NOEXEC | Errno::ISDIR | Errno::TXTBSY | Errno::LIBBAD | Errno::INVAL,
        ) => StartFailed::NotExecutable(errno.raw_os_error()),
        _ => other(errno, step.what()),
    }
}

/// Pointers to C strings that are added to `strings`, and a null pointer. `None`: a string has a zero byte.
fn pointers(list: &[Bytes], strings: &mut Vec<CString>) -> Option<Vec<*const libc::c_char>> {
    let mut pointers = Vec::with_capacity(list.len() + 1);
    for bytes in list {
        let string = CString::new(bytes.0.clone()).ok()?;
        // The heap block stays where it is when the CString moves into the list.
        pointers.push(string.as_ptr());
        strings.push(string);
    }
    pointers.push(ptr::null());
    Some(pointers)
}

/// The files that a program's name may mean. `None`: a zero byte in `PATH`.
fn candidates(program: &[u8], env: &[Bytes]) -> Option<Vec<CString>> {
    if program.contains(&b'/') {
        return Some(vec![CString::new(program).ok()?]);
    }
    if program.is_empty() {
        return Some(Vec::new());
    }
    let path = env.iter().find_map(|v| v.0.strip_prefix(b"PATH=")).unwrap_or(DEFAULT_PATH);
    let file = |dir: &[u8]| {
        let dir = if dir.is_empty() { b"." } else { dir };
        CString::new([dir, b"/", program].concat()).ok()
    };
    path.split(|&c| c == b':').map(file).collect()
}

/// Gives every signal its default action and unblocks them all.
///
/// # Safety
/// Only in a child that is about to become another program.
unsafe fn reset_signals() {
    // The kernel's own structure and call: the C library refuses the two signals that it keeps for itself, and those
    // can be inherited as ignored too.
    let default = [0u64; 4];
    // SAFETY: zeroed, the kernel's sigaction is the default action, and no longer than the array; the set is as long
    // as said. SIGKILL and SIGSTOP are refused, which changes nothing.
    unsafe {
        for signal in 1..=64 {
            let none = ptr::null_mut::<u64>();
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), none, size_of::<u64>());
        }
        let none = ptr::null_mut::<u64>();
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, default.as_ptr(), none, size_of::<u64>());
    }
}

/// The agent is spared when memory runs out; the command is not.
///
/// # Safety
/// Only in a child that is about to become another program.
unsafe fn reset_oom_score() {
    // SAFETY: system calls on constants and on a descriptor of this function. Without /proc there is nothing to reset.
    unsafe {
        let fd = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if fd >= 0 {
            libc::write(fd, c"0".as_ptr().cast(), 1);
            libc::close(fd);
        }
    }
}

fn other(errno: Errno, what: &str) -> StartFailed {
    StartFailed::Other(failure(errno, what))
}
