//! The contents of both sides of changes: new ones in the stage, old ones in the project.

use std::io::Read;

use rustix::fd::OwnedFd;

use crate::apply::{Target, open_object};
use crate::stat::Stat;
use crate::{Change, Errno, FileKind, Fingerprint, Kind, ObjectId, RelPath};

/// One side of a change, where it is a file or a symbolic link.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content<'c> {
    Link(&'c [u8]),
    /// In the stage, with its size in bytes.
    Object(ObjectId, u64),
    /// In the project, if it is still the same.
    Original(&'c RelPath, &'c Fingerprint, u64),
}

/// Why a content can't be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unshown {
    TooLarge,
    Gone,
    Unreadable,
}

/// Where contents are read from.
#[derive(Clone, Copy)]
pub(crate) struct Contents<'a> {
    pub upper: &'a OwnedFd,
    /// `None`: it is gone.
    pub project: Option<&'a Target>,
}

/// Some entry of the project, as it is now.
pub(super) enum Found {
    Link(Vec<u8>),
    File,
    Directory,
    Nothing,
}

impl<'c> Content<'c> {
    /// What was at a path.
    pub fn before(path: &'c RelPath, print: &'c Fingerprint) -> Option<Self> {
        match &print.kind {
            Kind::File { size, .. } => Some(Self::Original(path, print, *size)),
            Kind::Symlink(target) => Some(Self::Link(target)),
            _ => None,
        }
    }

    /// What is at a path now. `origin`: where its content came from, for those that are as before.
    pub fn after(change: &'c Change, origin: Option<(&'c RelPath, &'c Fingerprint)>) -> Option<Self> {
        let after = change.after.as_ref()?;
        match (&after.print.kind, after.object) {
            (Kind::File { size, .. }, object) => match (origin, object) {
                (Some((path, before)), _) if before.kind == after.print.kind => {
                    Some(Self::Original(path, before, *size))
                }
                (_, Some(object)) => Some(Self::Object(object, *size)),
                (_, None) => None,
            },
            (Kind::Symlink(target), _) => Some(Self::Link(target)),
            _ => None,
        }
    }

    pub fn size(&self) -> u64 {
        match self {
            Self::Link(target) => target.len() as u64,
            Self::Object(_, size) | Self::Original(_, _, size) => *size,
        }
    }
}

impl Contents<'_> {
    /// All of a content of at most `limit` bytes.
    pub(super) fn load(&self, content: &Content<'_>, limit: u64) -> Result<Vec<u8>, Unshown> {
        if content.size() > limit {
            return Err(Unshown::TooLarge);
        }
        let file = match content {
            Content::Link(target) => return Ok(target.to_vec()),
            Content::Object(object, _) => open_object(self.upper, *object).map_err(|_| Unshown::Unreadable)?.0,
            Content::Original(path, ..) => {
                let project = self.project.ok_or(Unshown::Gone)?;
                project
                    .open_file(path)
                    .map_err(|e| if e == Errno::ACCESS { Unshown::Unreadable } else { Unshown::Gone })?
            }
        };
        let mut bytes = Vec::with_capacity(usize::try_from(content.size()).unwrap_or(0));
        file.take(limit + 1).read_to_end(&mut bytes).map_err(|_| Unshown::Unreadable)?;
        if let Content::Original(_, print, _) = content {
            let same = matches!(print.kind, Kind::File { hash, .. } if hash == *blake3::hash(&bytes).as_bytes());
            return if same { Ok(bytes) } else { Err(Unshown::Gone) };
        }
        Ok(bytes)
    }

    /// What stands in the project now.
    pub(super) fn find(&self, path: &RelPath) -> Found {
        let Some(Ok(Some(fd))) = self.project.map(|project| project.locate(path)) else { return Found::Nothing };
        match Stat::of(&fd).map(|stat| stat.kind) {
            Ok(FileKind::Symlink) => rustix::fs::readlinkat(&fd, c"", Vec::new())
                .map_or(Found::Nothing, |target| Found::Link(target.into_bytes())),
            Ok(FileKind::Directory) => Found::Directory,
            Ok(_) => Found::File,
            Err(_) => Found::Nothing,
        }
    }

    /// A small file of the project as it is now.
    pub(super) fn read_project(&self, path: &RelPath, limit: u64) -> Option<Vec<u8>> {
        let file = self.project?.open_file(path).ok()?;
        let mut bytes = Vec::new();
        file.take(limit + 1).read_to_end(&mut bytes).ok()?;
        (bytes.len() as u64 <= limit).then_some(bytes)
    }
}
