//! The long form of a review: a diff as git writes it.

use std::io::{self, Read, Write};

use super::Review;
use super::entry::{ReviewEntry, before_print, is_binary, kind_of};
use super::quote::{quoted, quoted_with};
use super::{SideKind, hunk};
use crate::apply::{Target, open_object};
use crate::{Change, Fingerprint, Kind, Meta, ObjectId, RelPath};

/// Larger contents are named, not shown, in bytes.
const LIMIT: u64 = 8 << 20;

/// One side of a section: nothing, or something that git has a form for.
struct Blob<'c> {
    /// As git has it: type and permission bits.
    mode: u32,
    content: Content<'c>,
}

/// A side and its name in the diff; `None`: nothing.
type Named<'a> = Option<(&'a Blob<'a>, &'a str)>;

enum Content<'c> {
    Link(&'c [u8]),
    /// In the stage.
    Object(ObjectId, u64),
    /// In the project, if it is still the same.
    Original(&'c RelPath, &'c Fingerprint, u64),
}

/// Why a content is not shown.
enum Unshown {
    TooLarge,
    Gone,
    Unreadable,
}

pub(super) fn write(review: &Review, out: &mut dyn Write) -> io::Result<()> {
    let writer = DiffWriter { review, project: Target::open(&review.lower).ok() };
    review.entries.iter().try_for_each(|entry| writer.entry(entry, out))
}

struct DiffWriter<'r> {
    review: &'r Review,
    /// `None`: it is gone.
    project: Option<Target>,
}

impl<'r> DiffWriter<'r> {
    fn entry(&self, entry: &ReviewEntry, out: &mut dyn Write) -> io::Result<()> {
        let changes = &self.review.set.changes;
        let change = &changes[entry.change];
        let origin = &changes[entry.source.unwrap_or(entry.change)];
        self.notes(entry, change, before_print(origin), out)?;
        let old = before_print(origin).and_then(|print| blob_before(&origin.path, print));
        let new = blob_after(change, &origin.path, before_print(origin));
        let names = (origin.path.as_bytes(), change.path.as_bytes());
        match (old, new) {
            (None, None) => Ok(()),
            // What was lost can't be shown as new.
            (None, Some(new)) if entry.lost => self.section(names, (None, Some(&new)), out),
            (Some(old), Some(new)) if old.mode >> 12 != new.mode >> 12 => {
                self.section(names, (Some(&old), None), out)?;
                self.section(names, (None, Some(&new)), out)
            }
            (old, new) => self.section(names, (old.as_ref(), new.as_ref()), out),
        }
    }

    /// What git has no form for.
    fn notes(
        &self,
        entry: &ReviewEntry,
        change: &Change,
        before: Option<&Fingerprint>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let name = quoted(change.path.as_bytes());
        let after = change.after.as_ref().map(|a| &a.print);
        if entry.lost {
            writeln!(out, "# {name} was changed by somebody else while the command ran")?;
        }
        for (print, what) in [(before, "goes"), (after, "appears")] {
            let other = if what == "goes" { after } else { before };
            let Some(print) = print.filter(|p| !has_form(&p.kind)) else { continue };
            if other.is_none_or(|o| kind_of(&o.kind) != kind_of(&print.kind)) {
                writeln!(out, "# {} {name} {what}, mode {:04o}", kind_of(&print.kind), print.meta.mode)?;
            }
        }
        let new_file = after.filter(|after| before.is_none() && kind_of(&after.kind) == SideKind::File);
        if let Some(after) = new_file.filter(|after| !is_git_mode(after.meta.mode)) {
            writeln!(out, "# mode of {name}: {:04o}", after.meta.mode)?;
        }
        if let (Some(before), Some(after)) = (before, after) {
            write_meta(&name, (before, &before.meta), (after, &after.meta), out)?;
        }
        if let Some(first) = self.review.first_name(entry) {
            writeln!(out, "# {name} is the same file as {}", quoted(first.as_bytes()))?;
        }
        Ok(())
    }

    /// One `diff --git` section.
    fn section(
        &self,
        (old_name, new_name): (&[u8], &[u8]),
        (old, new): (Option<&Blob<'_>>, Option<&Blob<'_>>),
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let renamed = old_name != new_name;
        let same = old.zip(new).is_some_and(|(old, new)| old.mode == new.mode);
        if same && !renamed && matches!(new.map(|n| &n.content), Some(Content::Original(..))) {
            // Owner or attributes only.
            return Ok(());
        }
        let (a, b) = (quoted_with("a/", old_name), quoted_with("b/", new_name));
        writeln!(out, "diff --git {a} {b}")?;
        match (old, new) {
            (None, Some(new)) => writeln!(out, "new file mode {:06o}", new.mode)?,
            (Some(old), None) => writeln!(out, "deleted file mode {:06o}", old.mode)?,
            (Some(old), Some(new)) if old.mode != new.mode => {
                writeln!(out, "old mode {:06o}\nnew mode {:06o}", old.mode, new.mode)?;
            }
            _ => {}
        }
        if renamed {
            let (from, to) = (quoted(old_name), quoted(new_name));
            return writeln!(out, "similarity index 100%\nrename from {from}\nrename to {to}");
        }
        if matches!(new.map(|n| &n.content), Some(Content::Original(..))) {
            return Ok(());
        }
        self.body((old.map(|o| (o, &*a)), new.map(|n| (n, &*b))), out)
    }

