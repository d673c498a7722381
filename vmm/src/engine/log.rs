//! What the engine logs when something goes wrong: the last lines, for the message of a failed run.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use log::{Level, LevelFilter, Log, Metadata, Record};

/// Lines kept.
const LINES: usize = 4;
/// Longest line in characters.
const COLUMNS: usize = 200;

/// The engine tells at this level why a virtual CPU stopped, and much else that does not matter.
const STOPPED: &str = "Received KVM_";

static KEPT: Keeper = Keeper(Mutex::new(VecDeque::new()));

struct Keeper(Mutex<VecDeque<String>>);

impl Log for Keeper {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            self.keep(record.level(), &record.args().to_string());
        }
    }

    fn flush(&self) {}
}

impl Keeper {
    fn keep(&self, level: Level, text: &str) {
        if level > Level::Warn && !text.starts_with(STOPPED) {
            return;
        }
        // It may quote what came from the guest.
        let line = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(COLUMNS).collect();
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

/// Starts to keep the engine's log, unless the process has a logger already.
pub fn keep_log() {
    if log::set_logger(&KEPT).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

/// The last lines about what went wrong, oldest first.
pub fn kept_log() -> Vec<String> {
    KEPT.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_trouble_is_kept_and_only_the_last_of_it() {
        let keeper = Keeper(Mutex::default());
        keeper.keep(Level::Info, "Vmm is stopping.");
        for i in 0..LINES {
            keeper.keep(Level::Error, &format!("trouble\u{1b}\n{i}"));
        }
        keeper.keep(Level::Info, "Received KVM_EXIT_SHUTDOWN signal");
        keeper.keep(Level::Debug, "details");
        let lines = keeper.0.lock().unwrap();
        assert_eq!(lines.len(), LINES);
        assert_eq!((lines[0].as_str(), lines[LINES - 1].as_str()), ("trouble  1", "Received KVM_EXIT_SHUTDOWN signal"));
    }
}
