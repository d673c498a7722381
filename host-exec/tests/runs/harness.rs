//! Starting workers and looking at what they leave.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};

use pvisor_host_exec::HostExecutor;
use pvisor_spec::{
    CommandEnd, CommandSpec, Confinement, Durability, Executor, ExecutorKind, ExecutorRequest, FilesystemMode,
    GuestRoot, NetworkMode, OsBytes, Receipt, Resources, RunId, RunSpec, StageSpec, WorkerEvent, WorkerFailure,
    WorkerJob,
};

use crate::cases;

/// User and group of the runs that are not root's: one that no system has.
const SOMEBODY: u32 = 54321;

/// The worker's side: job file, events file.
pub fn work(args: &[String]) -> ExitCode {
    let job: WorkerJob = serde_json::from_slice(&std::fs::read(&args[0]).unwrap()).unwrap();
    let events = std::fs::OpenOptions::new().append(true).open(&args[1]).unwrap();
    let events = Mutex::new(events);
    let report = Arc::new(move |event: WorkerEvent| {
        let line = serde_json::to_string(&event).unwrap() + "\n";
        events.lock().unwrap().write_all(line.as_bytes()).unwrap();
    });
    match HostExecutor::default().work(job, report.clone()) {
        Ok(end) => report(WorkerEvent::Ended(end)),
        Err(broken) => report(WorkerEvent::Failed(broken)),
    }
    ExitCode::SUCCESS
}

