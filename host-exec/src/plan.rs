//! What a job comes to on the host: everything checked and converted before the first process is made.

use std::ffi::CString;
use std::path::PathBuf;
use std::time::Duration;

use pvisor_spec::{Durability, FilesystemMode, NetworkMode, OsBytes, RunSpec, WorkerFailure};

use crate::failure::failure;

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
    pub(crate) deny_network: bool,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) umask: u32,
    pub(crate) timeout: Option<Duration>,
    pub(crate) grace: Duration,
}

/// Where the project's changes go.
pub(crate) struct StagePlan {
    pub(crate) dir: PathBuf,
    pub(crate) durability: Durability,
    pub(crate) max_bytes: Option<u64>,
}

impl Plan {
    /// # Errors
    /// The host executor can't do what is asked, or the specification contradicts itself.
    pub(crate) fn new(spec: &RunSpec) -> Result<Self, WorkerFailure> {
        if spec.filesystem == FilesystemMode::Sandbox {
            return Err(failure(
                "unsupported",
                "the host executor has no filesystem sandbox",
                "leave out --filesystem sandbox, or use --executor krun",
            ));
        }
        let command = &spec.command;
        let argv = c_strings(&command.argv, "argument")?;
        let Some(program) = command.argv.first() else {
            return Err(failure("internal", "the command is empty", ""));
        };
        let plan = Self {
            programs: programs(program.as_bytes(), &command.env)?,
            argv,
            env: c_strings(&command.env, "environment variable")?,
            cwd: absolute(&command.cwd, "working directory")?,
            project: absolute(&spec.project, "project")?,
            stage: match &spec.stage {
                None => None,
                Some(stage) => Some(StagePlan {
                    dir: absolute(&stage.dir, "stage")?,
                    durability: stage.durability,
                    max_bytes: stage.max_bytes,
                }),
            },
            deny_network: spec.network == NetworkMode::DenyAll,
            uid: command.uid,
            gid: command.gid,
            groups: command.groups.clone(),
            umask: command.umask & 0o777,
            timeout: spec.timeout_ms.map(Duration::from_millis),
            grace: Duration::from_millis(spec.grace_ms),
        };
        plan.check_identity()?;
        Ok(plan)
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
