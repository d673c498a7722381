//! The two filesystems of a guest: its root, whose changes are thrown away, and the staged project.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pvisor_spec::{GuestRoot, WorkerFailure, WorkerJob};
use pvisor_virtiofs::stage::{Keep, OpenError, Stage, StageOptions};
use pvisor_virtiofs::{FsOptions, StageFs};

use super::boundaries::{GUESTS_OWN, pseudo_mounts};
use super::failure::{chain, failure, internal};

/// Directory of the guest root's throw-away changes in the run's directory.
const GUEST_ROOT: &str = "guest-root";

/// The filesystems of one guest.
pub(super) struct Stages {
    /// What the guest mounts at `/`.
    pub(super) root: Arc<StageFs>,
    /// What it mounts at the project's path.
    pub(super) project: Arc<StageFs>,
    throw_away: PathBuf,
}

impl Stages {
    /// Makes both stages.
    pub(super) fn create(job: &WorkerJob) -> Result<Self, WorkerFailure> {
        let Some(stage) = &job.spec.stage else {
            return Err(failure("stage", "a guest's project is always staged, and no stage was given", ""));
        };
        let lower = match &job.spec.root {
            GuestRoot::Host => Path::new("/"),
            GuestRoot::Dir(dir) => dir.as_path(),
        };
        let pseudo = pseudo_mounts().map_err(|e| internal("can't read the host's mounts", &e))?;
        let own = GUESTS_OWN.iter().map(|path| lower.join(path.trim_start_matches('/')));
        let boundaries = own.chain(pseudo.iter().cloned()).collect();

        let run_dir = job.run_dir.as_path();
        let throw_away = run_dir.join(GUEST_ROOT);
        let mut hidden = job.hidden.clone();
        hidden.extend([run_dir, stage.dir.as_path()].map(literal));
        let root = StageOptions { keep: Keep::ThrowAway, hidden, boundaries, ..StageOptions::default() };
        let project = StageOptions {
            durability: stage.durability,
            keep: Keep::Reviewable,
            hidden: job.spec.confinement.denied.clone(),
            boundaries: pseudo,
            max_bytes: stage.max_bytes,
        };
        let (dir, lower_of_project) = (stage.dir.as_path(), job.spec.project.as_path());
        let project = match job.resume {
            true => Stage::resume(dir, lower_of_project, &project),
            false => Stage::create(dir, lower_of_project, project),
        };
        Ok(Self { project: serve(project)?, root: serve(Stage::create(&throw_away, lower, root))?, throw_away })
    }

    /// Lets no further request through, brings the project's changes to where they can be sealed, and removes the
    /// others. May be called twice.
    pub(super) fn settle(&self) -> Result<(), WorkerFailure> {
        self.root.fence();
        self.project.fence();
        self.project.stage().sync().map_err(|e| {
            failure("stage", format!("the changes can't be brought to disk: {e}"), "free some space and run it again")
        })?;
        self.throw_away();
        Ok(())
    }

    /// Removes what the guest changed outside of the project.
    pub(super) fn throw_away(&self) {
        match fs::remove_dir_all(&self.throw_away) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(path = %self.throw_away.display(), %error, "can't remove the guest's root"),
        }
    }
}

fn serve(stage: Result<Stage, OpenError>) -> Result<Arc<StageFs>, WorkerFailure> {
    let stage = stage.map_err(|error| failure("stage", chain(&error), stage_hint(&error)))?;
    Ok(Arc::new(StageFs::new(Arc::new(stage), FsOptions::default())))
}

fn stage_hint(error: &OpenError) -> &'static str {
    match error {
        OpenError::InUse(_) => "wait for the other run, or use another stage",
        OpenError::Inside { .. } | OpenError::Around { .. } | OpenError::NotEmpty(_) => {
            "use a stage directory of its own, outside of the project"
        }
        _ => "",
    }
}

