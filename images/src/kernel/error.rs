//! Why there is no kernel.

use std::io;
use std::path::{Path, PathBuf};

use super::toolchain::MissingTools;
use crate::{CacheError, ImageError, ManifestError};

/// Why a guest kernel can't be built or used. Lower-case fragments; each says what to do where that is not plain.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// Programs or headers that the build needs are not there.
    #[error(transparent)]
    MissingTools(#[from] MissingTools),
    /// The recipe knows one kind of processor.
    #[error("guest kernels are built for x86-64 only, this machine is {0}")]
    Machine(&'static str),
    /// There is no source.
    #[error(
        "no kernel source: {} does not exist, and the package can't be fetched: {reason}; install the package {package}, \
         or name a source with --source",
        installed.display()
    )]
    NoSource {
        /// Where the distribution puts it.
        installed: PathBuf,
        /// The distribution's package.
        package: &'static str,
        /// What fetching said.
        reason: String,
    },
    /// What was named is no kernel source.
    #[error("{} is no kernel source: {reason}", path.display())]
    NotASource {
        /// What was named.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Less room than a build takes.
    #[error("building a kernel takes {needed} MiB in {}, {free} MiB are free", path.display())]
    Space {
        /// The cache's directory.
        path: PathBuf,
        /// MiB that are free.
        free: u64,
        /// MiB that are needed.
        needed: u64,
    },
    /// A program of the build failed.
    #[error("{step} failed ({status}); the whole output is in {}; its end:\n{tail}", log.display())]
    Step {
        /// Which step.
        step: &'static str,
        /// Its exit status.
        status: String,
        /// The last lines that it printed.
        tail: String,
        /// File with all of them.
        log: PathBuf,
    },
    /// The source can't be configured as a guest needs it.
    #[error("this source does not take the configuration of a guest; it drops {}", .0.join(", "))]
    Unmet(Vec<String>),
    /// The build was interrupted.
    #[error("the build of the guest kernel was interrupted; nothing of it is left")]
    Cancelled,
    /// A program can't be started.
    #[error("can't run {program}")]
    Run {
        /// Which one.
        program: String,
        /// What the system says.
        source: io::Error,
    },
    /// The kernel is not the one that was built.
    #[error("the guest kernel {} is damaged: remove it with `pvisor image rm`, it will be built anew", path.display())]
    Damaged {
        /// Its directory.
        path: PathBuf,
        /// What is wrong.
        source: ManifestError,
    },
    /// The kernel can't be booted.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The cache can't be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl KernelError {
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let fail = CacheError::io(action, path);
        move |source| fail(source).into()
    }
}
