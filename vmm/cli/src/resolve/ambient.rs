//! Everything that a run takes from the process that asks for it.

use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;

use crate::report::{Failure, chain};
use crate::runs::{StoreError, run_home};

/// The caller's surroundings.
#[derive(Clone, Debug)]
pub(crate) struct Ambient {
    /// Current directory: absolute, without symbolic links.
    pub(crate) cwd: PathBuf,
    /// Environment.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// Effective user id.
    pub(crate) uid: u32,
    /// Effective group id.
    pub(crate) gid: u32,
    /// Supplementary group ids.
    pub(crate) groups: Vec<u32>,
    /// File mode creation mask.
    pub(crate) umask: u32,
    /// Whether standard input and output are terminals.
    pub(crate) interactive: bool,
    /// Where runs are kept.
    pub(crate) run_home: PathBuf,
}

/// Why the surroundings can't be told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AmbientError {
    #[error("can't tell the current directory")]
    Cwd(#[source] io::Error),
    #[error("can't tell the caller's groups")]
    Groups(#[source] io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<AmbientError> for Failure {
    fn from(error: AmbientError) -> Self {
        let message = chain(&error);
        match error {
            AmbientError::Store(store) => store.into(),
            AmbientError::Cwd(_) => {
                Self::new("current_directory", message).hint("it may have been removed: change to one that exists")
            }
            AmbientError::Groups(_) => Self::new("identity", message),
        }
    }
}

impl Ambient {
    /// This process's.
    ///
    /// # Errors
    /// The kernel does not tell, or nothing says where runs are kept.
    pub(crate) fn read() -> Result<Self, AmbientError> {
        let cwd = std::env::current_dir().and_then(|d| d.canonicalize()).map_err(AmbientError::Cwd)?;
        let groups = rustix::process::getgroups().map_err(|e| AmbientError::Groups(e.into()))?;
        Ok(Self {
            run_home: run_home(|name| std::env::var_os(name), &cwd)?,
            cwd,
            env: std::env::vars_os().collect(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
            umask: umask().unwrap_or(0o022),
            interactive: io::stdin().is_terminal() && io::stdout().is_terminal(),
        })
    }

    /// The value of a variable.
    pub(crate) fn var(&self, name: &str) -> Option<&OsString> {
        self.env.iter().find(|(n, _)| n == name).map(|(_, value)| value)
    }

    /// The caller's home, as the environment says.
    pub(crate) fn home(&self) -> Option<PathBuf> {
        self.var("HOME").map(PathBuf::from).filter(|h| h.is_absolute())
    }
}

/// Read instead of set and set back, which other threads would see.
fn umask() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let text = status.lines().find_map(|l| l.strip_prefix("Umask:"))?;
    u32::from_str_radix(text.trim(), 8).ok()
}

#[cfg(test)]
impl Ambient {
    /// A project and a run home in `dir`.
    pub(crate) fn example(dir: &std::path::Path) -> Self {
        let dir = dir.canonicalize().unwrap();
        let project = dir.join("project");
        fs::create_dir_all(&project).unwrap();
        Self {
            cwd: project,
            env: Vec::new(),
            uid: 1000,
            gid: 1000,
            groups: vec![1000],
            umask: 0o022,
            interactive: false,
            run_home: dir.join("state/runs"),
        }
    }
}
