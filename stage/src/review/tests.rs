//! Reviews of whole sets, and what the real git makes of the diffs.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Review, review_changes};
use crate::apply::model::{Bench, Body, Node, Tree, file};
use crate::{ApplyOptions, Selection, apply_changes};

fn review(bench: &Bench) -> Review {
    review_changes(&bench.stage, bench.set.clone()).unwrap()
}

fn diff(bench: &Bench) -> String {
    let mut out = Vec::new();
    review(bench).write_diff(&mut out).unwrap();
    String::from_utf8_lossy(&out).into_owned()
}

fn summary(bench: &Bench) -> String {
    let mut out = Vec::new();
    review(bench).write_summary(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// `git apply` in a plain directory; its error output.
fn git_apply(dir: &Path, diff: &[u8]) -> Result<(), String> {
    let patch = dir.with_extension("patch");
    fs::write(&patch, diff).unwrap();
    let mut git = Command::new("git");
    git.args(["apply", "--whitespace=nowarn"]).arg(&patch).current_dir(dir);
    git.env("GIT_CEILING_DIRECTORIES", dir.parent().unwrap()).env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", dir);
    let done = git.output().unwrap();
    if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).into_owned()) }
}

/// Only what git tracks: files by content and executable bit, links.
fn tracked(tree: &Tree) -> Vec<(Vec<u8>, Body, bool)> {
    let nodes = tree.0.iter().filter(|(_, n)| matches!(n.body, Body::File(_) | Body::Symlink(_)));
    nodes
        .map(|(p, n)| (p.as_bytes().to_vec(), n.body.clone(), matches!(n.body, Body::File(_)) && n.mode & 0o100 != 0))
        .collect()
}

/// The diff of a set, applied by git to a copy of the tree before, gives the tree after.
fn assert_git_agrees(before: &Tree, after: &Tree) -> String {
    let bench = Bench::new(before, after);
    let mut out = Vec::new();
    review(&bench).write_diff(&mut out).unwrap();
    let copy = bench.base.path().join("copy");
    before.write(&copy);
    let text = String::from_utf8_lossy(&out).into_owned();
    git_apply(&copy, &out).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(tracked(&Tree::read(&copy)), tracked(after), "{text}");
    text
}

#[test]
fn git_takes_every_kind_of_text_change() {
    let numbers: String = (0..60).map(|n| format!("line {n}\n")).collect();
    let before = Tree::from([
        ("README", file("one\ntwo\nthree\n")),
        ("no newline", file("first\nlast")),
        ("gone", file("bye\n")),
        ("gone-empty", file("")),
        ("tool", file("#!/bin/sh\n")),
        ("kept", file(&numbers)),
        ("moved", file("some content that moves\n")),
        ("link", Node::symlink("README")),
        ("to-link", file("was a file\n")),
        ("from-link", Node::symlink("tool")),
        ("dir", Node::dir()),
        ("dir/inner", file("inner\n")),
        ("crlf", file("a\r\nb\r\nlone\rreturn\n")),
    ]);
    let mut after = Tree::from([
        ("README", file("one\n2\nthree\nfour\n")),
        ("no newline", file("first\nlast changed")),
        ("tool", file("#!/bin/sh\n").mode(0o755)),
        ("kept", file(&numbers.replace("line 3\n", "").replace("line 50\n", "line fifty\n"))),
        ("dir", Node::dir()),
        ("dir/moved elsewhere", file("some content that moves\n")),
        ("link", Node::symlink("kept")),
        ("to-link", Node::symlink("kept")),
        ("from-link", file("now a file\n")),
        ("new", Node::dir()),
        ("new/empty", file("")),
        ("new/sp ace\ttab\"quote\\.txt", file("x\n")),
        ("new/\u{fc}ml\u{e4}ut \u{1b}[31m", file("y\n").mode(0o755)),
        ("crlf", file("a\r\nB\r\nlone\rreturn\n")),
    ]);
    after.0.insert(crate::RelPath::new(b"new/\xff\xfe".to_vec()).unwrap(), file("odd\n"));
    let text = assert_git_agrees(&before, &after);
    assert!(text.contains("rename from moved\nrename to dir/moved elsewhere\n"), "{text}");
    assert!(text.contains("\\ No newline at end of file\n"));
    assert!(!text.contains('\x1b'), "{text}");
    assert!(text.contains("\"a/new/\\377\\376\""));
}

#[test]
fn modes_that_git_does_not_track_are_named() {
    let before = Tree::from([("private", file("x\n")), ("suid", file("y\n")), ("run", file("r\n"))]);
    let after = Tree::from([
        ("private", file("x\n").mode(0o600)),
        ("suid", file("z\n").mode(0o4711)),
        ("new", file("n\n").mode(0o400)),
        ("run", file("r\n").mode(0o755)),
    ]);
    let text = assert_git_agrees(&before, &after);
    assert!(text.contains("# mode of private: 0644 -> 0600\n"), "{text}");
    assert!(
        text.contains("# mode of suid: 0644 -> 4711\ndiff --git a/suid b/suid\nold mode 100644\nnew mode 100755\n")
    );
    assert!(text.contains("# mode of new: 0400\n") && !text.contains("# mode of run"), "{text}");
}

