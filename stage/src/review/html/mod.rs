//! A review as one page that needs nothing else: no script, style, font or image from elsewhere, and nothing in it that
//! a name or a content could have put there.

mod file;
#[cfg(test)]
mod tests;
mod text;
mod tree;

use std::io::{self, Write};

use base64::Engine as _;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};

use super::{Danger, Review, Status};
use file::File;
use text::visible;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// As many files are open when the page is.
const OPEN: usize = 100;

/// Writes the page. `name`: how the person calls the run.
pub(super) fn write(review: &Review, name: &str, out: &mut dyn Write) -> io::Result<()> {
    let mut writer = file::Writer::new(review);
    let files: Vec<File> = review.entries.iter().map(|entry| writer.file(entry)).collect();
    out.write_all(page(review, name, &files).into_string().as_bytes())
}

fn page(review: &Review, name: &str, files: &[File]) -> Markup {
    let project = review.lower.as_os_str().as_encoded_bytes();
    let title = review.lower.file_name().map_or(project, |name| name.as_encoded_bytes());
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy());
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="referrer" content="no-referrer";
                meta name="color-scheme" content="light dark";
                title { "Review of " (super::quoted(title)) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#files" { "Skip to the changes" }
                header {
                    div.what {
                        h1 { "Review of " span.path title=(super::quoted(project)) { (visible(title)) } }
                        p { (totals(review, files)) span.run { " \u{b7} " (name) } }
                    }
                    (tools(files))
                }
                nav aria-label="Changed files" {
                    details #navbox open {
                        summary { "Files" }
                        (tree::tree(review, files))
                    }
                }
                main #files tabindex="-1" {
                    p #count.vh role="status" aria-live="polite" {}
                    (warnings(review))
                    @if files.is_empty() { p.none { "Nothing is left to review." } }
                    @for (place, at) in tree::order(review).into_iter().filter(|at| !files[*at].implied).enumerate() {
                        (files[at].article(review, at, place < OPEN))
                    }
                    p #nothing.none hidden { "No change matches the filter." }
                }
                (help())
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

/// Nothing is loaded, and only the page's own style and script count.
fn policy() -> String {
    let hash = |text: &str| base64::engine::general_purpose::STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        hash(STYLE),
        hash(SCRIPT)
    )
}

fn totals(review: &Review, files: &[File]) -> Markup {
    let sum = |part: fn(&File) -> usize| files.iter().map(part).sum::<usize>();
    let count = |status| review.entries.iter().filter(|entry| entry.status == status).count();
    let words = Status::ALL.into_iter().map(|status| (count(status), status.word())).filter(|(n, _)| *n > 0);
    let words: Vec<String> = words.map(|(n, word)| format!("{n} {word}")).collect();
    html! {
        (words.join(", "))
        @if words.is_empty() { "no changes" }
        " \u{b7} " span.plus { "+" (sum(|file| file.added)) } " " span.minus { "\u{2212}" (sum(|file| file.removed)) }
        @if review.applied > 0 { " \u{b7} " (review.applied) " applied already" }
        @if review.left > 0 { " \u{b7} " (review.left) " not selected" }
    }
}

fn tools(files: &[File]) -> Markup {
    let flagged = files.iter().filter(|file| file.danger.is_some()).count();
    html! {
        div.tools {
            label.search {
                span.vh { "Filter by path or text" }
                input #q type="search" placeholder="Filter by path or text" autocomplete="off" spellcheck="false"
                    aria-keyshortcuts="/";
                kbd aria-hidden="true" { "/" }
            }
            @if flagged > 0 {
                label.check { input #flagged type="checkbox"; " Flagged only (" (flagged) ")" }
            }
            button #layout type="button" aria-pressed="false" aria-keyshortcuts="s" { "Side by side" }
            button #theme type="button" aria-keyshortcuts="t" { "Dark" }
            button #keys type="button" aria-keyshortcuts="?" aria-haspopup="dialog" { "Keys" }
        }
    }
}

/// What is applied only where it is allowed, before everything else.
fn warnings(review: &Review) -> Markup {
    let dangerous = review.dangerous();
    html! {
        @if dangerous > 0 {
            section.warning aria-labelledby="warning" {
                h2 #warning {
                    @if dangerous == 1 { "1 change makes your machine run something" }
                    @else { (dangerous) " changes make your machine run something" }
                }
                p { "Apply takes " @if dangerous == 1 { "it" } @else { "them" } " with " code { "--allow-exec-sinks" } " only." }
                ul {
                    @for (at, entry) in review.entries.iter().enumerate().filter(|(_, entry)| entry.is_dangerous()).take(OPEN) {
                        li {
                            a href={ "#f" (at) } { (visible(entry.path.as_bytes())) }
                            @for flag in entry.flags.iter().filter(|flag| flag.danger == Danger::Dangerous) {
                                " \u{2014} " (flag.reason)
                            }
                        }
                    }
                    @if dangerous > OPEN { li { "and " (dangerous - OPEN) " more" } }
                }
            }
        }
    }
}

fn help() -> Markup {
    let keys = [
        ("j k", "next and previous file"),
        ("n p", "next and previous change"),
        ("/", "filter"),
        ("x", "open or close the file"),
        ("s", "side by side or one below the other"),
        ("t", "light or dark"),
        ("?", "this list"),
    ];
    html! {
        dialog #help aria-labelledby="help-title" {
            h2 #help-title { "Keys" }
            dl { @for (key, what) in keys { dt { @for key in key.split(' ') { kbd { (key) } " " } } dd { (what) } } }
            form method="dialog" { button autofocus { "Close" } }
        }
    }
}
