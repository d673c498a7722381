//! The client against the real agent, and against guests that lie.

mod hostile;
mod real;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio as ProcessStdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pvisor_guest_agent::{Rehearsal, serve};
use pvisor_proto::Key;
use pvisor_spec::CommandSpec;

use super::{AgentClient, AgentError, Attachment, Stdio};

/// Tells the test program to be a guest.
const ROLE: &str = "PVISOR_TEST_GUEST";

/// What a silent guest is given before a test fails.
const PATIENCE: Duration = Duration::from_secs(120);

fn key() -> Key {
    Key::new([7; 32])
}

fn attachment() -> Attachment {
    Attachment { key: key(), handshake_timeout: PATIENCE, reply_timeout: PATIENCE }
}

/// Not a test: the process that the others start.
#[test]
#[ignore = "the guest's process, which the other tests start"]
fn guest_process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let port = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 10).unwrap();
    rustix::stdio::dup2_stdin(File::open("/dev/null").unwrap()).unwrap();
    serve(port, key(), &mut Rehearsal).unwrap();
    std::process::exit(0);
}

/// The real agent as process 1 of a PID namespace.
struct Guest {
    process: Child,
    port: UnixStream,
}

impl Guest {
    /// `None`, and a word why, where that can't be.
    fn boot() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!(
                "skipped: a guest without a machine needs a PID namespace and may change users, so it needs root"
            );
            return None;
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        let process = Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--uts", "--"])
            .arg(std::env::current_exe().unwrap())
            .args(["agent::tests::guest_process", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, "1")
            .stdin(ProcessStdio::from(OwnedFd::from(theirs)))
            .stdout(ProcessStdio::null())
            .spawn()
            .expect("unshare (util-linux) is needed");
        Some(Self { process, port: ours })
    }

    fn connect(&self, attachment: &Attachment) -> Result<AgentClient, AgentError> {
        AgentClient::connect(self.port.try_clone().unwrap(), self.port.try_clone().unwrap(), attachment)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn command(argv: &[&str]) -> CommandSpec {
    CommandSpec {
        argv: argv.iter().map(|&a| a.into()).collect(),
        env: vec![format!("PATH={}", std::env::var("PATH").unwrap()).as_str().into()],
        cwd: "/".into(),
        uid: 0,
        gid: 0,
        groups: vec![],
        umask: 0o022,
        tty: false,
    }
}

fn sh(script: &str) -> CommandSpec {
    command(&["sh", "-c", script])
}

/// The other ends of a command's streams.
struct Ends {
    stdin: File,
    stdout: File,
    stderr: File,
}

fn pipes() -> (Stdio, Ends) {
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let ((stdin, stdin_end), (stdout_end, stdout), (stderr_end, stderr)) = (pipe(), pipe(), pipe());
    let ends = Ends { stdin: stdin_end.into(), stdout: stdout_end.into(), stderr: stderr_end.into() };
    (Stdio { stdin, stdout, stderr }, ends)
}

fn read_all(mut file: File) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        file.read_to_end(&mut all).unwrap();
        all
    })
}

fn write_all(mut file: File, data: Vec<u8>) -> JoinHandle<()> {
    // A command that does not want all of it is no error.
    thread::spawn(move || drop(file.write_all(&data)))
}
