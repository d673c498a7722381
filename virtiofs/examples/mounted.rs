//! Runs a command beside a mounted stage, for file system test suites: `mounted LOWER STAGE MOUNTPOINT COMMAND...`.
//! Needs root; the mount shows to the command only.

use std::error::Error;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use pvisor_virtiofs::stage::{Stage, StageOptions};
use pvisor_virtiofs::{FsOptions, StageFs, fuse};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountPropagationFlags, UnmountFlags};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [lower, stage, target, program, rest @ ..] = &args[..] else {
        return Err("usage: mounted LOWER STAGE MOUNTPOINT COMMAND...".into());
    };
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let stage = Stage::create(Path::new(stage), Path::new(lower), StageOptions::default())?;
    let filesystem = Arc::new(StageFs::new(Arc::new(stage), FsOptions::default()));
    fuse::mount(device.as_fd(), Path::new(target), 0, 0)?;
    let server = fuse::serve(filesystem, device, NonZeroUsize::MIN.saturating_add(3))?;
    let status = Command::new(program).args(rest).status()?;
    rustix::mount::unmount(target, UnmountFlags::DETACH)?;
    server.finish(Duration::from_secs(60))?;
    Ok(ExitCode::from(status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1)))
}
