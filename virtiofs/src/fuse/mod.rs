//! The filesystem on a `/dev/fuse` descriptor.
//!
//! Whoever has the right to mount opens the device, [`mount`]s it and hands the descriptor over; [`serve`] answers
//! the kernel's requests on it until the last mount is gone.

mod adapter;
mod convert;
mod numbers;
mod watch;

use std::ffi::{CStr, CString};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use fuser::{Config, INodeNo, Notifier, Session, SessionACL};
use rustix::mount::MountFlags;

use crate::StageFs;
use adapter::Adapter;
use numbers::Numbers;
use watch::{Listener, Watch};

/// File system type that the mount shows in `mountinfo`.
pub const MOUNT_TYPE: &CStr = c"fuse.pvisor";

/// What broke while serving.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The kernel and the filesystem did not agree on a protocol.
    #[error("first exchange with the kernel's fuse failed")]
    Handshake(#[source] io::Error),
    /// No thread for the requests.
    #[error("no thread for the file system")]
    Thread(#[source] io::Error),
    /// Reading requests failed.
    #[error("serving the file system failed")]
    Serve(#[source] io::Error),
    /// Somebody kept the mount for longer than allowed; the filesystem is fenced.
    #[error("the file system was still mounted somewhere after {0:?}")]
    StillMounted(Duration),
}

/// Mounts an open `/dev/fuse` descriptor on a directory. The process needs the right to mount in its mount namespace,
/// and must have opened the device in its own user namespace. Requests wait until [`serve`] runs.
///
/// `uid` and `gid`: who owns the mount, as the user namespace of the process counts.
///
/// # Errors
/// What `mount` answers.
pub fn mount(device: BorrowedFd<'_>, target: &Path, uid: u32, gid: u32) -> rustix::io::Result<()> {
    let target = CString::new(target.as_os_str().as_bytes()).map_err(|_| rustix::io::Errno::INVAL)?;
    mount_prepared(&target, &mount_options(device.as_raw_fd(), uid, gid))
}

/// Options of a mount of the device that is open as `device`.
pub fn mount_options(device: RawFd, uid: u32, gid: u32) -> CString {
    // The kernel checks permissions by the attributes; every user behind the mount is let in, for the command can be
    // another than the one who mounts. The root's mode counts until the kernel has taken its attributes, which it does
    // not where it is told of a change while it asks for them: then nobody would be let in.
    let options = format!("fd={device},rootmode=40777,user_id={uid},group_id={gid},default_permissions,allow_other");
    CString::new(options).unwrap_or_default()
}

/// As [`mount`], with [`mount_options`] made before: takes no memory, so that a child of a process with several
/// threads can call it.
///
/// # Errors
/// What `mount` answers.
pub fn mount_prepared(target: &CStr, options: &CStr) -> rustix::io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount(c"pvisor-stage", target, MOUNT_TYPE, flags, Some(options))
}

/// Threads that answer requests.
pub struct Server {
    filesystem: Arc<StageFs>,
    ended: Receiver<io::Result<()>>,
    mappings: Mappings,
    _listener: Listener,
}

/// Files as programs have them mapped, seen from the side that serves them.
#[derive(Clone)]
pub struct Mappings {
    notifier: Notifier,
    numbers: Arc<Numbers>,
}

impl Mappings {
    /// Has the kernel send all that a shared mapping made dirty of a file, and returns once it is written. The file is
    /// named by its inode number on the mount; one that the kernel does not know has nothing to send.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn write_back(&self, inode: u64) -> io::Result<()> {
        if self.numbers.node(inode).is_err() {
            return Ok(());
        }
        // Length 0: to the end. The kernel launders each page before it drops it.
        self.notifier.inval_inode(INodeNo(inode), 0, 0)
    }
}

/// Answers the requests that come from a mounted `/dev/fuse` descriptor, on threads of its own. Returns after the
/// first exchange with the kernel.
///
/// # Errors
/// The exchange failed, or a thread could not be started.
pub fn serve(filesystem: Arc<StageFs>, device: OwnedFd, threads: NonZeroUsize) -> Result<Server, ServeError> {
    let mut config = Config::default();
    config.acl = SessionACL::All;
    config.n_threads = Some(threads.get());
    let numbers = Arc::new(Numbers::new());
    let notices = device.try_clone().map_err(ServeError::Handshake)?;
    let watch = Arc::new(Watch::new(Arc::clone(filesystem.stage()), Arc::clone(&numbers), notices));
    let adapter = Adapter::new(Arc::clone(&filesystem), Arc::clone(&numbers), Arc::clone(&watch));
    let session = Session::from_fd(adapter, device, SessionACL::All, config).map_err(ServeError::Handshake)?;
    let listener = watch.listen(session.notifier()).map_err(ServeError::Thread)?;
    let mappings = Mappings { notifier: session.notifier(), numbers: Arc::clone(&numbers) };
    let notifier = session.notifier();
    filesystem.on_privilege_lost(move |node| {
        if let Some(number) = numbers.known(node) {
            // A negative offset: attributes only. A kernel that has forgotten the node has nothing to look at again.
            let _ = notifier.inval_inode(INodeNo(number), -1, 0);
        }
    });
    let (sender, ended) = channel();
    std::thread::Builder::new()
        .name("stage-mount".to_owned())
        .spawn(move || {
            // Nobody listens any more where the server was dropped.
            let _ = sender.send(session.run());
        })
        .map_err(ServeError::Thread)?;
    Ok(Server { filesystem, ended, mappings, _listener: listener })
}

impl Server {
    /// What programs have mapped of it.
    pub fn mappings(&self) -> Mappings {
        self.mappings.clone()
    }

    /// Waits until the last mount is gone and every request is answered; then no thread of the server is left.
    ///
    /// # Errors
    /// Serving failed at some point, or the mount was still there after `limit`; the filesystem is fenced then, so
    /// that in either case nothing reaches the stage any more.
    pub fn finish(self, limit: Duration) -> Result<(), ServeError> {
        let result = match self.ended.recv_timeout(limit) {
            Ok(result) => result.map_err(ServeError::Serve),
            Err(RecvTimeoutError::Timeout) => Err(ServeError::StillMounted(limit)),
            Err(RecvTimeoutError::Disconnected) => {
                Err(ServeError::Serve(io::Error::other("a thread of the file system panicked")))
            }
        };
        self.filesystem.fence();
        result
    }
}
