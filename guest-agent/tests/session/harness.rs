//! A guest without a machine, and a host that only speaks the protocol.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pvisor_guest_agent::{Ended, Rehearsal, System, serve};
use pvisor_proto::{
    Bytes, Decoder, End, Grant, Hello, Key, MINOR, Output, Start, StartFailed, ToGuest, ToHost, WINDOW, Window, encode,
    host_proof,
};

/// Tells the test program to be a guest; the value is the [`Role`].
const ROLE: &str = "PVISOR_TEST_GUEST";

/// What a silent guest is given before a test fails.
const PATIENCE: Duration = Duration::from_secs(120);

pub const KEY: [u8; 32] = [7; 32];

/// What the machine under the session is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Mounts, clock and sync do nothing.
    Rehearsal,
    /// Mounts are carried out, with the host's directories under the tags.
    Mounts,
}

/// Not a test: the process that the others start.
#[test]
#[ignore = "the guest's process, which the other tests start"]
fn guest_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut system: Box<dyn System> = match role.as_str() {
        "Mounts" => Box::new(super::root::Bound),
        _ => Box::new(Rehearsal),
    };
    let port = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 10).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    rustix::stdio::dup2_stdin(&null).unwrap();
    let ended = serve(port, Key::new(KEY), system.as_mut()).unwrap();
    std::process::exit(match ended {
        Ended::Shutdown => 0,
        Ended::HostGone(_) => 10,
        Ended::Protocol(_) => 11,
        Ended::Refused(_) => 12,
    });
}

/// Whether sessions can run here; says so where they can't.
pub fn possible() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: a session needs a PID namespace and may change users, so it needs root");
    }
    root
}

/// A running session.
pub struct Guest {
    pub process: Child,
    port: UnixStream,
    decoder: Decoder,
    id: u64,
}

/// What became of a command.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub end: Option<End>,
    pub stdin_closed: bool,
}

