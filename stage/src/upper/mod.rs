//! The writable side: one flat file per staged content.

mod copy;
mod hash;

pub(crate) use copy::copy_content;
pub(crate) use hash::hash_file;

use std::fs::File;
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatVfs, Timestamps, openat, renameat, unlinkat, utimensat};

use crate::Errno;
use crate::layout::UPPER;
use crate::live::NodeId;
use crate::stat::Stat;

/// The directory of contents.
#[derive(Debug)]
pub(crate) struct Upper {
    dir: OwnedFd,
}

/// Name of a node's content.
pub(crate) fn content_name(id: NodeId) -> String {
    format!("{:x}", id.0)
}

impl Upper {
    /// Opens `upper` in the stage's directory.
    pub fn open(stage: &Path) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self { dir: openat(CWD, stage.join(UPPER), flags, Mode::empty())? })
    }

    /// The directory itself.
    pub fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// A new, empty content.
    pub fn create(&self, id: NodeId) -> Result<File, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.dir, content_name(id), flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Puts another file in a content's place: `fill` gets it empty, and what it did is there whole or not at all.
    pub fn replace(&self, id: NodeId, fill: impl FnOnce(&File) -> Result<(), Errno>) -> Result<File, Errno> {
        let temp = format!("{}.new", content_name(id));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(&self.dir, &*temp, flags, Mode::RUSR | Mode::WUSR)?);
        let replaced = fill(&file).and_then(|()| renameat(&self.dir, &*temp, &self.dir, content_name(id)));
        if let Err(e) = replaced {
            let _ = unlinkat(&self.dir, &*temp, AtFlags::empty());
            return Err(e);
        }
        Ok(file)
    }

    /// An existing content.
    pub fn content(&self, id: NodeId, write: bool) -> Result<File, Errno> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(openat(&self.dir, content_name(id), flags, Mode::empty())?.into())
    }

    /// Metadata of a content.
    pub fn stat(&self, id: NodeId) -> Result<Stat, Errno> {
        Stat::at(&self.dir, content_name(id).as_bytes())
    }

    /// Sets access and modification time.
    pub fn set_times(&self, id: NodeId, times: &Timestamps) -> Result<(), Errno> {
        utimensat(&self.dir, content_name(id), times, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Removes a content; one that is not there is fine.
    pub fn remove(&self, id: NodeId) {
        match unlinkat(&self.dir, content_name(id), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => tracing::warn!(error = %e, id = id.0, "a content that nothing needs could not be removed"),
        }
    }

    /// Space and limits of the file system.
    pub fn space(&self) -> Result<StatVfs, Errno> {
        rustix::fs::fstatvfs(&self.dir)
    }

    /// Syncs the directory itself.
    pub fn sync(&self) -> Result<(), Errno> {
        rustix::fs::fsync(&self.dir)
    }
}
