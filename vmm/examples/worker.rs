//! One run in a guest, without the command line around it: `worker KERNEL INITRAMFS RUN-DIR PROJECT COMMAND…`. Events
//! go to standard error.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use pvisor_spec::{
    CommandSpec, Executor, ExecutorKind, ExecutorRequest, FilesystemMode, GuestRoot, NetworkMode, OsBytes, Resources,
    RunSpec, StageSpec, WorkerEvent, WorkerJob,
};

fn main() {
    let mut args = std::env::args_os().skip(1);
    let mut next = || args.next().expect("an argument");
    let (kernel, initramfs) = (OsBytes::from(next()), OsBytes::from(next()));
    let (run_dir, project) = (PathBuf::from(next()), OsBytes::from(next()));
    let argv: Vec<OsBytes> = args.map(OsBytes::from).collect();
    std::fs::create_dir_all(&run_dir).unwrap();
    let env = std::env::vars_os().map(|(k, v)| [k.as_bytes(), b"=", v.as_bytes()].concat().into()).collect();
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u32>().ok());
    let job = WorkerJob {
        spec: RunSpec {
            id: "run-0197b3a1-0000-7000-8000-000000000000".parse().unwrap(),
            command: CommandSpec {
                argv,
                env,
                cwd: project.clone(),
                uid: number("RUN_UID").unwrap_or(0),
                gid: number("RUN_UID").unwrap_or(0),
                groups: vec![],
                umask: 0o022,
                tty: number("TTY").is_some(),
            },
            requested: ExecutorRequest::Only(ExecutorKind::Krun),
            executor: Some(ExecutorKind::Krun),
            project,
            stage: Some(StageSpec { dir: run_dir.join("stage").into(), durability: Default::default() }),
            filesystem: FilesystemMode::Host,
            network: NetworkMode::DenyAll,
            resources: Resources { cpus: number("CPUS").map(|n| n as u8), memory_mib: number("MEMORY") },
            root: GuestRoot::Host,
            timeout_ms: number("TIMEOUT_MS").map(u64::from),
            grace_ms: 2000,
            force_slow_kvm: false,
            needs: vec![],
        },
        run_dir: run_dir.into(),
        kernel: Some(kernel),
        initramfs: Some(initramfs),
        hidden: vec!["/root/.ssh".to_owned(), "/etc/shadow".to_owned()],
    };
    let begin = std::time::Instant::now();
    let report = Arc::new(move |event: WorkerEvent| eprintln!("EVENT {} ms {event:?}", begin.elapsed().as_millis()));
    let failure = pvisor_vmm::KrunExecutor::new(false).work(job, report);
    eprintln!("RETURNED {failure:?}");
}
