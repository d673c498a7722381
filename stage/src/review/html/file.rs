//! One changed path on the page.

use maud::{Markup, PreEscaped, html};
use similar::DiffTag;

use super::super::contents::Contents;
use super::super::entry::{ReviewEntry, before_print};
use super::super::section::{Body, Section, sections};
use super::super::{Danger, Review, Status, diff, hunk, summary};
use super::text::{difference, marked, visible};

/// A file with more rows waits until it is opened.
const LAZY: usize = 400;
/// More rows of one file are left out.
const ROWS: usize = 5000;
/// More bytes of rows, of all files together, are left out.
const BYTES: usize = 24 << 20;

/// A path, ready to be put on the page.
pub(super) struct File {
    pub danger: Option<Danger>,
    pub added: usize,
    pub removed: usize,
    /// A directory that the paths in it tell of already.
    pub implied: bool,
    rows: usize,
    body: Markup,
}

/// Makes files, and knows how much room is left.
pub(super) struct Writer<'r> {
    review: &'r Review,
    contents: Contents<'r>,
    room: usize,
}

impl<'r> Writer<'r> {
    pub fn new(review: &'r Review) -> Self {
        Self { review, contents: review.contents(), room: BYTES }
    }

    pub fn file(&mut self, entry: &ReviewEntry) -> File {
        let mut file = File {
            danger: entry.flags.iter().map(|flag| flag.danger).max(),
            added: 0,
            removed: 0,
            implied: self.is_implied(entry),
            rows: 0,
            body: PreEscaped(String::new()),
        };
        for section in sections(self.review, entry) {
            let body = section.body(self.contents);
            let shown = self.section(&section, &body, &mut file);
            self.room = self.room.saturating_sub(shown.0.len());
            file.body.0.push_str(&shown.0);
        }
        file
    }

    /// It comes or goes with something in it, and nothing else is to be said about it.
    fn is_implied(&self, entry: &ReviewEntry) -> bool {
        let changes = &self.review.set.changes;
        let plain = |mode: &str| matches!(mode, "0755" | "0775" | "0700");
        let usual = entry.after.as_ref().is_none_or(|after| plain(&after.mode) && after.xattrs.is_empty());
        let whole = matches!(entry.status, Status::Added | Status::Deleted);
        let inside = !crate::apply::below(changes, &changes[entry.change].path, |c| &c.path).is_empty();
        whole && entry.is_directory() && usual && inside
    }

    fn section(&self, section: &Section<'_>, body: &Body, file: &mut File) -> Markup {
        match body {
            Body::Same => html! {},
            Body::Text(old, new) => {
                let link = section.new.as_ref().or(section.old.as_ref()).is_some_and(|blob| blob.mode == 0o120_000);
                let rows = Rows::of(old, new, link);
                file.added += rows.added;
                file.removed += rows.removed;
                file.rows += rows.count;
                let kind = |mode: u32| if mode == 0o120_000 { "target of the symbolic link" } else { "content" };
                let caption = match (&section.old, &section.new) {
                    (None, Some(new)) => format!("New {}", kind(new.mode)),
                    (Some(old), None) => format!("Removed {}", kind(old.mode)),
                    _ => "Changed lines".to_owned(),
                };
                if rows.text.len() > self.room {
                    return html! { p.note { "Too much for one page: see it with " code { "pvisor review --diff" } "." } };
                }
                html! {
                    @if rows.count == 0 { p.note { "Empty file" } }
                    @else {
                        div.diff {
                            table.u {
                                caption.vh { (caption) }
                                colgroup { col.col-n; col.col-n; col.col-s; col.col-c; }
                                tbody { (PreEscaped(&rows.text)) }
                            }
                        }
                    }
                    @if rows.cut > 0 { p.note { (rows.cut) " more lines are not on this page." } }
                }
            }
            Body::Binary(old, new) => html! {
                p.note {
                    "Content that is not shown as text: "
                    @if section.old.is_some() { (summary::size(old.len() as u64)) } @else { "nothing" }
                    " \u{2192} "
                    @if section.new.is_some() { (summary::size(new.len() as u64)) } @else { "nothing" }
                }
            },
            Body::Unshown(why) => html! { p.note { "Not shown: " (diff::note_of(*why)) "." } },
        }
    }
}

/// The rows of a table, as HTML.
#[derive(Default)]
struct Rows {
    text: String,
    count: usize,
    added: usize,
    removed: usize,
    /// Rows that were left out.
    cut: usize,
    link: bool,
}

