//! Starting runs: the product as a person starts it, or its worker with a job that leaves controls out.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::attempts::{Attempt, Preset};
use crate::controls::Removal;
use crate::host::{Host, TOKEN};

/// How a run went.
pub struct Run {
    /// What it wrote, on both outputs.
    pub output: String,
    /// Whether the attempt was made at all.
    pub ran: bool,
}

const PYTHON: &str = "/usr/bin/python3";

fn options(preset: Preset) -> &'static [&'static str] {
    match preset {
        Preset::Stage => &["--stage", "../runs/stage"],
        Preset::Sandbox => &["--stage", "../runs/stage", "--filesystem", "sandbox"],
        Preset::Safe => &["--stage", "../runs/stage", "--safe"],
    }
}

/// The arguments of `pvisor` for an attempt. Rules of access need a sandbox.
fn arguments(preset: Preset, attempt: &Attempt, program: &str) -> Vec<String> {
    let own = if preset == Preset::Stage && attempt.options.iter().any(|o| o.starts_with("--access")) {
        &[]
    } else {
        attempt.options
    };
    let inside = format!("exec {PYTHON} -c \"$1\" {}", attempt.inside);
    let command = ["--", "sh", "-c", &inside, "sh", program];
    let all = [&["run", "--executor", "host"], options(preset), own, &command].concat();
    all.into_iter().map(str::to_owned).collect()
}

/// A shell that redirects as the attempt wants and then becomes its arguments, as the user and with his variables.
fn shell(host: &Host, around: &str) -> Command {
    let around = around.replace("$OUT", host.path("outside").to_str().unwrap());
    let stdin = if around.starts_with('<') { "" } else { "</dev/null " };
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec \"$@\" {stdin}{around}"), "sh"]);
    command.uid(host.uid()).gid(host.uid()).current_dir(host.path("project"));
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", host.path("home"));
    command.env("API_TOKEN", TOKEN).env("PVISOR_RUN_HOME", host.path("runs")).stdin(Stdio::null());
    command
}

fn finish(mut command: Command, host: &Host) -> Run {
    let out = command.output().unwrap();
    let output = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    let _ = fs::remove_dir_all(host.path("runs/stage"));
    // A refused run makes no attempt.
    Run { ran: out.status.code().is_some_and(|code| !(124..=127).contains(&code)), output }
}

/// One attempt in the product.
pub fn attempt(host: &Host, preset: Preset, attempt: &Attempt) -> Run {
    let program = host.program(attempt.python);
    let mut command = shell(host, attempt.around);
    command.arg(env!("CARGO_BIN_EXE_pvisor")).args(arguments(preset, attempt, &program));
    finish(command, host)
}

/// The strictest preset, with a command that does nothing.
pub fn strict(host: &Host) -> Run {
    let mut command = shell(host, "");
    command.arg(env!("CARGO_BIN_EXE_pvisor")).args(["run", "--executor", "host", "--strict", "--", "true"]);
    finish(command, host)
}

/// One attempt without controls: the worker with a job of ours.
pub fn without(host: &Host, removal: &Removal, attempt: &Attempt) -> Run {
    let program = host.program(attempt.python);
    let mut dry = shell(host, "");
    dry.arg(env!("CARGO_BIN_EXE_pvisor")).args(arguments(removal.preset, attempt, &program));
    let at = program_place(&dry);
    let mut with_dry = shell(host, "");
    with_dry.args(dry.get_args().skip(3).take(at)).arg("--dry-run").args(dry.get_args().skip(3 + at));
    let out = with_dry.output().unwrap();
    let mut spec: Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&out.stderr)));
    spec["executor"] = json!("host");
    spec["command"]["env"] = json!(["PATH=/usr/bin:/bin"]);
    if removal.as_other {
        let uid = crate::SOMEBODY;
        (spec["command"]["uid"], spec["command"]["gid"], spec["command"]["groups"]) =
            (json!(uid), json!(uid), json!([uid]));
    }
    if removal.without.contains(&"stage") {
        spec["stage"] = Value::Null;
    }
    // What is left out is not required.
    spec["needs"] = json!([]);
    let run_dir = host.path("runs/without");
    fs::create_dir_all(&run_dir).unwrap();
    std::os::unix::fs::chown(&run_dir, Some(host.uid()), Some(host.uid())).unwrap();
    let job = json!({ "spec": spec, "run_dir": run_dir.to_str(), "kernel": null, "initramfs": null,
        "hidden": ["/etc/shadow"], "without": removal.without });
    let run = worker(host, &job, attempt.around, &run_dir);
    let _ = fs::remove_dir_all(&run_dir);
    run
}

/// Where the options of `run` end, in the arguments after the shell's own.
fn program_place(command: &Command) -> usize {
    command.get_args().skip(3).position(|arg| arg == "--").unwrap()
}

fn worker(host: &Host, job: &Value, around: &str, run_dir: &Path) -> Run {
    let (job_path, events_path) = (run_dir.join("job"), run_dir.join("events"));
    fs::write(&job_path, job.to_string()).unwrap();
    fs::write(&events_path, "").unwrap();
    for path in [&job_path, &events_path] {
        std::os::unix::fs::chown(path, Some(host.uid()), Some(host.uid())).unwrap();
    }
    let job = fs::File::open(&job_path).unwrap();
    let events = fs::File::options().append(true).open(&events_path).unwrap();
    for file in [&job, &events] {
        rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty()).unwrap();
    }
    let mut command = shell(host, around);
    command.arg(env!("CARGO_BIN_EXE_pvisor")).arg("internal-worker");
    command.arg("--job").arg(job.as_raw_fd().to_string()).arg("--events").arg(events.as_raw_fd().to_string());
    command.arg("--supervisor").arg(std::process::id().to_string());
    let mut run = finish(command, host);
    let told = fs::read_to_string(&events_path).unwrap();
    run.ran = told.lines().any(|line| line.contains("started"));
    if !run.ran {
        run.output += &told;
    }
    run
}
