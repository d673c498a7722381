//! Directories of a run, and whether they can lie where they do.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use pvisor_spec::{ExitCode, RunId};

use super::Ambient;
use crate::report::{Failure, chain};

/// Why a directory can't be what it should be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    #[error("the project {} can't be used", path.display())]
    Project { path: PathBuf, source: io::Error },
    #[error("the working directory {} can't be used", path.display())]
    Cwd { path: PathBuf, source: io::Error },
    #[error("the root filesystem {} can't be used", path.display())]
    Rootfs { path: PathBuf, source: io::Error },
    #[error("the stage can't be in {}", path.display())]
    Stage { path: PathBuf, source: io::Error },
    #[error("the stage {} is inside its own project {}", stage.display(), project.display())]
    StageInProject { stage: PathBuf, project: PathBuf, chosen: bool },
    #[error("the project {} is inside its own stage {}", project.display(), stage.display())]
    ProjectInStage { stage: PathBuf, project: PathBuf },
}

impl From<PlaceError> for Failure {
    fn from(error: PlaceError) -> Self {
        let message = chain(&error);
        let failure = match error {
            PlaceError::Project { .. } => {
                Self::new("project", message).hint("name a directory that you can read: --project DIR, or change to it")
            }
            PlaceError::Cwd { .. } => {
                Self::new("working_directory", message).hint("--cwd takes a directory that exists now")
            }
            PlaceError::Rootfs { .. } => {
                Self::new("rootfs", message).hint("--rootfs takes a directory that you can read")
            }
            PlaceError::Stage { .. } => {
                Self::new("stage_place", message).hint("--stage takes a new or empty directory in one that exists")
            }
            PlaceError::StageInProject { chosen: true, .. } => {
                Self::new("stage_in_project", message).hint("name a directory beside the project: --stage ../stage")
            }
            PlaceError::StageInProject { chosen: false, .. } => Self::new("stage_in_project", message)
                .hint("keep the stage elsewhere: --stage PATH, or set PVISOR_RUN_HOME to a directory outside")
                .hint("or name a smaller project: --project DIR"),
            PlaceError::ProjectInStage { .. } => {
                Self::new("project_in_stage", message).hint("name a directory beside the project: --stage ../stage")
            }
        };
        failure.code(ExitCode::FAILED)
    }
}

/// The directory whose changes are staged.
pub(super) fn project(named: Option<&Path>, ambient: &Ambient) -> Result<PathBuf, PlaceError> {
    let path = ambient.cwd.join(named.unwrap_or(Path::new("")));
    readable(&path).map_err(|source| PlaceError::Project { path, source })
}

/// Where the command starts.
pub(super) fn cwd(named: Option<&Path>, project: &Path, ambient: &Ambient) -> Result<PathBuf, PlaceError> {
    let Some(named) = named else {
        let inside = ambient.cwd.starts_with(project);
        return Ok(if inside { ambient.cwd.clone() } else { project.to_owned() });
    };
    let path = ambient.cwd.join(named);
    match path.canonicalize() {
        Ok(found) if found.is_dir() => Ok(found),
        Ok(_) => Err(PlaceError::Cwd { path, source: io::ErrorKind::NotADirectory.into() }),
        Err(source) => Err(PlaceError::Cwd { path, source }),
    }
}

/// The root filesystem of a guest.
pub(super) fn rootfs(named: &Path, ambient: &Ambient) -> Result<PathBuf, PlaceError> {
    let path = ambient.cwd.join(named);
    readable(&path).map_err(|source| PlaceError::Rootfs { path, source })
}

/// Where changes go: the named directory, else one in the run's own.
pub(super) fn stage(named: Option<&Path>, id: RunId, project: &Path, ambient: &Ambient) -> Result<PathBuf, PlaceError> {
    let wanted = match named {
        Some(named) => ambient.cwd.join(named),
        None => ambient.run_home.join(id.to_string()).join("stage"),
    };
    let stage = canonical(&wanted).map_err(|source| PlaceError::Stage { path: wanted, source })?;
    if project.starts_with(&stage) {
        return Err(PlaceError::ProjectInStage { stage, project: project.to_owned() });
    }
    if stage.starts_with(project) {
        return Err(PlaceError::StageInProject { stage, project: project.to_owned(), chosen: named.is_some() });
    }
    match stage.parent().map(fs::metadata) {
        Some(Err(source)) if named.is_some() => Err(PlaceError::Stage { path: stage, source }),
        _ => Ok(stage),
    }
}