/// Runs all tests whose names contain one of the arguments.
pub fn test(args: &[String]) -> ExitCode {
    if !rustix::process::geteuid().is_root() {
        println!("not run: the tests change users, which needs root");
        return ExitCode::SUCCESS;
    }
    crate::device::open_fuse_to_all();
    let filters: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let (mut passed, mut failed) = (0, Vec::new());
    for uid in [0, SOMEBODY] {
        for (name, case) in cases::ALL {
            let name = format!("{name} ({})", if uid == 0 { "root" } else { "user" });
            if !filters.is_empty() && !filters.iter().any(|f| name.contains(f.as_str())) {
                continue;
            }
            let setup = Setup::new(uid);
            let outcome = std::panic::catch_unwind(|| {
                case(&setup);
                setup.check_clean();
            });
            println!("test {name} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
            if outcome.is_ok() { passed += 1 } else { failed.push(name) }
        }
    }
    failed.iter().for_each(|name| println!("failed: {name}"));
    let outcome = if failed.is_empty() { "ok" } else { "FAILED" };
    // As the library's own tests end, so that whoever counts those counts these.
    println!("\ntest result: {outcome}. {passed} passed; {} failed; 0 ignored", failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A project and a place for stages, for one user.
pub struct Setup {
    pub uid: u32,
    dir: tempfile::TempDir,
    /// In the arguments of every process of the test.
    pub mark: String,
}

/// How a run is to be.
pub struct Wish {
    pub spec: RunSpec,
    /// A shell command line around the worker, which it gets as `"$@"`.
    pub around: Option<&'static str>,
}

/// What a run was.
#[derive(Debug)]
pub struct Told {
    pub outcome: Result<CommandEnd, WorkerFailure>,
    pub stdout: String,
    pub stderr: String,
    pub receipts: Vec<Receipt>,
    pub started: bool,
}

/// A run that goes on.
pub struct Running {
    pub child: Child,
    events: PathBuf,
}

impl Setup {
    fn new(uid: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let project = dir.path().join("project");
        std::fs::create_dir(&project).unwrap();
        std::fs::write(project.join("file"), "original\n").unwrap();
        std::os::unix::fs::chown(&project, Some(uid), Some(uid)).unwrap();
        std::os::unix::fs::chown(project.join("file"), Some(uid), Some(uid)).unwrap();
        std::os::unix::fs::chown(dir.path(), Some(uid), Some(uid)).unwrap();
        let mark = format!("mark-{}-{uid}", dir.path().file_name().unwrap().display());
        Self { uid, dir, mark }
    }

    pub fn root(&self) -> bool {
        self.uid == 0
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn project(&self) -> PathBuf {
        self.path("project")
    }

    /// A run of `sh -c SCRIPT` on a new stage. The mark is `$1`.
    pub fn shell(&self, script: &str) -> Wish {
        self.command(&["sh", "-c", script, "sh", &self.mark])
    }

    /// A run of a command on a new stage.
    pub fn command(&self, argv: &[&str]) -> Wish {
        let id = RunId::new();
        let path = std::env::var("PATH").unwrap_or_default();
        let spec = RunSpec {
            id,
            command: CommandSpec {
                argv: argv.iter().map(|a| OsBytes::from(*a)).collect(),
                env: vec![OsBytes::from(format!("PATH={path}").as_str()), "ODD=a b=c".into()],
                cwd: self.project().into(),
                uid: self.uid,
                gid: self.uid,
                groups: vec![],
                umask: 0o027,
                tty: false,
            },
            requested: ExecutorRequest::Only(ExecutorKind::Host),
            executor: Some(ExecutorKind::Host),
            project: self.project().into(),
            stage: Some(StageSpec {
                dir: self.path(&format!("stage-{id}")).into(),
                durability: Durability::Checkpoint,
                max_bytes: None,
            }),
            filesystem: FilesystemMode::Host,
            confinement: Confinement::default(),
            network: NetworkMode::Host,
            resources: Resources::default(),
            root: GuestRoot::Host,
            timeout_ms: None,
            grace_ms: 300,
            force_slow_kvm: false,
            needs: vec![],
            sources: pvisor_spec::Sources::default(),
        };
        Wish { spec, around: None }
    }

    /// Starts a worker; the caller says what its standard descriptors are.
    pub fn start(&self, wish: &Wish, stdio: impl FnOnce(&mut Command)) -> Running {
        let id = wish.spec.id;
        let (job, events) = (self.path(&format!("job-{id}")), self.path(&format!("events-{id}")));
        let document = WorkerJob {
            spec: wish.spec.clone(),
            run_dir: self.dir.path().into(),
            kernel: None,
            initramfs: None,
            hidden: vec![],
            resume: false,
            without: vec![],
        };
        std::fs::write(&job, serde_json::to_vec(&document).unwrap()).unwrap();
        std::fs::write(&events, "").unwrap();
        std::fs::set_permissions(&events, PermissionsExt::from_mode(0o666)).unwrap();
        let exe = std::env::current_exe().unwrap();
        let mut command = match wish.around {
            None => Command::new(&exe),
            Some(around) => {
                let mut command = Command::new("sh");
                command.args(["-c", around, "sh"]).arg(&exe);
                command
            }
        };
        command.arg("worker").arg(&job).arg(&events);
        if !self.root() {
            command.gid(self.uid).uid(self.uid);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        stdio(&mut command);
        Running { child: command.spawn().unwrap(), events }
    }

    /// Runs to the end.
    pub fn run(&self, wish: &Wish) -> Told {
        self.start(wish, |_| {}).finish()
    }

    /// Runs to the end, with something on standard input.
    pub fn run_with_input(&self, wish: &Wish, input: Vec<u8>) -> Told {
        let mut running = self.start(wish, |c| {
            c.stdin(Stdio::piped());
        });
        let mut stdin = running.child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || {
            // A command need not read it all.
            let _ = stdin.write_all(&input);
        });
        let told = running.finish();
        writer.join().unwrap();
        told
    }

    /// Panics where a process of the test, or a mount of a stage in any process, is left, or the project changed.
    pub fn check_clean(&self) {
        assert_eq!(std::fs::read_to_string(self.project().join("file")).unwrap(), "original\n");
        assert_eq!(std::fs::read_dir(self.project()).unwrap().count(), 1, "something was made in the project");
        assert!(soon(|| self.leftovers().is_empty()), "left over: {:?}", self.leftovers());
    }

    fn leftovers(&self) -> Vec<String> {
        let project = self.project();
        let mut left = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let process = entry.path();
            if entry.file_name().to_str().is_none_or(|n| n.parse::<u32>().is_err()) {
                continue;
            }
            let args =
                String::from_utf8_lossy(&std::fs::read(process.join("cmdline")).unwrap_or_default()).into_owned();
            let mounts = std::fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
            if args.contains(&self.mark) || mounts.contains(&*project.to_string_lossy()) {
                left.push(format!("{}: {args:?}", process.display()));
            }
        }
        left
    }

    /// What is staged as content: all of it.
    pub fn staged(&self, wish: &Wish) -> Vec<Vec<u8>> {
        let dir = wish.spec.stage.as_ref().unwrap().dir.as_path().join("upper");
        let mut contents: Vec<Vec<u8>> =
            std::fs::read_dir(dir).unwrap().map(|e| std::fs::read(e.unwrap().path()).unwrap()).collect();
        contents.sort();
        contents
    }
}

impl Running {
    /// Waits for the end and collects what was said.
    pub fn finish(self) -> Told {
        let events = self.events.clone();
        let output = self.child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (mut outcome, mut receipts, mut started) = (None, Vec::new(), false);
        for event in events_of(&events) {
            match event {
                WorkerEvent::Installed(receipt) => receipts.push(receipt),
                WorkerEvent::Probed(probe) => assert!(probe.holds, "{probe:?}"),
                WorkerEvent::Started { .. } => started = true,
                WorkerEvent::Ended(end) => outcome = Some(Ok(end)),
                WorkerEvent::Failed(broken) => outcome = Some(Err(broken)),
                WorkerEvent::Asked(question) => panic!("nobody answers {question:?}"),
            }
        }
        let lost =
            WorkerFailure { kind: "lost".to_owned(), message: format!("{}", output.status), hint: String::new() };
        Told {
            outcome: outcome.unwrap_or(Err(lost)),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
            receipts,
            started,
        }
    }

    /// Waits until the command runs; its process id.
    pub fn wait_started(&self) -> u32 {
        loop {
            for event in events_of(&self.events) {
                match event {
                    WorkerEvent::Started { pid } => return pid.unwrap(),
                    WorkerEvent::Failed(broken) => panic!("{broken:?}"),
                    _ => {}
                }
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Waits until a file is there, which the command makes in the staged view and thus nobody sees here: the stage
    /// has a content of this text.
    pub fn wait_for(&self, path: &Path) {
        assert!(soon(|| path.exists()), "{} never came", path.display());
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }
}

fn events_of(path: &Path) -> Vec<WorkerEvent> {
    let text = std::fs::read_to_string(path).unwrap();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Whether it comes true within some seconds; what was killed with its worker takes a moment to go.
pub fn soon(mut is_so: impl FnMut() -> bool) -> bool {
    (0..1000).any(|_| {
        is_so() || {
            std::thread::sleep(std::time::Duration::from_millis(10));
            false
        }
    })
}
