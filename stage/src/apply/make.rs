//! Making one new content complete in a staging directory.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, openat};

use super::content::{self, CopyError};
use super::disk::Disk;
use super::fault::{Blame, Fault};
use super::home::{open_object, open_regular};
use super::judgement::Item;
use super::metadata::wear;
use super::originals::KeptFile;
use super::print::fingerprint;
use super::staging::{Staging, slot_name};
use super::target::{Target, is_dir};
use crate::lower::is_kept_xattr;
use crate::stat::Stat;
use crate::{ContentHash, Errno, Fingerprint, Kind, Meta, ObjectId, RelPath};

/// Why new contents could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrepareError {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] Fault),
    /// A content is not what the seal says.
    #[error("damaged")]
    Damaged(RelPath),
}

/// Where another name of a file is to be had from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// A name in the target that stays.
    Anchor { path: RelPath, ino: u64 },
    /// One made before in a staging directory.
    Slot { staging: usize, slot: u64 },
}

/// What came of making one.
#[derive(Debug, Default)]
pub(super) struct Made {
    /// What it really is, and its inode number; `None`: it can't be made.
    pub made: Option<(Fingerprint, u64)>,
    /// It is another name of the source, not a file of its own.
    pub linked: bool,
    /// What could not be done.
    pub left_out: Vec<String>,
}

/// Where the contents of changes are.
#[derive(Debug)]
pub(super) enum Contents<'a> {
    /// In the stage's `upper`, by object.
    Upper(OwnedFd),
    /// Kept files, which an object is the index of.
    Originals(&'a [KeptFile]),
}

impl<'a> Contents<'a> {
    /// The kept file itself, to be put back as it is.
    fn original(&self, item: &Item<'_>) -> Option<&'a KeptFile> {
        let Self::Originals(kept) = self else { return None };
        let object = item.change.after.as_ref()?.object?;
        kept.get(usize::try_from(object.0).ok()?)
    }

    /// The file with a content, and its length in bytes.
    fn open(&self, object: ObjectId) -> std::io::Result<(File, u64)> {
        match self {
            Self::Upper(upper) => open_object(upper, object),
            Self::Originals(kept) => {
                let kept = usize::try_from(object.0).ok().and_then(|at| kept.get(at));
                let kept = kept.ok_or(Errno::NOENT)?;
                open_regular(&kept.staging.dir, &kept.name)?.ok_or_else(|| Errno::NOENT.into())
            }
        }
    }
}

/// Makes contents, on any thread.
pub(super) struct Maker<'a> {
    pub disk: Disk<'a>,
    pub target: &'a Target,
    /// Where contents come from.
    pub contents: Contents<'a>,
    pub stagings: &'a [Staging],
    /// The filesystem can't share blocks.
    pub never_shares: AtomicBool,
}

/// Where something is made.
struct Spot<'a> {
    dir: &'a OwnedFd,
    name: Vec<u8>,
    /// For messages.
    label: PathBuf,
}

