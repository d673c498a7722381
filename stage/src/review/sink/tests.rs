//! Ways to make the host run something, each of which has to be seen.

use super::super::contents::Contents;
use super::*;
use crate::apply::model::{Bench, Node, Tree, file};
use crate::apply::{Home, Target};

/// Dangerous paths and their reasons, and the notices.
fn flagged(before: &Tree, after: &Tree) -> (Vec<(String, String)>, Vec<String>) {
    let bench = Bench::new(before, after);
    let home = Home::open(&bench.stage).unwrap();
    let (upper, project) = (home.subdir("upper").unwrap(), Target::open(&bench.target).unwrap());
    let sinks = Sinks::new(&bench.set.changes, Contents { upper: &upper, project: Some(&project) });
    let (mut dangerous, mut notices) = (Vec::new(), Vec::new());
    for change in &bench.set.changes {
        for flag in sinks.flags(change, before_print(change), false) {
            let path = String::from_utf8_lossy(change.path.as_bytes()).into_owned();
            match flag.danger {
                Danger::Dangerous => dangerous.push((path, flag.reason)),
                Danger::Notice => notices.push(path),
            }
        }
    }
    let named: Vec<String> = sinks.dangerous(bench.set.changes.iter()).iter().map(ToString::to_string).collect();
    assert_eq!(named.len(), dangerous.len(), "{named:?}");
    (dangerous, notices)
}

fn dangerous(before: &Tree, after: &Tree) -> Vec<String> {
    flagged(before, after).0.into_iter().map(|(path, _)| path).collect()
}

/// A tree with its directories made.
fn tree(nodes: &[(&str, Node)]) -> Tree {
    let mut tree = Tree::default();
    for (path, node) in nodes {
        for (at, _) in path.match_indices('/') {
            let dir = &path[..at];
            if !tree.0.contains_key(&RelPath::new(dir.as_bytes().to_vec()).unwrap()) {
                tree.insert(dir, Node::dir());
            }
        }
        tree.insert(path, node.clone());
    }
    tree
}

fn with(base: &Tree, nodes: &[(&str, Node)]) -> Tree {
    let mut out = base.clone();
    for (path, node) in tree(nodes).0 {
        let keep = matches!(node.body, crate::apply::model::Body::Dir) && out.0.contains_key(&path);
        if !keep {
            out.0.insert(path, node);
        }
    }
    out
}

fn repository(config: &str) -> Tree {
    tree(&[
        (".git/HEAD", file("ref: refs/heads/main\n")),
        (".git/config", file(config)),
        (".git/objects/info/x", file("")),
        (".git/hooks/pre-commit.sample", file("#!/bin/sh\n")),
        ("README", file("x\n")),
    ])
}

#[test]
fn hooks_and_settings_of_every_git_directory_are_dangerous() {
    let before = repository("[core]\n\tbare = false\n");
    let evil = "[core]\n\tbare = false\n\tfsmonitor = ./x\n";
    for (path, content) in [
        (".git/hooks/post-checkout", "#!/bin/sh\n"),
        (".GIT/Hooks/post-checkout", "#!/bin/sh\n"),
        (".git./hooks/post-checkout", "#!/bin/sh\n"),
        ("git~1/hooks/post-checkout", "#!/bin/sh\n"),
        (".g\u{200d}it/hooks/post-checkout", "#!/bin/sh\n"),
        (".git/modules/a/b/hooks/post-checkout", "#!/bin/sh\n"),
        ("sub/dir/.git/hooks/pre-push", "#!/bin/sh\n"),
        (".git/config", evil),
        (".git/config.worktree", evil),
        (".git/modules/a/config", evil),
        (".git/worktrees/w/config.worktree", evil),
        ("sub/.git/config", evil),
        (".git/worktrees/w/commondir", "../../../evil\n"),
        (".git/rebase-merge/git-rebase-todo", "exec x\n"),
        ("sub/.git", "gitdir: ../evil\n"),
    ] {
        assert_eq!(dangerous(&before, &with(&before, &[(path, file(content))])), [path], "{path}");
    }
}

