//! Trying out, in a child that ends at once, what a launch will need.

use std::ffi::{CStr, CString};
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use pvisor_spec::Refusal;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use crate::launch::namespaces::{IdMaps, Namespaces, Side, UserIds, fork_into, keep_mounts_inside, last_errno};
use crate::launch::{FUSE_HINT, NAMESPACE_HINT, exit_now};

/// Where the trial mounts: a directory that every system has.
const TARGET: &CStr = c"/proc";

/// Descriptor of the device in the trial, so that the mount options can be made before.
const DEVICE: i32 = 3;

/// Smallest buffer that the kernel hands a request to, in bytes.
const REQUEST: usize = 1 << 14;

/// How far a trial came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stop {
    Map = 1,
    Privacy,
    Device,
    Mount,
    Init,
}

/// What a trial of the stage's mount found out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    /// What the kernel's fuse can do: its flags of the first request.
    pub(crate) flags: u64,
}

/// Why a trial failed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TrialError {
    /// No process in such namespaces.
    Fork(Errno),
    /// A step failed.
    At(Stop, Errno),
}

/// Whether a stage can be mounted by this user on this machine.
///
/// # Errors
/// The measured reason why not.
pub(crate) fn stage_mount() -> Result<(), Refusal> {
    trial_mount().map(drop).map_err(TrialError::into_refusal)
}

/// Mounts the device in namespaces as a launch would make them.
pub(crate) fn trial_mount() -> Result<Trial, TrialError> {
    let user = Namespaces::least(Some(UserIds::Own));
    if !rustix::process::geteuid().is_root() {
        return trial(user, true);
    }
    let direct = Namespaces::least(None);
    trial(direct, true).or_else(|first| trial(user, true).map_err(|_| first))
}

/// Makes a user namespace with mount and process namespaces, and maps the own ids.
pub(crate) fn trial_user_namespace() -> Result<(), TrialError> {
    trial(Namespaces::least(Some(UserIds::Own)), false).map(drop)
}

fn trial(namespaces: Namespaces, mount: bool) -> Result<Trial, TrialError> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(TrialError::Fork)?;
    let maps = namespaces.user.map(|_| IdMaps::own());
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let options = pvisor_virtiofs::fuse::mount_options(DEVICE, uid, gid);
    // SAFETY: the child makes system calls only, with memory that was made before.
    match unsafe { fork_into(Some(namespaces)) }.map_err(TrialError::Fork)? {
        Side::Child => {
            let answer = match attempt(maps.as_ref(), mount.then_some(&options), &writer) {
                Ok(flags) => Answer { stop: 0, errno: 0, flags },
                Err((stop, errno)) => Answer { stop: stop as u8, errno: errno.raw_os_error(), flags: 0 },
            };
            let _ = rustix::io::write(&writer, &answer.to_bytes());
            exit_now(0)
        }
        Side::Parent(pid) => {
            drop(writer);
            let mut bytes = Vec::new();
            let read = std::fs::File::from(reader).take(Answer::LENGTH as u64).read_to_end(&mut bytes);
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
            }
            let answer = read.ok().and_then(|_| Answer::from_bytes(&bytes)).ok_or(TrialError::Fork(Errno::CHILD))?;
            answer.into_result()
        }
    }
}

