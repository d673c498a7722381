//! The long form of a review: a diff as git writes it.

use std::io::{self, Write};

use super::contents::{Contents, Unshown};
use super::entry::{ReviewEntry, before_print, kind_of};
use super::quote::{quoted, quoted_with};
use super::section::{Blob, Body, Section, sections};
use super::{Binaries, Review, SideKind, binary, hunk};
use crate::{Change, Fingerprint, Kind, Meta};

pub(super) fn write(review: &Review, binaries: Binaries, out: &mut dyn Write) -> io::Result<()> {
    let writer = DiffWriter { review, contents: review.contents(), binaries };
    review.entries.iter().try_for_each(|entry| writer.entry(entry, out))
}

struct DiffWriter<'r> {
    review: &'r Review,
    contents: Contents<'r>,
    binaries: Binaries,
}

impl DiffWriter<'_> {
    fn entry(&self, entry: &ReviewEntry, out: &mut dyn Write) -> io::Result<()> {
        let changes = &self.review.set.changes;
        let origin = &changes[entry.origin.map_or(entry.change, |origin| origin.source)];
        for note in notes(self.review, entry, &changes[entry.change], before_print(origin)) {
            writeln!(out, "# {note}")?;
        }
        for section in sections(self.review, entry) {
            if section.is_refused() {
                writeln!(out, "# git takes no patch of its own directory; pvisor apply does:")?;
                self.section(&section, &mut Commented { inner: out, inside: false })?;
            } else {
                self.section(&section, out)?;
            }
        }
        Ok(())
    }

    fn section(&self, section: &Section<'_>, out: &mut dyn Write) -> io::Result<()> {
        let body = section.body(self.contents);
        let (old, new) = (section.old.as_ref(), section.new.as_ref());
        let same_mode = old.zip(new).is_some_and(|(old, new)| old.mode == new.mode);
        if same_mode && section.origin.is_none() && matches!(body, Body::Same) {
            // Owner or attributes only.
            return Ok(());
        }
        let (a, b) = (quoted_with("a/", section.old_name), quoted_with("b/", section.new_name));
        writeln!(out, "diff --git {a} {b}")?;
        write_modes(old, new, out)?;
        if let Some(origin) = section.origin {
            let (from, to) = (quoted(section.old_name), quoted(section.new_name));
            let word = if origin.copied { "copy" } else { "rename" };
            writeln!(out, "similarity index {}%\n{word} from {from}\n{word} to {to}", origin.similarity)?;
        }
        let names = (old.map(|_| &*a), new.map(|_| &*b));
        let mode = old.filter(|_| same_mode).map(|old| old.mode);
        self.body(&body, names, mode, out)
    }

    fn body(
        &self,
        body: &Body,
        (a, b): (Option<&str>, Option<&str>),
        mode: Option<u32>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let index = |old: &[u8], new: &[u8], out: &mut dyn Write| {
            let mode = mode.map(|mode| format!(" {mode:06o}")).unwrap_or_default();
            let (old, new) = (a.map(|_| old), b.map(|_| new));
            writeln!(out, "index {}..{}{mode}", binary::object_name(old), binary::object_name(new))
        };
        let why = match body {
            Body::Same => return Ok(()),
            Body::Text(old, new) => {
                index(old, new, out)?;
                if old != new {
                    writeln!(out, "--- {}\n+++ {}", line_name(a), line_name(b))?;
                }
                return hunk::write(old, new, out);
            }
            Body::Binary(old, new) if self.binaries == Binaries::Whole => {
                index(old, new, out)?;
                return binary::write(old, new, out);
            }
            Body::Binary(..) => "",
            Body::Unshown(why) => note_of(*why),
        };
        let name = |name: Option<&str>| name.unwrap_or("/dev/null").to_owned();
        writeln!(out, "Binary files {} and {} differ", name(a), name(b))?;
        if why.is_empty() { Ok(()) } else { writeln!(out, "# {why}") }
    }
}

/// Why a content is not shown.
pub(super) fn note_of(why: Unshown) -> &'static str {
    match why {
        Unshown::TooLarge => "too large to be shown",
        Unshown::Gone => "the project does not have the original any more",
        Unshown::Unreadable => "can't be read",
    }
}

fn write_modes(old: Option<&Blob<'_>>, new: Option<&Blob<'_>>, out: &mut dyn Write) -> io::Result<()> {
    match (old, new) {
        (None, Some(new)) => writeln!(out, "new file mode {:06o}", new.mode),
        (Some(old), None) => writeln!(out, "deleted file mode {:06o}", old.mode),
        (Some(old), Some(new)) if old.mode != new.mode => {
            writeln!(out, "old mode {:06o}\nnew mode {:06o}", old.mode, new.mode)
        }
        _ => Ok(()),
    }
}

