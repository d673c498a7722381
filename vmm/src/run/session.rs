//! The conversation with the guest, from the handshake to the shutdown.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pvisor_host_exec::Egress;
use pvisor_spec::{CommandEnd, WorkerEvent, WorkerFailure, WorkerJob};

use super::console::Console;
use super::controls::Controls;
use super::ending::Ending;
use super::failure::{failure, internal};
use super::machine::{PROJECT_TAG, ROOT_TAG, Size};
use super::receipts;
use super::stages::Stages;
use crate::agent::{
    AgentClient, AgentError, Attachment, GuestMount, Key, Output, RawTerminal, StartOptions, Stdio, WindowSize,
    terminal_size,
};
use crate::engine::{PortReader, PortWriter, kept_log};

/// Longest boot. An emulated machine needs seconds, a KVM that emulates kernel code may need many minutes.
const BOOT: Duration = Duration::from_secs(120);
const SLOW_BOOT: Duration = Duration::from_secs(3600);
/// Longest wait for the reply to any other request; mounting and syncing wait for the host's disk.
const REPLY: Duration = Duration::from_secs(60);
const SLOW_REPLY: Duration = Duration::from_secs(1800);
/// Longest wait for a guest that was told to end.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// Longest wait for the guest's last words on its console.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A terminal that does not know its size.
const TERMINAL: WindowSize = WindowSize { rows: 24, columns: 80 };

/// Everything that one conversation needs.
pub(super) struct Session {
    pub(super) job: WorkerJob,
    pub(super) size: Size,
    pub(super) key: Key,
    pub(super) stages: Arc<Stages>,
    pub(super) console: Console,
    pub(super) controls: Arc<Controls>,
    pub(super) ending: Arc<Ending>,
    pub(super) egress: Mutex<Option<Egress>>,
}

impl Session {
    /// Holds the conversation, settles the stages and ends the process.
    pub(super) fn run(self, reader: PortReader, writer: PortWriter) -> ! {
        let ended = self.converse(reader, writer);
        if let Some(egress) = self.egress.lock().unwrap_or_else(PoisonError::into_inner).take() {
            egress.stop();
        }
        self.ending.claim_then(|| match ended.and_then(|end| self.stages.settle().map(|()| end)) {
            Ok(end) => WorkerEvent::Ended(end),
            Err(failure) => {
                self.stages.throw_away();
                WorkerEvent::Failed(failure)
            }
        })
    }

    fn converse(&self, reader: PortReader, writer: PortWriter) -> Result<CommandEnd, WorkerFailure> {
        let client = self.attach(reader, writer).map_err(|e| self.explain(e))?;
        let options = StartOptions { tty: self.terminal()?, ..StartOptions::default() };
        let stdio = Stdio::inherit().map_err(|e| internal("can't reach the standard streams", &e))?;
        let running = match client.start(&self.job.spec.command, &options, stdio) {
            Ok(running) => running,
            Err(error) => {
                let end = error.command_end().ok_or_else(|| self.explain(error))?;
                client.shutdown(SHUTDOWN);
                return Ok(end);
            }
        };
        self.ending.tell(WorkerEvent::Started { pid: None });
        self.controls.command_runs(running.handle(), &self.job.spec);
        let finished = running.wait();
        let reported = finished.as_ref().ok().map(|finished| finished.end);
        match (self.controls.command_ended(reported), finished) {
            (Some(end), Ok(finished)) => {
                finished.lost_output.iter().for_each(tell_lost_output);
                client.sync().map_err(|e| self.explain(e))?;
                client.shutdown(SHUTDOWN);
                Ok(end)
            }
            (Some(end), Err(_)) => Ok(end),
            (None, Err(error)) => Err(self.explain(error)),
            (None, Ok(_)) => Err(failure("internal", "the command ended in no way", "")),
        }
    }

    /// Handshake, mounts and clock.
    fn attach(&self, reader: PortReader, writer: PortWriter) -> Result<AgentClient, AgentError> {
        let slow = self.job.spec.force_slow_kvm;
        let attachment = Attachment {
            key: self.key.clone(),
            handshake_timeout: if slow { SLOW_BOOT } else { BOOT },
            reply_timeout: if slow { SLOW_REPLY } else { REPLY },
        };
        let client = AgentClient::connect(reader, writer, &attachment)?;
        let install = |receipt| self.ending.tell(WorkerEvent::Installed(receipt));
        install(receipts::guest_kernel(client.kernel()));
        install(receipts::resources(self.size));
        client.mount(&[
            GuestMount { tag: ROOT_TAG.to_owned(), path: PathBuf::from("/"), read_only: false },
            GuestMount {
                tag: PROJECT_TAG.to_owned(),
                path: self.job.spec.project.as_path().to_owned(),
                read_only: false,
            },
        ])?;
        receipts::filesystems(&self.job).into_iter().for_each(install);
        match &*self.egress.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(egress) => {
                client.network(egress.link())?;
                install(receipts::network(egress));
            }
            None => install(receipts::no_network()),
        }
        client.set_clock()?;
        Ok(client)
    }

    /// Size of the command's terminal, where it gets one; that of the person goes into raw mode.
    fn terminal(&self) -> Result<Option<WindowSize>, WorkerFailure> {
        if !self.job.spec.command.tty {
            return Ok(None);
        }
        let (stdin, stdout) = (io::stdin(), io::stdout());
        let size = terminal_size(stdin.as_fd()).or_else(|| terminal_size(stdout.as_fd()));
        let raw = RawTerminal::enter(stdin.as_fd());
        self.ending.keep_terminal(raw.map_err(|e| internal("can't put the terminal into raw mode", &e))?);
        Ok(Some(size.unwrap_or(TERMINAL)))
    }

    /// Adds what the guest's console and the engine say to an error.
    fn explain(&self, error: AgentError) -> WorkerFailure {
        let lost = matches!(error, AgentError::Lost(_));
        let mut told = WorkerFailure::from(error);
        let code = if lost { self.ending.machine_code(LAST_WORDS) } else { None };
        let words = self.console.last_words(LAST_WORDS);
        if let Some(panic) = &words.panic {
            told.kind = "guest_panic".to_owned();
            told.message = format!("the guest's kernel panicked: {panic}");
        } else if lost {
            told.message = match code {
                Some(0) => "the guest ended without telling how the command did".to_owned(),
                Some(code) => format!("the guest was ended by the VM engine with code {code}"),
                None => told.message,
            };
        }
        told.message.push_str(&words.quote());
        let engine = kept_log();
        if !engine.is_empty() {
            told.message.push_str(&format!("; the VM engine says: {}", engine.join(" / ")));
        }
        told
    }
}

/// Tells the person that not all of an output arrived. A reader that went away knows by itself.
fn tell_lost_output((stream, error): &(Output, io::Error)) {
    if error.kind() != io::ErrorKind::BrokenPipe {
        let name = match stream {
            Output::Stdout => "standard output",
            Output::Stderr => "standard error",
        };
        // Where standard error itself is what broke, there is nobody to tell.
        let _ = writeln!(io::stderr(), "pvisor: {name} of the command was cut off: {error}");
    }
}
