//! Making the root, in the namespaces of the run.
//!
//! Everything of the host is taken hold of first, as detached copies of its mounts; then the new root is put together,
//! each place looked up inside of it, so that no link in it leads out; last it becomes the root.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};

use super::layout::{PROC_FROZEN, SYSTEM};
use super::{Access, Sandbox, SetupOp};
use crate::launch::Served;
use crate::launch::namespaces::last_errno;

/// Where the new root is put together: one of these is a directory on every system.
const BASES: [&str; 4] = ["/tmp", "/mnt", "/run", "/proc"];

/// A directory of the new root with what covers secrets.
const COVERS: &str = ".covers";

/// Which operation failed, by its number; `None`: the root itself.
type BuildError = (Option<u16>, Errno);

/// Makes the root and enters it. `serve` mounts what the worker serves on the path that it gets, and returns once it
/// can be used.
///
/// # Errors
/// An operation failed; the process is of no use then.
pub(crate) fn build(
    sandbox: &Sandbox,
    mut serve: impl FnMut(Served, &Path) -> Result<(), Errno>,
) -> Result<(), BuildError> {
    let numbered = || (0..=u16::MAX).zip(&sandbox.ops);
    let mut trees = Vec::with_capacity(sandbox.ops.len());
    for (number, op) in numbered() {
        trees.push(take_hold(op).map_err(|e| (Some(number), e))?);
    }
    let root = Root::make().map_err(|e| (None, e))?;
    for ((number, op), tree) in numbered().zip(trees) {
        root.apply(op, tree, &mut serve).map_err(|e| (Some(number), e))?;
    }
    root.enter().map_err(|e| (None, e))
}

