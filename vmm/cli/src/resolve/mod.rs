//! Arguments, configuration and surroundings become one [`RunSpec`]. Reads, never writes.

mod ambient;
mod config;
mod confine;
mod environment;
mod grant;
mod network;
mod place;

use std::ffi::OsString;
use std::path::PathBuf;

use pvisor_spec::{
    CommandSpec, Durability, EnvironmentMode, ExecutorKind, ExecutorRequest, GuestRoot, OsBytes, Resources, RunId,
    RunSpec, Sources, StageSpec,
};

pub(crate) use ambient::Ambient;
pub(crate) use config::Config;
pub(crate) use confine::ConfineError;
pub(crate) use grant::told as told_of_grant;
pub(crate) use place::PlaceError;
use pvisor_host_exec::EgressError;

use crate::access::{Memory, MemoryError};
use crate::args::{DurabilityArg, EnvPair, ExecutorArg, RunArgs, TtyArg};
use crate::profile::{self, ProfileError};
use crate::report::{Failure, chain};

/// Time between the polite signal and SIGKILL, where nothing else is said.
const GRACE_MS: u64 = 5000;

/// Why arguments do not make a run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResolveError {
    #[error("no command to run")]
    NoCommand,
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("the network policy is none")]
    Network(#[from] EgressError),
    #[error(transparent)]
    Confine(#[from] ConfineError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

impl From<ResolveError> for Failure {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::NoCommand => Self::new("no_command", chain(&error))
                .hint("put it after two dashes: pvisor run -- make test")
                .code(pvisor_spec::ExitCode::USAGE),
            ResolveError::Place(place) => place.into(),
            ResolveError::Network(_) => Self::new("network_policy", chain(&error))
                .hint("a destination is NAME, *.SUFFIX, ADDRESS or RANGE, each with :PORT or without")
                .code(pvisor_spec::ExitCode::USAGE),
            ResolveError::Confine(confine) => confine.into(),
            ResolveError::Memory(memory) => Self::from(memory).code(pvisor_spec::ExitCode::FAILED),
            ResolveError::Profile(profile) => Self::from(profile).code(pvisor_spec::ExitCode::USAGE),
        }
    }
}

/// A run that is fully described but for what depends on the executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    spec: RunSpec,
    /// Variables that were named with `--env`, `NAME=value`.
    named: Vec<OsBytes>,
    tty: TtyArg,
    interactive: bool,
    hint: Option<String>,
}

