//! What the root of a sandbox consists of.

use std::fs;
use std::path::{Path, PathBuf};

use pvisor_spec::{HomeView, HostMount, WorkerFailure};

use super::hidden::existing;
use super::{Access, Sandbox, SetupOp};
use crate::failure::failure;
use crate::launch::Served;

/// The system, read-only; symbolic links stay such.
pub(super) const SYSTEM: [&str; 16] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/nix/store",
    "/gnu/store",
    "/var/lib/dpkg",
    "/var/lib/rpm",
    "/var/lib/alternatives",
    "/var/lib/ca-certificates",
    // How many processors there are, and how they are connected.
    "/sys/devices/system",
];

/// Toolchains that people keep below their home directories.
const TOOLS: [&str; 24] = [
    ".cargo",
    ".rustup",
    ".nvm",
    ".fnm",
    ".volta",
    ".bun",
    ".deno",
    ".pyenv",
    ".rbenv",
    ".asdf",
    ".sdkman",
    ".opam",
    ".ghcup",
    ".dotnet",
    ".npm-global",
    ".local/bin",
    ".local/lib",
    ".local/pipx",
    ".local/share/pnpm",
    ".local/share/mise",
    ".local/share/uv",
    ".nix-profile",
    "go/bin",
    "bin",
];

/// Device nodes that do no harm.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// What of `/proc` speaks of the whole machine, or changes it.
pub(super) const PROC_FROZEN: [&str; 8] = [
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/irq",
    "/proc/bus",
    "/proc/fs",
    "/proc/mtrr",
    "/proc/driver",
    "/proc/dynamic_debug",
];
const PROC_HIDDEN: [&str; 18] = [
    "/proc/kcore",
    "/proc/kmsg",
    "/proc/keys",
    "/proc/key-users",
    "/proc/kallsyms",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/kpagecgroup",
    "/proc/slabinfo",
    "/proc/vmallocinfo",
    "/proc/pagetypeinfo",
    "/proc/sched_debug",
    "/proc/timer_list",
    "/proc/latency_stats",
    "/proc/modules",
    "/proc/interrupts",
    "/proc/acpi",
    "/proc/scsi",
];

/// Smallest filesystem in memory, in bytes.
const LEAST_MEMORY: u64 = 64 << 20;

/// What a sandbox is wanted for.
pub(crate) struct Wanted<'a> {
    pub(crate) project: &'a Path,
    pub(crate) staged: bool,
    pub(crate) home: Option<&'a Path>,
    pub(crate) home_view: HomeView,
    pub(crate) mounts: &'a [HostMount],
    /// Globs of secrets.
    pub(crate) hidden: &'a [String],
    /// Directories of our own.
    pub(crate) private: &'a [PathBuf],
    /// Whether the host's resolver is of use.
    pub(crate) network: bool,
    /// Whether it has devices of its own; only a test leaves that out.
    pub(crate) devices: bool,
    /// Whether secrets are hidden; only a test leaves that out.
    pub(crate) secrets: bool,
}

/// Decides on a root.
///
/// # Errors
/// A secret can't be found among too many files, or a mount would cover what must not be covered.
pub(crate) fn lay_out(wanted: &Wanted<'_>) -> Result<Sandbox, WorkerFailure> {
    let mut ops = system(wanted.network);
    let alone_readable = ops.iter().filter(|op| matches!(op, SetupOp::Bind { .. })).map(|op| op.place().clone());
    let alone_readable = alone_readable.collect();
    let size = memory_size();
    for at in ["/tmp", "/var/tmp"] {
        ops.push(SetupOp::Memory { at: at.into(), mode: 0o1777, size });
    }
    ops.push(SetupOp::Memory { at: "/run".into(), mode: 0o755, size: LEAST_MEMORY });
    ops.push(SetupOp::Link { at: "/var/run".into(), target: "/run".into() });
    devices(wanted.devices, size, &mut ops);
    let mut writable: Vec<PathBuf> =
        ["/tmp", "/var/tmp", "/run", "/dev", "/proc"].into_iter().map(PathBuf::from).collect();
    let served_home = home(wanted, size, &mut ops, &mut writable);
    mounts(wanted, &mut ops, &mut writable)?;
    ops.push(match wanted.staged {
        true => SetupOp::Serve { which: Served::Project, at: wanted.project.to_owned() },
        false => {
            SetupOp::Bind { from: wanted.project.to_owned(), at: wanted.project.to_owned(), access: Access::Write }
        }
    });
    writable.push(wanted.project.to_owned());
    let covers = if wanted.secrets { covers(wanted, &ops)? } else { Vec::new() };
    ops.extend(covers.iter().cloned().map(|at| SetupOp::Hide { at }));
    ops.push(SetupOp::Proc { at: "/proc".into() });
    ops.extend(PROC_FROZEN.iter().map(|at| SetupOp::Freeze { at: at.into() }));
    ops.extend(PROC_HIDDEN.iter().map(|at| SetupOp::Hide { at: at.into() }));
    let hidden = if wanted.secrets { wanted.hidden.to_vec() } else { Vec::new() };
    Ok(Sandbox { ops, writable, covers, hidden, home: served_home, alone_readable })
}

