//! The client: handshake, requests, and the start of commands.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use pvisor_netstack::LinkConfig;
use pvisor_proto::{
    Bytes, Challenge, Hello, Key, MINOR, Mount, NO_ID, Network, Rlimit, Start, StartFailed, ToGuest, ToHost,
    WindowSize, guest_proof, host_proof,
};
use pvisor_spec::{CommandSpec, OsBytes};

use super::command::{CommandState, RunningCommand};
use super::error::AgentError;
use super::link::Link;
use super::stdio::Stdio;

/// How to attach to a guest.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// The key that the guest has now: of its kernel command line on a fresh boot, else
    /// [`AgentClient::next_key`] of the attachment before.
    pub key: Key,
    /// Longest time from the hello to the welcome. On a fresh boot the guest's whole start lies in it.
    pub handshake_timeout: Duration,
    /// Longest time for any other reply.
    pub reply_timeout: Duration,
}

/// A directory tree that the guest mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestMount {
    /// Tag of the virtio-fs device.
    pub tag: String,
    /// Absolute path in the guest. The first mount is that of `/`.
    pub path: PathBuf,
    /// Mounted read-only in the guest; the filesystem on the host must hold that by itself too.
    pub read_only: bool,
}

/// What a [`CommandSpec`] does not say.
#[derive(Clone, Debug, Default)]
pub struct StartOptions {
    /// A terminal of this size instead of three pipes.
    pub tty: Option<WindowSize>,
    /// Limits that differ from the guest's defaults.
    pub rlimits: Vec<Rlimit>,
    /// Name of the machine; empty: unchanged.
    pub hostname: String,
}

/// An attachment to the agent of one guest. All methods may be called from any thread.
pub struct AgentClient {
    link: Arc<Link>,
    next_key: Key,
    kernel: String,
    /// Id of the command that ran already.
    running: Option<u64>,
    reply_timeout: Duration,
}

impl AgentClient {
    /// Shakes hands with the agent over the two directions of its port: `reader` gives what the guest sent and 0 bytes
    /// when the port is closed for good, `writer` takes what the guest is to get. Both may block.
    ///
    /// The hello is written at once. A guest that is still booting must find it when it opens the port.
    ///
    /// # Errors
    /// No answer in time, another protocol version, a wrong key on either side, bytes that are no messages, a port
    /// that closes.
    pub fn connect(
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
        attachment: &Attachment,
    ) -> Result<Self, AgentError> {
        let challenge: Challenge = random()?;
        let next_key = Key::new(random()?);
        let link = Link::open(reader, writer)?;
        let hello = ToGuest::Hello(Hello {
            minor: MINOR,
            challenge,
            proof: host_proof(&attachment.key, &challenge),
            next_key: next_key.clone(),
        });
        // Ids of this attachment start at a random point, so that late replies to an earlier one are told apart.
        let id = link.seed_ids(u64::from_le_bytes(random()?) >> 1);
        let welcome = match link.request(id, "the handshake", &hello, attachment.handshake_timeout) {
            Ok(ToHost::Welcome(welcome)) => welcome,
            Ok(_) => return Err(AgentError::Unexpected { request: "the handshake" }),
            Err(AgentError::Timeout { after, .. }) => return Err(AgentError::HandshakeTimeout(after)),
            Err(error) => return Err(error),
        };
        if welcome.proof != guest_proof(&attachment.key, &challenge) {
            link.fail(AgentError::Impostor);
            return Err(AgentError::Impostor);
        }
        let kernel = welcome.kernel.chars().filter(char::is_ascii_graphic).take(128).collect();
        let running = welcome.running.map(|running| running.command);
        Ok(Self { link, next_key, kernel, running, reply_timeout: attachment.reply_timeout })
    }

    /// The key that the next attachment to this guest, or to a restored image of it, needs.
    pub fn next_key(&self) -> &Key {
        &self.next_key
    }

    /// Release of the guest's kernel, as the guest says.
    pub fn kernel(&self) -> &str {
        &self.kernel
    }

    /// Builds the guest's root and moves there.
    ///
    /// # Errors
    /// What the guest says, by the name of the mount that failed; no answer; a lost guest.
    pub fn mount(&self, mounts: &[GuestMount]) -> Result<(), AgentError> {
        let mounts = mounts
            .iter()
            .map(|m| Mount {
                tag: m.tag.clone(),
                path: bytes(&OsBytes::from(m.path.as_path())),
                read_only: m.read_only,
            })
            .collect();
        self.demand("the mounts", &ToGuest::Mounts(mounts))
    }

    /// Configures the guest's network card for that link.
    ///
    /// # Errors
    /// What the guest says; no answer; a lost guest.
    pub fn network(&self, link: &LinkConfig) -> Result<(), AgentError> {
        let network = Network {
            mtu: link.mtu,
            v4: (link.guest_v4, link.prefix_v4),
            gateway_v4: link.gateway_v4,
            v6: (link.guest_v6, link.prefix_v6),
            gateway_v6: link.gateway_v6,
        };
        self.demand("the network", &ToGuest::Network(Box::new(network)))
    }