/// Makes a run of what the person said, what is configured and where we are.
///
/// # Errors
/// Something that was named is not there, or is no place for what it should be.
pub(crate) fn resolve(args: &RunArgs, config: &Config, ambient: &Ambient) -> Result<Resolved, ResolveError> {
    if args.command.is_empty() {
        return Err(ResolveError::NoCommand);
    }
    let id = RunId::new();
    let executor = if args.executor == ExecutorArg::Auto { config.executor } else { args.executor };
    let requested = confine::asking(args, request(executor))?;
    let project = place::project(args.project.as_deref(), ambient)?;
    let cwd = place::cwd(args.cwd.as_deref(), &project, ambient)?;
    // Under `auto` as well as in a VM the project is never written.
    let staged =
        args.stage.is_some() || confine::preset(args) || requested != ExecutorRequest::Only(ExecutorKind::Host);
    let stage = match staged {
        true => Some(place::stage(args.stage.as_deref(), id, &project, ambient)?),
        false => None,
    };
    let durability = args.stage_durability.or(config.durability).map_or(Durability::Checkpoint, |d| match d {
        DurabilityArg::Checkpoint => Durability::Checkpoint,
        DurabilityArg::Strict => Durability::Strict,
    });
    let max_bytes = args.stage_max_size.or(config.stage_max_size).map(|size| size.0);
    // What was said no to is no rule of a run that does not ask.
    let remembered = match args.ask {
        true => Memory::at(&ambient.run_home).of_project(&OsBytes::from(project.clone()))?,
        false => Vec::new(),
    };
    let refused = network::answered(&remembered, false);
    let denied_hosts: Vec<String> = args.overlaynet_deny.iter().cloned().chain(refused).collect();
    let mut confinement = confine::confinement(args, ambient)?;
    let mut grant = args.profile.as_deref().map(profile::find).transpose()?.map(|profile| {
        let private: Vec<PathBuf> = stage.iter().chain([&ambient.run_home]).cloned().collect();
        let ground = grant::Ground {
            ambient,
            home: confinement.home.as_ref().map(OsBytes::as_path),
            project: &project,
            filesystem: confine::filesystem(args),
            denied: &confinement.denied,
            mounts: &confinement.mounts,
            private: &private,
            denied_hosts: &denied_hosts,
        };
        grant::grant(&profile, &ground)
    });
    let network = network::network(args, grant.as_ref().map_or(&[], |grant| &grant.hosts), &remembered)?;
    if let Some(grant) = &mut grant {
        grant::hosts(grant, &network);
        // What the person mounts comes later, and lies on top.
        confinement.mounts.splice(0..0, grant.mounts.iter().cloned());
    }
    let granted = grant.iter().flat_map(|grant| &grant.variables).map(OsString::from);
    let passed = granted.chain(args.pass_env.iter().cloned()).map(|name| EnvPair { name, value: None });
    let named: Vec<EnvPair> = passed.chain(args.env.iter().cloned()).collect();
    let named = environment::named(&named, ambient);
    let hint = grant::hint(&args.command[0], confine::preset(args) && grant.is_none());
    let spec = RunSpec {
        id,
        command: CommandSpec {
            argv: args.command.iter().cloned().map(OsBytes::from).collect(),
            env: environment::whole(&named, ambient),
            cwd: cwd.into(),
            uid: ambient.uid,
            gid: ambient.gid,
            groups: ambient.groups.clone(),
            umask: ambient.umask,
            tty: args.tty == TtyArg::Always,
        },
        requested,
        executor: None,
        project: project.into(),
        stage: stage.map(|dir| StageSpec { dir: dir.into(), durability, max_bytes }),
        filesystem: confine::filesystem(args),
        confinement,
        network,
        resources: Resources {
            cpus: args.cpus.or(config.cpus),
            memory_mib: args.memory.or(config.memory).map(|m| m.0),
            pids: args.pids,
            open_files: args.max_open_files,
            file_size_mib: args.max_file_size.map(|size| u32::try_from(size.0.div_ceil(1 << 20)).unwrap_or(u32::MAX)),
            cpu_time_s: args.max_cpu_time.map(|t| u32::try_from(t.0.div_ceil(1000)).unwrap_or(u32::MAX)),
        },
        root: match &args.rootfs {
            Some(dir) => GuestRoot::Dir(place::rootfs(dir, ambient)?.into()),
            None => GuestRoot::Host,
        },
        timeout_ms: args.timeout.or(config.timeout).map(|t| t.0),
        grace_ms: args.grace.or(config.grace).map_or(GRACE_MS, |g| g.0),
        force_slow_kvm: args.force_slow_kvm,
        needs: confine::needs(args),
        sources: Sources { profile: grant },
    };
    Ok(Resolved { spec, named, tty: args.tty, interactive: ambient.interactive, hint })
}