fn system(network: bool) -> Vec<SetupOp> {
    let mut ops = Vec::new();
    for place in SYSTEM.map(PathBuf::from) {
        match fs::symlink_metadata(&place) {
            Ok(meta) if meta.is_symlink() => {
                if let Ok(target) = fs::read_link(&place) {
                    ops.push(SetupOp::Link { at: place, target });
                }
            }
            Ok(meta) if meta.is_dir() => ops.push(read_only(&place)),
            _ => {}
        }
    }
    // The resolver's configuration is often a link to where a service keeps it.
    let resolver = Path::new("/etc/resolv.conf").canonicalize();
    if let Ok(real) = resolver
        && network
        && !SYSTEM.iter().any(|s| real.starts_with(s))
    {
        ops.push(read_only(&real));
    }
    // Before what is mounted in them.
    ops.sort_by_key(|op| op.place().starts_with("/run"));
    ops
}

fn read_only(place: &Path) -> SetupOp {
    SetupOp::Bind { from: place.to_owned(), at: place.to_owned(), access: Access::Read }
}

/// A quarter of the machine's memory.
fn memory_size() -> u64 {
    let info = rustix::system::sysinfo();
    let unit = u64::from(info.mem_unit).max(1);
    #[allow(clippy::useless_conversion, reason = "the field's type is another one on 32-bit machines")]
    let total = u64::from(info.totalram).saturating_mul(unit);
    (total / 4).max(LEAST_MEMORY)
}

fn devices(own: bool, size: u64, ops: &mut Vec<SetupOp>) {
    if !own {
        ops.push(SetupOp::Bind { from: "/dev".into(), at: "/dev".into(), access: Access::Device });
        return;
    }
    ops.push(SetupOp::Memory { at: "/dev".into(), mode: 0o755, size: LEAST_MEMORY });
    for name in DEVICES {
        let node = Path::new("/dev").join(name);
        ops.push(SetupOp::Bind { from: node.clone(), at: node, access: Access::Device });
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        ops.push(SetupOp::Link { at: Path::new("/dev").join(name), target: target.into() });
    }
    ops.push(SetupOp::Terminals { at: "/dev/pts".into() });
    ops.push(SetupOp::Memory { at: "/dev/shm".into(), mode: 0o1777, size });
}

/// The home directory; where it is served, if it is.
fn home(wanted: &Wanted<'_>, size: u64, ops: &mut Vec<SetupOp>, writable: &mut Vec<PathBuf>) -> Option<PathBuf> {
    let home = wanted.home.filter(|home| usable_home(home, wanted.project))?;
    writable.push(home.to_owned());
    match wanted.home_view {
        HomeView::CopyOnWrite => {
            ops.push(SetupOp::Serve { which: Served::Home, at: home.to_owned() });
            Some(home.to_owned())
        }
        HomeView::Tools => {
            ops.push(SetupOp::Memory { at: home.to_owned(), mode: 0o700, size });
            let tools = TOOLS.iter().map(|name| home.join(name)).filter(|path| path.is_dir());
            // A link could lead to anything.
            ops.extend(tools.filter(|p| p.canonicalize().is_ok_and(|real| real == *p)).map(|p| read_only(&p)));
            None
        }
    }
}

/// Whether a directory is one person's, and not the project or around which the system lies.
fn usable_home(home: &Path, project: &Path) -> bool {
    let system = SYSTEM.iter().any(|s| Path::new(s).starts_with(home) || home.starts_with(s));
    !system && home.is_dir() && !home.starts_with(project)
}

fn mounts(wanted: &Wanted<'_>, ops: &mut Vec<SetupOp>, writable: &mut Vec<PathBuf>) -> Result<(), WorkerFailure> {
    for mount in wanted.mounts {
        let (from, at) = (mount.source.as_path().to_owned(), mount.target.as_path().to_owned());
        if wanted.project.starts_with(&at) || at.starts_with("/proc") || at.starts_with("/dev") || !at.is_absolute() {
            return Err(failure(
                "mount",
                format!("nothing can be mounted on {}", at.display()),
                "name a target that is neither the project, nor around it, nor in /proc or /dev",
            ));
        }
        if let Some(own) = wanted.private.iter().find(|own| own.starts_with(&from) || from.starts_with(own)) {
            return Err(failure(
                "mount",
                format!("{} can't be shown: the records of runs are in {}", from.display(), own.display()),
                "mount a directory beside it",
            ));
        }
        let access = if mount.writable { Access::Write } else { Access::Read };
        if mount.writable {
            writable.push(at.clone());
        }
        ops.push(SetupOp::Bind { from, at, access });
    }
    Ok(())
}

