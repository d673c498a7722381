//! What a job comes to on the host: everything checked and converted before the first process is made.

use std::cell::OnceCell;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pvisor_netstack::LinkConfig;
use pvisor_spec::{
    Durability, EgressSpec, EnvironmentMode, FilesystemMode, NetworkMode, OsBytes, Resources, RunId, WorkerFailure,
    WorkerJob,
};

use crate::failure::failure;
use crate::restrict::{Reach, Reaches, Restrictions};
use crate::sandbox::{Sandbox, Wanted, lay_out};
use crate::trials::Trials;
use crate::{capability, receipts};

/// Where a program without a slash is looked for when the environment has no `PATH`.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// One run on the host.
pub(crate) struct Plan {
    /// Paths to try, in order.
    pub(crate) programs: Vec<CString>,
    pub(crate) argv: Vec<CString>,
    pub(crate) env: Vec<CString>,
    pub(crate) cwd: PathBuf,
    pub(crate) project: PathBuf,
    pub(crate) stage: Option<StagePlan>,
    /// The command has a network namespace of its own.
    pub(crate) own_network: bool,
    /// What leads out of it; `None`: nothing.
    pub(crate) egress: Option<EgressPlan>,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) umask: u32,
    pub(crate) timeout: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) id: RunId,
    pub(crate) run_dir: PathBuf,
    pub(crate) restrictions: Restrictions,
    pub(crate) sandbox: Option<Sandbox>,
    /// Decided on once everything else is.
    pub(crate) trials: OnceCell<Trials>,
    pub(crate) resources: Resources,
    pub(crate) allow_user_namespaces: bool,
    pub(crate) projected_environment: bool,
    /// Real root keeps his capabilities, and with them the ways out.
    pub(crate) keep_capabilities: bool,
    without: Vec<String>,
}

/// The way out of the command's network.
pub(crate) struct EgressPlan {
    pub(crate) policy: EgressSpec,
    pub(crate) link: LinkConfig,
    /// The resolver's file of the host, where links lead.
    pub(crate) resolver: PathBuf,
}

impl EgressPlan {
    fn new(policy: &EgressSpec) -> Self {
        let file = Path::new("/etc/resolv.conf");
        Self {
            policy: policy.clone(),
            link: LinkConfig { mtu: LinkConfig::TAP_MTU, ..LinkConfig::default() },
            resolver: file.canonicalize().unwrap_or_else(|_| file.to_owned()),
        }
    }
}

/// Where the project's changes go.
pub(crate) struct StagePlan {
    pub(crate) dir: PathBuf,
    pub(crate) durability: Durability,
    pub(crate) max_bytes: Option<u64>,
    /// It is there and is gone on with.
    pub(crate) resume: bool,
}

impl Plan {
    /// # Errors
    /// The host executor can't do what is asked, or the specification contradicts itself.
    pub(crate) fn new(job: &WorkerJob) -> Result<Self, WorkerFailure> {
        let spec = &job.spec;
        let command = &spec.command;
        let argv = c_strings(&command.argv, "argument")?;
        let Some(program) = command.argv.first() else {
            return Err(failure("internal", "the command is empty", ""));
        };
        let with = |control: &str| !job.without.iter().any(|w| w == control);
        let project = absolute(&spec.project, "project")?;
        let sandbox = match spec.filesystem {
            FilesystemMode::Host => None,
            FilesystemMode::Sandbox => Some(sandbox(job, &project, with)?),
        };
        let reach = sandbox.as_ref().map(|s| reaches(s, &project));
        let plan = Self {
            id: spec.id,
            run_dir: absolute(&job.run_dir, "run directory")?,
            trials: OnceCell::new(),
            resources: spec.resources,
            allow_user_namespaces: spec.confinement.allow_user_namespaces,
            projected_environment: spec.confinement.environment == EnvironmentMode::Projected,
            programs: programs(program.as_bytes(), &command.env)?,
            argv,
            env: c_strings(&command.env, "environment variable")?,
            cwd: absolute(&command.cwd, "working directory")?,
            project,
            stage: match &spec.stage {
                None => None,
                Some(stage) => Some(StagePlan {
                    dir: absolute(&stage.dir, "stage")?,
                    durability: stage.durability,
                    max_bytes: stage.max_bytes,
                    resume: job.resume,
                }),
            },
            own_network: spec.network != NetworkMode::Host && with(receipts::NETWORK_NAMESPACE),
            egress: match &spec.network {
                NetworkMode::Egress(egress) if with(receipts::NETWORK_NAMESPACE) => Some(EgressPlan::new(egress)),
                _ => None,
            },
            uid: command.uid,
            gid: command.gid,
            groups: command.groups.clone(),
            umask: command.umask & 0o777,
            timeout: spec.timeout_ms.map(Duration::from_millis),
            grace: Duration::from_millis(spec.grace_ms),
            restrictions: Restrictions::new(&spec.confinement, &spec.resources, command.uid, reach, with)?,
            sandbox,
            keep_capabilities: spec.confinement.keep_capabilities,
            without: job.without.clone(),
        };
        plan.check_identity()?;
        Ok(plan)
    }

    /// Whether the person may be asked about something.
    pub(crate) fn asks(&self) -> bool {
        self.egress.as_ref().is_some_and(|way_out| way_out.policy.ask)
    }

    /// Whether the run has a log of what the command reached.
    pub(crate) fn is_logged(&self) -> bool {
        self.egress.is_some() || self.asks()
    }

