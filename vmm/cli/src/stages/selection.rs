//! The changes that a person means.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use pvisor_spec::ExitCode;
use pvisor_stage::{RelPath, Selection};

use crate::args::SelectionArgs;
use crate::report::{Failure, plain_path};

/// What the options select of the changes to that project.
///
/// # Errors
/// A path leads out of it.
pub(crate) fn selection(args: &SelectionArgs, project: &Path) -> Result<Selection, Failure> {
    let paths = args.path.iter().map(|path| relative(path, project)).collect::<Result<_, _>>()?;
    Ok(Selection { paths, include: args.include.clone(), exclude: args.exclude.clone() })
}

/// A path of the project as the stage names it: given from the project's root, or absolute and below it.
fn relative(path: &Path, project: &Path) -> Result<RelPath, Failure> {
    let failed = |why: &str| {
        Failure::new("selection", format!("--path {}: {why}", plain_path(path)))
            .hint("paths are relative to the project, as `pvisor review` shows them")
            .code(ExitCode::USAGE)
    };
    let inside =
        if path.is_absolute() { path.strip_prefix(project).map_err(|_| failed("not in the project"))? } else { path };
    let mut plain = PathBuf::new();
    for component in inside.components() {
        match component {
            Component::Normal(name) => plain.push(name),
            Component::CurDir => {}
            _ => return Err(failed("it leads out of the project")),
        }
    }
    RelPath::new(plain.as_os_str().as_bytes().to_vec()).map_err(|e| failed(&e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_from_the_projects_root() {
        let project = Path::new("/p");
        for (given, meant) in [("a/b", "a/b"), ("./a/", "a"), ("/p/a", "a"), ("/p", ""), (".", "")] {
            assert_eq!(relative(Path::new(given), project).unwrap().as_bytes(), meant.as_bytes(), "{given}");
        }
        for bad in ["..", "a/../b", "/q/a", "/"] {
            assert_eq!(relative(Path::new(bad), project).unwrap_err().code, ExitCode::USAGE, "{bad}");
        }
    }
}
