//! The guest's root: the host's trees by their tags, and the guest's own special filesystems in them.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Component, Path};

use pvisor_proto::{Failure, Mount};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::console::report;
use crate::system::failure;

/// Where the new root is put together before the move.
const NEW_ROOT: &str = "/newroot";

/// One call of mount(2).
#[derive(Clone, Copy, Debug)]
pub struct Tree<'a> {
    /// Source: a tag for `virtiofs`, else a name for people.
    pub source: &'a str,
    /// Mount point: absolute.
    pub target: &'a Path,
    /// Kind of filesystem.
    pub kind: &'a str,
    /// Flags.
    pub flags: MountFlags,
    /// Options of the filesystem.
    pub data: &'a CStr,
}

/// Something that carries out mounts; [`mount`] but in tests.
pub type Mounter<'a> = &'a mut dyn FnMut(&Tree<'_>) -> Result<(), Errno>;

/// Asks the kernel.
///
/// # Errors
/// The kernel's refusal.
pub fn mount(tree: &Tree<'_>) -> Result<(), Errno> {
    rustix::mount::mount(tree.source, tree.target, tree.kind, tree.flags, tree.data)
}

/// A special filesystem of the guest.
struct Special {
    target: &'static str,
    kind: &'static str,
    flags: MountFlags,
    data: &'static CStr,
    /// Whether a guest without it is no use.
    needed: bool,
}

const QUIET: MountFlags = MountFlags::NOSUID.union(MountFlags::NOEXEC).union(MountFlags::NODEV);
const NOSUID: MountFlags = MountFlags::NOSUID;
const SCRATCH: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// In the order in which they are mounted. None of them covers a part of `/proc` or `/sys` that is not an empty
/// directory: a sandbox in the guest could not mount its own any more.
#[rustfmt::skip]
const SPECIALS: [Special; 9] = [
    Special { target: "/proc", kind: "proc", flags: QUIET, data: c"", needed: true },
    Special { target: "/sys", kind: "sysfs", flags: QUIET, data: c"", needed: true },
    Special { target: "/sys/fs/cgroup", kind: "cgroup2", flags: QUIET, data: c"nsdelegate", needed: false },
    Special { target: "/dev", kind: "devtmpfs", flags: NOSUID, data: c"mode=0755", needed: true },
    Special { target: "/dev/pts", kind: "devpts", flags: NOSUID.union(MountFlags::NOEXEC), data: c"newinstance,ptmxmode=0666,mode=0620,gid=5", needed: true },
    Special { target: "/dev/shm", kind: "tmpfs", flags: SCRATCH, data: c"mode=1777", needed: true },
    Special { target: "/dev/mqueue", kind: "mqueue", flags: QUIET, data: c"", needed: false },
    Special { target: "/run", kind: "tmpfs", flags: SCRATCH, data: c"mode=0755", needed: true },
    Special { target: "/tmp", kind: "tmpfs", flags: SCRATCH, data: c"mode=1777", needed: true },
];

/// What udev adds to a fresh `/dev`.
const LINKS: [(&str, &str); 4] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
];

/// Devices that udev opens to everyone, with their modes.
const MODES: [(&str, u32); 2] = [("/dev/fuse", 0o666), ("/dev/net/tun", 0o666)];

/// Mounts the first tree as the root, moves there, and mounts the special filesystems and the other trees in it.
///
/// # Errors
/// The mount that failed. The machine is of no use then.
pub fn enter(mounts: &[Mount], mounter: Mounter<'_>) -> Result<(), Failure> {
    let (root, others) = match mounts {
        [root, others @ ..] if root.path.0 == b"/" => (root, others),
        _ => return Err(failure(Errno::INVAL, "the first mount must be that of /")),
    };
    if let Some(bad) = others.iter().find(|m| !is_plain(path_of(m))) {
        return Err(failure(Errno::INVAL, &format!("{} is no absolute path", path_of(bad).display())));
    }
    attach(root, Path::new(NEW_ROOT), mounter)?;
    move_into(Path::new(NEW_ROOT)).map_err(|e| failure(e, "move into the new root"))?;
    for special in &SPECIALS {
        let tree = Tree {
            source: special.kind,
            target: Path::new(special.target),
            kind: special.kind,
            flags: special.flags,
            data: special.data,
        };
        if let Err(errno) = make_dir(tree.target).and_then(|()| mounter(&tree)) {
            if special.needed {
                return Err(failure(errno, special.target));
            }
            report(format_args!("{} is not there: {errno}", special.target));
        }
    }
    for (target, link) in LINKS {
        if let Err(error) = symlink(target, link)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            report(format_args!("{link}: {error}"));
        }
    }
    for (device, mode) in MODES {
        if let Err(error) = fs::set_permissions(device, fs::Permissions::from_mode(mode))
            && error.kind() != io::ErrorKind::NotFound
        {
            report(format_args!("{device}: {error}"));
        }
    }
    for tree in others {
        attach(tree, path_of(tree), mounter)?;
    }
    Ok(())
}

/// Mounts one of the host's trees.
fn attach(tree: &Mount, target: &Path, mounter: Mounter<'_>) -> Result<(), Failure> {
    let flags = if tree.read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    make_dir(target)
        .and_then(|()| mounter(&Tree { source: &tree.tag, target, kind: "virtiofs", flags, data: c"" }))
        .map_err(|e| failure(e, &format!("mount {} on {}", tree.tag, target.display())))
}

/// Makes `root`, a mount point, the root of this process. Not by pivot_root: an initramfs can't be unmounted.
fn move_into(root: &Path) -> Result<(), Errno> {
    for boot in ["/proc", "/sys", "/dev"] {
        // Those that were needed to boot; the new root gets its own.
        let _ = rustix::mount::unmount(boot, UnmountFlags::DETACH);
    }
    rustix::process::chdir(root)?;
    rustix::mount::mount_move(".", "/")?;
    rustix::process::chroot(".")?;
    rustix::process::chdir("/")
}

/// Makes a directory and its parents where they are missing.
fn make_dir(path: &Path) -> Result<(), Errno> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Errno::NOTDIR),
        Err(_) => fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(path)
            .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO)),
    }
}

fn path_of(mount: &Mount) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(&mount.path.0))
}

/// Absolute, below the root, without `..` and without a zero byte.
fn is_plain(path: &Path) -> bool {
    let mut parts = path.components();
    parts.next() == Some(Component::RootDir)
        && path.components().count() > 1
        && parts.all(|part| matches!(part, Component::Normal(_)))
        && !path.as_os_str().as_bytes().contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_paths_are_mount_points() {
        for good in ["/a", "/home/x/project", "/a//b/"] {
            assert!(is_plain(Path::new(good)), "{good}");
        }
        for bad in ["", "/", "a", "../a", "/a/../b", "/a\0b", "."] {
            assert!(!is_plain(Path::new(bad)), "{bad:?}");
        }
    }

    #[test]
    fn nothing_is_mounted_where_the_list_is_wrong() {
        let mount = |path: &str| Mount { tag: "t".into(), path: path.into(), read_only: false };
        for list in [vec![], vec![mount("/a")], vec![mount("/"), mount("/a/../..")], vec![mount("/"), mount("/")]] {
            let error = enter(&list, &mut |tree| panic!("mounted {tree:?}")).unwrap_err();
            assert_eq!(error.errno, libc::EINVAL);
        }
    }
}