impl Outcome {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

impl Guest {
    /// A guest that has heard nothing yet.
    pub fn unborn(role: Role) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        let process = Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--uts", "--"])
            .arg(std::env::current_exe().unwrap())
            .args(["harness::guest_process", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{role:?}"))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .expect("unshare (util-linux) is needed");
        Self { process, port: ours, decoder: Decoder::new(), id: 0 }
    }

    /// A guest after the handshake.
    pub fn boot() -> Self {
        Self::boot_as(Role::Rehearsal)
    }

    pub fn boot_as(role: Role) -> Self {
        let mut guest = Self::unborn(role);
        let reply = guest.hello(Key::new(KEY), Key::new([8; 32]));
        assert!(matches!(reply, ToHost::Welcome(_)), "{reply:?}");
        guest
    }

    pub fn hello(&mut self, key: Key, next_key: Key) -> ToHost {
        let challenge = [3; 32];
        let proof = host_proof(&key, &challenge);
        self.ask(&ToGuest::Hello(Hello { minor: MINOR, challenge, proof, next_key }))
    }

    pub fn send(&mut self, id: u64, message: &ToGuest) {
        let mut frame = Vec::new();
        encode(id, message, &mut frame).unwrap();
        self.send_raw(&frame);
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.port.write_all(bytes).unwrap();
    }

    /// The next message; `None`: the guest closed the port.
    pub fn next(&mut self) -> Option<(u64, ToHost)> {
        let mut buffer = vec![0; 65536];
        loop {
            if let Some(message) = self.decoder.next().unwrap() {
                return Some(message);
            }
            match self.port.read(&mut buffer) {
                Ok(0) => return None,
                Ok(length) => self.decoder.feed(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("the guest says nothing: {error}"),
            }
        }
    }

    /// Whether the guest says nothing for this long.
    pub fn is_silent(&mut self, time: Duration) -> bool {
        if let Some(message) = self.decoder.next::<ToHost>().unwrap() {
            eprintln!("not silent: {message:?}");
            return false;
        }
        self.port.set_read_timeout(Some(time)).unwrap();
        let result = self.port.read(&mut [0; 1]);
        self.port.set_read_timeout(Some(PATIENCE)).unwrap();
        matches!(result, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    pub fn fresh_id(&mut self) -> u64 {
        self.id += 1;
        self.id
    }

    /// A request and its reply.
    pub fn ask(&mut self, message: &ToGuest) -> ToHost {
        let id = self.fresh_id();
        self.send(id, message);
        loop {
            let (reply_to, reply) = self.next().expect("the guest closed the port");
            if reply_to == id {
                return reply;
            }
        }
    }

    /// Starts a command and returns its id.
    pub fn start(&mut self, start: Start) -> u64 {
        self.try_start(start).unwrap()
    }

    pub fn try_start(&mut self, start: Start) -> Result<u64, StartFailed> {
        let reply = self.ask(&ToGuest::Start(Box::new(start)));
        match reply {
            ToHost::Started => Ok(self.id),
            ToHost::StartFailed(failed) => Err(failed),
            other => panic!("{other:?}"),
        }
    }

    /// Runs a shell script with this standard input to its end.
    pub fn shell(&mut self, script: &str, stdin: &[u8]) -> Outcome {
        self.run(sh(script), stdin)
    }

    pub fn run(&mut self, start: Start, stdin: &[u8]) -> Outcome {
        let id = self.start(start);
        self.finish(id, Some(stdin))
    }

    /// Feeds and drains a command until it ends. `None`: standard input stays open.
    pub fn finish(&mut self, id: u64, stdin: Option<&[u8]>) -> Outcome {
        let mut outcome = Outcome::default();
        self.finish_into(id, stdin.unwrap_or_default(), stdin.is_some(), &mut outcome, &mut |_, _| {});
        outcome
    }

    /// The same, with a look at every piece of output; `close`: standard input ends after its bytes.
    pub fn finish_into(
        &mut self,
        id: u64,
        stdin: &[u8],
        close: bool,
        outcome: &mut Outcome,
        look: &mut dyn FnMut(&mut Self, &[u8]),
    ) {
        let mut grant = Grant::full(WINDOW);
        let mut windows = [Window::full(WINDOW), Window::full(WINDOW)];
        let mut left = stdin;
        self.feed(id, &mut left, &mut grant, close);
        loop {
            let Some((from, message)) = self.next() else { return };
            if from != id {
                continue;
            }
            match message {
                ToHost::Stdout(Bytes(bytes)) => {
                    self.credit(id, Output::Stdout, &mut windows[0], bytes.len());
                    look(self, &bytes);
                    outcome.stdout.extend(bytes);
                }
                ToHost::Stderr(Bytes(bytes)) => {
                    self.credit(id, Output::Stderr, &mut windows[1], bytes.len());
                    outcome.stderr.extend(bytes);
                }
                ToHost::StdinCredit(bytes) => {
                    grant.add(bytes).unwrap();
                    self.feed(id, &mut left, &mut grant, close);
                }
                ToHost::StdinClosed => {
                    outcome.stdin_closed = true;
                    left = &[];
                }
                ToHost::Exited(end) => {
                    outcome.end = Some(end);
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn credit(&mut self, id: u64, stream: Output, window: &mut Window, bytes: usize) {
        window.receive(bytes).unwrap();
        if let Some(bytes) = window.consume(bytes) {
            self.send(id, &ToGuest::Credit { stream, bytes });
        }
    }

    fn feed(&mut self, id: u64, left: &mut &[u8], grant: &mut Grant, close: bool) {
        while !left.is_empty() && grant.available() > 0 {
            let length = grant.take(left.len().min(30_000));
            let (now, later) = left.split_at(length);
            self.send(id, &ToGuest::Stdin(now.into()));
            *left = later;
            if later.is_empty() && close {
                self.send(id, &ToGuest::StdinClose);
            }
        }
        if close && left.is_empty() && *grant == Grant::full(WINDOW) {
            self.send(id, &ToGuest::StdinClose);
        }
    }

    /// Closes the port, as a host that dies does.
    pub fn close(&self) {
        self.port.shutdown(std::net::Shutdown::Both).unwrap();
    }

    /// Waits until the guest's process has ended; its exit code says why the session did.
    pub fn exit_code(mut self) -> Option<i32> {
        while self.next().is_some() {}
        self.process.wait().unwrap().code()
    }

    /// Ends the session properly.
    pub fn shutdown(mut self) {
        self.send(0, &ToGuest::Shutdown);
        assert_eq!(self.exit_code(), Some(0));
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A command as root in `/`.
pub fn command(argv: &[&str]) -> Start {
    Start {
        argv: argv.iter().map(|&a| a.into()).collect(),
        env: vec![format!("PATH={}", std::env::var("PATH").unwrap()).as_str().into()],
        cwd: "/".into(),
        uid: 0,
        gid: 0,
        groups: vec![],
        umask: 0o022,
        rlimits: vec![],
        tty: None,
        hostname: String::new(),
    }
}

pub fn sh(script: &str) -> Start {
    command(&["sh", "-c", script])
}
