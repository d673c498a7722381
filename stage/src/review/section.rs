//! What a diff is made of: for each change the sections that git has a form for, and their contents.

use super::Review;
use super::contents::{Content, Contents, Unshown};
use super::entry::{ReviewEntry, before_print, is_binary};
use super::pairs::Origin;
use super::sink::spelled_git;
use crate::{Fingerprint, Kind};

/// Larger contents are not compared line by line, in bytes.
const LINES: u64 = 8 << 20;
/// Larger contents are named, not shown.
const WHOLE: u64 = 64 << 20;

/// One side of a section.
pub(super) struct Blob<'c> {
    /// As git has it: type and permission bits.
    pub mode: u32,
    pub content: Content<'c>,
}

/// One `diff --git`.
pub(super) struct Section<'c> {
    pub old_name: &'c [u8],
    pub new_name: &'c [u8],
    /// `None`: nothing was there.
    pub old: Option<Blob<'c>>,
    /// `None`: nothing is there.
    pub new: Option<Blob<'c>>,
    pub origin: Option<Origin>,
}

/// Both contents of a section.
pub(super) enum Body {
    /// They are equal.
    Same,
    Text(Vec<u8>, Vec<u8>),
    Binary(Vec<u8>, Vec<u8>),
    Unshown(Unshown),
}

impl Section<'_> {
    /// Git takes no patch for it.
    pub fn is_refused(&self) -> bool {
        let link = self.new.as_ref().is_some_and(|new| new.mode == 0o120_000);
        spelled_git(self.old_name, false) || spelled_git(self.new_name, link)
    }

    pub fn body(&self, contents: Contents<'_>) -> Body {
        let same = match (&self.old, &self.new) {
            (Some(_), Some(Blob { content: Content::Original(..), .. })) => true,
            (Some(Blob { content: Content::Link(a), .. }), Some(Blob { content: Content::Link(b), .. })) => a == b,
            _ => false,
        };
        if same {
            return Body::Same;
        }
        let load =
            |side: &Option<Blob<'_>>| side.as_ref().map_or(Ok(Vec::new()), |blob| contents.load(&blob.content, WHOLE));
        // What is not there any more says more than what is too large.
        let old = match load(&self.old) {
            Ok(old) => old,
            Err(why) => return Body::Unshown(why),
        };
        match load(&self.new) {
            Err(why) => Body::Unshown(why),
            Ok(new) if old.len() as u64 > LINES || new.len() as u64 > LINES || is_binary(&old) || is_binary(&new) => {
                Body::Binary(old, new)
            }
            Ok(new) => Body::Text(old, new),
        }
    }
}

/// The sections of an entry: none where git has no form for it, two where its type changed.
pub(super) fn sections<'r>(review: &'r Review, entry: &ReviewEntry) -> Vec<Section<'r>> {
    let changes = &review.set.changes;
    let change = &changes[entry.change];
    let origin = &changes[entry.origin.map_or(entry.change, |origin| origin.source)];
    let before = before_print(origin);
    let old = before.and_then(|print| blob(print, Content::before(&origin.path, print)));
    let source = before.map(|print| (&origin.path, print));
    let new = change.after.as_ref().and_then(|after| blob(&after.print, Content::after(change, source)));
    let section = |old, new| Section {
        old_name: origin.path.as_bytes(),
        new_name: change.path.as_bytes(),
        old,
        new,
        origin: entry.origin,
    };
    match (old, new) {
        (None, None) => Vec::new(),
        (Some(old), Some(new)) if old.mode >> 12 != new.mode >> 12 => {
            vec![section(Some(old), None), section(None, Some(new))]
        }
        (old, new) => vec![section(old, new)],
    }
}

fn blob<'c>(print: &Fingerprint, content: Option<Content<'c>>) -> Option<Blob<'c>> {
    let mode = match print.kind {
        Kind::Symlink(_) => 0o120_000,
        // Git knows two modes of files.
        _ if print.meta.mode & 0o100 == 0 => 0o100_644,
        _ => 0o100_755,
    };
    Some(Blob { mode, content: content? })
}