impl Rows {
    /// `link`: the content is the target of a link, and so never a line.
    fn of(old: &[u8], new: &[u8], link: bool) -> Self {
        let (old, new) = (hunk::lines(old), hunk::lines(new));
        let mut rows = Self { link, ..Self::default() };
        for group in hunk::groups(&old, &new) {
            let header = html! { tr.h { td colspan="4" { (hunk::header(&group)) } } };
            rows.push(&header);
            for op in &group {
                let (from, to) = (op.old_range(), op.new_range());
                if op.tag() == DiffTag::Equal {
                    for (at, line) in from.clone().enumerate() {
                        let numbers = (Some(line + 1), Some(to.start + at + 1));
                        rows.line("", numbers, old[line], None, false);
                    }
                    continue;
                }
                // Lines that were edited one for one show what is new in them.
                let pairs = from.len() == to.len();
                let differences: Vec<_> =
                    from.clone().zip(to.clone()).map(|(a, b)| difference(old[a], new[b])).collect();
                for (at, line) in from.enumerate() {
                    let mark = pairs.then(|| differences[at].map(|(a, _)| a)).flatten();
                    rows.line("d", (Some(line + 1), None), old[line], mark, at == 0);
                    rows.removed += 1;
                }
                for (at, line) in to.enumerate() {
                    let mark = pairs.then(|| differences[at].map(|(_, b)| b)).flatten();
                    rows.line("a", (None, Some(line + 1)), new[line], mark, at == 0 && op.old_range().is_empty());
                    rows.added += 1;
                }
            }
        }
        rows
    }

    fn line(
        &mut self,
        class: &str,
        (old, new): (Option<usize>, Option<usize>),
        line: &[u8],
        mark: Option<(usize, usize)>,
        first: bool,
    ) {
        let (text, ends) = line.strip_suffix(b"\n").map_or((line, false), |line| (line, true));
        let sign = match class {
            "d" => "\u{2212}",
            "a" => "+",
            _ => "",
        };
        let number = |n: Option<usize>| n.map(|n| n.to_string()).unwrap_or_default();
        let row = html! {
            tr class=[(!class.is_empty()).then_some(class)] data-b[first] {
                td.n { (number(old)) }
                td.n { (number(new)) }
                td.s { (sign) }
                td.c {
                    @match mark {
                        Some((start, end)) => (marked(text, (start.min(text.len()), end.min(text.len())))),
                        None => (visible(text)),
                    }
                    @if !ends && !self.link { span.x { "no newline at end of file" } }
                }
            }
        };
        self.push(&row);
    }

    fn push(&mut self, row: &Markup) {
        self.count += 1;
        if self.count > ROWS {
            self.cut += 1;
        } else {
            self.text.push_str(&row.0);
        }
    }
}

impl File {
    /// The whole of it, open if `open` and not too long.
    pub fn article(&self, review: &Review, at: usize, open: bool) -> Markup {
        let entry = &review.entries[at];
        let lazy = self.rows > LAZY || !open;
        let danger = self.danger.map(|danger| if danger == Danger::Dangerous { "dangerous" } else { "notice" });
        let facts = facts(review, entry);
        html! {
            article.file id={ "f" (at) } data-flag=[danger] {
                details open[!lazy] {
                    summary {
                        (letter(entry.status))
                        h2 { (name(entry)) }
                        @if !facts.is_empty() { span.facts { (facts.join(" \u{b7} ")) } }
                        @if danger == Some("dangerous") { span.badge.dangerous { "dangerous" } }
                        @if danger == Some("notice") { span.badge.notice { "notice" } }
                        span.numbers { (self.numbers()) }
                    }
                    @if !entry.flags.is_empty() {
                        ul.flags {
                            @for flag in &entry.flags {
                                @let dangerous = flag.danger == Danger::Dangerous;
                                li class=(if dangerous { "dangerous" } else { "notice" }) {
                                    b { (if dangerous { "Dangerous: " } else { "Notice: " }) } (flag.reason)
                                }
                            }
                        }
                    }
                    @if lazy && self.rows > 0 { template { (self.body) } } @else { (self.body) }
                }
            }
        }
    }

    /// Lines that came and went.
    pub fn numbers(&self) -> Markup {
        html! {
            @if self.added > 0 { span.plus { "+" (self.added) } " " }
            @if self.removed > 0 { span.minus { "\u{2212}" (self.removed) } }
        }
    }
}

/// The letter of a status, and its word for those who don't know it.
pub(super) fn letter(status: Status) -> Markup {
    html! { abbr.st title=(status.word()) data-st=(status.letter()) { (status.letter()) } " " }
}

fn name(entry: &ReviewEntry) -> Markup {
    let path = entry.path.as_bytes();
    let (dir, name) = path.split_at(path.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1));
    html! {
        @if let Some(from) = &entry.from { span.from { (visible(from.as_bytes())) } " \u{2192} " }
        span.dir { (visible(dir)) }
        @if path.is_empty() { "." } @else { (visible(name)) }
        @if entry.is_directory() { "/" }
    }
}

/// What changed besides the content.
fn facts(review: &Review, entry: &ReviewEntry) -> Vec<String> {
    let changes = &review.set.changes;
    let before = before_print(&changes[entry.origin.map_or(entry.change, |origin| origin.source)]);
    let notes = diff::notes(review, entry, &changes[entry.change], before);
    let attributes = notes.into_iter().filter(|note| note.starts_with("extended attribute"));
    summary::parts(review, entry).into_iter().filter(|part| part != "extended attributes").chain(attributes).collect()
}
