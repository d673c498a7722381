//! Private directories on the target's filesystem: new contents are made there and replaced ones kept there.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{Access, AtFlags, Mode, OFlags, accessat, openat};

use super::disk::Disk;
use super::fault::{Blame, Fault};
use super::home::Home;
use super::ledger::{Place, StagingRef};
use super::target::{Mount, Target, footing};
use crate::layout::{ORIGINALS, WORK};
use crate::stat::Stat;
use crate::{Errno, FileKind, RelPath};

/// Name of the staging directory in the stage's own `work`.
pub(crate) const IN_WORK: &[u8] = b"apply";

/// An open staging directory.
#[derive(Debug)]
pub(crate) struct Staging {
    pub dir: OwnedFd,
    parent: OwnedFd,
    name: Vec<u8>,
    /// For messages.
    pub label: PathBuf,
}

/// Name of a file in a staging directory.
pub(crate) fn slot_name(slot: u64) -> Vec<u8> {
    format!("{slot:x}").into_bytes()
}

/// Name under which something is kept aside where the filesystem can't swap two names.
pub(crate) fn aside_name(slot: u64) -> Vec<u8> {
    format!("{slot:x}.old").into_bytes()
}

impl Staging {
    /// Inode number of what a slot holds; `None`: it is empty.
    pub fn held(&self, name: &[u8]) -> Result<Option<u64>, Errno> {
        match Stat::at(&self.dir, name) {
            Err(Errno::NOENT) => Ok(None),
            stat => Ok(Some(stat?.ino)),
        }
    }

    fn kept_name(&self) -> Result<String, Errno> {
        Ok(format!(".pvisor-kept-{:x}", Stat::of(&self.dir)?.ino))
    }

    /// Where a name that was kept is after the removal: for messages.
    pub fn kept_path(&self, name: &[u8]) -> PathBuf {
        let dir = self.kept_name().map_or_else(|_| self.label.clone(), |kept| self.label.with_file_name(kept));
        dir.join(OsStr::from_bytes(name))
    }

    /// Removes all that is in the directory but the names in `keep`; without such names the directory too.
    pub fn reduce(&self, disk: Disk<'_>, keep: &[Vec<u8>]) -> io::Result<()> {
        if keep.is_empty() {
            return self.remove(disk, keep);
        }
        super::removal::empty_dir(disk, &self.dir, keep).map(drop)
    }

    /// Removes the directory and all that is in it but the names in `keep`. With such names the directory stays, under
    /// a name that no later apply uses.
    pub fn remove(&self, disk: Disk<'_>, keep: &[Vec<u8>]) -> io::Result<()> {
        super::removal::empty_dir(disk, &self.dir, keep)?;
        if !keep.is_empty() {
            let kept = self.kept_name()?;
            return match disk.place((&self.parent, &self.name), (&self.parent, kept.as_bytes())) {
                // Done before.
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
                done => done,
            };
        }
        match disk.remove_dir(&self.parent, &self.name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

/// The best place for a staging directory on `mount`. `top`: the topmost directory of the target on it.
/// With `keep` it is one that can stay.
pub(crate) fn choose(
    home: &Home,
    target: &Target,
    (mount, top): (Mount, &RelPath),
    keep: bool,
) -> Result<StagingRef, Fault> {
    let on_mount = |dir: &OwnedFd| footing(dir).is_ok_and(|f| f.mount == mount);
    let hex = random_hex().blame("name a directory in", target.path())?;
    if home.work().is_ok_and(|work| on_mount(&work)) {
        return Ok(match keep {
            true => StagingRef { place: Place::Originals, name: hex.into_bytes(), ino: 0 },
            false => StagingRef { place: Place::Work, name: IN_WORK.to_vec(), ino: 0 },
        });
    }
    let name = format!(".pvisor-{}-{hex}", if keep { "originals" } else { "apply" }).into_bytes();
    if top.as_bytes().is_empty()
        && place_dir(home, Some(target), &Place::Beside).is_ok_and(|d| on_mount(&d) && writable(&d))
    {
        return Ok(StagingRef { place: Place::Beside, name, ino: 0 });
    }
    Ok(StagingRef { place: Place::Inside(top.clone()), name, ino: 0 })
}

/// Makes the directory; its inode number is then known.
pub(crate) fn create(disk: Disk<'_>, home: &Home, target: &Target, at: &mut StagingRef) -> Result<Staging, Fault> {
    let label = label(home, target, at);
    if at.place == Place::Originals && home.subdir(ORIGINALS).is_err() {
        disk.create_dir(home.dir(), ORIGINALS.as_bytes()).blame("create", home.path().join(ORIGINALS))?;
    }
    let parent = place_dir(home, Some(target), &at.place).blame("open the directory of", &label)?;
    disk.create_dir(&parent, &at.name).blame("create", &label)?;
    let staging = open_in(parent, &at.name, label.clone()).blame("open", &label)?;
    at.ino = Stat::of(&staging.dir).blame("read", &label)?.ino;
    Ok(staging)
}

/// Finds a directory that an earlier process made; `None`: it is not there (any more). Without the target only one in
/// the stage itself can be found.
pub(crate) fn find(home: &Home, target: Option<&Target>, at: &StagingRef) -> Result<Option<Staging>, Fault> {
    let label = target.map_or_else(|| home.path().to_owned(), |target| label(home, target, at));
    let parent = match place_dir(home, target, &at.place) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened.blame("open the directory of", &label)?,
    };
    let staging = match open_in(parent, &at.name, label.clone()) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        opened => opened.blame("open", &label)?,
    };
    let stat = Stat::of(&staging.dir).blame("read", &label)?;
    let ours = stat.kind == FileKind::Directory
        && stat.uid == rustix::process::geteuid().as_raw()
        && stat.mode & 0o077 == 0
        && (at.ino == 0 || at.ino == stat.ino);
    Ok(ours.then_some(staging))
}

fn open_in(parent: OwnedFd, name: &[u8], label: PathBuf) -> Result<Staging, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(&parent, name, flags, Mode::empty())?;
    Ok(Staging { dir, parent, name: name.to_vec(), label })
}

fn place_dir(home: &Home, target: Option<&Target>, place: &Place) -> Result<OwnedFd, Errno> {
    let target = match place {
        Place::Work => return home.work(),
        Place::Originals => return home.subdir(ORIGINALS),
        Place::Beside | Place::Inside(_) => target.ok_or(Errno::NOENT)?,
    };
    match place {
        Place::Inside(path) => target.directory(path)?.ok_or(Errno::NOENT),
        _ => {
            let root = target.directory(&RelPath::default())?.ok_or(Errno::NOENT)?;
            openat(root, "..", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        }
    }
}

fn label(home: &Home, target: &Target, at: &StagingRef) -> PathBuf {
    let name = Path::new(OsStr::from_bytes(&at.name));
    match &at.place {
        Place::Work => home.path().join(WORK).join(name),
        Place::Originals => home.path().join(ORIGINALS).join(name),
        Place::Beside => target.path().parent().unwrap_or(target.path()).join(name),
        Place::Inside(path) => target.whole(path).join(name),
    }
}

/// Whether names can be made in the directory by this process.
pub(crate) fn writable(dir: &OwnedFd) -> bool {
    accessat(dir, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

/// 128 random bits: a name that nobody can have made before.
fn random_hex() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}
