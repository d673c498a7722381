//! The tree of changed files at the side of the page.

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
    out.sort_by_cached_key(|at| place(review.entries[*at].path.as_bytes()));
    out
}

/// Each component, and before it whether it is the last.
fn place(path: &[u8]) -> Vec<(bool, &[u8])> {
    let last = path.iter().filter(|b| **b == b'/').count();
    path.split(|b| *b == b'/').enumerate().map(|(at, part)| (at == last, part)).collect()
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
        let sorted = [&b"a/x"[..], b"a-b/c/d", b"a-b/e", b"z/y/x", b"Z", b"a", b"a-b", b"b"];
        for turn in 0..sorted.len() {
            let mut paths = sorted;
            paths.rotate_left(turn);
            paths.sort_by_key(|path| place(path));
            assert_eq!(paths, sorted);
        }
    }
}
