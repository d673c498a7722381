//! What a guest boots from, made where it is missing.

mod bar;
mod cancel;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use pvisor_images::{Cache, Kernel, KernelError, KernelRequest, ensure_initramfs, find_kernel};
use pvisor_spec::{CommandEnd, ExitCode, Interruption};

use crate::report::{Failure, chain, say};
use bar::Bar;
use cancel::cancelled_by_signals;

/// What a guest boots from.
#[derive(Debug)]
pub(crate) struct Boot {
    /// Kernel image.
    pub(crate) kernel: PathBuf,
    /// Initramfs.
    pub(crate) initramfs: PathBuf,
}

/// Finds kernel and initramfs, and builds what is missing after saying so.
///
/// # Errors
/// The kernel can't be built, or the cache not be used.
pub(crate) fn ensure() -> Result<Boot, Interruption> {
    let broken = |kind: &str, message: String, hint: &str| Interruption {
        kind: kind.to_owned(),
        message,
        hint: hint.to_owned(),
    };
    let cache = Cache::of_user().map_err(|e| broken("image_cache", chain(&e), ""))?;
    let found = find_kernel(&cache).map_err(|e| broken("image_cache", chain(&e), ""))?;
    let kernel = match found.filter(|kernel| kernel.verify().is_ok()) {
        Some(kernel) => kernel,
        None => {
            say("there is no guest kernel yet: building it, which takes some minutes and is done once");
            build_kernel(&cache, KernelRequest::new).map_err(|e| {
                let kind = if matches!(e, KernelError::Cancelled) { "interrupted" } else { "kernel" };
                broken(kind, chain(&e), "`pvisor image kernel` builds it apart from a run")
            })?
        }
    };
    let initramfs = ensure_initramfs(&cache)
        .map_err(|e| broken("image_cache", chain(&e), "set PVISOR_IMAGES to a directory that you can write"))?;
    Ok(Boot { kernel: kernel.path(), initramfs: initramfs.path })
}

/// Builds a kernel, showing how far it is; a signal that asks this process to end ends the build without leftovers.
///
/// # Errors
/// As [`pvisor_images::build_kernel`].
pub(crate) fn build_kernel<'a>(
    cache: &Cache,
    request: impl FnOnce(&'a AtomicBool) -> KernelRequest<'a>,
) -> Result<Kernel, KernelError> {
    static CANCEL: AtomicBool = AtomicBool::new(false);
    let request = request(&CANCEL);
    cancelled_by_signals(&CANCEL, || {
        // It has a thread, which must not be the one that a signal is delivered to.
        let mut bar = Bar::new();
        pvisor_images::build_kernel(cache, &request, &mut |progress| bar.show(progress))
    })
}

/// A kernel that could not be built.
pub(crate) fn kernel_failure(error: &KernelError) -> Failure {
    let failure = Failure::new("kernel", chain(error));
    match error {
        KernelError::Cancelled => Failure::new("interrupted", chain(error)).code(CommandEnd::Signaled(2).exit_code()),
        KernelError::Machine(_) => failure.code(ExitCode::UNSUPPORTED),
        _ => failure,
    }
}
