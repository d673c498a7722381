//! The tree of changed files at the side of the page.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use maud::{Markup, html};

use super::super::{Danger, Review};
use super::file::{File, letter};
use super::text::visible;

/// With more files, directories are closed at first.
const MANY: usize = 500;
/// Deeper directories are shown in one line.
const DEEP: usize = 64;

#[derive(Default)]
struct Dir<'r> {
    dirs: BTreeMap<&'r [u8], Dir<'r>>,
    /// Name and index.
    files: Vec<(&'r [u8], usize)>,
    /// Its own change.
    entry: Option<usize>,
}

pub(super) fn tree(review: &Review, files: &[File]) -> Markup {
    let mut root = Dir::default();
    for (at, file) in files.iter().enumerate() {
        let parts: Vec<&[u8]> = review.entries[at].path.as_bytes().splitn(DEEP, |b| *b == b'/').collect();
        let (name, around) = parts.split_last().map_or((&b""[..], &[][..]), |(name, around)| (*name, around));
        let dir = around.iter().fold(&mut root, |dir, part| dir.dirs.entry(part).or_default());
        if file.implied {
            dir.dirs.entry(name).or_default().entry = Some(at);
        } else {
            dir.files.push((name, at));
        }
    }
    let list = List { review, files, open: files.len() <= MANY };
    html! { ul.tree { (list.items(&root)) } }
}

/// The files as the tree lists them: in each directory first those of its directories.
pub(super) fn order(review: &Review) -> Vec<usize> {
    let mut out: Vec<usize> = (0..review.entries.len()).collect();
    out.sort_by(|a, b| compare(review.entries[*a].path.as_bytes(), review.entries[*b].path.as_bytes()));
    out
}

fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let (mut a, mut b) = (a.split(|c| *c == b'/').peekable(), b.split(|c| *c == b'/').peekable());
    loop {
        let (Some(left), Some(right)) = (a.next(), b.next()) else {
            return a.peek().is_some().cmp(&b.peek().is_some());
        };
        if left != right {
            let inner = (a.peek().is_none(), b.peek().is_none());
            return inner.0.cmp(&inner.1).then(left.cmp(right));
        }
    }
}

struct List<'a> {
    review: &'a Review,
    files: &'a [File],
    open: bool,
}

impl List<'_> {
    fn items(&self, dir: &Dir<'_>) -> Markup {
        html! {
            @for (name, inner) in &dir.dirs { (self.directory(name, inner)) }
            @for (name, at) in &dir.files { (self.file(name, *at)) }
        }
    }

    /// Directories with nothing but one directory in them share its line.
    fn directory(&self, name: &[u8], dir: &Dir<'_>) -> Markup {
        let mut path = name.to_vec();
        let mut dir = dir;
        while let (Some((name, inner)), 1, true) = (dir.dirs.first_key_value(), dir.dirs.len(), dir.files.is_empty()) {
            if inner.entry.is_some() != dir.entry.is_some() {
                break;
            }
            path.push(b'/');
            path.extend_from_slice(name);
            dir = inner;
        }
        html! {
            li.dir {
                details open[self.open] {
                    summary {
                        @if let Some(at) = dir.entry { (letter(self.review.entries[at].status)) }
                        span.name { (visible(&path)) "/" }
                    }
                    ul { (self.items(dir)) }
                }
            }
        }
    }

    fn file(&self, name: &[u8], at: usize) -> Markup {
        let (entry, file) = (&self.review.entries[at], &self.files[at]);
        html! {
            li {
                a href={ "#f" (at) } {
                    (letter(entry.status))
                    span.name { @if name.is_empty() { "." } @else { (visible(name)) } }
                    @match file.danger {
                        Some(Danger::Dangerous) => span.flag.dangerous title="dangerous" { "\u{203c}" },
                        Some(Danger::Notice) => span.flag.notice title="notice" { "!" },
                        None => {},
                    }
                    span.numbers { (file.numbers()) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_first() {
        let mut paths = [&b"b"[..], b"a", b"a/x", b"a-b/c/d", b"a-b/e", b"Z", b"z/y/x"];
        paths.sort_by(|a, b| compare(a, b));
        assert_eq!(paths, [&b"a-b/c/d"[..], b"a-b/e", b"a/x", b"z/y/x", b"Z", b"a", b"b"]);
    }
}