/// A name in its line, as git writes it, so that one with a space ends where it should.
fn line_name(name: Option<&str>) -> String {
    match name {
        Some(name) if name.contains(' ') && !name.starts_with('"') => format!("{name}\t"),
        Some(name) => name.to_owned(),
        None => "/dev/null".to_owned(),
    }
}

/// Puts a `#` before every line.
struct Commented<'o> {
    inner: &'o mut dyn Write,
    inside: bool,
}

impl Write for Commented<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for line in bytes.split_inclusive(|b| *b == b'\n') {
            if !self.inside {
                self.inner.write_all(b"# ")?;
            }
            self.inner.write_all(line)?;
            self.inside = !line.ends_with(b"\n");
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// What git has no form for, a line each.
pub(super) fn notes(
    review: &Review,
    entry: &ReviewEntry,
    change: &Change,
    before: Option<&Fingerprint>,
) -> Vec<String> {
    let name = quoted(change.path.as_bytes());
    let after = change.after.as_ref().map(|a| &a.print);
    let mut out = Vec::new();
    if entry.lost {
        out.push(format!("{name} was changed by somebody else while the command ran"));
    }
    for (print, what) in [(before, "goes"), (after, "appears")] {
        let other = if what == "goes" { after } else { before };
        let Some(print) = print.filter(|p| !has_form(&p.kind)) else { continue };
        if other.is_none_or(|o| kind_of(&o.kind) != kind_of(&print.kind)) {
            out.push(format!("{} {name} {what}, mode {:04o}", kind_of(&print.kind), print.meta.mode));
        }
    }
    let new_file = after.filter(|after| before.is_none() && kind_of(&after.kind) == SideKind::File);
    if let Some(after) = new_file.filter(|after| !is_git_mode(after.meta.mode)) {
        out.push(format!("mode of {name}: {:04o}", after.meta.mode));
    }
    match (before, after) {
        (Some(before), Some(after)) => meta_notes(&name, (before, &before.meta), (after, &after.meta), &mut out),
        (None, Some(after)) => {
            let value =
                |(key, value): (&Vec<u8>, &Vec<u8>)| xattr_note(key, &name, &format!("new, {} bytes", value.len()));
            out.extend(after.meta.xattrs.iter().map(value));
        }
        _ => {}
    }
    if let Some(first) = review.first_name(entry) {
        out.push(format!("{name} is the same file as {}", quoted(first.as_bytes())));
    }
    out
}

/// Git has a form for files and symbolic links.
fn has_form(kind: &Kind) -> bool {
    matches!(kind_of(kind), SideKind::File | SideKind::Symlink)
}

fn is_git_mode(mode: u32) -> bool {
    matches!(mode, 0o644 | 0o755)
}

fn xattr_note(attribute: &[u8], name: &str, what: &str) -> String {
    format!("extended attribute {} of {name}: {what}", quoted(attribute))
}

/// Owner, attributes, and the mode of what git does not track.
fn meta_notes(
    name: &str,
    (old, before): (&Fingerprint, &Meta),
    (new, after): (&Fingerprint, &Meta),
    out: &mut Vec<String>,
) {
    let git_says_it = kind_of(&new.kind) == SideKind::File && is_git_mode(before.mode) && is_git_mode(after.mode);
    let has_mode = kind_of(&old.kind) == kind_of(&new.kind) && kind_of(&new.kind) != SideKind::Symlink;
    if before.mode != after.mode && has_mode && !git_says_it {
        out.push(format!("mode of {name}: {:04o} -> {:04o}", before.mode, after.mode));
    }
    if (before.uid, before.gid) != (after.uid, after.gid) {
        out.push(format!("owner of {name}: {}:{} -> {}:{}", before.uid, before.gid, after.uid, after.gid));
    }
    for (attribute, value) in &after.xattrs {
        match before.xattrs.get(attribute) {
            None => out.push(xattr_note(attribute, name, &format!("new, {} bytes", value.len()))),
            Some(old) if old != value => out.push(xattr_note(attribute, name, "changed")),
            Some(_) => {}
        }
    }
    let removed = before.xattrs.keys().filter(|a| !after.xattrs.contains_key(*a));
    out.extend(removed.map(|attribute| xattr_note(attribute, name, "removed")));
}
