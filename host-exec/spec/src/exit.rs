//! How a command ended, and the exit codes of pvisor itself.

use serde::{Deserialize, Serialize};

/// How the command of a run ended, as its parent saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CommandEnd {
    /// It exited with this status, 0 to 255.
    Exited(u8),
    /// This signal ended it, by Linux number.
    Signaled(u8),
    /// The time limit passed and pvisor ended it.
    TimedOut,
    /// No program of this name was found.
    NotFound,
    /// The program was found, but can't be executed.
    NotExecutable,
}

impl CommandEnd {
    /// The code that `pvisor run` exits with.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Signaled(signal) => 128u8.saturating_add(signal),
            Self::TimedOut => ExitCode::TIMED_OUT,
            Self::NotFound => ExitCode::NOT_FOUND,
            Self::NotExecutable => ExitCode::NOT_EXECUTABLE,
        }
    }
}

/// Exit codes. `pvisor run` passes on the command's own code and adds those of `timeout` and the shells; every other
/// command of pvisor uses the small numbers.
pub struct ExitCode;

impl ExitCode {
    /// Done.
    pub const OK: u8 = 0;
    /// Something failed.
    pub const ERROR: u8 = 1;
    /// The command line is wrong.
    pub const USAGE: u8 = 2;
    /// The project changed since; nothing was written.
    pub const CONFLICT: u8 = 3;
    /// No run of that name.
    pub const NO_SUCH_RUN: u8 = 4;
    /// The stage is not sealed.
    pub const NOT_SEALED: u8 = 5;
    /// This machine can't do that.
    pub const UNSUPPORTED: u8 = 6;
    /// `run`: the time limit passed.
    pub const TIMED_OUT: u8 = 124;
    /// `run`: pvisor itself failed or refused.
    pub const FAILED: u8 = 125;
    /// `run`: the program can't be executed.
    pub const NOT_EXECUTABLE: u8 = 126;
    /// `run`: no such program.
    pub const NOT_FOUND: u8 = 127;
}

/// `SIGTERM` for 15 and so on; `signal N` for numbers without a name. Linux x86-64 and aarch64 numbering.
pub fn signal_name(signal: u8) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
        "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF",
        "WINCH", "IO", "PWR", "SYS",
    ];
    match usize::from(signal).checked_sub(1).and_then(|i| NAMES.get(i)) {
        Some(name) => format!("SIG{name}"),
        None => format!("signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_shells() {
        assert_eq!(CommandEnd::Exited(7).exit_code(), 7);
        assert_eq!(CommandEnd::Signaled(9).exit_code(), 137);
        assert_eq!(CommandEnd::TimedOut.exit_code(), 124);
        assert_eq!(signal_name(15), "SIGTERM");
        assert_eq!(signal_name(64), "signal 64");
    }
}
