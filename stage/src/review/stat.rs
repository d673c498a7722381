//! How many lines changed where, as `git diff --stat` tells it.

use std::io::{self, Write};

use super::contents::Contents;
use super::entry::ReviewEntry;
use super::quote::quoted;
use super::section::{Body, sections};
use super::{Review, hunk};

/// Columns of a line, and the most of them that signs take.
const WIDTH: usize = 80;
const SIGNS: usize = 40;

/// What changed in the contents of one entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    pub added: usize,
    pub removed: usize,
    /// Sizes before and after, in bytes, of what has no lines.
    pub binary: Option<(u64, u64)>,
}

/// Counts the lines of an entry.
pub(super) fn numbers(review: &Review, contents: Contents<'_>, entry: &ReviewEntry) -> Numbers {
    let mut out = Numbers::default();
    for section in sections(review, entry) {
        match section.body(contents) {
            Body::Same => {}
            Body::Text(old, new) => {
                let (removed, added) = hunk::count(&old, &new);
                out.removed += removed;
                out.added += added;
            }
            Body::Binary(..) | Body::Unshown(_) => {
                let size =
                    |side: &Option<super::section::Blob<'_>>| side.as_ref().map_or(0, |blob| blob.content.size());
                out.binary = Some((size(&section.old), size(&section.new)));
            }
        }
    }
    out
}

pub(super) fn write(review: &Review, out: &mut dyn Write) -> io::Result<()> {
    let contents = review.contents();
    let rows: Vec<(String, Numbers)> = review
        .entries
        .iter()
        .filter(|entry| !sections(review, entry).is_empty())
        .map(|entry| (name(entry), numbers(review, contents, entry)))
        .collect();
    let longest = rows.iter().map(|(_, n)| n.added + n.removed).max().unwrap_or(0);
    let digits = longest.to_string().len().max(3);
    let names = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).min(WIDTH - digits - 10);
    for (name, numbers) in &rows {
        let name = shortened(name, names);
        write!(out, " {name}{} | ", " ".repeat(names - name.chars().count()))?;
        match numbers.binary {
            Some((old, new)) => writeln!(out, "{:>digits$} {old} -> {new} bytes", "Bin")?,
            None => {
                let signs = format!("{:>digits$} {}", numbers.added + numbers.removed, signs(numbers, longest));
                writeln!(out, "{}", signs.trim_end())?;
            }
        }
    }
    let sum = |part: fn(&Numbers) -> usize| rows.iter().map(|(_, n)| part(n)).sum::<usize>();
    let count = |n: usize, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
    let files = count(rows.len(), "file changed", "files changed");
    let added = count(sum(|n| n.added), "insertion(+)", "insertions(+)");
    let removed = count(sum(|n| n.removed), "deletion(-)", "deletions(-)");
    writeln!(out, " {files}, {added}, {removed}")?;
    match review.entries.len() - rows.len() {
        0 => Ok(()),
        rest => writeln!(out, " and {} without lines", count(rest, "other change", "other changes")),
    }
}

fn name(entry: &ReviewEntry) -> String {
    let to = quoted(entry.path.as_bytes());
    entry.from.as_ref().map_or(to.clone(), |from| format!("{} => {to}", quoted(from.as_bytes())))
}

/// The end of a name that is too long.
fn shortened(name: &str, width: usize) -> String {
    let length = name.chars().count();
    if length <= width {
        name.to_owned()
    } else {
        format!("...{}", name.chars().skip(length + 3 - width).collect::<String>())
    }
}

/// A sign for each line, or fewer where there are many; never none where there is one.
fn signs(numbers: &Numbers, longest: usize) -> String {
    let scaled = |n: usize| if longest <= SIGNS || n == 0 { n } else { (n * SIGNS / longest).max(1) };
    format!("{}{}", "+".repeat(scaled(numbers.added)), "-".repeat(scaled(numbers.removed)))
}