/// A directory that can be listed, without symbolic links.
fn readable(path: &Path) -> io::Result<PathBuf> {
    let found = path.canonicalize()?;
    // Told apart from a file by the listing itself.
    fs::read_dir(&found)?;
    Ok(found)
}

/// The path without symbolic links as far as it exists; the rest is kept.
fn canonical(path: &Path) -> io::Result<PathBuf> {
    let mut rest: Vec<OsString> = Vec::new();
    let mut head = path.to_owned();
    loop {
        match head.canonicalize() {
            Ok(found) => return Ok(rest.iter().rev().fold(found, |path, name| path.join(name))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        let last = head.components().next_back();
        let Some(Component::Normal(name)) = last else {
            // `missing/..` means something else on every system.
            return Err(io::ErrorKind::NotFound.into());
        };
        if head.symlink_metadata().is_ok() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "it is a symbolic link to nothing"));
        }
        rest.push(name.to_owned());
        if !head.pop() {
            return Err(io::ErrorKind::NotFound.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> (tempfile::TempDir, Ambient) {
        let dir = tempfile::tempdir().unwrap();
        let ambient = Ambient::example(dir.path());
        (dir, ambient)
    }

    fn stage_at(named: &str, ambient: &Ambient) -> Result<PathBuf, PlaceError> {
        stage(Some(Path::new(named)), RunId::new(), &ambient.cwd, ambient)
    }

    #[test]
    fn a_stage_in_its_project_or_around_it_is_refused() {
        let (_dir, ambient) = example();
        for inside in ["s", ".", "a/b", "../project/s"] {
            let error = stage_at(inside, &ambient).unwrap_err();
            let matches = matches!(error, PlaceError::StageInProject { .. } | PlaceError::ProjectInStage { .. });
            assert!(matches, "{inside}: {error}");
        }
        assert!(matches!(stage_at("..", &ambient), Err(PlaceError::ProjectInStage { .. })));
        assert!(matches!(stage_at("/", &ambient), Err(PlaceError::ProjectInStage { .. })));
        assert_eq!(stage_at("../project-stage", &ambient).unwrap(), ambient.cwd.with_file_name("project-stage"));
    }

    #[test]
    fn links_do_not_hide_where_a_stage_is() {
        let (_dir, ambient) = example();
        std::os::unix::fs::symlink(&ambient.cwd, ambient.cwd.with_file_name("link")).unwrap();
        assert!(matches!(stage_at("../link/s", &ambient), Err(PlaceError::StageInProject { .. })));
        std::os::unix::fs::symlink("nowhere", ambient.cwd.with_file_name("dangling")).unwrap();
        assert!(matches!(stage_at("../dangling", &ambient), Err(PlaceError::Stage { .. })));
    }

    #[test]
    fn a_stage_needs_a_directory_around_it() {
        let (_dir, ambient) = example();
        assert!(matches!(stage_at("../missing/s", &ambient), Err(PlaceError::Stage { .. })));
        assert!(matches!(stage_at("../missing/../s", &ambient), Err(PlaceError::Stage { .. })));
    }

    #[test]
    fn the_run_home_must_not_be_in_a_staged_project() {
        let (dir, ambient) = example();
        let whole = dir.path().canonicalize().unwrap();
        let error = stage(None, RunId::new(), &whole, &ambient).unwrap_err();
        assert!(matches!(error, PlaceError::StageInProject { chosen: false, .. }), "{error}");
        assert!(stage(None, RunId::new(), &ambient.cwd, &ambient).is_ok());
    }

    #[test]
    fn the_command_starts_where_the_person_is_if_that_is_in_the_project() {
        let (dir, mut ambient) = example();
        let project = ambient.cwd.clone();
        ambient.cwd = project.join("deep");
        fs::create_dir(&ambient.cwd).unwrap();
        assert_eq!(cwd(None, &project, &ambient).unwrap(), ambient.cwd);
        ambient.cwd = dir.path().to_owned();
        assert_eq!(cwd(None, &project, &ambient).unwrap(), project);
        assert!(cwd(Some(Path::new("missing")), &project, &ambient).is_err());
    }

    #[test]
    fn a_project_is_a_directory() {
        let (_dir, ambient) = example();
        fs::write(ambient.cwd.join("file"), "").unwrap();
        for bad in ["file", "missing"] {
            assert!(matches!(project(Some(Path::new(bad)), &ambient), Err(PlaceError::Project { .. })), "{bad}");
        }
    }
}