#[test]
fn what_git_has_no_form_for_stands_in_comments() {
    let before = Tree::from([("d", Node::dir()), ("a", file("a\n")), ("x", file("same\n"))]);
    let mut linked = file("same\n").linked(1);
    linked.xattrs.insert(b"user.tag".to_vec(), b"v".to_vec());
    let after = Tree::from([
        ("a", file("A\n")),
        ("d", Node::dir().mode(0o700)),
        ("e", Node::dir()),
        ("pipe", Node::fifo()),
        ("x", linked.clone()),
        ("y", linked),
    ]);
    let text = assert_git_agrees(&before, &after);
    for line in [
        "# mode of d: 0755 -> 0700\n",
        "# directory e appears, mode 0755\n",
        "# named pipe pipe appears, mode 0640\n",
        "# extended attribute user.tag of x: new, 1 bytes\n",
        "# y is the same file as x\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
}

#[test]
fn binary_large_and_missing_contents_are_named_and_never_half_applied() {
    let before = Tree::from([("bin", file("a\0b")), ("big", file(&"x".repeat(9 << 20))), ("edited", file("old\n"))]);
    let after = Tree::from([("bin", file("a\0c")), ("big", file(&"y".repeat(9 << 20))), ("edited", file("new\n"))]);
    let bench = Bench::new(&before, &after);
    fs::write(bench.target.join("edited"), "somebody else\n").unwrap();
    let text = diff(&bench);
    assert!(text.len() < 2000, "{}", text.len());
    for line in [
        "Binary files a/bin and b/bin differ\n",
        "Binary files a/big and b/big differ\n# too large to be shown line by line\n",
        "Binary files a/edited and b/edited differ\n# the project does not have the original any more\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    let copy = bench.base.path().join("copy");
    before.write(&copy);
    assert!(git_apply(&copy, text.as_bytes()).is_err());
    assert_eq!(tracked(&Tree::read(&copy)), tracked(&before));
}

#[test]
fn summary_lists_collapses_flags_and_counts() {
    let mut before = Tree::from([
        ("README", file("hello\n")),
        ("run.sh", file("#!/bin/sh\n")),
        ("old name", file("moves without change")),
        ("target", Node::dir()),
        ("swap", file("x")),
    ]);
    for n in 0..20 {
        before.insert(&format!("target/{n}"), file(&format!("{n}")));
    }
    let mut after = Tree::from([
        ("README", file("hello, world\n")),
        ("run.sh", file("#!/bin/sh\n").mode(0o755)),
        ("new name", file("moves without change")),
        ("swap", Node::symlink("/etc/passwd")),
        (".git", Node::dir()),
        (".git/hooks", Node::dir()),
        (".git/hooks/post-commit", file("\x7fELF\0\0").mode(0o755)),
        ("evil\u{1b}]0;title\u{7}", file("")),
        ("vendor", Node::dir()),
    ]);
    for n in 0..20 {
        after.insert(&format!("vendor/{n}"), file(&"v".repeat(1024)));
    }
    let bench = Bench::new(&before, &after);
    let expected = "\
A  .git/
A  .git/hooks/
A  .git/hooks/post-commit  6 bytes
M  README  6 bytes -> 13 bytes
A  \"evil\\033]0;title\\a\"  0 bytes
R  old name -> new name
m  run.sh  mode 0644 -> 0755
T  swap  file -> symbolic link, mode 0644 -> 0777
D  target/  20 files, 30 bytes
A  vendor/  20 files, 20.0 KiB
!  .git/hooks/post-commit makes other tools run something
!  .git/hooks/post-commit is a new binary program
!  swap is a link that leads out of the project
50 changes: 25 added, 1 modified, 21 deleted, 1 renamed, 1 of another type, 1 with other metadata
";
    assert_eq!(summary(&bench), expected.replace(", mode 0644 -> 0777", ""));
    let flagged = review(&bench).entries.into_iter().filter(|e| !e.flags.is_empty()).count();
    assert_eq!(flagged, 2);
}

#[test]
fn what_is_applied_is_not_shown_again() {
    let before = Tree::from([("a", file("a\n")), ("b", file("b\n"))]);
    let after = Tree::from([("a", file("A\n")), ("b", file("B\n"))]);
    let bench = Bench::new(&before, &after);
    let selection = Selection { paths: vec![crate::RelPath::new(b"a".to_vec()).unwrap()], ..Selection::default() };
    apply_changes(&bench.stage, &bench.set, &ApplyOptions { selection, ..ApplyOptions::default() }).unwrap();
    assert_eq!(summary(&bench), "M  b  2 bytes -> 2 bytes\n1 change: 1 modified; 1 applied already\n");
    apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
    assert_eq!(summary(&bench), "no changes; 2 applied already\n");
    assert_eq!(diff(&bench), "");
}

#[test]
fn json_has_one_object_for_each_change_and_keeps_every_byte_of_names() {
    let before = Tree::from([("moved", file("content")), ("gone", Node::symlink("x"))]);
    let mut after = Tree::from([("there", file("content"))]);
    after.0.insert(crate::RelPath::new(b"\xff".to_vec()).unwrap(), file("n\0").mode(0o4755));
    let json = serde_json::to_value(review(&Bench::new(&before, &after))).unwrap();
    let changes = json["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 3);
    let find = |status: &str| changes.iter().find(|c| c["status"] == status).unwrap();
    assert_eq!(find("R")["from"], "moved");
    assert_eq!(find("R")["path"], "there");
    assert_eq!(find("D")["before"]["target"], "x");
    let added = find("A");
    assert_eq!(added["path"]["hex"], "ff");
    assert_eq!((&added["binary"], &added["after"]["mode"]), (&true.into(), &"4755".into()));
    assert_eq!(added["flags"], serde_json::json!(["set_id", "binary_program"]));
    assert_eq!(json["schema"], "pvisor.review/1");
}
