//! The device that stages are mounted with, for tests as another user; also for those of the binary.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

/// `/dev/fuse` with the mode that it has on most systems, here only.
pub fn open_fuse_to_all() {
    use rustix::mount::MountPropagationFlags;
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let node = dir.path().join("fuse");
    let device = rustix::fs::makedev(10, 229);
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(rustix::fs::CWD, &node, rustix::fs::FileType::CharacterDevice, mode, device).unwrap();
    fs::set_permissions(&node, fs::Permissions::from_mode(0o666)).unwrap();
    rustix::mount::mount_bind(&node, "/dev/fuse").unwrap();
}