    /// Sets the guest's clock to that of the host.
    ///
    /// # Errors
    /// What the guest says; no answer; a lost guest.
    pub fn set_clock(&self) -> Result<(), AgentError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.demand("the clock", &ToGuest::SetClock { seconds: now.as_secs(), nanos: now.subsec_nanos() })
    }

    /// Mixes fresh random bytes of the host into the guest's generator. Needed after every restore, before any
    /// process of the guest runs on: images of one checkpoint share the generator's state.
    ///
    /// # Errors
    /// What the guest says; no answer; a lost guest.
    pub fn reseed(&self) -> Result<(), AgentError> {
        let entropy: [u8; 64] = random()?;
        self.demand("fresh random bytes", &ToGuest::Reseed(Bytes(entropy.to_vec())))
    }

    /// Writes back what the guest's filesystems hold.
    ///
    /// # Errors
    /// What the guest says; no answer; a lost guest.
    pub fn sync(&self) -> Result<(), AgentError> {
        self.demand("a sync", &ToGuest::Sync)
    }

    /// Time that the agent takes to answer.
    ///
    /// # Errors
    /// No answer within `timeout`; a lost guest.
    pub fn ping(&self, timeout: Duration) -> Result<Duration, AgentError> {
        let start = Instant::now();
        match self.link.request(self.link.id(), "a ping", &ToGuest::Ping, timeout)? {
            ToHost::Pong => Ok(start.elapsed()),
            _ => Err(AgentError::Unexpected { request: "a ping" }),
        }
    }

    /// Makes the agent say nothing more until [`AgentClient::wake`], so that the port is quiet while the machine is
    /// captured.
    ///
    /// # Errors
    /// No answer; a lost guest.
    pub fn quiet(&self) -> Result<(), AgentError> {
        match self.link.request(self.link.id(), "to be quiet", &ToGuest::Quiet, self.reply_timeout)? {
            ToHost::Quieted => Ok(()),
            _ => Err(AgentError::Unexpected { request: "to be quiet" }),
        }
    }

    /// Ends [`AgentClient::quiet`].
    ///
    /// # Errors
    /// No answer; a lost guest.
    pub fn wake(&self) -> Result<(), AgentError> {
        self.demand("to go on", &ToGuest::Wake)
    }

    /// Starts a command and relays its streams from and to `stdio` until it ends. One command at a time.
    ///
    /// # Errors
    /// [`AgentError::NotFound`] and [`AgentError::NotExecutable`] are ends of the command
    /// ([`AgentError::command_end`]); everything else broke the run.
    pub fn start(
        &self,
        command: &CommandSpec,
        options: &StartOptions,
        stdio: Stdio,
    ) -> Result<RunningCommand, AgentError> {
        let id = self.link.id();
        let state = Arc::new(CommandState::new());
        self.link.register(id, Arc::clone(&state))?;
        let start = ToGuest::Start(Box::new(start_of(command, options)));
        let failed = match self.link.request(id, "the start", &start, self.reply_timeout) {
            Ok(ToHost::Started) => None,
            Ok(ToHost::StartFailed(StartFailed::NotFound)) => Some(AgentError::NotFound),
            Ok(ToHost::StartFailed(StartFailed::NotExecutable(errno))) => Some(AgentError::NotExecutable(errno)),
            Ok(ToHost::StartFailed(StartFailed::Other(failure))) => Some(AgentError::Start(failure)),
            Ok(_) => Some(AgentError::Unexpected { request: "the start" }),
            Err(error) => Some(error),
        };
        if let Some(error) = failed {
            self.link.forget(id);
            return Err(error);
        }
        RunningCommand::relay(Arc::clone(&self.link), id, state, stdio)
    }

    /// Takes over the command that ran already when this process attached, as in a restored machine; `None`: there was
    /// none, or it has been taken over. Its output waits until then.
    ///
    /// # Errors
    /// No thread or descriptor for the relay.
    pub fn adopt(&mut self, stdio: Stdio) -> Result<Option<RunningCommand>, AgentError> {
        let Some(id) = self.running.take() else { return Ok(None) };
        let Some(state) = self.link.command(id) else { return Ok(None) };
        RunningCommand::relay(Arc::clone(&self.link), id, state, stdio).map(Some)
    }

    /// Tells the guest to write back and end, and waits until its port closes; false: it has not, in this time.
    pub fn shutdown(self, timeout: Duration) -> bool {
        // No reply comes, and a broken connection is what is wanted.
        let _ = self.link.send(NO_ID, &ToGuest::Shutdown);
        self.link.wait_closed(timeout)
    }

    fn demand(&self, name: &'static str, message: &ToGuest) -> Result<(), AgentError> {
        match self.link.request(self.link.id(), name, message, self.reply_timeout)? {
            ToHost::Done => Ok(()),
            ToHost::Failed(failure) => Err(AgentError::Failed { request: name, failure }),
            _ => Err(AgentError::Unexpected { request: name }),
        }
    }
}

fn start_of(command: &CommandSpec, options: &StartOptions) -> Start {
    Start {
        argv: command.argv.iter().map(bytes).collect(),
        env: command.env.iter().map(bytes).collect(),
        cwd: bytes(&command.cwd),
        uid: command.uid,
        gid: command.gid,
        groups: command.groups.clone(),
        umask: command.umask,
        rlimits: options.rlimits.clone(),
        tty: options.tty,
        hostname: options.hostname.clone(),
    }
}

fn bytes(bytes: &OsBytes) -> Bytes {
    Bytes::from(bytes.as_bytes())
}

/// Random bytes of the host's kernel.
fn random<const N: usize>() -> Result<[u8; N], AgentError> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(length) => filled += length,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(AgentError::local(error)),
        }
    }
    Ok(bytes)
}
