//! One reviewed change.

use std::collections::HashSet;
use std::fmt;
use std::io::Read;

use pvisor_spec::OsBytes;
use rustix::fd::OwnedFd;
use serde::Serialize;

use super::contents::Contents;
use super::pairs::{Origin, origins};
use super::sink::{Danger, Flag, Sinks};
use crate::apply::open_object;
use crate::{Before, Change, Fingerprint, Kind};

/// As many bytes from its start decide whether a content is text.
const PROBE: u64 = 8000;

/// What happened to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Status {
    /// It is new.
    #[serde(rename = "A")]
    Added,
    /// Its content changed.
    #[serde(rename = "M")]
    Modified,
    /// It is gone.
    #[serde(rename = "D")]
    Deleted,
    /// It is something else now: a link instead of a file …
    #[serde(rename = "T")]
    TypeChanged,
    /// Only its mode, owner or attributes changed.
    #[serde(rename = "m")]
    Metadata,
    /// It is a file that was at another path before, with the same content or much of it.
    #[serde(rename = "R")]
    Renamed,
    /// It is a new file with the content, or much of it, of another one.
    #[serde(rename = "C")]
    Copied,
}

impl Status {
    /// All of them, in the order that totals list them.
    pub const ALL: [Self; 7] =
        [Self::Added, Self::Modified, Self::Deleted, Self::Renamed, Self::Copied, Self::TypeChanged, Self::Metadata];

    /// The letter that stands for it: A, M, D, T, m, R, C.
    pub fn letter(self) -> char {
        match self {
            Self::Added => 'A',
            Self::Modified => 'M',
            Self::Deleted => 'D',
            Self::TypeChanged => 'T',
            Self::Metadata => 'm',
            Self::Renamed => 'R',
            Self::Copied => 'C',
        }
    }

    /// Past participle, for totals.
    pub fn word(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Modified => "modified",
            Self::Deleted => "deleted",
            Self::TypeChanged => "of another type",
            Self::Metadata => "with other metadata",
            Self::Renamed => "renamed",
            Self::Copied => "copied",
        }
    }
}

/// What a path was or is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SideKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl fmt::Display for SideKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symbolic link",
            Self::Fifo => "named pipe",
            Self::Socket => "socket",
            Self::CharDevice => "character device",
            Self::BlockDevice => "block device",
        })
    }
}

/// One side of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Side {
    /// What it is.
    pub kind: SideKind,
    /// Bytes, of a regular file.
    pub size: Option<u64>,
    /// BLAKE3 of the content of a regular file, hexadecimal.
    pub blake3: Option<String>,
    /// Target of a symbolic link.
    pub target: Option<OsBytes>,
    /// Permission bits, octal.
    pub mode: String,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names of extended attributes.
    pub xattrs: Vec<OsBytes>,
}

impl Side {
    fn of(print: &Fingerprint) -> Self {
        let mut side = Self {
            kind: kind_of(&print.kind),
            size: None,
            blake3: None,
            target: None,
            mode: format!("{:04o}", print.meta.mode),
            uid: print.meta.uid,
            gid: print.meta.gid,
            xattrs: print.meta.xattrs.keys().map(|name| OsBytes::from(name.clone())).collect(),
        };
        match &print.kind {
            Kind::File { size, hash } => (side.size, side.blake3) = (Some(*size), Some(hex(hash))),
            Kind::Symlink(target) => side.target = Some(OsBytes::from(target.clone())),
            _ => {}
        }
        side
    }
}

/// A change as a person sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReviewEntry {
    /// Which path.
    pub path: OsBytes,
    /// What happened.
    pub status: Status,
    /// Where it was before, if it was renamed, or what it was copied from.
    pub from: Option<OsBytes>,
    /// How much of it is as it was there, in percent.
    pub similarity: Option<u8>,
    /// What the command found; `None`: nothing, or something that was changed by somebody else at that moment.
    pub before: Option<Side>,
    /// What it left; `None`: nothing.
    pub after: Option<Side>,
    /// The new content is no text; `None`: there is no new content.
    pub binary: Option<bool>,
    /// Paths with the same number are names of one file.
    pub link_group: Option<u64>,
    /// The original changed while the command ran: it can't be applied.
    pub lost: bool,
    /// Why it deserves a look.
    pub flags: Vec<Flag>,
    /// Index of the change.
    #[serde(skip)]
    pub(super) change: usize,
    /// Where it was renamed or copied from.
    #[serde(skip)]
    pub(super) origin: Option<Origin>,
}