/// Runs in the child: no memory is taken here.
fn attempt(maps: Option<&IdMaps>, options: Option<&CString>, pipe: &OwnedFd) -> Result<u64, (Stop, Errno)> {
    if let Some(maps) = maps {
        maps.write().map_err(|e| (Stop::Map, e))?;
    }
    keep_mounts_inside().map_err(|e| (Stop::Privacy, e))?;
    let Some(options) = options else { return Ok(0) };
    let device =
        rustix::fs::open(c"/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|e| (Stop::Device, e))?;
    let device = move_to_fixed(device, pipe).map_err(|e| (Stop::Device, e))?;
    pvisor_virtiofs::fuse::mount_prepared(TARGET, options).map_err(|e| (Stop::Mount, e))?;
    let mut request = [0; REQUEST];
    let read = rustix::io::read(&device, &mut request).map_err(|e| (Stop::Init, e))?;
    init_flags(request.get(..read).unwrap_or_default()).ok_or((Stop::Init, Errno::BADMSG))
}

fn move_to_fixed(device: OwnedFd, pipe: &OwnedFd) -> Result<OwnedFd, Errno> {
    if device.as_raw_fd() == DEVICE {
        return Ok(device);
    }
    if pipe.as_raw_fd() == DEVICE {
        // The answer has to go somewhere; ends of pipes are made before anything else here, so this is a process
        // whose standard descriptors were closed.
        return Err(Errno::BADF);
    }
    // SAFETY: the child is a copy of a process whose other threads do not exist in it, so nobody in it uses what
    // descriptor 3 was; the pipe's end, which is used, is another one.
    let fd = unsafe { libc::dup3(device.as_raw_fd(), DEVICE, libc::O_CLOEXEC) };
    if fd != DEVICE {
        return Err(last_errno());
    }
    // SAFETY: the call above made it, for nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The flags in the kernel's first request: header of 40 bytes, then major, minor, readahead, flags, more flags.
fn init_flags(request: &[u8]) -> Option<u64> {
    const EXTENDED: u32 = 1 << 30;
    let word = |at: usize| request.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let low = word(52)?;
    let high = if low & EXTENDED == 0 { 0 } else { word(56)? };
    Some(u64::from(high) << 32 | u64::from(low))
}

/// What the child says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    stop: u8,
    errno: i32,
    flags: u64,
}

impl Answer {
    const LENGTH: usize = 13;

    fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[0] = self.stop;
        bytes[1..5].copy_from_slice(&self.errno.to_ne_bytes());
        bytes[5..].copy_from_slice(&self.flags.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LENGTH] = bytes.try_into().ok()?;
        Some(Self {
            stop: bytes[0],
            errno: i32::from_ne_bytes(bytes[1..5].try_into().ok()?),
            flags: u64::from_ne_bytes(bytes[5..].try_into().ok()?),
        })
    }

    fn into_result(self) -> Result<Trial, TrialError> {
        let stop = match self.stop {
            0 => return Ok(Trial { flags: self.flags }),
            1 => Stop::Map,
            2 => Stop::Privacy,
            3 => Stop::Device,
            4 => Stop::Mount,
            _ => Stop::Init,
        };
        Err(TrialError::At(stop, Errno::from_raw_os_error(self.errno)))
    }
}

impl TrialError {
    /// The fact and what to do about it.
    pub(crate) fn into_refusal(self) -> Refusal {
        let (reason, hint) = match self {
            Self::Fork(errno) => (format!("no namespaces are to be had: {errno}"), NAMESPACE_HINT),
            Self::At(Stop::Map, errno) => (format!("ids can't be mapped in a user namespace: {errno}"), NAMESPACE_HINT),
            Self::At(Stop::Privacy, errno) => (format!("a mount namespace can't be detached: {errno}"), NAMESPACE_HINT),
            Self::At(Stop::Device, errno) => (format!("/dev/fuse can't be opened: {errno}"), FUSE_HINT),
            Self::At(Stop::Mount, errno) => (format!("fuse can't be mounted: {errno}"), NAMESPACE_HINT),
            Self::At(Stop::Init, errno) => (format!("the kernel's fuse does not answer: {errno}"), FUSE_HINT),
        };
        Refusal { reason, hint: hint.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_back_and_anything_else_is_none() {
        let answer = Answer { stop: 4, errno: 13, flags: 1 << 37 | 5 };
        assert_eq!(Answer::from_bytes(&answer.to_bytes()), Some(answer));
        assert_eq!(Answer::from_bytes(&[0; 3]), None);
    }

    #[test]
    fn flags_beyond_the_request_are_not_there() {
        let mut request = [0; 104];
        request[52..56].copy_from_slice(&(1u32 << 30 | 9).to_ne_bytes());
        request[56..60].copy_from_slice(&(1u32 << 5).to_ne_bytes());
        assert_eq!(init_flags(&request), Some(1 << 37 | 1 << 30 | 9));
        assert_eq!(init_flags(&request[..58]), None);
        assert_eq!(init_flags(&[]), None);
    }

    #[test]
    fn this_machine_gives_a_reason_or_a_mount() {
        match trial_mount() {
            Ok(trial) => assert_ne!(trial.flags, 0),
            Err(error) => {
                let refusal = error.into_refusal();
                assert!(!refusal.reason.is_empty() && !refusal.hint.is_empty());
            }
        }
    }
}