/// A run of another command that is otherwise like an earlier one, by the caller of now: with his environment, on the
/// executor that is selected now. Values of variables were not kept, so those that were named have the caller's;
/// `named` comes on top. Also the names of those that the caller does not have.
///
/// # Errors
/// There is no place for its stage.
pub(crate) fn resolve_like(
    earlier: &RunSpec,
    command: &[OsString],
    named: &[EnvPair],
    ambient: &Ambient,
) -> Result<(Resolved, Vec<OsString>), ResolveError> {
    let id = RunId::new();
    // Of a run that had all of the caller's, none was named: a guest of now must not get them.
    let projected =
        earlier.executor != Some(ExecutorKind::Host) || earlier.confinement.environment == EnvironmentMode::Projected;
    let before = environment::named_before(&earlier.command.env).filter(|_| projected);
    let (mut pairs, mut missing) = (Vec::new(), Vec::new());
    for pair in before.filter(|pair| !named.iter().any(|n| n.name == pair.name)) {
        match ambient.env.iter().any(|(name, _)| *name == pair.name) {
            true => pairs.push(pair),
            false => missing.push(pair.name),
        }
    }
    pairs.extend(named.iter().cloned());
    let named = environment::named(&pairs, ambient);
    let mut spec = earlier.clone();
    spec.id = id;
    spec.executor = None;
    spec.command = CommandSpec {
        argv: command.iter().cloned().map(OsBytes::from).collect(),
        env: environment::whole(&named, ambient),
        uid: ambient.uid,
        gid: ambient.gid,
        groups: ambient.groups.clone(),
        umask: ambient.umask,
        tty: false,
        ..spec.command
    };
    if let Some(stage) = &mut spec.stage {
        stage.dir = place::stage(None, id, earlier.project.as_path(), ambient)?.into();
    }
    Ok((Resolved { spec, named, tty: TtyArg::Auto, interactive: ambient.interactive, hint: None }, missing))
}

impl Resolved {
    /// The run as it is before an executor is selected.
    pub(crate) fn spec(&self) -> &RunSpec {
        &self.spec
    }

    /// What the person may want to know before the run: a fragment.
    pub(crate) fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The run on that executor.
    pub(crate) fn on(&self, kind: ExecutorKind) -> RunSpec {
        let mut spec = self.spec.clone();
        spec.executor = Some(kind);
        spec.network = network::network_on(kind, &spec.network);
        grant::on(kind, &mut spec);
        let projected = spec.confinement.environment == EnvironmentMode::Projected;
        if kind == ExecutorKind::Host && projected {
            spec.resources = confine::preset_limits(spec.resources);
        }
        if kind != ExecutorKind::Host || projected {
            spec.command.env = environment::projected(&spec.command.env, &self.named);
        }
        if kind != ExecutorKind::Host {
            spec.command.tty |= self.tty == TtyArg::Auto && self.interactive;
        }
        spec
    }
}