/// A pattern that matches this path only. Bytes that are not UTF-8 match any one character.
fn literal(path: &Path) -> String {
    globset::escape(&path.to_string_lossy()).replace('\u{fffd}', "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_pattern_characters_matches_itself_only() {
        let matches = |pattern: &str, path: &str| globset::Glob::new(pattern).unwrap().compile_matcher().is_match(path);
        let pattern = literal(Path::new("/a[1]*{b}?"));
        assert!(matches(&pattern, "/a[1]*{b}?"));
        assert!(!matches(&pattern, "/a1xbc"));
    }

    fn job(dir: &Path) -> WorkerJob {
        use pvisor_spec::{CommandSpec, ExecutorRequest, FilesystemMode, NetworkMode, Resources, RunSpec, StageSpec};
        let root = dir.join("root");
        for made in ["root/etc", "root/tmp", "root/home/me", "run"] {
            fs::create_dir_all(dir.join(made)).unwrap();
        }
        for (file, text) in [("etc/passwd", "p"), ("etc/shadow", "s"), ("tmp/junk", "j"), ("home/me/code", "c")] {
            fs::write(root.join(file), text).unwrap();
        }
        let command = CommandSpec {
            argv: vec!["true".into()],
            env: vec![],
            cwd: "/".into(),
            uid: 0,
            gid: 0,
            groups: vec![],
            umask: 0o022,
            tty: false,
        };
        let spec = RunSpec {
            id: "run-0197b3a1-0000-7000-8000-000000000000".parse().unwrap(),
            command,
            requested: ExecutorRequest::Auto,
            executor: None,
            project: root.join("home/me").into(),
            stage: Some(StageSpec {
                dir: dir.join("run/stage").into(),
                durability: Default::default(),
                max_bytes: None,
            }),
            filesystem: FilesystemMode::Host,
            confinement: pvisor_spec::Confinement::default(),
            network: NetworkMode::DenyAll,
            resources: Resources::default(),
            root: GuestRoot::Dir(root.as_path().into()),
            timeout_ms: None,
            grace_ms: 0,
            force_slow_kvm: false,
            needs: vec![],
            sources: pvisor_spec::Sources::default(),
        };
        let hidden = vec![format!("{}/etc/shadow", root.display())];
        WorkerJob {
            spec,
            run_dir: dir.join("run").into(),
            kernel: None,
            initramfs: None,
            hidden,
            resume: false,
            without: vec![],
        }
    }

    #[test]
    fn the_root_hides_what_it_must_and_its_changes_are_thrown_away() {
        use pvisor_virtiofs::stage::NodeId;
        use pvisor_virtiofs::{Caller, Errno};
        let dir = tempfile::tempdir().unwrap();
        let stages = Stages::create(&job(dir.path())).unwrap();
        let at = |parent, name: &str| stages.root.lookup(parent, name.as_bytes()).map(|entry| entry.attr.node);
        let etc = at(NodeId::ROOT, "etc").unwrap();
        assert!(at(etc, "passwd").is_ok());
        assert_eq!(at(etc, "shadow"), Err(Errno::NOENT));
        let tmp = at(NodeId::ROOT, "tmp").unwrap();
        assert_eq!(at(tmp, "junk"), Err(Errno::NOENT));
        stages.root.make_dir(Caller { uid: 0, gid: 0 }, etc, b"made", 0o755).unwrap();
        stages.project.make_dir(Caller { uid: 0, gid: 0 }, NodeId::ROOT, b"made", 0o755).unwrap();

        stages.settle().unwrap();
        stages.settle().unwrap();
        assert_eq!(at(etc, "passwd"), Err(Errno::NOTCONN));
        assert!(!dir.path().join("run").join(GUEST_ROOT).exists());
        assert!(!dir.path().join("root/etc/made").exists() && !dir.path().join("root/home/me/made").exists());
        assert!(dir.path().join("run/stage/journal").exists());
    }

    #[test]
    fn a_guest_without_a_stage_or_with_one_in_its_project_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut job = job(dir.path());
        job.spec.project = dir.path().into();
        assert_eq!(Stages::create(&job).err().unwrap().kind, "stage");
        job.spec.stage = None;
        assert_eq!(Stages::create(&job).err().unwrap().kind, "stage");
    }
}
