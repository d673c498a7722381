//! A throw-away project, run home and cache for one test.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// After this a test calls a command hung.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// One test's own directories; gone with it.
pub struct World {
    dir: TempDir,
}

impl World {
    /// A project with a few files.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("pvisor-e2e-").tempdir().unwrap();
        // For tests as another user.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let project = dir.path().join("project");
        fs::create_dir_all(project.join("src")).unwrap();
        fs::write(project.join("README.md"), "a project\n").unwrap();
        fs::write(project.join("src/lib.rs"), "pub fn f() {}\n").unwrap();
        Self { dir }
    }

    /// The directory around everything.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The project.
    pub fn project(&self) -> PathBuf {
        self.path().join("project")
    }

    /// Where runs are kept.
    pub fn runs(&self) -> PathBuf {
        self.path().join("runs")
    }

    /// `pvisor` with these arguments, in the project.
    pub fn std_command(&self, args: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_pvisor"));
        command.args(args).current_dir(self.project()).stdin(Stdio::null());
        command.env("PVISOR_RUN_HOME", self.runs()).env("XDG_CONFIG_HOME", self.path().join("config"));
        command
    }

    /// Runs `pvisor` to its end; one that hangs fails the test.
    pub fn pvisor(&self, args: &[&str]) -> Done {
        finish(self.std_command(args))
    }

    /// `pvisor run --executor host OPTIONS -- sh -c SCRIPT`, staged unless the options say otherwise.
    pub fn host_args<'a>(&self, options: &[&'a str], script: &'a str) -> Vec<&'a str> {
        [&["run", "--executor", "host"], options, &["--", "sh", "-c", script]].concat()
    }

    /// A shell script in a staged host run.
    pub fn staged(&self, script: &str) -> Done {
        let stage = self.stage();
        self.pvisor(&self.host_args(&["--stage", &stage], script))
    }

    /// The stage of [`World::staged`].
    pub fn stage(&self) -> String {
        self.path().join("stage").to_str().unwrap().to_owned()
    }

    /// `status --json` of the last run.
    pub fn status(&self) -> Value {
        self.pvisor(&["status", "--json"]).json()
    }

    /// Every path of the project with its content, to show that nothing changed.
    pub fn listing(&self) -> Vec<(PathBuf, Vec<u8>)> {
        listing(&self.project())
    }

    /// Fails if a process of this world's runs is left, or a mount.
    pub fn assert_nothing_left(&self) {
        let mark = self.path().to_str().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let left = processes_naming(mark);
            if left.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "processes left: {left:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.lines().any(|l| l.contains(mark)), "a mount is left:\n{mounts}");
    }
}

/// How a command ended.
pub struct Done(pub Output);

impl Done {
    /// Its exit code; a signal fails the test.
    pub fn code(&self) -> i32 {
        self.0.status.code().unwrap_or_else(|| panic!("{self}"))
    }

    /// Standard output.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    /// Standard error.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    /// Fails unless it ended with that code.
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.0.status.code(), Some(code), "{self}");
        self
    }

    /// Standard output as one JSON document.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.0.stdout).unwrap_or_else(|e| panic!("not JSON: {e}\n{self}"))
    }

    /// Fails unless standard error is one paragraph of ours that has all of `parts` in it, and nothing is on standard
    /// output.
    pub fn says(&self, parts: &[&str]) {
        let stderr = self.stderr();
        for part in parts {
            assert!(stderr.contains(part), "{part:?} is not told:\n{self}");
        }
        assert_eq!(self.stdout(), "", "{self}");
        assert!(stderr.lines().all(|l| l.starts_with("pvisor: ")), "{self}");
        assert!(stderr.lines().count() <= 6, "more than a paragraph:\n{self}");
        assert!(!stderr.contains("panicked"), "{self}");
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\nstdout: {}\nstderr: {}", self.0.status, self.stdout(), self.stderr())
    }
}

/// Every path below a directory with its content.
pub fn listing(top: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut open = vec![top.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let content = match path.symlink_metadata().unwrap() {
                m if m.is_dir() => {
                    open.push(path.clone());
                    Vec::new()
                }
                m if m.is_symlink() => fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
                m if m.is_file() => fs::read(&path).unwrap(),
                _ => Vec::new(),
            };
            found.push((path, content));
        }
    }
    found.sort();
    found
}

/// Processes whose environment or arguments name `mark`, as `pid: arguments`, without this one.
fn processes_naming(mark: &str) -> Vec<String> {
    let own = std::process::id();
    let pids = fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own)
        .filter_map(|pid| {
            let args = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let env = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let named = [&args[..], &env].concat().windows(mark.len()).any(|w| w == mark.as_bytes());
            named.then(|| format!("{pid}: {}", String::from_utf8_lossy(&args).replace('\0', " ")))
        })
        .collect()
}

/// Runs to the end; a command that hangs fails the test.
pub fn finish(command: std::process::Command) -> Done {
    Done(assert_cmd::Command::from_std(command).timeout(PATIENCE).output().unwrap())
}

/// Waits for the end of a started command; one that hangs fails the test.
pub fn wait(mut child: Child) -> Done {
    let pid = child.id();
    let (done, waiting) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if waiting.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            signal(pid, "KILL");
        }
    });
    drop(child.stdin.take());
    let out = child.wait_with_output().unwrap();
    drop(done);
    watchdog.join().unwrap();
    Done(out)
}

/// Starts a command and waits until it has printed `mark`.
pub fn start_until(mut command: std::process::Command, mark: &str) -> Child {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.windows(mark.len()).any(|w| w == mark.as_bytes()) {
        if std::io::Read::read(&mut out, &mut byte).unwrap() == 0 {
            let rest = wait(child);
            panic!("ended before {mark:?}: {}{rest}", String::from_utf8_lossy(&seen));
        }
        seen.push(byte[0]);
    }
    // Keep draining, so that the command never blocks on it.
    std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
    child
}

/// Sends a signal by name.
pub fn signal(pid: u32, name: &str) {
    let sent = std::process::Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap();
    assert!(sent.success());
}

/// The only child of a supervisor.
pub fn worker_of(supervisor: u32) -> u32 {
    let children = format!("/proc/{supervisor}/task/{supervisor}/children");
    let children = fs::read_to_string(children).unwrap();
    children.split_whitespace().next().unwrap_or_else(|| panic!("{supervisor} has no child")).parse().unwrap()
}

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
