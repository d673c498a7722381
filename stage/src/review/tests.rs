//! Reviews of whole sets, and what the real git makes of the diffs.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Binaries, Review, review_changes};
use crate::apply::model::{Bench, Body, Node, Tree, file};
use crate::{ApplyOptions, Selection, apply_changes};

fn review(bench: &Bench) -> Review {
    review_changes(&bench.stage, bench.set.clone(), &Selection::default()).unwrap()
}

fn diff(bench: &Bench) -> String {
    let mut out = Vec::new();
    review(bench).write_diff(Binaries::Whole, &mut out).unwrap();
    String::from_utf8_lossy(&out).into_owned()
}

fn summary(bench: &Bench) -> String {
    let mut out = Vec::new();
    review(bench).write_summary(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// `git apply` in a plain directory; its error output.
pub(super) fn git_apply(dir: &Path, diff: &[u8], options: &[&str]) -> Result<(), String> {
    let patch = dir.with_extension("patch");
    fs::write(&patch, diff).unwrap();
    let mut git = Command::new("git");
    git.args(["apply", "--allow-empty", "--whitespace=nowarn"]).args(options).arg(&patch).current_dir(dir);
    git.env("GIT_CEILING_DIRECTORIES", dir.parent().unwrap()).env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", dir);
    let done = git.output().unwrap();
    if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).into_owned()) }
}

/// Only what git tracks: files by content and executable bit, links.
pub(super) fn tracked(tree: &Tree) -> Vec<(Vec<u8>, Body, bool)> {
    let nodes = tree.0.iter().filter(|(_, n)| matches!(n.body, Body::File(_) | Body::Symlink(_)));
    nodes
        .map(|(p, n)| (p.as_bytes().to_vec(), n.body.clone(), matches!(n.body, Body::File(_)) && n.mode & 0o100 != 0))
        .collect()
}

/// A clone has no empty directories.
fn as_git_has_it(tree: &Tree) -> Tree {
    let kept = |dir: &crate::RelPath| tree.0.iter().any(|(p, n)| n.body != Body::Dir && p.is_within(dir));
    let nodes = tree.0.iter().filter(|(path, node)| node.body != Body::Dir || kept(path));
    Tree(nodes.map(|(path, node)| (path.clone(), node.clone())).collect())
}