/// Makes the kernel's settings read-only where the rest of the host is as it is: their files ask who somebody is, not
/// what he is capable of, and root is still root.
///
/// # Errors
/// The kernel has no such call, or refuses.
pub(crate) fn freeze_settings() -> Result<(), Errno> {
    for at in PROC_FROZEN {
        match rustix::fs::open(at, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(place) => freeze(place.as_fd())?,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn freeze(place: BorrowedFd<'_>) -> Result<(), Errno> {
    let copy = copy_tree(place, Path::new(""))?;
    set_attributes(copy.as_fd(), libc::MOUNT_ATTR_RDONLY, true)?;
    attach(copy.as_fd(), place)
}

fn take_hold(op: &SetupOp) -> Result<Option<OwnedFd>, Errno> {
    let SetupOp::Bind { from, access, .. } = op else { return Ok(None) };
    let tree = copy_tree(source(from, *access)?.as_fd(), Path::new(""))?;
    let attributes = match access {
        Access::Read => libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        Access::Write => libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        Access::Device => libc::MOUNT_ATTR_NOSUID,
    };
    set_attributes(tree.as_fd(), attributes, true)?;
    Ok(Some(tree))
}

/// What is to be bound. A path that the person named was looked at before: a link that has come into it since leads
/// somewhere else.
fn source(from: &Path, access: Access) -> Result<OwnedFd, Errno> {
    let of_system = access == Access::Device || SYSTEM.iter().any(|place| Path::new(place) == from);
    let links = if of_system { ResolveFlags::empty() } else { ResolveFlags::NO_SYMLINKS };
    rustix::fs::openat2(CWD, from, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), links)
}

fn copy_tree(dir: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    // Without what is mounted inside, the kernel refuses: it would uncover what others covered.
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    rustix::mount::open_tree(dir, path, flags)
}

/// Adds attributes to a mount, `all`: and to those in it, which what the host mounts there later does not reach either.
fn set_attributes(mount: BorrowedFd<'_>, add: u64, all: bool) -> Result<(), Errno> {
    let attributes = libc::mount_attr { attr_set: add, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    let flags = libc::AT_EMPTY_PATH | if all { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the call reads an empty path and one structure of the size that it is told; both outlive it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

fn attach(tree: BorrowedFd<'_>, place: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, c"", place, c"", flags)
}

/// A root in the making.
struct Root {
    dir: OwnedFd,
}

impl Root {
    fn make() -> Result<Self, Errno> {
        let base = BASES.into_iter().find(|base| Path::new(base).is_dir()).ok_or(Errno::NOENT)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount(c"pvisor-root", base, c"tmpfs", flags, Some(c"mode=0755,size=16m"))?;
        let dir = rustix::fs::open(base, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let root = Self { dir };
        let covers = root.directory(Path::new(COVERS), 0o755)?;
        rustix::fs::mkdirat(&covers, "directory", Mode::empty())?;
        rustix::fs::openat(&covers, "file", OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty())?;
        Ok(root)
    }

    fn apply(
        &self,
        op: &SetupOp,
        tree: Option<OwnedFd>,
        serve: &mut impl FnMut(Served, &Path) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        match op {
            SetupOp::Link { at, target } => self.link(at, target),
            SetupOp::Bind { at, .. } => {
                let tree = tree.ok_or(Errno::BADF)?;
                let place = if is_directory(tree.as_fd())? { self.directory(at, 0o755)? } else { self.file(at)? };
                attach(tree.as_fd(), place.as_fd())
            }
            SetupOp::Memory { at, mode, size } => {
                let options = format!("mode={mode:o},size={size}\0");
                let options = CStr::from_bytes_with_nul(options.as_bytes()).map_err(|_| Errno::INVAL)?;
                self.mount(at, c"tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(options))
            }
            SetupOp::Proc { at } => {
                let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
                self.mount(at, c"proc", flags, None)
            }
            SetupOp::Terminals { at } => {
                let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
                self.mount(at, c"devpts", flags, Some(c"newinstance,ptmxmode=0666,mode=0620"))
            }
            SetupOp::Serve { which, at } => {
                let place = self.directory(at, 0o755)?;
                serve(*which, &by_descriptor(&place))
            }
            SetupOp::Freeze { at } => match self.find(at, OFlags::PATH) {
                Ok(place) => freeze(place.as_fd()),
                Err(Errno::NOENT) => Ok(()),
                Err(error) => Err(error),
            },
            SetupOp::Hide { at } => match self.find(at, OFlags::PATH | OFlags::NOFOLLOW) {
                Ok(place) => self.cover(place.as_fd()),
                Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
                Err(error) => Err(error),
            },
        }
    }

    fn cover(&self, place: BorrowedFd<'_>) -> Result<(), Errno> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(place)?.st_mode);
        let cover = match kind {
            // What it leads to is covered by itself.
            FileType::Symlink => return Ok(()),
            FileType::Directory => "directory",
            _ => "file",
        };
        let cover = self.find(&Path::new(COVERS).join(cover), OFlags::PATH)?;
        let copy = copy_tree(cover.as_fd(), Path::new(""))?;
        set_attributes(copy.as_fd(), libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOEXEC, true)?;
        attach(copy.as_fd(), place)
    }

    /// Looks a path up in the new root, whatever links are on the way.
    fn find(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = path.strip_prefix("/").unwrap_or(path);
        rustix::fs::openat2(
            &self.dir,
            path,
            flags | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        )
    }

    /// The directory at a path, which is made, with what leads to it.
    fn directory(&self, path: &Path, mode: u32) -> Result<OwnedFd, Errno> {
        let mut so_far = PathBuf::new();
        let names: Vec<_> = path
            .components()
            .filter_map(|c| match c {
                Component::Normal(name) => Some(name),
                _ => None,
            })
            .collect();
        let mut dir = rustix::io::dup(&self.dir)?;
        for (number, name) in names.iter().enumerate() {
            let mode = if number + 1 == names.len() { mode } else { 0o755 };
            match rustix::fs::mkdirat(&dir, *name, Mode::from_raw_mode(mode)) {
                // A filesystem that can't be written: it is there, or the next call says that it is not.
                Ok(()) | Err(Errno::EXIST | Errno::ROFS | Errno::ACCESS | Errno::PERM) => {}
                Err(error) => return Err(error),
            }
            so_far.push(name);
            dir = self.find(&so_far, OFlags::PATH | OFlags::DIRECTORY)?;
        }
        Ok(dir)
    }

    /// An empty file at a path, to mount on.
    fn file(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let (parent, name) = (path.parent().ok_or(Errno::INVAL)?, path.file_name().ok_or(Errno::INVAL)?);
        let dir = self.directory(parent, 0o755)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&dir, name, flags, Mode::from_raw_mode(0o644)) {
            Ok(_) | Err(Errno::EXIST | Errno::ROFS) => {}
            Err(error) => return Err(error),
        }
        self.find(path, OFlags::PATH)
    }

    fn link(&self, at: &Path, target: &Path) -> Result<(), Errno> {
        let (parent, name) = (at.parent().ok_or(Errno::INVAL)?, at.file_name().ok_or(Errno::INVAL)?);
        rustix::fs::symlinkat(target, self.directory(parent, 0o755)?, name)
    }

    fn mount(&self, at: &Path, kind: &CStr, flags: MountFlags, options: Option<&CStr>) -> Result<(), Errno> {
        let place = self.directory(at, 0o755)?;
        rustix::mount::mount(kind, by_descriptor(&place), kind, flags, options)
    }

    fn enter(self) -> Result<(), Errno> {
        for (name, flags) in [("file", AtFlags::empty()), ("directory", AtFlags::REMOVEDIR)] {
            rustix::fs::unlinkat(self.find(Path::new(COVERS), OFlags::PATH)?, name, flags)?;
        }
        rustix::fs::unlinkat(&self.dir, COVERS, AtFlags::REMOVEDIR)?;
        set_attributes(self.dir.as_fd(), libc::MOUNT_ATTR_RDONLY, false)?;
        rustix::process::fchdir(&self.dir)?;
        // The old root comes to lie on the new one, and is then taken off.
        rustix::process::pivot_root(".", ".")?;
        rustix::mount::unmount(".", UnmountFlags::DETACH)?;
        rustix::process::chdir("/")
    }
}

/// A path to a place that is open, for calls that take no descriptor: the host's `/proc` is still there.
fn by_descriptor(place: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()))
}

fn is_directory(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode) == FileType::Directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_has_become_a_link_is_not_bound() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("real/inner")).unwrap();
        std::os::unix::fs::symlink("real", top.join("link")).unwrap();
        assert!(source(&top.join("real/inner"), Access::Write).is_ok());
        for link in ["link", "link/inner"] {
            for access in [Access::Read, Access::Write] {
                assert_eq!(source(&top.join(link), access).err(), Some(Errno::LOOP), "{link}");
            }
        }
        assert!(source(Path::new("/dev/null"), Access::Device).is_ok());
    }
}