impl Maker<'_> {
    /// Makes what will stand at the item's path: `after`, as far as that goes.
    pub fn make(
        &self,
        item: &Item<'_>,
        after: &Fingerprint,
        (staging, slot): (usize, u64),
        source: Option<&Source>,
    ) -> Result<Made, PrepareError> {
        let place = &self.stagings[staging];
        let name = slot_name(slot);
        let label = place.label.join(String::from_utf8_lossy(&name).into_owned());
        let spot = Spot { dir: &place.dir, name, label };
        if let Some(kept) = self.contents.original(item)
            && let Some((print, ino)) = self.take_back(kept, &spot)?
        {
            return Ok(Made { made: Some((print, ino)), linked: true, left_out: Vec::new() });
        }
        if let Some(ino) = source.map(|source| self.link(source, &spot)).transpose()?.flatten() {
            return Ok(Made { made: Some((after.clone(), ino)), linked: true, left_out: Vec::new() });
        }
        let fd = match self.create(item, after, &spot) {
            Err(PrepareError::Io(fault)) if is_refused_node(&after.kind, &fault) => {
                return Ok(Made { left_out: vec![fault.source.to_string()], ..Made::default() });
            }
            created => created?,
        };
        let (print, ino, left_out) = self.dress(item, &fd, after).blame("set up", &spot.label)?;
        Ok(Made { made: Some((print, ino)), linked: false, left_out })
    }

    /// A second name for a kept file, which is put back just as it is; `None`: it can't have one.
    fn take_back(&self, kept: &KeptFile, spot: &Spot<'_>) -> Result<Option<(Fingerprint, u64)>, Fault> {
        match self.disk.link((&kept.staging.dir, &kept.name), (spot.dir, &spot.name)) {
            Err(e) if is_no_link(&e) => return Ok(None),
            linked => linked.blame("link", &spot.label)?,
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(spot.dir, &spot.name, flags, Mode::empty()).blame("open", &spot.label)?;
        let sight = fingerprint(&fd).blame("read", &spot.label)?;
        Ok(Some((sight.print, sight.stat.ino)))
    }

    /// Whether the file that stood there is put back, rather than the metadata of what is there now changed.
    pub fn puts_back(&self, item: &Item<'_>) -> bool {
        self.contents.original(item).is_some()
    }

    /// Another name of a file that exists already; `None`: there is none to be had.
    fn link(&self, source: &Source, spot: &Spot<'_>) -> Result<Option<u64>, Fault> {
        let to = (spot.dir, &spot.name[..]);
        let linked = match source {
            Source::Anchor { path, .. } => {
                let Some((parent, from)) = self.target.parent(path).blame("open", &spot.label)? else {
                    return Ok(None);
                };
                self.disk.link((&parent, from), to)
            }
            Source::Slot { staging, slot } => self.disk.link((&self.stagings[*staging].dir, &slot_name(*slot)), to),
        };
        match linked {
            Err(e) if is_no_link(&e) => return Ok(None),
            linked => linked.blame("link", &spot.label)?,
        }
        let ino = Stat::at(spot.dir, &spot.name).blame("read", &spot.label)?.ino;
        if matches!(source, Source::Anchor { ino: expected, .. } if *expected != ino) {
            self.disk.unlink(spot.dir, &spot.name).blame("remove", &spot.label)?;
            return Ok(None);
        }
        Ok(Some(ino))
    }

    fn create(&self, item: &Item<'_>, after: &Fingerprint, spot: &Spot<'_>) -> Result<OwnedFd, PrepareError> {
        let (disk, dir, name) = (self.disk, spot.dir, &spot.name[..]);
        let node = |kind, device| disk.create_node(dir, name, kind, device);
        let made = match &after.kind {
            Kind::File { size, hash } => return Ok(self.create_file(item, (*size, hash), spot)?.into()),
            Kind::Directory => disk.create_dir(dir, name),
            Kind::Symlink(target) => disk.create_symlink(dir, name, target),
            Kind::Fifo => node(FileType::Fifo, 0),
            Kind::Socket => node(FileType::Socket, 0),
            Kind::CharDevice(device) => node(FileType::CharacterDevice, *device),
            Kind::BlockDevice(device) => node(FileType::BlockDevice, *device),
        };
        made.blame("create", &spot.label)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(dir, name, flags, Mode::empty()).blame("open", &spot.label)?)
    }

    fn create_file(
        &self,
        item: &Item<'_>,
        content: (u64, &ContentHash),
        spot: &Spot<'_>,
    ) -> Result<File, PrepareError> {
        let path = &item.change.path;
        let damaged = || PrepareError::Damaged(path.clone());
        let object = item.change.after.as_ref().and_then(|a| a.object);
        let (from, length) = match object {
            Some(object) => match self.contents.open(object) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(damaged()),
                opened => opened.blame("open the content of", self.target.whole(path))?,
            },
            // Metadata only, but not in place: the content is still in the target.
            None if item.adjusts() => {
                let whole = self.target.whole(path);
                let file = self.target.open_file(path).blame("open", &whole)?;
                let length = file.metadata().blame("read", &whole)?.len();
                (file, length)
            }
            None => return Err(damaged()),
        };
        let to = self.disk.create_file(spot.dir, &spot.name).blame("create", &spot.label)?;
        let share = !self.never_shares.load(Ordering::Relaxed) && self.share(&from, &to);
        match content::copy(self.disk, (&from, length), (!share).then_some(&to), content) {
            Err(CopyError::Damaged) => Err(damaged()),
            Err(CopyError::Io(source)) => Err(Fault { action: "write", path: spot.label.clone(), source }.into()),
            Ok(()) => Ok(to),
        }
    }

    /// Makes the two files share their blocks; `false`: can't.
    fn share(&self, from: &File, to: &File) -> bool {
        match self.disk.clone_content(from, to) {
            Ok(()) => true,
            Err(e) => {
                let never = Some(Errno::NOTSUP) == Errno::from_io_error(&e);
                self.never_shares.fetch_or(never, Ordering::Relaxed);
                false
            }
        }
    }

    /// Gives a new file its metadata. A directory stays open to its owner until everything in it is done. Returns what
    /// it is then, its inode number, and what was left out.
    fn dress(
        &self,
        item: &Item<'_>,
        fd: &OwnedFd,
        after: &Fingerprint,
    ) -> std::io::Result<(Fingerprint, u64, Vec<String>)> {
        let mut stat = Stat::of(fd)?;
        let have = Meta { mode: stat.mode, uid: stat.uid, gid: stat.gid, ..Meta::default() };
        let mut want = after.meta.clone();
        if is_dir(&after.kind) {
            want.mode |= 0o700;
        }
        let replaced = item.now.as_ref().filter(|now| matches!(now.print.kind, Kind::File { .. }) && !now.bare);
        if let (Some(_), Kind::File { .. }) = (replaced, &after.kind) {
            self.inherit(&item.change.path, fd);
        }
        let left_out = wear(self.disk, fd, (&after.kind, &have, &want), Some(want.mtime))?;
        let mut print = after.clone();
        if !left_out.is_empty() || want.mode & 0o7000 != 0 {
            // What the path will be compared with is what was really made.
            stat = Stat::of(fd)?;
            (print.meta.uid, print.meta.gid) = (stat.uid, stat.gid);
            if !is_dir(&after.kind) {
                print.meta.mode = stat.mode;
            }
        }
        Ok((print, stat.ino, left_out))
    }

    /// Takes over what a stage knows nothing of from the file that is replaced: access control lists, labels. What
    /// can't be had is no loss that a new content would not also be.
    fn inherit(&self, path: &RelPath, fd: impl AsFd) {
        let Ok(file) = self.target.open_file(path) else { return };
        let mut names = vec![0; 64 * 1024];
        let Ok(length) = rustix::fs::flistxattr(&file, &mut names[..]) else { return };
        let mut value = vec![0; 64 * 1024];
        let inherited = |name: &[u8]| {
            !is_kept_xattr(name) && !matches!(name, b"" | b"security.capability" | b"security.ima" | b"security.evm")
        };
        for name in names[..length].split(|b| *b == 0).filter(|name| inherited(name)) {
            if let Ok(length) = rustix::fs::fgetxattr(&file, name, &mut value[..]) {
                let _ = self.disk.set_xattr(&fd, name, &value[..length]);
            }
        }
    }
}

/// Not on this filesystem, too many names, not ours to link to, or gone: then it becomes a file of its own.
fn is_no_link(e: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::XDEV | Errno::MLINK | Errno::PERM | Errno::NOENT))
}

fn is_refused_node(kind: &Kind, fault: &Fault) -> bool {
    matches!(kind, Kind::CharDevice(_) | Kind::BlockDevice(_) | Kind::Fifo | Kind::Socket)
        && matches!(Errno::from_io_error(&fault.source), Some(Errno::PERM | Errno::NOTSUP | Errno::INVAL))
}
