//! The end of the process: once, with one last word to the supervisor.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use pvisor_spec::{WorkerEvent, WorkerFailure};

use super::failure::failure;
use crate::agent::RawTerminal;

/// Reports to the supervisor.
pub(super) type Report = Arc<dyn Fn(WorkerEvent) + Send + Sync>;

/// Who speaks last and ends the process. Several threads may want to; the first one does, the others wait for the end.
pub(super) struct Ending {
    report: Report,
    owner: Mutex<Option<ThreadId>>,
    terminal: Mutex<Option<RawTerminal>>,
    machine: Mutex<Option<i32>>,
    machine_ended: Condvar,
}

impl Ending {
    pub(super) fn new(report: Report) -> Arc<Self> {
        Arc::new(Self {
            report,
            owner: Mutex::new(None),
            terminal: Mutex::new(None),
            machine: Mutex::new(None),
            machine_ended: Condvar::new(),
        })
    }

    /// Reports anything but the last word.
    pub(super) fn tell(&self, event: WorkerEvent) {
        (self.report)(event);
    }

    /// Restores this terminal at the end.
    pub(super) fn keep_terminal(&self, terminal: Option<RawTerminal>) {
        *self.terminal.lock().unwrap_or_else(PoisonError::into_inner) = terminal;
    }

    /// Claims the last word; a second time is nothing new. Whoever has it must end the process soon.
    pub(super) fn claim(&self) {
        let own = thread::current().id();
        let owner = *self.owner.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(own);
        if owner != own {
            sleep_for_ever();
        }
        // Restores the terminal.
        drop(self.terminal.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Claims the last word, works it out, reports it and ends the process, and with it the machine.
    pub(super) fn claim_then(&self, word: impl FnOnce() -> WorkerEvent) -> ! {
        self.claim();
        (self.report)(word());
        // SAFETY: ends the process at once. No destructor or exit handler has anything to do that the kernel does not,
        // and those of the engine's threads must not run beside the threads themselves.
        unsafe { libc::_exit(0) }
    }

    /// Reports this and ends the process.
    pub(super) fn finish(&self, event: WorkerEvent) -> ! {
        self.claim_then(|| event)
    }

    /// The machine ended by itself.
    pub(super) fn machine_is_over(&self, code: i32) {
        *self.machine.lock().unwrap_or_else(PoisonError::into_inner) = Some(code);
        self.machine_ended.notify_all();
    }

    /// The engine's exit code, where the machine has ended or does so within `patience`.
    pub(super) fn machine_code(&self, patience: Duration) -> Option<i32> {
        let machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.machine_ended.wait_timeout_while(machine, patience, |code| code.is_none());
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// A panic on any thread of this process, the engine's among them, ends the run: a machine with a dead device
    /// would hang.
    pub(super) fn end_on_panic(self: &Arc<Self>) {
        let ending = Arc::clone(self);
        std::panic::set_hook(Box::new(move |what| {
            let place = what.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
            let text = what.payload_as_str().unwrap_or("no message");
            let thread = thread::current().name().unwrap_or("?").to_owned();
            let message = format!("the worker panicked in thread {thread}{place}: {text}");
            ending.finish(WorkerEvent::Failed(panic_failure(&message)));
        }));
    }
}

fn panic_failure(message: &str) -> WorkerFailure {
    // One line of bounded length: the text may quote what came from the guest.
    let message: String = message.chars().map(|c| if c.is_control() { ' ' } else { c }).take(1000).collect();
    failure("internal", message, "")
}

/// For threads that the end of the process will take away.
pub(super) fn sleep_for_ever() -> ! {
    loop {
        thread::park();
    }
}