/// The diff of a set, applied by git to a copy of the tree before, gives the tree after.
pub(super) fn assert_git_agrees(before: &Tree, after: &Tree) -> String {
    let bench = Bench::new(before, after);
    let mut out = Vec::new();
    review(&bench).write_diff(Binaries::Whole, &mut out).unwrap();
    let copy = bench.base.path().join("copy");
    as_git_has_it(before).write(&copy);
    let text = String::from_utf8_lossy(&out).into_owned();
    git_apply(&copy, &out, &[]).unwrap_or_else(|e| panic!("{e}\n{text}"));
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
fn binary_and_large_contents_are_in_the_patch() {
    let lines = |c: &str| (0..100_000).map(|n| format!("{c}{n} {}\n", "x".repeat(80))).collect::<String>();
    let before = Tree::from([("bin", file("a\0b")), ("big", file(&lines("a"))), ("gone", file("\0\x01\x02"))]);
    let after = Tree::from([("bin", file("a\0c").mode(0o755)), ("big", file(&lines("b"))), ("new", file("\0new"))]);
    let text = assert_git_agrees(&before, &after);
    assert_eq!(text.matches("GIT binary patch").count(), 4);
    // And back again; git forgets modes there.
    let base = tempfile::tempdir().unwrap();
    let copy = base.path().join("copy");
    after.write(&copy);
    git_apply(&copy, text.as_bytes(), &["-R"]).unwrap();
    let contents = |tree: &Tree| tracked(tree).into_iter().map(|(path, body, _)| (path, body)).collect::<Vec<_>>();
    assert_eq!(contents(&Tree::read(&copy)), contents(&before));
}

#[test]
fn contents_that_can_not_be_had_stop_git_and_are_never_half_applied() {
    let before = Tree::from([("bin", file("a\0b")), ("edited", file("old\n")), ("fine", file("f\n"))]);
    let after = Tree::from([("bin", file("a\0c")), ("edited", file("new\n")), ("fine", file("F\n"))]);
    let bench = Bench::new(&before, &after);
    let copy = bench.base.path().join("copy");
    before.write(&copy);
    let mut named = Vec::new();
    review(&bench).write_diff(Binaries::Named, &mut named).unwrap();
    assert!(String::from_utf8_lossy(&named).contains("Binary files a/bin and b/bin differ\n"));
    fs::write(bench.target.join("edited"), "somebody else\n").unwrap();
    let text = diff(&bench);
    let gone = "Binary files a/edited and b/edited differ\n# the project does not have the original any more\n";
    assert!(text.contains(gone), "{text}");
    for patch in [&named[..], text.as_bytes()] {
        assert!(git_apply(&copy, patch, &[]).is_err());
        assert_eq!(tracked(&Tree::read(&copy)), tracked(&before));
    }
}

#[test]
fn what_git_takes_no_patch_of_is_shown_and_keeps_the_rest_from_nothing() {
    let before = Tree::from([(".git", Node::dir()), (".git/config", file("[core]\n")), ("a", file("a\n"))]);
    let mut after = Tree::from([
        (".git", Node::dir()),
        (".git/config", file("[core]\n\tpager = x\n")),
        (".git/moved", file("a\n")),
        ("sub", Node::dir()),
        ("sub/.GIT", Node::dir()),
        ("sub/.GIT/x", file("y\n")),
        ("git~1", file("y\n")),
        (".gitmodules", Node::symlink("a")),
        ("b", file("b\n")),
    ]);
    let bench = Bench::new(&before, &after);
    let text = diff(&bench);
    for line in ["# diff --git a/.git/config b/.git/config\n", "\n# +\tpager = x\n", "# diff --git a/git~1 b/git~1\n"] {
        assert!(text.contains(line), "{line}{text}");
    }
    let copy = bench.base.path().join("copy");
    before.write(&copy);
    git_apply(&copy, text.as_bytes(), &[]).unwrap_or_else(|e| panic!("{e}\n{text}"));
    for path in [".git/moved", "sub/.GIT/x", "git~1", ".gitmodules"] {
        after.0.remove(&crate::RelPath::new(path.as_bytes().to_vec()).unwrap());
    }
    after.insert(".git/config", file("[core]\n"));
    assert_eq!(tracked(&Tree::read(&copy)), tracked(&after), "{text}");
}

#[test]
fn renames_and_copies_are_found_by_content() {
    let body = |first: &str| format!("{first}\n{}", (0..30).map(|n| format!("line {n}\n")).collect::<String>());
    let before = Tree::from([
        ("same", file(&body("same"))),
        ("edited", file(&body("edited"))),
        ("source", file(&body("source"))),
        ("twice", file(&body("twice").replace("line", "row"))),
        ("unlike", file("something short and different\n")),
    ]);
    let after = Tree::from([
        ("moved", file(&body("same"))),
        ("moved-and-edited", file(&body("edited again")).mode(0o755)),
        ("source", file(&body("source").replace("line 3\n", "line three\n"))),
        ("copy", file(&body("source"))),
        ("once", file(&body("twice").replace("line", "row"))),
        ("again", file(&body("twice").replace("line", "row"))),
        ("other", file("nothing in common with anything\n")),
    ]);
    let bench = Bench::new(&before, &after);
    let entries = review(&bench).entries;
    let show = |e: &super::ReviewEntry| {
        let name = |path: &pvisor_spec::OsBytes| String::from_utf8_lossy(path.as_bytes()).into_owned();
        let from = e.from.as_ref().map(name).unwrap_or_default();
        format!("{} {from} {} {}", e.status.letter(), name(&e.path), e.similarity.unwrap_or(0))
    };
    let found: Vec<String> = entries.iter().map(show).collect();
    let expected = [
        "R twice again 100",
        "C source copy 100",
        "R same moved 100",
        "R edited moved-and-edited 94",
        "C twice once 100",
        "A  other 0",
        "M  source 0",
        "D  unlike 0",
    ];
    assert_eq!(found, expected);
    let text = assert_git_agrees(&before, &after);
    let header = "diff --git a/edited b/moved-and-edited\nold mode 100644\nnew mode 100755\nsimilarity index 94%\n\
        rename from edited\nrename to moved-and-edited\nindex ";
    assert!(text.contains(header), "{text}");
    assert!(text.contains("copy from source\ncopy to copy\n"), "{text}");
}

#[test]
fn a_selection_shows_what_apply_would_take() {
    let before = Tree::from([("d", Node::dir()), ("d/a", file("a\n")), ("x", file("x\n")), ("old", file("moves\n"))]);
    let after = Tree::from([("x", file("X\n").linked(1)), ("y", file("X\n").linked(1)), ("new", file("moves\n"))]);
    let bench = Bench::new(&before, &after);
    let shown = |selection: Selection| {
        let review = review_changes(&bench.stage, bench.set.clone(), &selection).unwrap();
        let options = ApplyOptions { selection, dry_run: true, ..ApplyOptions::default() };
        let planned = apply_changes(&bench.stage, &bench.set, &options).unwrap();
        assert_eq!(review.left, planned.left);
        review
            .entries
            .iter()
            .map(|e| format!("{}{}", e.status.letter(), String::from_utf8_lossy(e.path.as_bytes())))
            .collect::<Vec<_>>()
    };
    let path = |path: &str| crate::RelPath::new(path.as_bytes().to_vec()).unwrap();
    let paths = |paths: &[&str]| Selection { paths: paths.iter().map(|p| path(p)).collect(), ..Selection::default() };
    assert_eq!(shown(paths(&["y"])), ["Mx", "Ay"]);
    assert_eq!(shown(paths(&["d"])), ["Dd", "Dd/a"]);
    assert_eq!(shown(Selection { exclude: vec!["d/a".to_owned()], ..Selection::default() }), ["Rnew", "Mx", "Ay"]);
    // Without the removal, it stays.
    assert_eq!(shown(paths(&["new"])), ["Cnew"]);
    assert!(review_changes(&bench.stage, bench.set.clone(), &paths(&["nothing"])).is_err());
}

#[test]
fn numbers_of_lines_are_those_of_git() {
    let before = Tree::from([("a", file("1\n2\n3\n")), ("gone", file("x\ny\n")), ("bin", file("\0"))]);
    let after =
        Tree::from([("a", file("1\ntwo\n3\n4\n")), ("new", file("n")), ("bin", file("\0\0")), ("d", Node::dir())]);
    let bench = Bench::new(&before, &after);
    let mut out = Vec::new();
    review(&bench).write_stat(&mut out).unwrap();
    let expected = " a    |   3 ++-
 bin  | Bin 1 -> 2 bytes
 gone |   2 --
 new  |   1 +
 4 files changed, 3 insertions(+), 3 deletions(-)
 and 1 other change without lines
";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn exec_sinks_are_applied_only_where_they_are_allowed() {
    let before = Tree::from([("a", file("a\n"))]);
    let after = Tree::from([("a", file("A\n")), (".envrc", file("x\n")), ("Makefile", file("all:\n"))]);
    let bench = Bench::new(&before, &after);
    for dry_run in [true, false] {
        let options = ApplyOptions { dry_run, ..ApplyOptions::default() };
        let Err(crate::ApplyError::ExecSinks(sinks)) = apply_changes(&bench.stage, &bench.set, &options) else {
            panic!("it was applied")
        };
        assert_eq!(sinks.iter().map(|s| s.path.as_bytes()).collect::<Vec<_>>(), [b".envrc"]);
        bench.assert_target(&before);
    }
    let selection = Selection { exclude: vec![".envrc".to_owned()], ..Selection::default() };
    let options = ApplyOptions { selection, ..ApplyOptions::default() };
    assert_eq!(apply_changes(&bench.stage, &bench.set, &options).unwrap().left, 1);
    let options = ApplyOptions { allow_exec_sinks: true, ..ApplyOptions::default() };
    apply_changes(&bench.stage, &bench.set, &options).unwrap();
    bench.assert_target(&after);
    // It is there already: nothing is to be allowed any more.
    apply_changes(&bench.stage, &bench.set, &ApplyOptions::default()).unwrap();
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
!! .git/hooks/post-commit  git runs it as a hook
!  .git/hooks/post-commit  is a program that can't be read as text
!  swap  is a link that leads out of the project
50 changes: 25 added, 1 modified, 21 deleted, 1 renamed, 1 of another type, 1 with other metadata
1 of them makes the host run something: apply takes it with --allow-exec-sinks only
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
    let flags: Vec<_> = added["flags"].as_array().unwrap().iter().map(|f| (&f["kind"], &f["danger"])).collect();
    let expected = [("set_id", "dangerous"), ("binary_program", "notice")].map(|(k, d)| (k.into(), d.into()));
    assert_eq!(
        flags,
        expected.iter().map(|(k, d): &(serde_json::Value, serde_json::Value)| (k, d)).collect::<Vec<_>>()
    );
    assert_eq!(json["schema"], "pvisor.review/1");
}
