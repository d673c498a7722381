//! The root of the guest, built in a mount namespace: directories stand in for the host's devices.

use std::path::Path;

use pvisor_guest_agent::{System, Tree, enter_root, mount};
use pvisor_proto::{End, Failure, Mount, Network, ToGuest, ToHost};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::harness::{Guest, Role, possible, sh};

/// A machine whose virtio-fs tags are paths, and whose devices are those of a container: the devtmpfs of this machine
/// is shared and not ours to change.
pub struct Bound;

impl System for Bound {
    fn mount(&mut self, mounts: &[Mount]) -> Result<(), Failure> {
        boot_filesystem().map_err(|e| Failure { errno: e.raw_os_error(), what: "boot filesystem".into() })?;
        enter_root(mounts, &mut bind)
    }

    fn set_clock(&mut self, _: u64, _: u32) -> Result<(), Failure> {
        Ok(())
    }

    fn configure_network(&mut self, _: &Network) -> Result<(), Failure> {
        Ok(())
    }

    fn sync(&mut self) {}
}

/// An empty filesystem as the root, as an initramfs is, with this machine's own root under `/old`.
fn boot_filesystem() -> Result<(), Errno> {
    let target = Path::new("/mnt");
    mount(&Tree { source: "boot", target, kind: "tmpfs", flags: MountFlags::empty(), data: c"" })?;
    rustix::fs::mkdir("/mnt/old", rustix::fs::Mode::from_raw_mode(0o755))?;
    rustix::mount::mount_bind_recursive("/", "/mnt/old")?;
    rustix::process::chdir(target)?;
    rustix::mount::mount_move(".", "/")?;
    rustix::process::chroot(".")?;
    rustix::process::chdir("/")
}

fn bind(tree: &Tree<'_>) -> Result<(), Errno> {
    match tree.kind {
        "virtiofs" => {
            rustix::mount::mount_bind(tree.source, tree.target)?;
            if tree.flags.contains(MountFlags::RDONLY) {
                rustix::mount::mount_remount(tree.target, MountFlags::BIND | MountFlags::RDONLY, c"")?;
            }
            Ok(())
        }
        "devtmpfs" => {
            mount(&Tree { kind: "tmpfs", ..*tree })?;
            for (name, major, minor) in [("null", 1, 3), ("tty", 5, 0), ("ptmx", 5, 2), ("urandom", 1, 9)] {
                let path = tree.target.join(name);
                let kind = rustix::fs::FileType::CharacterDevice;
                let device = rustix::fs::makedev(major, minor);
                rustix::fs::mknodat(rustix::fs::CWD, &path, kind, rustix::fs::Mode::from_raw_mode(0o666), device)?;
                rustix::fs::chmod(&path, rustix::fs::Mode::from_raw_mode(0o666))?;
            }
            Ok(())
        }
        _ => mount(tree),
    }
}

#[test]
fn the_root_is_built_and_entered() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot_as(Role::Mounts);
    let list = vec![Mount { tag: "/old".into(), path: "/".into(), read_only: false }];
    assert_eq!(guest.ask(&ToGuest::Mounts(list)), ToHost::Done);
    let script = "set -e; stat -f -c %T /proc /dev /tmp /run /dev/shm | tr '\\n' ' '; \
                  stat -c %a /tmp /dev/shm /run | tr '\\n' ' '; ls /tmp | wc -l; \
                  readlink /dev/fd /dev/stdin /dev/stdout /dev/stderr | tr '\\n' ' '; \
                  awk '$5 == \"/sys/fs/cgroup\" { print $9 }' /proc/self/mountinfo; cat /dev/fd/0";
    let outcome = guest.shell(script, b"input");
    let expected = "proc tmpfs tmpfs tmpfs tmpfs 1777 1777 755 0\n\
                    /proc/self/fd /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 cgroup2\ninput";
    assert_eq!((outcome.text().as_str(), outcome.errors().as_str()), (expected, ""));
    // A terminal works in it, with the devpts of the guest.
    let mut start = sh("tty; ls /dev/pts");
    start.tty = Some(pvisor_proto::WindowSize { rows: 2, columns: 70 });
    let id = guest.start(start);
    let text = guest.finish(id, None).text();
    assert!(text.starts_with("/dev/pts/0\r\n"), "{text:?}");
    // A sandbox inside the guest may have a /proc of its own: nothing covers a part of ours.
    let mut start = sh("unshare -Urpf --mount-proc true && echo nested");
    (start.uid, start.gid) = (65534, 65534);
    let outcome = guest.run(start, b"");
    assert_eq!((outcome.text().as_str(), outcome.end), ("nested\n", Some(End::Exited(0))), "{}", outcome.errors());
    guest.shutdown();
}

#[test]
fn a_tree_that_cannot_be_mounted_is_named() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot_as(Role::Mounts);
    let list = vec![Mount { tag: "/old/no/such/tree".into(), path: "/".into(), read_only: false }];
    let reply = guest.ask(&ToGuest::Mounts(list));
    let ToHost::Failed(failed) = reply else { panic!("{reply:?}") };
    assert_eq!((failed.errno, failed.what.as_str()), (libc::ENOENT, "mount /old/no/such/tree on /newroot"));
    guest.shutdown();
}
