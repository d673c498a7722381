//! Finding container runtimes.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pvisor_spec::{Capability, CapabilityState};
use rustix::fs::Access;

/// Runtimes that are looked for, in order of preference.
const KNOWN: [&str; 3] = ["crun", "runc", "podman"];

/// How long a runtime may take to tell its version.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most bytes of its answer that are read.
const MAX_ANSWER: u64 = 4096;

/// How often a runtime is looked after.
const TURN: Duration = Duration::from_millis(5);

/// One line for each known runtime.
pub fn runtimes() -> Vec<Capability> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    KNOWN.into_iter().map(|name| describe(name, find(name, &path))).collect()
}

fn describe(name: &str, found: Option<PathBuf>) -> Capability {
    let (state, detail, hint) = match found.as_deref().map(|program| (program, version(program))) {
        Some((program, Ok(version))) => {
            (CapabilityState::Usable, format!("{version} in {}", program.display()), String::new())
        }
        Some((program, Err(why))) => (
            CapabilityState::Limited,
            format!("{} is there, but {why}", program.display()),
            format!("see what `{name} --version` says"),
        ),
        None => (CapabilityState::Missing, "not in PATH".to_owned(), format!("install the package {name}")),
    };
    Capability { name: format!("oci_{name}"), state, detail, hint }
}

/// The first program of that name that can be executed. Relative entries are skipped: they mean something else in every
/// directory.
fn find(name: &str, path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(name))
        .find(|program| program.is_file() && rustix::fs::access(program, Access::EXEC_OK).is_ok())
}

/// The version that the program tells: the first word of its first line that begins with a digit.
fn version(program: &Path) -> Result<String, String> {
    let mut child = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| format!("can't be run: {e}"))?;
    let output = child.stdout.take();
    // Read beside the waiting, so that a long answer can't block it.
    let reader = thread::spawn(move || {
        let mut answer = Vec::new();
        let read = output.map(|pipe| pipe.take(MAX_ANSWER).read_to_end(&mut answer));
        read.is_some_and(|r| r.is_ok()).then_some(answer)
    });
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => thread::sleep(TURN),
            outcome => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(match outcome {
                    Err(e) => format!("can't be waited for: {e}"),
                    Ok(_) => format!("does not answer within {} s", PATIENCE.as_secs()),
                });
            }
        }
    };
    // A process that it left behind may hold the pipe; the answer is there once the program has ended, or never.
    while !reader.is_finished() && Instant::now() < deadline {
        thread::sleep(TURN);
    }
    if !status.success() {
        return Err(format!("ends with {status}"));
    }
    let answer = if reader.is_finished() { reader.join().ok().flatten() } else { None };
    let answer = String::from_utf8_lossy(&answer.unwrap_or_default()).into_owned();
    let words = answer.lines().next().unwrap_or_default().split_whitespace();
    let version = words.map(|w| w.trim_start_matches('v')).find(|w| w.starts_with(|c: char| c.is_ascii_digit()));
    let plain = |w: &str| w.chars().filter(|c| c.is_ascii_graphic()).take(40).collect::<String>();
    version.map(plain).ok_or_else(|| "tells no version".to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn program(dir: &Path, name: &str, script: &str) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn the_version_is_read_from_what_each_prints() {
        let dir = tempfile::tempdir().unwrap();
        for (answer, version) in [
            ("runc version 1.2.8\ncommit: x", "1.2.8"),
            ("crun version 1.14.1\n+SYSTEMD", "1.14.1"),
            ("podman version 5.3.0", "5.3.0"),
            ("odd v2", "2"),
        ] {
            let path = program(dir.path(), "tool", &format!("printf '%s' '{answer}'"));
            assert_eq!(super::version(&path).as_deref(), Ok(version));
        }
    }

    #[test]
    fn a_broken_one_is_limited_and_a_missing_one_missing() {
        let dir = tempfile::tempdir().unwrap();
        let broken = program(dir.path(), "runc", "exit 3");
        assert_eq!(describe("runc", Some(broken)).state, CapabilityState::Limited);
        let silent = program(dir.path(), "crun", "exit 0");
        assert_eq!(describe("crun", Some(silent)).state, CapabilityState::Limited);
        let missing = describe("podman", None);
        assert_eq!(missing.state, CapabilityState::Missing);
        assert!(!missing.hint.is_empty());
    }

    #[test]
    fn only_absolute_executable_files_are_found() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("runc"), "").unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        let good = program(&dir.path().join("sub"), "runc", "");
        let path = std::env::join_paths([Path::new("."), dir.path(), &dir.path().join("sub")]).unwrap();
        assert_eq!(find("runc", &path), Some(good));
        assert_eq!(find("crun", &path), None);
    }
}
