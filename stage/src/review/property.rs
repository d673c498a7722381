//! Whatever changed, git makes the same of the diff.

use proptest::prelude::*;

use super::tests::assert_git_agrees;
use crate::RelPath;
use crate::apply::model::{Body, Node, Tree};

/// Some that need quotes, and some that sort around the slash.
const NAMES: [&[u8]; 9] =
    [b"a", b"a-b", b"b", b"\xff\n", b"a b", b"\"q\\", b"B", "\u{fc} \u{202e}".as_bytes(), b"-x\t"];
const LINES: [&str; 8] =
    ["one\n", "two\n", "\n", "three\r\n", "+plus\n", "--- a/x\n", "diff --git a/x b/x\n", "@@ -1 +1 @@\n"];

fn content() -> impl Strategy<Value = Vec<u8>> {
    let lines = (prop::collection::vec(prop::sample::select(LINES.to_vec()), 0..24), any::<bool>());
    let text = lines.prop_map(|(lines, end)| {
        let text = lines.concat();
        if end { text.into_bytes() } else { text.trim_end().as_bytes().to_vec() }
    });
    prop_oneof![6 => text, 1 => prop::collection::vec(any::<u8>(), 0..300)]
}

fn node() -> impl Strategy<Value = Node> {
    let target = prop::sample::select(vec![&b"elsewhere"[..], b"../..", b"new\nline", b"no\xff"]);
    let mode = prop::sample::select(vec![0o644, 0o755, 0o600, 0o700]);
    prop_oneof![
        6 => (content(), mode).prop_map(|(content, mode)| Node::new(Body::File(content), mode)),
        1 => target.prop_map(|target| Node::new(Body::Symlink(target.to_vec()), 0o777)),
        1 => Just(Node::dir()),
    ]
}

fn path() -> impl Strategy<Value = RelPath> {
    let parts = prop::collection::vec(prop::sample::select(NAMES.to_vec()), 1..4);
    parts.prop_map(|parts| parts.iter().fold(RelPath::default(), |path, part| path.join(part).unwrap()))
}

/// Puts a node somewhere, and directories around it, in place of what is in the way.
fn put(tree: &mut Tree, path: &RelPath, node: Node) {
    tree.0.retain(|other, _| other == path || !other.is_within(path));
    let mut around = path.clone();
    while let Some((parent, _)) = around.split() {
        around = parent;
        if !around.as_bytes().is_empty() && tree.0.get(&around).is_none_or(|n| n.body != Body::Dir) {
            tree.0.insert(around.clone(), Node::dir());
        }
    }
    tree.0.insert(path.clone(), node);
}

#[derive(Clone, Debug)]
enum Edit {
    Put(RelPath, Node),
    Remove(prop::sample::Index),
    Move(prop::sample::Index, RelPath),
    Copy(prop::sample::Index, RelPath),
    Line(prop::sample::Index, prop::sample::Index, &'static str),
    Mode(prop::sample::Index, u32),
}

fn edit() -> impl Strategy<Value = Edit> {
    let index = any::<prop::sample::Index>;
    let line = prop::sample::select(LINES.to_vec());
    prop_oneof![
        2 => (path(), node()).prop_map(|(path, node)| Edit::Put(path, node)),
        1 => index().prop_map(Edit::Remove),
        2 => (index(), path()).prop_map(|(at, path)| Edit::Move(at, path)),
        2 => (index(), path()).prop_map(|(at, path)| Edit::Copy(at, path)),
        4 => (index(), index(), line).prop_map(|(at, place, line)| Edit::Line(at, place, line)),
        1 => (index(), prop::sample::select(vec![0o644, 0o755])).prop_map(|(at, mode)| Edit::Mode(at, mode)),
    ]
}

fn perform(tree: &mut Tree, edit: Edit) {
    let names: Vec<RelPath> = tree.0.keys().cloned().collect();
    let pick = |index: &prop::sample::Index| (!names.is_empty()).then(|| index.get(&names).clone());
    match edit {
        Edit::Put(path, node) => put(tree, &path, node),
        Edit::Remove(at) => {
            if let Some(path) = pick(&at) {
                tree.0.retain(|other, _| !other.is_within(&path));
            }
        }
        Edit::Move(at, to) | Edit::Copy(at, to)
            if pick(&at).is_none_or(|from| to.is_within(&from) || from.is_within(&to)) => {}
        Edit::Move(at, to) => {
            let from = pick(&at).unwrap();
            let moved: Vec<(RelPath, Node)> =
                tree.0.iter().filter(|(p, _)| p.is_within(&from)).map(|(p, n)| (p.clone(), n.clone())).collect();
            tree.0.retain(|other, _| !other.is_within(&from));
            for (path, node) in moved {
                let rest = path.as_bytes()[from.as_bytes().len()..].to_vec();
                put(tree, &RelPath::new([to.as_bytes(), &rest].concat()).unwrap(), node);
            }
        }
        Edit::Copy(at, to) => {
            let node = tree.0[&pick(&at).unwrap()].clone();
            put(tree, &to, node);
        }
        Edit::Line(at, place, line) => {
            if let Some(Body::File(content)) =
                pick(&at).and_then(|path| tree.0.get_mut(&path)).map(|node| &mut node.body)
            {
                let mut lines: Vec<Vec<u8>> = content.split_inclusive(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
                lines.insert(place.index(lines.len() + 1), line.as_bytes().to_vec());
                *content = lines.concat();
            }
        }
        Edit::Mode(at, mode) => {
            if let Some(node) =
                pick(&at).and_then(|path| tree.0.get_mut(&path)).filter(|n| matches!(n.body, Body::File(_)))
            {
                node.mode = mode;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn git_makes_the_same_of_a_diff_and_takes_it_back(
        nodes in prop::collection::vec((path(), node()), 0..12),
        edits in prop::collection::vec(edit(), 0..10),
    ) {
        let mut before = Tree::default();
        nodes.into_iter().for_each(|(path, node)| put(&mut before, &path, node));
        let mut after = before.clone();
        edits.into_iter().for_each(|edit| perform(&mut after, edit));
        assert_git_agrees(&before, &after);
    }
}
