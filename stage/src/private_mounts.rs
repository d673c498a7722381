//! Mounts that only one test sees.

use std::path::Path;

use nix::mount::{MsFlags, mount};

const NONE: Option<&str> = None;

/// Runs `test` in a thread with mounts of its own. Stages must be made in there: a pinned directory stays in the mounts
/// that it was opened in. Only root may mount; others get a note instead.
pub(crate) fn with_private_mounts(test: impl FnOnce() + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: mounting needs root");
    }
    let thread = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).unwrap();
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// An empty file system in memory; `options` as for `mount -o`.
pub(crate) fn mount_tmpfs(at: &Path, options: &str) {
    mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), Some(options)).unwrap();
}