fn request(executor: ExecutorArg) -> ExecutorRequest {
    match executor {
        ExecutorArg::Auto => ExecutorRequest::Auto,
        ExecutorArg::Krun => ExecutorRequest::Only(ExecutorKind::Krun),
        ExecutorArg::Host => ExecutorRequest::Only(ExecutorKind::Host),
        ExecutorArg::Oci => ExecutorRequest::Only(ExecutorKind::Oci),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    fn args(line: &[&str]) -> RunArgs {
        let line = ["pvisor", "run"].iter().chain(line);
        match Cli::try_parse_from(line).unwrap().command {
            Command::Run(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    fn resolved(line: &[&str], ambient: &Ambient) -> Result<Resolved, ResolveError> {
        resolve(&args(line), &Config::default(), ambient)
    }

    #[test]
    fn only_an_explicit_host_run_has_no_stage() {
        let dir = tempfile::tempdir().unwrap();
        let ambient = Ambient::example(dir.path());
        let stage = |line: &[&str]| resolved(line, &ambient).unwrap().spec.stage;
        assert!(stage(&["--", "true"]).is_some());
        assert!(stage(&["--executor", "krun", "--", "true"]).is_some());
        assert!(stage(&["--executor", "host", "--", "true"]).is_none());
        assert!(stage(&["--executor", "host", "--stage", "../s", "--", "true"]).is_some());
    }

    #[test]
    fn a_guest_gets_the_named_variables_and_no_credentials() {
        let dir = tempfile::tempdir().unwrap();
        let mut ambient = Ambient::example(dir.path());
        ambient.env = [("PATH", "/bin"), ("LC_ALL", "C"), ("AWS_SECRET_ACCESS_KEY", "x"), ("TOKEN", "t")]
            .map(|(n, v)| (n.into(), v.into()))
            .to_vec();
        let run = resolved(&["--env", "TOKEN", "--env", "A=b=c", "--env", "PATH=/p", "--", "true"], &ambient).unwrap();
        let env = |spec: RunSpec| -> Vec<String> { spec.command.env.iter().map(|v| v.display().to_string()).collect() };
        assert_eq!(env(run.on(ExecutorKind::Krun)), ["LC_ALL=C", "TOKEN=t", "A=b=c", "PATH=/p"]);
        assert!(env(run.on(ExecutorKind::Host)).contains(&"AWS_SECRET_ACCESS_KEY=x".to_owned()));
    }

    #[test]
    fn the_configuration_fills_in_what_the_arguments_leave_open() {
        let dir = tempfile::tempdir().unwrap();
        let ambient = Ambient::example(dir.path());
        let config = Config::parse("[run]\nexecutor = \"krun\"\ncpus = 3\ntimeout = \"1m\"\n").unwrap();
        let run = resolve(&args(&["--cpus", "2", "--", "true"]), &config, &ambient).unwrap().spec;
        assert_eq!((run.resources.cpus, run.timeout_ms, run.grace_ms), (Some(2), Some(60_000), GRACE_MS));
        assert_eq!(run.requested, ExecutorRequest::Only(ExecutorKind::Krun));
    }

    #[test]
    fn a_terminal_is_given_to_guests_only_unless_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let ambient = Ambient { interactive: true, ..Ambient::example(dir.path()) };
        let tty = |line: &[&str], kind| resolved(line, &ambient).unwrap().on(kind).command.tty;
        assert!(tty(&["--", "true"], ExecutorKind::Krun) && !tty(&["--", "true"], ExecutorKind::Host));
        assert!(tty(&["--tty", "always", "--", "true"], ExecutorKind::Krun));
        assert!(!tty(&["--tty", "never", "--", "true"], ExecutorKind::Krun));
    }

    #[test]
    fn a_network_of_its_own_follows_from_any_rule() {
        use pvisor_spec::{EgressDefault, NetworkMode};
        let dir = tempfile::tempdir().unwrap();
        let ambient = Ambient::example(dir.path());
        let network =
            |line: &[&str], kind| resolved(&[line, &["--", "true"]].concat(), &ambient).unwrap().on(kind).network;
        let default = |line: &[&str]| match network(line, ExecutorKind::Krun) {
            NetworkMode::Egress(egress) => Some((egress.default, egress.allow.len())),
            _ => None,
        };
        assert_eq!(network(&[], ExecutorKind::Host), NetworkMode::Host);
        assert_eq!(network(&["--overlaynet-deny-all"], ExecutorKind::Krun), NetworkMode::DenyAll);
        assert_eq!(default(&[]), Some((EgressDefault::Public, 0)));
        assert_eq!(default(&["--overlaynet-allow", "crates.io:443"]), Some((EgressDefault::Nothing, 1)));
        let both = ["--overlaynet-allow", "crates.io", "--overlaynet-allow", "public"];
        assert_eq!(default(&both), Some((EgressDefault::Public, 1)));
        assert_eq!(default(&["--overlaynet-deny", "x.org"]), Some((EgressDefault::Public, 0)));
        // A preset that denies the network is not opened by what narrows it, nor by a port that is published.
        for option in [["--overlaynet-deny", "x.org"], ["--overlaynet-limit", "1M"], ["--publish", "8080:80"]] {
            for preset in ["--safe", "--strict"] {
                let args = [&[preset][..], &option].concat();
                assert_eq!(default(&args), Some((EgressDefault::Nothing, 0)), "{args:?}");
            }
        }
        assert_eq!(default(&["--publish", "80"]), Some((EgressDefault::Public, 0)));
        let bad = resolved(&["--overlaynet-allow", "http://x", "--", "true"], &ambient);
        assert!(matches!(bad, Err(ResolveError::Network(_))));
    }

    #[test]
    fn no_command_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(resolved(&[], &Ambient::example(dir.path())), Err(ResolveError::NoCommand)));
    }
}