    fn body(&self, (old, new): (Named<'_>, Named<'_>), out: &mut dyn Write) -> io::Result<()> {
        let load = |side: Named<'_>| side.map_or(Ok(Vec::new()), |(blob, _)| self.load(&blob.content));
        let name = |side: Named<'_>| match side {
            // As git does, so that a name with a space ends where it should.
            Some((_, name)) if name.contains(' ') && !name.starts_with('"') => format!("{name}\t"),
            Some((_, name)) => name.to_owned(),
            None => "/dev/null".to_owned(),
        };
        let (a, b) = (name(old), name(new));
        let why = match (load(old), load(new)) {
            (Ok(old), Ok(new)) if !is_binary(&old) && !is_binary(&new) => {
                if old != new {
                    writeln!(out, "--- {a}\n+++ {b}")?;
                }
                return hunk::write(&old, &new, out);
            }
            (Ok(_), Ok(_)) => "",
            (Err(Unshown::TooLarge), _) | (_, Err(Unshown::TooLarge)) => "# too large to be shown line by line\n",
            (Err(Unshown::Gone), _) => "# the project does not have the original any more\n",
            (Err(Unshown::Unreadable), _) | (_, Err(_)) => "# can't be read\n",
        };
        writeln!(out, "Binary files {} and {} differ", a.trim_end(), b.trim_end())?;
        out.write_all(why.as_bytes())
    }

    fn load(&self, content: &Content<'_>) -> Result<Vec<u8>, Unshown> {
        let (file, size) = match content {
            Content::Link(target) => return Ok(target.to_vec()),
            Content::Object(_, size) | Content::Original(_, _, size) if *size > LIMIT => return Err(Unshown::TooLarge),
            Content::Object(object, _) => open_object(&self.review.upper, *object).map_err(|_| Unshown::Unreadable)?,
            Content::Original(path, _, size) => {
                let project = self.project.as_ref().ok_or(Unshown::Gone)?;
                (project.open_file(path).map_err(|_| Unshown::Gone)?, *size)
            }
        };
        let mut bytes = Vec::with_capacity(usize::try_from(size.min(LIMIT)).unwrap_or(0));
        file.take(LIMIT + 1).read_to_end(&mut bytes).map_err(|_| Unshown::Unreadable)?;
        if let Content::Original(_, print, _) = content {
            let same = matches!(print.kind, Kind::File { hash, .. } if hash == *blake3::hash(&bytes).as_bytes());
            return if same { Ok(bytes) } else { Err(Unshown::Gone) };
        }
        Ok(bytes)
    }
}

/// Git has a form for files and symbolic links.
fn has_form(kind: &Kind) -> bool {
    matches!(kind_of(kind), SideKind::File | SideKind::Symlink)
}

/// Git knows two modes of files.
fn git_mode(mode: u32) -> u32 {
    if mode & 0o100 == 0 { 0o100_644 } else { 0o100_755 }
}

fn is_git_mode(mode: u32) -> bool {
    matches!(mode, 0o644 | 0o755)
}

fn blob_before<'c>(path: &'c RelPath, print: &'c Fingerprint) -> Option<Blob<'c>> {
    Some(match &print.kind {
        Kind::File { size, .. } => {
            Blob { mode: git_mode(print.meta.mode), content: Content::Original(path, print, *size) }
        }
        Kind::Symlink(target) => Blob { mode: 0o120_000, content: Content::Link(target) },
        _ => return None,
    })
}

fn blob_after<'c>(change: &'c Change, origin: &'c RelPath, before: Option<&'c Fingerprint>) -> Option<Blob<'c>> {
    let after = change.after.as_ref()?;
    Some(match (&after.print.kind, after.object) {
        (Kind::File { size, .. }, object) => {
            let as_before = before.filter(|b| b.kind == after.print.kind);
            let content = match (object, as_before) {
                (_, Some(before)) => Content::Original(origin, before, *size),
                (Some(object), None) => Content::Object(object, *size),
                (None, None) => return None,
            };
            Blob { mode: git_mode(after.print.meta.mode), content }
        }
        (Kind::Symlink(target), _) => Blob { mode: 0o120_000, content: Content::Link(target) },
        _ => return None,
    })
}

/// Owner, attributes, and the mode of what git does not track.
fn write_meta(
    name: &str,
    (old, before): (&Fingerprint, &Meta),
    (new, after): (&Fingerprint, &Meta),
    out: &mut dyn Write,
) -> io::Result<()> {
    let git_says_it = kind_of(&new.kind) == SideKind::File && is_git_mode(before.mode) && is_git_mode(after.mode);
    let has_mode = kind_of(&old.kind) == kind_of(&new.kind) && kind_of(&new.kind) != SideKind::Symlink;
    if before.mode != after.mode && has_mode && !git_says_it {
        writeln!(out, "# mode of {name}: {:04o} -> {:04o}", before.mode, after.mode)?;
    }
    if (before.uid, before.gid) != (after.uid, after.gid) {
        writeln!(out, "# owner of {name}: {}:{} -> {}:{}", before.uid, before.gid, after.uid, after.gid)?;
    }
    for (attribute, value) in &after.xattrs {
        let attribute_name = quoted(attribute);
        match before.xattrs.get(attribute) {
            None => writeln!(out, "# extended attribute {attribute_name} of {name}: new, {} bytes", value.len())?,
            Some(old) if old != value => writeln!(out, "# extended attribute {attribute_name} of {name}: changed")?,
            Some(_) => {}
        }
    }
    for attribute in before.xattrs.keys().filter(|a| !after.xattrs.contains_key(*a)) {
        writeln!(out, "# extended attribute {} of {name}: removed", quoted(attribute))?;
    }
    Ok(())
}