impl ReviewEntry {
    /// It is applied only where exec sinks are allowed.
    pub fn is_dangerous(&self) -> bool {
        self.flags.iter().any(|flag| flag.danger == Danger::Dangerous)
    }

    /// It appears or goes as a directory.
    pub(super) fn is_directory(&self) -> bool {
        self.after.as_ref().or(self.before.as_ref()).is_some_and(|side| side.kind == SideKind::Directory)
    }
}

/// The entries for the changes with the indexes `open`; the project still has what those of `present` change.
pub(super) fn entries(
    changes: &[Change],
    open: &[usize],
    present: &[usize],
    contents: Contents<'_>,
) -> Vec<ReviewEntry> {
    let origins = origins(changes, open, present, contents);
    let moved: HashSet<usize> = origins.values().filter(|o| !o.copied).map(|o| o.source).collect();
    let sinks = Sinks::new(changes, contents);
    let rest = open.iter().filter(|at| !moved.contains(at));
    rest.map(|at| entry(changes, *at, origins.get(at).copied(), contents.upper, &sinks)).collect()
}

fn entry(changes: &[Change], at: usize, origin: Option<Origin>, upper: &OwnedFd, sinks: &Sinks<'_>) -> ReviewEntry {
    let change = &changes[at];
    let source = origin.map(|origin| &changes[origin.source]);
    let before = before_print(source.unwrap_or(change));
    let after = change.after.as_ref();
    let head = after.and_then(|a| a.object).and_then(|object| head(upper, object));
    let binary = head.as_ref().map(|head| head.contains(&0));
    ReviewEntry {
        path: OsBytes::from(change.path.as_bytes().to_vec()),
        status: status(change, origin),
        from: source.map(|source| OsBytes::from(source.path.as_bytes().to_vec())),
        similarity: origin.map(|origin| origin.similarity),
        before: before.map(Side::of),
        after: after.map(|a| Side::of(&a.print)),
        binary,
        link_group: after.and_then(|a| a.link_group),
        lost: change.before == Before::Lost,
        flags: sinks.flags(change, before, binary == Some(true)),
        change: at,
        origin,
    }
}

/// The fingerprint that the command found.
pub(super) fn before_print(change: &Change) -> Option<&Fingerprint> {
    match &change.before {
        Before::Present(before) => Some(before),
        Before::Absent | Before::Lost => None,
    }
}

fn status(change: &Change, origin: Option<Origin>) -> Status {
    let Some(after) = &change.after else { return Status::Deleted };
    match &change.before {
        _ if origin.is_some_and(|origin| origin.copied) => Status::Copied,
        _ if origin.is_some() => Status::Renamed,
        Before::Absent => Status::Added,
        Before::Lost => Status::Modified,
        Before::Present(before) if kind_of(&before.kind) != kind_of(&after.print.kind) => Status::TypeChanged,
        Before::Present(before) if before.kind != after.print.kind => Status::Modified,
        Before::Present(_) => Status::Metadata,
    }
}

/// The first bytes of a content.
fn head(upper: &OwnedFd, object: crate::ObjectId) -> Option<Vec<u8>> {
    let (file, _) = open_object(upper, object).ok()?;
    let mut bytes = Vec::new();
    file.take(PROBE).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Whether a content is shown as text.
pub(super) fn is_binary(content: &[u8]) -> bool {
    content.iter().take(usize::try_from(PROBE).unwrap_or(usize::MAX)).any(|byte| *byte == 0)
}

/// The kind without what is particular to one.
pub(super) fn kind_of(kind: &Kind) -> SideKind {
    match kind {
        Kind::File { .. } => SideKind::File,
        Kind::Directory => SideKind::Directory,
        Kind::Symlink(_) => SideKind::Symlink,
        Kind::Fifo => SideKind::Fifo,
        Kind::Socket => SideKind::Socket,
        Kind::CharDevice(_) => SideKind::CharDevice,
        Kind::BlockDevice(_) => SideKind::BlockDevice,
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        // A string takes everything that is written to it.
        let _ = write!(out, "{byte:02x}");
        out
    })
}