#[test]
fn what_commits_clones_and_branches_write_is_not() {
    let before = repository("[core]\n\tbare = false\n\thooksPath = .husky\n");
    let after = with(
        &before,
        &[
            (".git/config", file("[core]\n\tbare = false\n\thooksPath = .husky\n[branch \"x\"]\n\tremote = o\n")),
            (".git/refs/heads/hooks/config", file("abc\n")),
            (".git/objects/ab/cd", file("x")),
            (".git/index", file("x")),
            (".git/hooks/update.sample", file("x")),
            (".git/COMMIT_EDITMSG", file("x")),
        ],
    );
    assert_eq!(flagged(&before, &after), (vec![], vec![".git/config".to_owned()]));
}

#[test]
fn the_reason_names_the_settings() {
    let before = repository("[alias]\n\tst = status\n");
    let after = with(&before, &[(".git/config", file("[alias]\n\tst = !x\n[core]\n\thooksPath = h\n"))]);
    let (dangerous, _) = flagged(&before, &after);
    assert_eq!(dangerous[0].1, "makes git run something: alias.st, core.hookspath");
}

#[test]
fn a_directory_that_git_takes_for_a_repository_needs_no_name() {
    let parts = [
        ("store/HEAD", file("ref: refs/heads/main\n")),
        ("store/objects/x", file("")),
        ("store/hooks/post-receive", file("#!/bin/sh\n")),
        ("store/config", file("[core]\n\tsshCommand = x\n")),
    ];
    let before = Tree::from([("README", file("x\n"))]);
    assert_eq!(dangerous(&before, &with(&before, &parts)), ["store/config", "store/hooks/post-receive"]);
    let half = with(&before, &parts[..2]);
    assert_eq!(dangerous(&half, &with(&half, &parts[2..])), ["store/config", "store/hooks/post-receive"]);
    assert_eq!(dangerous(&before, &with(&before, &[("a/hooks/useState.js", file("x"))])), [""; 0]);
}

#[test]
fn links_and_files_that_lead_to_a_dangerous_place_hide_nothing() {
    let bare = Tree::from([("README", file("x\n"))]);
    // New links, and what they lead to.
    for (link, target, place) in [
        (".vscode", "conf", "conf/tasks.json"),
        (".husky", "a/b", "a/b/pre-commit"),
        (".envrc", "env.sh", "env.sh"),
        (".config", "c", "c/systemd/user/x.service"),
        (".git", "real", "real/hooks/post-commit"),
    ] {
        let after = with(&bare, &[(place, file("x\n")), (link, Node::symlink(target))]);
        assert_eq!(dangerous(&bare, &after), [link, place], "{link}");
        // The link was there before.
        let old = with(&bare, &[(link, Node::symlink(target))]);
        let after = with(&old, &[(place, file("x\n"))]);
        assert_eq!(dangerous(&old, &after), [place], "{link} was there");
        // By way of another link.
        let old =
            with(&bare, &[(link, Node::symlink("./x/../hop")), ("hop", Node::symlink(target)), ("x", Node::dir())]);
        let after = with(&old, &[(place, file("x\n"))]);
        assert_eq!(dangerous(&old, &after), [place], "{link} twice");
    }
}

#[test]
fn a_git_file_leads_to_the_real_directory() {
    let old = tree(&[
        (".git", file("gitdir: .real/git\n")),
        (".real/git/HEAD", file("x")),
        (".real/git/commondir", file("../common\n")),
        ("sub/.git", file("gitdir: ../store/modules/sub\n")),
    ]);
    let after = with(
        &old,
        &[
            (".real/common/hooks/post-commit", file("x")),
            (".real/git/config.worktree", file("[core]\n\teditor = x\n")),
            ("store/modules/sub/hooks/pre-push", file("x")),
            ("sub/file", file("x")),
        ],
    );
    let expected = [".real/common/hooks/post-commit", ".real/git/config.worktree", "store/modules/sub/hooks/pre-push"];
    assert_eq!(dangerous(&old, &after), expected);
}

#[test]
fn what_the_settings_name_already_counts_as_well() {
    let before = with(
        &repository(
            "[core]\n\thooksPath = tools/hooks\n\tfsmonitor = sh -c 'scripts/watch.sh 1'\n[include]\n\tpath = ../common.cfg\n",
        ),
        &[
            ("common.cfg", file("[filter \"x\"]\n\tclean = ./tools/clean %f\n")),
            (".git/hooks/pre-commit", Node::symlink("../../scripts/check.sh")),
            ("tools/hooks/pre-push", Node::symlink("../push.sh")),
        ],
    );
    for path in ["tools/hooks/post-merge", "scripts/watch.sh", "scripts/check.sh", "tools/clean", "tools/push.sh"] {
        assert_eq!(dangerous(&before, &with(&before, &[(path, file("#!/bin/sh\n"))])), [path]);
    }
    let shared = with(&before, &[("common.cfg", file("[core]\n\tpager = x\n"))]);
    assert_eq!(dangerous(&before, &shared), ["common.cfg"]);
    assert_eq!(dangerous(&before, &with(&before, &[("tools/other", file("x")), ("scripts/x", file("x"))])), [""; 0]);
}

