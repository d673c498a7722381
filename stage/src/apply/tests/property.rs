//! Any tree can become any other.

use proptest::prelude::*;

use super::model::{Bench, Body, Node, OLD, Tree};
use crate::RelPath;
use crate::apply::{ApplyOptions, Selection, apply_changes};

/// Few names, so that trees meet; some that sort around the slash, and some that are no text.
const NAMES: [&[u8]; 6] = [b"a", b"a-b", b"b", b"\xff\n", b"a b", b"B"];

fn node() -> impl Strategy<Value = Node> {
    let content = prop_oneof![Just(Vec::new()), Just(b"x".to_vec()), prop::collection::vec(any::<u8>(), 0..200)];
    let body = prop_oneof![
        4 => content.prop_map(Body::File),
        4 => Just(Body::Dir),
        1 => prop::sample::select(vec![&b"a"[..], b"../..", b"/etc/passwd"]).prop_map(|t| Body::Symlink(t.to_vec())),
        1 => Just(Body::Fifo),
    ];
    let mode = prop::sample::select(vec![0o644, 0o755, 0o600, 0o4755, 0o2775, 0o1777, 0o444, 0o000]);
    let owner = prop::sample::select(vec![(0, 0), (0, 5), (1000, 1000)]);
    let xattr = prop::option::of(prop::collection::vec(any::<u8>(), 0..20));
    (body, mode, owner, 0u32..3, prop::option::weighted(0.3, 1u64..3), xattr).prop_map(
        |(body, mode, owner, later, link, xattr)| {
            let mut node = Node::new(body, mode);
            if node.uid == 0 {
                (node.uid, node.gid) = owner;
            }
            node.mtime = (OLD.0 + i64::from(later), OLD.1);
            match &node.body {
                Body::Symlink(_) => node.mode = 0o777,
                Body::File(_) | Body::Dir => {
                    node.xattrs.extend(xattr.map(|value| (b"user.test".to_vec(), value)));
                }
                Body::Fifo => {}
            }
            if matches!(node.body, Body::File(_)) {
                node.link = link;
            }
            node
        },
    )
}

fn tree() -> impl Strategy<Value = Tree> {
    let path = prop::collection::vec(prop::sample::select(NAMES.to_vec()), 1..4);
    prop::collection::vec((path, node()), 0..14).prop_map(|nodes| {
        let mut tree = Tree::default();
        for (parts, node) in nodes {
            let mut path = RelPath::default();
            for part in &parts[..parts.len() - 1] {
                path = path.join(part).unwrap();
                // Whatever has something in it is a directory.
                let parent = tree.0.entry(path.clone()).or_insert_with(Node::dir);
                if parent.body != Body::Dir {
                    *parent = Node::dir();
                }
            }
            path = path.join(parts[parts.len() - 1]).unwrap();
            let full = tree.0.keys().any(|other| other != &path && other.is_within(&path));
            if !full || node.body == Body::Dir {
                tree.0.insert(path, node);
            }
        }
        equalise_links(&mut tree);
        tree
    })
}

/// Bits of modes among it.
fn anything() -> ApplyOptions {
    ApplyOptions { allow_exec_sinks: true, ..ApplyOptions::default() }
}

/// Names of one file have its content and metadata.
fn equalise_links(tree: &mut Tree) {
    for group in 1..3 {
        let first = tree.0.values().find(|node| node.link == Some(group)).cloned();
        for node in tree.0.values_mut().filter(|node| node.link == Some(group)) {
            node.clone_from(first.as_ref().unwrap());
        }
    }
}

/// What an apply leaves on purpose: a file whose only change is its time.
fn with_kept_times(before: &Tree, after: &Tree, bench: &Bench) -> Tree {
    let mut expected = after.clone();
    for (path, node) in &mut expected.0 {
        let old = before.0.get(path).filter(|_| !bench.set.changes.iter().any(|c| c.path == *path));
        node.mtime = old.map_or(node.mtime, |old| old.mtime);
    }
    expected
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// As many as the environment asks for.
fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(150), ..ProptestConfig::default() })]

    #[test]
    fn any_tree_becomes_any_other(before in tree(), after in tree()) {
        prop_assume!(is_root());
        let bench = Bench::new(&before, &after);
        let applied = apply_changes(&bench.stage, &bench.set, &anything()).unwrap();
        prop_assert!(applied.not_appliable.is_empty(), "{:?}", applied.not_appliable);
        prop_assert_eq!(applied.written, bench.set.changes.len() as u64);
        bench.assert_target(&with_kept_times(&before, &after, &bench));
        bench.assert_no_leftovers();
    }

    #[test]
    fn any_parts_one_after_another_come_to_the_same(
        before in tree(),
        after in tree(),
        parts in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..6),
    ) {
        prop_assume!(is_root());
        let bench = Bench::new(&before, &after);
        let mut written = 0;
        for (which, exclude) in parts {
            if bench.set.changes.is_empty() {
                break;
            }
            let path = which.get(&bench.set.changes).path.clone();
            let name = String::from_utf8_lossy(path.split().unwrap().1).into_owned();
            let selection = match exclude {
                true => Selection { exclude: vec![globset::escape(&name)], ..Selection::default() },
                false => Selection { paths: vec![path], ..Selection::default() },
            };
            let options = ApplyOptions { selection, ..anything() };
            written += apply_changes(&bench.stage, &bench.set, &options).unwrap().written;
        }
        written += apply_changes(&bench.stage, &bench.set, &anything()).unwrap().written;
        prop_assert_eq!(written, bench.set.changes.len() as u64);
        bench.assert_target_but_directory_times(&with_kept_times(&before, &after, &bench));
        bench.assert_no_leftovers();
    }
}
