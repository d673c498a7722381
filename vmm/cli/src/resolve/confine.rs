//! What confines a command on the host: presets, mounts, rules.

use std::fs;
use std::path::{Path, PathBuf};

use pvisor_spec::{
    Confinement, Dimension, EnvironmentMode, ExecutorKind, ExecutorRequest, ExitCode, FilesystemMode, HomeView,
    HostMount, Need, Resources,
};

use super::{Ambient, network};
use crate::args::{AccessRule, AccessVerdict, FilesystemArg, MountArg, MountUse, RunArgs};
use crate::report::Failure;

/// Processes of a preset: more than builds have, and few enough to find one's way out.
const PRESET_PIDS: u32 = 4096;

/// Open files of each process of a preset.
const PRESET_OPEN_FILES: u32 = 65_536;

/// Why a command can't be confined as asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfineError {
    #[error("{} can't be mounted", path.display())]
    Mount { path: PathBuf, source: std::io::Error },
    #[error("{what} is not in this version")]
    Unsupported { what: &'static str },
    #[error("--ask is in this version for commands on the host alone")]
    AskElsewhere,
    #[error("{what} needs a sandbox")]
    NoSandbox { what: &'static str },
    #[error("~ stands for the home directory, and there is none")]
    NoHome,
}

impl From<ConfineError> for Failure {
    fn from(error: ConfineError) -> Self {
        let message = crate::report::chain(&error);
        match error {
            ConfineError::Mount { .. } => Self::new("mount", message)
                .hint("--mount takes a file or directory that exists now")
                .code(ExitCode::FAILED),
            ConfineError::Unsupported { .. } => {
                Self::new("unsupported", message).hint("use read or write, and deny").code(ExitCode::UNSUPPORTED)
            }
            ConfineError::AskElsewhere => {
                Self::new("unsupported", message).hint("use --executor host").code(ExitCode::UNSUPPORTED)
            }
            ConfineError::NoSandbox { .. } => {
                Self::new("no_sandbox", message).hint("add --filesystem sandbox or --safe").code(ExitCode::USAGE)
            }
            ConfineError::NoHome => Self::new("no_home", message).hint("write the whole path").code(ExitCode::USAGE),
        }
    }
}

/// Whether the arguments ask for a preset.
pub(super) fn preset(args: &RunArgs) -> bool {
    args.safe || args.strict || args.ask
}

/// The executor of a run: one that asks the person runs on the host.
///
/// # Errors
/// Another one was named.
pub(super) fn asking(args: &RunArgs, requested: ExecutorRequest) -> Result<ExecutorRequest, ConfineError> {
    let host = ExecutorRequest::Only(ExecutorKind::Host);
    match requested {
        _ if !args.ask => Ok(requested),
        ExecutorRequest::Auto => Ok(host),
        named if named == host => Ok(host),
        ExecutorRequest::Only(_) => Err(ConfineError::AskElsewhere),
    }
}

/// What of the host's filesystem is shown.
pub(super) fn filesystem(args: &RunArgs) -> FilesystemMode {
    match preset(args) || args.filesystem == FilesystemArg::Sandbox {
        true => FilesystemMode::Sandbox,
        false => FilesystemMode::Host,
    }
}

/// What was asked for by name must be there, or the run does not start.
pub(super) fn needs(args: &RunArgs) -> Vec<(Dimension, Need)> {
    if args.strict {
        return Dimension::ALL.into_iter().map(|dimension| (dimension, Need::Required)).collect();
    }
    let mut needs = Vec::new();
    let limited = args.cpus.is_some() || args.memory.is_some() || args.pids.is_some();
    let each_limited = args.max_open_files.is_some() || args.max_file_size.is_some() || args.max_cpu_time.is_some();
    if limited || each_limited {
        needs.push((Dimension::Resources, Need::Required));
    }
    if filesystem(args) == FilesystemMode::Sandbox {
        needs.extend([Dimension::FilesystemRead, Dimension::FilesystemWrite].map(|d| (d, Need::Required)));
    }
    if network::is_confined(args) {
        needs.push((Dimension::Network, Need::Required));
    }
    if args.safe || args.ask {
        let rest = [Dimension::Subprocess, Dimension::Resources, Dimension::Secrets, Dimension::Devices];
        // What comes first counts.
        needs.extend(rest.map(|d| (d, Need::Preferred)));
    }
    needs
}

/// Everything else that confines the command.
///
/// # Errors
/// A mount is not there, or something needs what was not asked for.
pub(super) fn confinement(args: &RunArgs, ambient: &Ambient) -> Result<Confinement, ConfineError> {
    let sandbox = filesystem(args) == FilesystemMode::Sandbox;
    for (given, what) in [(!args.mount.is_empty(), "--mount"), (!args.access.is_empty(), "--access")] {
        if given && !sandbox {
            return Err(ConfineError::NoSandbox { what });
        }
    }
    let home = ambient.home().and_then(|home| home.canonicalize().ok());
    Ok(Confinement {
        home_view: if preset(args) { HomeView::CopyOnWrite } else { HomeView::Tools },
        mounts: args.mount.iter().map(|m| mount(m, home.as_deref(), ambient)).collect::<Result<_, _>>()?,
        denied: args.access.iter().map(|rule| denied(rule, home.as_deref())).collect::<Result<_, _>>()?,
        home: home.map(Into::into),
        environment: if preset(args) { EnvironmentMode::Projected } else { EnvironmentMode::Whole },
        keep_capabilities: args.keep_capabilities,
        allow_io_uring: args.allow_io_uring,
        allow_user_namespaces: args.allow_user_namespaces,
        strict: args.strict,
    })
}

fn mount(arg: &MountArg, home: Option<&Path>, ambient: &Ambient) -> Result<HostMount, ConfineError> {
    let writable = match arg.how {
        MountUse::Read => false,
        MountUse::Write => true,
        MountUse::Stage => return Err(ConfineError::Unsupported { what: "--mount SRC:stage" }),
    };
    let path = match arg.source.strip_prefix("~") {
        Ok(rest) => home.ok_or(ConfineError::NoHome)?.join(rest),
        Err(_) => ambient.cwd.join(&arg.source),
    };
    let source = path.canonicalize().map_err(|source| ConfineError::Mount { path: path.clone(), source })?;
    // At the path by which the person knows it.
    let target = arg.target.clone().unwrap_or(path);
    Ok(HostMount { source: source.into(), target: target.into(), writable })
}

/// The pattern against absolute paths.
fn denied(rule: &AccessRule, home: Option<&Path>) -> Result<String, ConfineError> {
    match rule.verdict {
        AccessVerdict::Deny => {}
        AccessVerdict::Ask => return Err(ConfineError::Unsupported { what: "--access GLOB:ask" }),
        AccessVerdict::Warn => return Err(ConfineError::Unsupported { what: "--access GLOB:warn" }),
    }
    if rule.glob.starts_with('/') {
        return Ok(rule.glob.clone());
    }
    match rule.glob.strip_prefix("~/") {
        Some(rest) => {
            let home = home.and_then(Path::to_str).ok_or(ConfineError::NoHome)?;
            Ok(format!("{}/{rest}", globset::escape(home)))
        }
        None => Ok(format!("/**/{}", rule.glob)),
    }
}

/// Limits of a command on the host under a preset, where none were named.
pub(super) fn preset_limits(resources: Resources) -> Resources {
    Resources {
        memory_mib: resources.memory_mib.or_else(three_quarters_of_memory),
        pids: resources.pids.or(Some(PRESET_PIDS)),
        open_files: resources.open_files.or(Some(PRESET_OPEN_FILES)),
        ..resources
    }
}

fn three_quarters_of_memory() -> Option<u32> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    u32::try_from(kib / 1024 / 4 * 3).ok()
}