#[test]
fn a_setting_and_its_program_in_one_run_are_both_seen() {
    let before = repository("");
    let config = file("[core]\n\thooksPath = build/out\n");
    let after = with(&before, &[(".git/config", config), ("build/out/post-commit", file("x")), ("build/x", file("x"))]);
    assert_eq!(dangerous(&before, &after), [".git/config", "build/out/post-commit"]);
}

#[test]
fn contents_decide_where_names_do_not() {
    let before = Tree::from([("package.json", file(r#"{"scripts":{"test":"a","postinstall":"old"}}"#))]);
    let manifest = |scripts: &str| {
        let after = Tree::from([("package.json", file(&format!("{{\"scripts\":{{{scripts}}}}}")))]);
        flagged(&before, &after)
    };
    assert_eq!(manifest(r#""test":"a","postinstall":"new""#).0[0].1, "an install runs its script postinstall");
    assert_eq!(manifest(r#""test":"b","postinstall":"old""#), (vec![], vec!["package.json".to_owned()]));
    assert_eq!(manifest(r#""postinstall":"old""#), (vec![], vec![]));
    for (path, content, danger) in [
        ("v/site-packages/x.pth", "import os; os.system('x')\n", Some(Danger::Dangerous)),
        ("v/site-packages/x.pth", "/some/dir\n", None),
        (".gitattributes", "* text=auto\n", None),
        (".gitattributes", "* filter=lfs\n", Some(Danger::Notice)),
        ("rust-toolchain.toml", "[toolchain]\nchannel = \"1.90\"\n", Some(Danger::Notice)),
        ("rust-toolchain.toml", "[toolchain]\npath = \"evil\"\n", Some(Danger::Dangerous)),
    ] {
        let (dangerous, notices) = flagged(&Tree::default(), &tree(&[(path, file(content))]));
        let found = match (dangerous.len(), notices.len()) {
            (0, 0) => None,
            (0, _) => Some(Danger::Notice),
            _ => Some(Danger::Dangerous),
        };
        assert_eq!(found, danger, "{path}: {content}");
    }
}

#[test]
fn files_too_large_to_be_looked_into_are_taken_for_the_worst() {
    let large = format!("#{}\n", "x".repeat(2 << 20));
    let after = tree(&[(".git/config", file(&large)), ("x.pth", file(&large))]);
    assert_eq!(dangerous(&Tree::default(), &after), [".git/config", "x.pth"]);
}

#[test]
fn set_id_bits_are_dangerous_where_they_or_the_content_are_new() {
    let before = Tree::from([("old", file("x").mode(0o4755)), ("plain", file("x"))]);
    let after = |old: Node, plain: Node| Tree::from([("old", old), ("plain", plain)]);
    let changed = after(file("y").mode(0o4755), file("x").mode(0o2755));
    assert_eq!(dangerous(&before, &changed), ["old", "plain"]);
    assert_eq!(dangerous(&before, &after(file("x").mode(0o4711), file("y"))), [""; 0]);
}

#[test]
fn a_link_that_leads_out_is_a_notice() {
    for (path, target) in [("l", "/etc/passwd"), ("l", ".."), ("a/l", "../../x"), ("a/b/l", "../x/../../../y")] {
        assert_eq!(flagged(&Tree::default(), &tree(&[(path, Node::symlink(target))])), (vec![], vec![path.to_owned()]));
    }
    for (path, target) in [("l", "x"), ("a/l", "../x"), ("a/b/l", "../../x/y"), ("a/l", "./b/..")] {
        assert_eq!(flagged(&Tree::default(), &tree(&[(path, Node::symlink(target))])), (vec![], vec![]));
    }
}

#[test]
fn removing_a_hook_runs_nothing() {
    let before = with(&repository(""), &[(".git/hooks/pre-push", file("x"))]);
    assert_eq!(flagged(&before, &repository("")), (vec![], vec![]));
}
