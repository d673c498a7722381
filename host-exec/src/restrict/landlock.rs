//! Landlock: what the mounts allow is allowed once more, by a mechanism that knows nothing of mounts.

use std::error::Error;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

/// The newest interface whose rights are used; an older kernel has fewer.
const NEWEST: ABI = ABI::V6;

/// What can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    /// Can be read and executed, with all below.
    pub(crate) readable: Vec<PathBuf>,
    /// Can be written as well, with all below.
    pub(crate) writable: Vec<PathBuf>,
}

/// Holds this process to `reach`. Paths that are not there are left out.
///
/// # Errors
/// The kernel has no Landlock, or refused.
pub(super) fn install(reach: &Reach) -> Result<(), Errno> {
    match restrict(reach) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Errno::NOSYS),
        Err(error) => Err(errno_of(&error)),
    }
}

fn restrict(reach: &Reach) -> Result<bool, RulesetError> {
    let all = AccessFs::from_all(NEWEST);
    let read = AccessFs::from_read(NEWEST);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        // Set already, or left out by who decides on it.
        .no_new_privs(false);
    for path in &reach.readable {
        rules = allow(rules, path, read)?;
    }
    for path in &reach.writable {
        rules = allow(rules, path, all)?;
    }
    rules = allow_standard(rules)?;
    Ok(rules.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}

/// The system's error at the end of a chain.
fn errno_of(error: &(dyn Error + 'static)) -> Errno {
    let mut next = Some(error);
    while let Some(error) = next {
        let number = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        if let Some(number) = number {
            return Errno::from_raw_os_error(number);
        }
        next = error.source();
    }
    Errno::NOTSUP
}

fn allow(rules: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<RulesetCreated, RulesetError> {
    let Ok(fd) = PathFd::new(path) else { return Ok(rules) };
    let directory = rustix::fs::fstat(fd.as_fd()).is_ok_and(|s| is_kind(s.st_mode, FileType::Directory));
    let access = if directory { access } else { access & AccessFs::from_file(NEWEST) };
    rules.add_rule(PathBeneath::new(fd, access))
}

/// What the command was given as standard descriptors can be opened again by their names in `/dev`, for what they are
/// open for already.
fn allow_standard(mut rules: RulesetCreated) -> Result<RulesetCreated, RulesetError> {
    let stdin = std::io::stdin();
    let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
    for fd in [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()] {
        if let Some(access) = of_descriptor(fd) {
            rules = rules.add_rule(PathBeneath::new(fd, access))?;
        }
    }
    Ok(rules)
}

fn of_descriptor(fd: BorrowedFd<'_>) -> Option<BitFlags<AccessFs>> {
    let mode = rustix::fs::fstat(fd).ok()?.st_mode;
    // Others are not reached by a path, and a directory would be more than what was given.
    if !is_kind(mode, FileType::RegularFile) && !is_kind(mode, FileType::CharacterDevice) {
        return None;
    }
    let write = AccessFs::WriteFile | AccessFs::Truncate;
    let access = match rustix::fs::fcntl_getfl(fd).ok()? & OFlags::RWMODE {
        OFlags::RDONLY => AccessFs::ReadFile.into(),
        OFlags::WRONLY => write,
        _ => write | AccessFs::ReadFile,
    };
    let device = is_kind(mode, FileType::CharacterDevice);
    Some(if device { access | AccessFs::IoctlDev } else { access })
}

fn is_kind(mode: u32, kind: FileType) -> bool {
    FileType::from_raw_mode(mode) == kind
}
