//! What a page is made of, with names and contents that try to be a part of it.

use std::collections::BTreeSet;

use super::super::{Review, review_changes};
use super::{SCRIPT, STYLE};
use crate::apply::model::{Bench, Node, Tree, file};
use crate::{RelPath, Selection};

fn page(before: &Tree, after: &Tree) -> String {
    let bench = Bench::new(before, after);
    let review: Review = review_changes(&bench.stage, bench.set.clone(), &Selection::default()).unwrap();
    let mut out = Vec::new();
    review.write_html("run-1<b>", &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The page without what is ours.
fn markup(page: &str) -> String {
    page.replacen(SCRIPT, "", 1).replacen(STYLE, "", 1)
}

/// Every tag with its attributes.
fn tags(markup: &str) -> Vec<&str> {
    markup.split('<').skip(1).map(|rest| rest.split('>').next().unwrap()).collect()
}

const HOSTILE: &str = "</script><script>alert(1)</script></style></template><img src=x onerror=alert(1)>\u{202e}\u{2066}\
    \u{200b}\u{1b}[31m<!-- ]]> &lt; \"x\" 'y' {{x}} ${x}\0";

#[test]
fn no_name_and_no_content_becomes_a_part_of_the_page() {
    let before = Tree::from([("edited", file("old\n")), ("link", Node::symlink("a"))]);
    let hostile = HOSTILE.replace('\0', "");
    let mut after = Tree::from([
        ("edited", file(&format!("{hostile}\n"))),
        ("link", Node::symlink(&hostile)),
        ("binary", file(HOSTILE)),
        ("d", Node::dir()),
    ]);
    let name = hostile.replace('/', "\u{2044}").replace("[31m", "");
    for path in [name.clone(), format!("d/{name}"), "d/</script>".replace('/', "|"), ".envrc".to_owned()] {
        after.insert(&path, file(&hostile));
    }
    let mut odd = file("x");
    odd.xattrs.insert(b"user.<img src=x>".to_vec(), b"<b>".to_vec());
    after.0.insert(RelPath::new(b"\xff<i>".to_vec()).unwrap(), odd);
    let page = page(&before, &after);
    let markup = markup(&page);
    assert!(!markup.chars().any(|c| crate::review::quote::acts(c) && !matches!(c, '\n' | '\t')), "{markup}");
    let allowed: BTreeSet<&str> = "!DOCTYPE html head meta title style body a header div h1 p span label input kbd button nav details \
        summary ul li main section h2 code article b template table caption colgroup col tbody tr td mark abbr dialog dl dt \
        dd form script".split_whitespace().collect();
    for tag in tags(&markup) {
        let name = tag.trim_start_matches('/').split([' ', '\n']).next().unwrap();
        assert!(allowed.contains(name), "<{tag}>");
        for bad in [" on", " style=", " src=", "javascript:", "http"] {
            assert!(!tag.to_ascii_lowercase().contains(bad) || tag.contains("http-equiv="), "<{tag}>");
        }
    }
    assert_eq!(markup.matches("<script").count(), 1);
    assert_eq!(markup.matches("<style").count(), 1);
    assert!(page.contains("run-1&lt;b&gt;") && page.contains("U+202E"));
}

#[test]
fn the_policy_lets_the_pages_own_script_and_style_run_and_nothing_else() {
    use base64::Engine as _;
    use sha2::Digest as _;
    let page = page(&Tree::default(), &Tree::from([("a", file("x\n"))]));
    let policy = page.split("Content-Security-Policy\" content=\"").nth(1).unwrap().split('"').next().unwrap();
    for (kind, open, close) in [("script-src", "<script>", "</script>"), ("style-src", "<style>", "</style>")] {
        let text = page.split(open).nth(1).unwrap().split(close).next().unwrap();
        let hash = base64::engine::general_purpose::STANDARD.encode(sha2::Sha256::digest(text));
        assert!(policy.contains(&format!("{kind} 'sha256-{hash}'")), "{policy}");
    }
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    for ours in [SCRIPT, STYLE] {
        for bad in ["http:", "https:", "//cdn", "url(", "@import", "innerHTML", "eval("] {
            assert!(!ours.contains(bad), "{bad}");
        }
    }
    assert!(SCRIPT.lines().count() < 300);
}

#[test]
fn every_change_is_on_the_page() {
    let before =
        Tree::from([("mode", file("x\n")), ("gone", file("bye\n")), ("old", file("moves\n")), ("t", file("t\n"))]);
    let mut tagged = file("x\n").mode(0o755);
    tagged.xattrs.insert(b"user.tag".to_vec(), b"v".to_vec());
    let after = Tree::from([
        ("mode", tagged),
        ("new", file("moves\n")),
        ("t", Node::symlink("mode")),
        ("n", Node::dir()),
        ("n/empty", Node::dir()),
        ("n/pipe", Node::fifo()),
        ("n/f", file("one\ntwo")),
    ]);
    let page = page(&before, &after);
    for text in [
        "mode 0644 -&gt; 0755",
        "extended attribute user.tag of mode: new, 1 bytes",
        "\u{2212}</td><td class=\"c\">bye",
        "<span class=\"from\">old</span>",
        "file -&gt; symbolic link",
        "named pipe",
        "n/</span>empty/",
        "no newline at end of file",
    ] {
        assert!(page.contains(text), "{text}: {}", markup(&page));
    }
}

#[test]
fn long_files_wait_and_endless_ones_are_cut() {
    let lines = |n: usize| (0..n).map(|n| format!("line {n}\n")).collect::<String>();
    let after =
        Tree::from([("short", file(&lines(10))), ("long", file(&lines(1000))), ("endless", file(&lines(50_000)))]);
    let page = page(&Tree::default(), &after);
    assert_eq!(markup(&page).matches("<template>").count(), 2);
    assert!(page.contains("45001 more lines are not on this page") && page.len() < 2_000_000, "{}", page.len());
}
