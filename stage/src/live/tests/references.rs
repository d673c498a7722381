//! Node ids over a restart.

use super::*;

#[test]
fn node_ids_mean_the_same_in_another_process() {
    let f = Fixture::new(project);
    let paths = ["src", "src/deep", "src/deep/leaf", "readme", "link"];
    let nodes = paths.map(|p| f.node(p).unwrap());
    f.stage.forget(nodes[3], 1);
    let table = f.stage.capture_references();
    let other = Stage::create(&f.temp.path().join("other"), &f.lower, StageOptions::default()).unwrap();
    other.restore_references(&table).unwrap();
    for (path, node) in paths.iter().zip(nodes) {
        match *path {
            "readme" => assert_eq!(other.attr(node), Err(Errno::STALE)),
            path => assert_eq!(other.attr(node).unwrap().ino, f.attr(path).unwrap().ino),
        }
    }
    assert_eq!(other.parent(nodes[1]).unwrap(), nodes[0]);
    assert_eq!(other.lookup(nodes[0], b"deep").unwrap().node, nodes[1]);
    let new = other.create_file(nodes[1], b"new", &NEW).unwrap();
    assert!(nodes.iter().all(|n| *n < new.node));
    assert_eq!(other.restore_references(&table), Err(ReferencesError::InUse));
    // All given back: nothing is left of the lower's nodes that were only looked at.
    for _ in 0..4 {
        nodes.iter().for_each(|n| other.forget(*n, 10));
    }
    assert_eq!(other.attr(nodes[2]), Err(Errno::STALE));
}

#[test]
fn damaged_tables_are_refused() {
    let f = Fixture::new(project);
    assert!(f.node("src/deep/leaf").is_ok() && f.node("readme").is_ok());
    let table = f.stage.capture_references();
    let fresh = |n: usize| {
        let dir = f.temp.path().join(format!("other{n}"));
        Stage::create(&dir, &f.lower, StageOptions::default()).unwrap()
    };
    for cut in 0..table.len() {
        let bytes = &table[..cut];
        assert!(fresh(cut).restore_references(bytes).is_err(), "cut at {cut}");
        std::fs::remove_dir_all(f.temp.path().join(format!("other{cut}"))).unwrap();
    }
    for at in 0..table.len() {
        let mut bytes = table.clone();
        bytes[at] ^= 0x55;
        // Some are tables as well; none may panic.
        let _ = fresh(at).restore_references(&bytes);
        std::fs::remove_dir_all(f.temp.path().join(format!("other{at}"))).unwrap();
    }
    fs::remove_file(f.lower.join("readme")).unwrap();
    assert!(matches!(fresh(0).restore_references(&table), Err(ReferencesError::Vanished(_))));
}

#[test]
fn what_is_only_looked_at_is_forgotten() {
    let f = Fixture::new(project);
    let nodes = ["src/deep/leaf", "src/deep", "src"].map(|p| f.node(p).unwrap());
    let known = || f.stage.shared.state().tree.nodes.len();
    assert_eq!(known(), 4);
    for node in nodes {
        f.stage.forget(node, 20);
    }
    assert_eq!(known(), 1);
    f.unlink("src/deep", "leaf").unwrap();
    for path in ["src/deep", "src"] {
        let node = f.node(path).unwrap();
        f.stage.forget(node, 20);
    }
    assert_eq!(known(), 3, "the two directories above a whiteout stay, the deleted file does not");
}
