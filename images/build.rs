//! Builds the guest agent and hands its file to the crate, which embeds it.
//!
//! The agent is a program of its own: statically linked, with its own profile, for the guest instead of the host. Cargo
//! can't express that as a dependency, so this script calls cargo once more, with a target directory of its own.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const PACKAGE: &str = "pvisor-guest-agent";

fn main() -> ExitCode {
    match agent() {
        Ok(path) => {
            println!("cargo::rustc-env=PVISOR_AGENT_FILE={}", path.display());
            ExitCode::SUCCESS
        }
        Err(message) => {
            for line in message.lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

/// The agent's file.
fn agent() -> Result<PathBuf, String> {
    let manifest_dir = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let workspace = manifest_dir.parent().ok_or("this package must lie in its workspace")?;
    // Relative to this package, so that they still hold where checkouts share a target directory.
    for input in ["build.rs", "../guest-agent", "../Cargo.toml", "../Cargo.lock"] {
        println!("cargo::rerun-if-changed={input}");
    }
    println!("cargo::rerun-if-env-changed=PVISOR_AGENT");
    if let Some(ready) = env::var_os("PVISOR_AGENT") {
        return Path::new(&ready).canonicalize().map_err(|e| format!("PVISOR_AGENT names {}: {e}", ready.display()));
    }
    let (system, machine) = (variable("CARGO_CFG_TARGET_OS")?, variable("CARGO_CFG_TARGET_ARCH")?);
    if system != "linux" {
        return Err(format!(
            "the guest agent runs on Linux and can't be built by a toolchain for {system}\n\
             build it on Linux ({machine}) with: RUSTFLAGS=-Ctarget-feature=+crt-static cargo build -p {PACKAGE} \
             --profile agent --target {machine}-unknown-linux-gnu\n\
             then set PVISOR_AGENT to the program's path"
        ));
    }
    let target = variable("TARGET")?;
    let output = PathBuf::from(variable("OUT_DIR")?).join("agent");
    build(workspace, &target, &output)?;
    let path = output.join(&target).join("agent").join(PACKAGE);
    if path.is_file() { Ok(path) } else { Err(format!("cargo built {PACKAGE}, but not at {}", path.display())) }
}

fn build(workspace: &Path, target: &str, output: &Path) -> Result<(), String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(&cargo);
    command.current_dir(workspace).args(["build", "--package", PACKAGE, "--profile", "agent", "--target", target]);
    command.arg("--target-dir").arg(output);
    if workspace.join("Cargo.lock").is_file() {
        command.arg("--locked");
    }
    for (name, _) in env::vars_os() {
        if belongs_to_this_build(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
    command.env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static").env("CARGO_TERM_COLOR", "never");
    let done = command.output().map_err(|e| format!("can't run {}: {e}", cargo.display()))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let mut message = format!("the guest agent does not build ({}):\n{said}", done.status);
    if said.contains("cannot find -l") || said.contains("unable to find library -l") || said.contains("linker `cc`") {
        message.push_str(
            "it is linked statically: the C library's static files are needed \
             (Debian and Ubuntu: gcc libc6-dev; Fedora: gcc glibc-static)\n",
        );
    }
    Err(message)
}

/// Whether a variable describes the build of this crate (its compiler wrappers, flags, profile, target), which is none
/// of the agent's business. What says where crates come from, which toolchain, linker and how many jobs, stays.
fn belongs_to_this_build(name: &str) -> bool {
    const EXACT: [&str; 17] = [
        "RUSTFLAGS",
        "RUSTDOCFLAGS",
        "RUSTC",
        "RUSTDOC",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_LINKER",
        "CLIPPY_ARGS",
        "TARGET",
        "HOST",
        "PROFILE",
        "OPT_LEVEL",
        "DEBUG",
        "OUT_DIR",
        "CARGO_TARGET_DIR",
        "CARGO_INCREMENTAL",
        "CARGO_ENCODED_RUSTFLAGS",
    ];
    const PREFIXES: [&str; 8] = [
        "CARGO_BUILD_",
        "CARGO_PROFILE_",
        "CARGO_CFG_",
        "CARGO_FEATURE_",
        "CARGO_PKG_",
        "CARGO_MANIFEST_",
        "CARGO_PRIMARY_",
        "CARGO_UNSTABLE_",
    ];
    EXACT.contains(&name) || PREFIXES.iter().any(|p| name.starts_with(p))
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|e| format!("{name}: {e}"))
}
