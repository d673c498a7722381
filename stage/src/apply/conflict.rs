//! Paths where the project is no longer what the command found.

use std::fmt;

use serde::Serialize;
use serde::ser::SerializeStruct;

use crate::RelPath;
use crate::review::quoted;

/// A path that can't be applied, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Which path.
    pub path: RelPath,
    /// Why.
    pub what: ConflictKind,
}

/// Why a path can't be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConflictKind {
    /// Its content, mode, owner or attributes are neither those that the command found nor those that it left.
    Changed,
    /// The command changed it, and it is gone now.
    Removed,
    /// It is not as an apply left it.
    ChangedAfterApply,
    /// An apply made or changed it, and it is gone now.
    RemovedAfterApply,
    /// The command made it, and something else of that name is there now.
    Exists,
    /// Its directory is gone, or is no directory any more.
    ParentMissing,
    /// The command removed the directory, and it has entries that the command did not remove.
    NewInside(Vec<u8>),
    /// It changed under the command, before its original could be recorded.
    Lost,
    /// It can't be read, so that nobody can tell what it is.
    Unreadable,
    /// It keeps changing while it is read.
    Unsteady,
    /// It, or the directory around it, is immutable or append-only.
    Fixed,
    /// It is a mount point.
    MountPoint,
    /// The directory around it can't be written by this user.
    NotWritable,
}

impl ConflictKind {
    /// A word for programs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Changed | Self::ChangedAfterApply => "changed",
            Self::Removed | Self::RemovedAfterApply => "removed",
            Self::Exists => "exists",
            Self::ParentMissing => "parent_missing",
            Self::NewInside(_) => "new_inside",
            Self::Lost => "lost",
            Self::Unreadable => "unreadable",
            Self::Unsteady => "unsteady",
            Self::Fixed => "immutable",
            Self::MountPoint => "mount_point",
            Self::NotWritable => "not_writable",
        }
    }
}

impl fmt::Display for ConflictKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Changed => "was changed since the command found it",
            Self::Removed => "was removed since the command found it",
            Self::ChangedAfterApply => "was changed since it was applied",
            Self::RemovedAfterApply => "was removed since it was applied",
            Self::Exists => "something else of that name was made since",
            Self::ParentMissing => "its directory is gone",
            Self::NewInside(name) => {
                return write!(f, "is to be removed, but has {} in it, which is to stay", quoted(name));
            }
            Self::Lost => "changed while the command ran, before its original was recorded",
            Self::Unreadable => "can't be read",
            Self::Unsteady => "keeps changing",
            Self::Fixed => "is immutable or append-only, or its directory is",
            Self::MountPoint => "is a mount point",
            Self::NotWritable => "is in a directory that this user can't write",
        })
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", quoted(self.path.as_bytes()), self.what)
    }
}

impl Serialize for Conflict {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Conflict", 3)?;
        out.serialize_field("path", &pvisor_spec::OsBytes::from(self.path.as_bytes().to_vec()))?;
        out.serialize_field("kind", self.what.word())?;
        out.serialize_field("message", &self.what.to_string())?;
        out.end()
    }
}
