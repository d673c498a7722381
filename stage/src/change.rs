//! Net changes: what a sealed stage says about each path, free of how it came to be.

use std::collections::BTreeMap;

/// A path relative to the project's root: components joined by `/`, no leading slash, no `.` or `..`; the root is
/// empty. Components are any bytes but `/` and NUL, 1 to 255 of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct RelPath(Vec<u8>);

/// The bytes are no relative path of that form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{:?} is not a plain relative path", String::from_utf8_lossy(.0))]
pub struct RelPathError(pub Vec<u8>);

impl RelPath {
    /// Checks and takes the bytes.
    ///
    /// # Errors
    /// An empty component, `.`, `..`, a NUL byte, or a component over 255 bytes.
    pub fn new(bytes: Vec<u8>) -> Result<Self, RelPathError> {
        let fine = bytes.is_empty() || bytes.split(|b| *b == b'/').all(is_name);
        if fine { Ok(Self(bytes)) } else { Err(RelPathError(bytes)) }
    }

    /// The whole path.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path with one more component; `name` must be a single one.
    ///
    /// # Errors
    /// `name` is not a single plain component.
    pub fn join(&self, name: &[u8]) -> Result<Self, RelPathError> {
        if !is_name(name) {
            return Err(RelPathError(name.to_vec()));
        }
        let mut bytes = self.0.clone();
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        Ok(Self(bytes))
    }

    /// Parent and last component; `None` for the root.
    pub fn split(&self) -> Option<(Self, &[u8])> {
        if self.0.is_empty() {
            return None;
        }
        Some(match self.0.iter().rposition(|b| *b == b'/') {
            Some(at) => (Self(self.0[..at].to_vec()), &self.0[at + 1..]),
            None => (Self::default(), &self.0[..]),
        })
    }

    /// Whether `self` is `other` or lies below it.
    pub fn is_within(&self, other: &Self) -> bool {
        other.0.is_empty()
            || self.0.strip_prefix(&other.0[..]).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    }
}

impl TryFrom<Vec<u8>> for RelPath {
    type Error = RelPathError;

    fn try_from(bytes: Vec<u8>) -> Result<Self, Self::Error> {
        Self::new(bytes)
    }
}

impl From<RelPath> for Vec<u8> {
    fn from(path: RelPath) -> Self {
        path.0
    }
}

/// Whether the bytes are a single path component other than `.` and `..`.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && name != b"."
        && name != b".."
        && !name.contains(&b'/')
        && !name.contains(&0)
}

/// BLAKE3 of a file's content.
pub type ContentHash = [u8; 32];

/// What stands at a path.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Kind {
    /// A regular file.
    File {
        /// Bytes.
        size: u64,
        /// Hash of all of them, holes read as zeros.
        hash: ContentHash,
    },
    /// A directory.
    Directory,
    /// A symbolic link, with its target as it is stored.
    Symlink(Vec<u8>),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device, by encoded device number.
    CharDevice(u64),
    /// A block device, by encoded device number.
    BlockDevice(u64),
}

/// Metadata that a change can consist of.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Meta {
    /// Permission bits with setuid, setgid and sticky: `0o7777` at the most.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time: seconds and nanoseconds since the Unix epoch.
    pub mtime: (i64, u32),
    /// Extended attributes by name.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What a path was or is, enough to compare it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Fingerprint {
    /// What it is.
    pub kind: Kind,
    /// Its metadata.
    pub meta: Meta,
}

impl Fingerprint {
    /// Equal in everything that counts for a conflict: kind, content, mode, owner and xattrs, not times.
    pub fn same(&self, other: &Self) -> bool {
        let (a, b) = (&self.meta, &other.meta);
        // A symbolic link's mode means nothing and can't be set.
        let modes = a.mode == b.mode || matches!(self.kind, Kind::Symlink(_));
        self.kind == other.kind && modes && a.uid == b.uid && a.gid == b.gid && a.xattrs == b.xattrs
    }
}

/// What the lower had at a path when the run first changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nothing.
    Absent,
    /// This.
    Present(Fingerprint),
    /// Something that changed under the run before it could be fingerprinted: always a conflict.
    Lost,
}

/// The content of a regular file in `upper`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u64);

/// What the stage has at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct After {
    /// What and how.
    pub print: Fingerprint,
    /// The content, for a regular file whose content differs from before or that is new at this path. `None` on a
    /// regular file: content as before, only metadata changed.
    pub object: Option<ObjectId>,
    /// Paths with the same number are one file with several names; `None`: this name is its only one.
    pub link_group: Option<u64>,
}

/// One path whose staged state differs from what the command found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which path.
    pub path: RelPath,
    /// What the command found.
    pub before: Before,
    /// What it left; `None`: deleted.
    pub after: Option<After>,
}

/// Everything that a sealed stage changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeSet {
    /// The directory that the command worked on: absolute, without symbolic links.
    pub lower: std::path::PathBuf,
    /// BLAKE3 of the seal: names this very set.
    pub seal: ContentHash,
    /// Net changes, sorted by path, one per path.
    pub changes: Vec<Change>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::new(text.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn paths_that_could_leave_the_root_are_refused() {
        for bad in ["/", "/a", "a/", "a//b", ".", "a/..", "../a", "a/./b", "a\0b"] {
            assert!(RelPath::new(bad.as_bytes().to_vec()).is_err(), "{bad:?}");
        }
        assert!(RelPath::new(vec![b'x'; 256]).is_err());
        assert!(RelPath::new(vec![0xff, b'/', 0xfe]).is_ok());
    }

    #[test]
    fn join_and_split_are_inverse() {
        let joined = path("a/b").join(b"c").unwrap();
        assert_eq!(joined, path("a/b/c"));
        assert_eq!(joined.split().unwrap(), (path("a/b"), &b"c"[..]));
        assert!(path("a").join(b"..").is_err() && path("a").join(b"x/y").is_err());
        assert!(RelPath::default().split().is_none());
    }

    #[test]
    fn within_respects_component_borders() {
        assert!(path("a/b").is_within(&path("a")) && path("a").is_within(&path("a")));
        assert!(!path("ab").is_within(&path("a")) && path("x").is_within(&RelPath::default()));
    }
}