    /// Whether a control is installed; only a test leaves one out.
    pub(crate) fn with(&self, control: &str) -> bool {
        !self.without.iter().any(|w| w == control)
    }

    /// Whether the kernel's Landlock keeps commands from sockets with abstract names.
    pub(crate) fn scopes(&self) -> bool {
        const WITH_SCOPES: i64 = 6;
        capability::landlock_version().is_some_and(|version| version >= WITH_SCOPES)
    }

    /// Who is not root can run a command only as himself.
    fn check_identity(&self) -> Result<(), WorkerFailure> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        if uid == 0 || (self.uid, self.gid) == (uid, gid) && self.keeps_groups() {
            return Ok(());
        }
        Err(failure(
            "identity",
            format!(
                "user {uid} can't run a command as user {}, group {}, other groups {:?}",
                self.uid, self.gid, self.groups
            ),
            "run pvisor as the user that the command is for",
        ))
    }

    /// Whether the command's supplementary groups are those of this process.
    pub(crate) fn keeps_groups(&self) -> bool {
        let mut own: Vec<u32> =
            rustix::process::getgroups().unwrap_or_default().into_iter().map(rustix::process::Gid::as_raw).collect();
        let mut wanted = self.groups.clone();
        // Some systems list the primary group among them.
        for list in [&mut own, &mut wanted] {
            list.push(self.gid);
            list.sort_unstable();
            list.dedup();
        }
        own == wanted
    }
}

fn sandbox(job: &WorkerJob, project: &Path, with: impl Fn(&str) -> bool) -> Result<Sandbox, WorkerFailure> {
    let (spec, confinement) = (&job.spec, &job.spec.confinement);
    let run_dir = absolute(&job.run_dir, "run directory")?;
    let home = confinement.home.as_ref().map(|home| absolute(home, "home directory")).transpose()?;
    let mut private = vec![run_dir.parent().unwrap_or(&run_dir).to_owned()];
    private.extend(spec.stage.as_ref().map(|stage| stage.dir.as_path().to_owned()));
    lay_out(&Wanted {
        project,
        staged: spec.stage.is_some(),
        home: home.as_deref(),
        home_view: confinement.home_view,
        mounts: &confinement.mounts,
        hidden: &job.hidden,
        private: &private,
        network: spec.network != NetworkMode::DenyAll,
        devices: with(receipts::PRIVATE_DEVICES),
        secrets: with(receipts::SECRET_PATHS),
    })
}

fn reaches(sandbox: &Sandbox, project: &Path) -> Reaches {
    let projected = Reach { readable: vec!["/".into()], writable: sandbox.writable.clone() };
    let mut alone = Reach { readable: sandbox.alone_readable.clone(), writable: vec![project.to_owned()] };
    alone.readable.push("/proc".into());
    let devices = ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts"];
    alone.writable.extend(devices.map(|name| Path::new("/dev").join(name)));
    Reaches { projected, alone }
}

fn c_strings(strings: &[OsBytes], what: &str) -> Result<Vec<CString>, WorkerFailure> {
    strings
        .iter()
        .map(|s| {
            CString::new(s.as_bytes()).map_err(|_| failure("usage", format!("{what} {:?} has a zero byte", s), ""))
        })
        .collect()
}

fn absolute(path: &OsBytes, what: &str) -> Result<PathBuf, WorkerFailure> {
    let path = path.as_path();
    if path.is_absolute() && !path.as_os_str().as_encoded_bytes().contains(&0) {
        return Ok(path.to_owned());
    }
    Err(failure("internal", format!("{what} {path:?} is not an absolute path"), ""))
}

/// The paths that a program name can mean, in order.
fn programs(name: &[u8], env: &[OsBytes]) -> Result<Vec<CString>, WorkerFailure> {
    let candidate = |bytes: Vec<u8>| {
        CString::new(bytes).map_err(|_| failure("usage", "a zero byte in the program's name or in PATH", ""))
    };
    if name.is_empty() || name.contains(&b'/') {
        return Ok(vec![candidate(name.to_vec())?]);
    }
    let path = env.iter().find_map(|v| v.as_bytes().strip_prefix(b"PATH=")).unwrap_or(DEFAULT_PATH);
    path.split(|b| *b == b':')
        .map(|dir| {
            // An empty element means the working directory.
            let dir = if dir.is_empty() { &b"."[..] } else { dir };
            candidate([dir, b"/", name].concat())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, env: &[&str]) -> Vec<String> {
        let env: Vec<OsBytes> = env.iter().map(|v| OsBytes::from(*v)).collect();
        let found = programs(name.as_bytes(), &env).unwrap();
        found.into_iter().map(|p| p.into_string().unwrap()).collect()
    }

    #[test]
    fn programs_are_looked_for_where_the_commands_own_path_says() {
        assert_eq!(found("x", &["A=1", "PATH=/a:/b"]), ["/a/x", "/b/x"]);
        assert_eq!(found("x", &["PATH=/a::b"]), ["/a/x", "./x", "b/x"]);
        assert_eq!(found("./x", &["PATH=/a"]), ["./x"]);
        assert_eq!(found("", &["PATH=/a"]), [""]);
        assert!(found("x", &["PATHS=/a"]).contains(&"/usr/bin/x".to_owned()));
        assert!(programs(b"a\0b", &[]).is_err());
    }
}
