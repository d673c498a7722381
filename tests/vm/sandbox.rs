//! A throw-away project, run home and stage for one test.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::PidfdFlags;
use tempfile::TempDir;

/// Time after which a test calls a run hung. Generous: the emulated machine is 10 to 50 times slower.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// One test's own directories; gone with it.
pub struct Sandbox {
    dir: TempDir,
}

impl Sandbox {
    /// A project with a few files.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("pvisor-vm").tempdir().unwrap();
        let project = dir.path().join("project");
        fs::create_dir_all(project.join("src")).unwrap();
        fs::write(project.join("README.md"), "a project\n").unwrap();
        fs::write(project.join("src/lib.rs"), "pub fn f() {}\n").unwrap();
        Self { dir }
    }

    /// The project directory.
    pub fn project(&self) -> PathBuf {
        self.dir.path().join("project")
    }

    /// The directory around it.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// `pvisor` with these arguments, in the project, with a run home of its own.
    pub fn pvisor(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pvisor"));
        command.args(args).current_dir(self.project()).env("PVISOR_RUN_HOME", self.dir.path().join("runs"));
        command.stdin(Stdio::null());
        command
    }

    /// `pvisor run --executor krun OPTIONS -- COMMAND`. What the probe says of a busy, emulated machine is left out of
    /// these tests; it has its own. `PVISOR_TEST_CPUS`: processors of guests for which the options say nothing.
    pub fn krun(&self, options: &[&str], command: &[&str]) -> Command {
        let cpus = std::env::var("PVISOR_TEST_CPUS").ok().filter(|_| !options.contains(&"--cpus"));
        let cpus: Vec<&str> = cpus.iter().flat_map(|cpus| ["--cpus", cpus]).collect();
        let args: Vec<&str> = ["run", "--executor", "krun", "--force-slow-kvm"]
            .iter()
            .chain(&cpus)
            .chain(options)
            .chain(&["--"])
            .chain(command)
            .copied()
            .collect();
        self.pvisor(&args)
    }

    /// Runs a shell script in a guest to its end.
    pub fn sh(&self, script: &str) -> Output {
        finish(self.krun(&[], &["sh", "-c", script]))
    }

    /// Every path of the project with its content, to show that nothing changed.
    pub fn listing(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        let mut open = vec![self.project()];
        while let Some(dir) = open.pop() {
            for entry in fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                let content = if path.is_dir() { Vec::new() } else { fs::read(&path).unwrap() };
                if path.is_dir() {
                    open.push(path.clone());
                }
                found.push((path, content));
            }
        }
        found.sort();
        found
    }

    /// `status --json` of the last run.
    pub fn status(&self) -> serde_json::Value {
        let out = finish(self.pvisor(&["status", "last", "--json"]));
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("status is not JSON: {e}\n{}", text(&out)))
    }

    /// Fails if a process of these runs is left, or a mount below this sandbox.
    pub fn assert_nothing_left(&self) {
        let mark = self.dir.path().to_str().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let left = processes_naming(mark);
            if left.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "processes left: {left:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.lines().any(|l| l.contains(mark)), "a mount is left:\n{mounts}");
    }
}

/// Processes whose environment or arguments name `mark`, as `pid: arguments`, without this one.
fn processes_naming(mark: &str) -> Vec<String> {
    let own = std::process::id();
    let pids = fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own)
        .filter_map(|pid| {
            let args = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let env = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let all = [args.clone(), env].concat();
            let named = all.windows(mark.len()).any(|w| w == mark.as_bytes());
            named.then(|| format!("{pid}: {}", String::from_utf8_lossy(&args).replace('\0', " ")))
        })
        .collect()
}

/// Starts `pvisor` with its output caught. One that hangs is killed, which fails the test, and what is known of it is
/// printed.
pub fn spawn(mut command: Command) -> Child {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let home = command.get_envs().find(|(name, _)| *name == "PVISOR_RUN_HOME");
    let home = PathBuf::from(home.and_then(|(_, value)| value).unwrap());
    std::thread::spawn(move || {
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        let patience = Timespec { tv_sec: PATIENCE.as_secs().try_into().unwrap(), tv_nsec: 0 };
        if rustix::event::poll(&mut ended, Some(&patience)) == Ok(0) {
            eprintln!("hangs: {command:?}\n{}", what_is_known(&home));
            let _ = rustix::process::pidfd_send_signal(&process, rustix::process::Signal::KILL);
        }
    });
    child
}

/// The end of everything that the runs wrote down.
fn what_is_known(home: &Path) -> String {
    let runs = fs::read_dir(home).into_iter().flatten().flatten().filter_map(|run| fs::read_dir(run.path()).ok());
    let files = runs.flatten().flatten().map(|file| file.path()).filter(|path| path.is_file());
    let end = |path: PathBuf| {
        let text = String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        format!("{}:\n{}\n", path.display(), lines[lines.len().saturating_sub(40)..].join("\n"))
    };
    files.map(end).collect()
}

/// Runs to the end.
pub fn finish(command: Command) -> Output {
    wait(spawn(command))
}

/// Waits for the end.
pub fn wait(mut child: Child) -> Output {
    drop(child.stdin.take());
    child.wait_with_output().unwrap()
}

/// Everything a run printed, for messages of failed assertions.
pub fn text(out: &Output) -> String {
    format!(
        "status: {}\nstdout: {}\nstderr: {}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    )
}

/// Standard output as text.
pub fn stdout(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Starts a run and waits until its command has printed a line that contains `mark`.
pub fn start_until(command: Command, mark: &str) -> Child {
    let mut child = spawn(command);
    let mut out = child.stdout.take().unwrap();
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.windows(mark.len()).any(|w| w == mark.as_bytes()) {
        let n = std::io::Read::read(&mut out, &mut byte).unwrap();
        if n == 0 {
            let rest = wait(child);
            panic!("ended before {mark:?}: {}{}", String::from_utf8_lossy(&seen), text(&rest));
        }
        seen.push(byte[0]);
    }
    // Keep draining, so that the command never blocks on it.
    std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
    child
}

/// The process id of the worker below this supervisor.
pub fn worker_of(supervisor: u32) -> u32 {
    let out = Command::new("pgrep").args(["-P", &supervisor.to_string()]).output().unwrap();
    stdout(&out).lines().next().and_then(|l| l.trim().parse().ok()).expect("the supervisor has a worker")
}

/// Sends a signal by name.
pub fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

/// Feeds bytes to a run's standard input and waits for the end.
pub fn feed(mut command: Command, bytes: Vec<u8>) -> Output {
    command.stdin(Stdio::piped());
    let mut child = spawn(command);
    let mut stdin = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || stdin.write_all(&bytes));
    let out = wait(child);
    let _ = feeder.join().unwrap();
    out
}
