//! Whether a stage can be made in a directory.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use pvisor_spec::Interruption;
use pvisor_stage::LoadError;
use rustix::fs::{FlockOperation, flock};

use crate::report::plain_path;

/// Whether a stage can be made there: in a directory that is not there yet, or in an empty one.
///
/// # Errors
/// What is there already.
pub(crate) fn vacant(dir: &Path) -> Result<(), Interruption> {
    let place = plain_path(dir);
    let refuse = |kind: &str, message: String, hint: String| Err(Interruption { kind: kind.to_owned(), message, hint });
    match fs::read_dir(dir).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => {
            let hint = "--stage takes a new or empty directory".to_owned();
            refuse("stage_place", format!("the stage can't be in {place}: {e}"), hint)
        }
        Ok(false) if in_use(dir) => {
            let hint = "wait for it, end it with `pvisor kill`, or name another directory".to_owned();
            refuse("stage_in_use", format!("the stage {place} is in use by another run"), hint)
        }
        Ok(false) if !matches!(pvisor_stage::status(dir), Err(LoadError::NotAStage(_))) => {
            let hint =
                format!("apply or discard it first, `pvisor discard {place}` for instance, or name another directory");
            refuse("stage_exists", format!("{place} holds the stage of an earlier run"), hint)
        }
        Ok(false) => {
            let hint = "--stage takes a new or empty directory".to_owned();
            refuse("stage_not_empty", format!("the stage can't be in {place}: it is not empty"), hint)
        }
    }
}

/// Whether a run, an apply or a discard is at it.
fn in_use(dir: &Path) -> bool {
    let held = |file: File| flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK);
    File::open(dir.join("lock")).is_ok_and(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(dir: &Path) -> String {
        vacant(dir).map_or_else(|i| i.kind, |()| "vacant".to_owned())
    }

    #[test]
    fn each_kind_of_occupied_directory_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert_eq!(kind(&dir.join("new")), "vacant");
        assert_eq!(kind(dir), "vacant");
        fs::write(dir.join("file"), "").unwrap();
        assert_eq!(kind(dir), "stage_not_empty");
        assert_eq!(kind(&dir.join("file")), "stage_place");
        fs::write(dir.join("journal"), "").unwrap();
        fs::create_dir(dir.join("upper")).unwrap();
        assert_eq!(kind(dir), "stage_exists");
        let lock = File::create(dir.join("lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        assert_eq!(kind(dir), "stage_in_use");
    }
}