/// Secrets in what is bound: each must be covered at the path that it has in the sandbox.
fn covers(wanted: &Wanted<'_>, ops: &[SetupOp]) -> Result<Vec<PathBuf>, WorkerFailure> {
    let mut covers = Vec::new();
    let bound = ops.iter().filter_map(|op| match op {
        SetupOp::Bind { from, at, access: Access::Read | Access::Write } => Some((from, at)),
        _ => None,
    });
    let bound: Vec<_> = bound.collect();
    // A glob for any depth is for what the person shows, not for the system, which has no secrets by the thousand.
    let asked: Vec<PathBuf> = bound.iter().map(|(from, _)| (*from).clone()).collect();
    let personal: Vec<PathBuf> =
        asked.iter().filter(|from| !SYSTEM.iter().any(|s| Path::new(s) == from.as_path())).cloned().collect();
    for glob in wanted.hidden {
        let within = if glob.contains("**") { &personal } else { &asked };
        let found = existing(glob, within).ok_or_else(|| {
            failure(
                "secrets",
                format!("{glob}: there are too many files to look for it in all of them"),
                "mount a smaller directory, or name the path without **",
            )
        })?;
        for path in found {
            for (from, at) in &bound {
                if let Ok(rest) = path.strip_prefix(from) {
                    covers.push(if rest.as_os_str().is_empty() { (*at).clone() } else { at.join(rest) });
                }
            }
        }
    }
    covers.sort();
    covers.dedup();
    Ok(covers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted<'a>(project: &'a Path, home: Option<&'a Path>, hidden: &'a [String]) -> Wanted<'a> {
        Wanted {
            project,
            staged: true,
            home,
            home_view: HomeView::Tools,
            mounts: &[],
            hidden,
            private: &[],
            network: false,
            devices: true,
            secrets: true,
        }
    }

    fn position(sandbox: &Sandbox, at: &Path) -> usize {
        sandbox.ops.iter().position(|op| op.place() == at).unwrap_or_else(|| panic!("no {}", at.display()))
    }

    #[test]
    fn what_is_around_comes_first_and_secrets_are_covered_last() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap();
        let project = home.join("p");
        for made in ["p", ".cargo"] {
            fs::create_dir(home.join(made)).unwrap();
        }
        fs::write(home.join(".cargo/credentials.toml"), "").unwrap();
        let hidden = [format!("{}/.cargo/credentials*", home.display())];
        let sandbox = lay_out(&wanted(&project, Some(&home), &hidden)).unwrap();
        let order = ["/usr", "/tmp"].map(PathBuf::from);
        let order =
            [&order[0], &order[1], &home, &home.join(".cargo"), &project, &home.join(".cargo/credentials.toml")];
        let positions: Vec<usize> = order.iter().map(|at| position(&sandbox, at)).collect();
        assert!(positions.is_sorted(), "{positions:?}");
        assert_eq!(sandbox.covers.len(), 1);
        assert!(!sandbox.ops.iter().any(|op| matches!(op, SetupOp::Bind { from, .. } if from.starts_with("/root"))));
    }

    #[test]
    fn a_project_that_is_the_home_is_served_once() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap();
        let sandbox = lay_out(&wanted(&home, Some(&home), &[])).unwrap();
        assert_eq!(sandbox.ops.iter().filter(|op| op.place() == &home).count(), 1);
    }

    #[test]
    fn mounts_that_would_cover_the_project_or_show_records_are_refused() {
        let mount =
            |source: &str, target: &str| HostMount { source: source.into(), target: target.into(), writable: false };
        let private = [PathBuf::from("/state/runs")];
        let project = Path::new("/home/me/p");
        let check =
            |mounts: &[HostMount]| lay_out(&Wanted { mounts, private: &private, ..wanted(project, None, &[]) }).is_ok();
        assert!(check(&[mount("/srv", "/srv")]));
        for bad in [("/srv", "/home/me"), ("/srv", "/home/me/p"), ("/srv", "/proc/x"), ("/state", "/s"), ("/", "/h")] {
            assert!(!check(&[mount(bad.0, bad.1)]), "{bad:?}");
        }
    }
}
