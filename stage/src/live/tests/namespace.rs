//! Names: making, taking away, moving. The random comparison with a plain directory has the rest.

use rustix::fs::RenameFlags;

use super::*;

#[test]
fn names_that_are_no_names() {
    let f = Fixture::new(project);
    let long = vec![b'x'; 256];
    assert_eq!(f.stage.lookup(NodeId::ROOT, &long), Err(Errno::NAMETOOLONG));
    assert_eq!(f.stage.create_file(NodeId::ROOT, &long, &NEW), Err(Errno::NAMETOOLONG));
    assert!(f.stage.create_file(NodeId::ROOT, &long[1..], &NEW).is_ok());
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
        assert_eq!(f.stage.lookup(NodeId::ROOT, bad), Err(Errno::INVAL));
        assert_eq!(f.stage.make_dir(NodeId::ROOT, bad, &NEW), Err(Errno::INVAL));
        assert_eq!(f.stage.rename(NodeId::ROOT, b"readme", NodeId::ROOT, bad, RenameFlags::empty()), Err(Errno::INVAL));
    }
    let name = b"not \xff utf-8\n";
    f.stage.create_file(NodeId::ROOT, name, &NEW).unwrap();
    let (_temp, changes) = f.seal();
    assert_eq!(changes.changes[0].path.as_bytes(), name);
}

#[test]
fn the_wrong_kind_of_parent_or_node() {
    let f = Fixture::new(project);
    let (file, dir) = (f.node("readme").unwrap(), f.node("src").unwrap());
    assert_eq!(f.stage.lookup(file, b"x"), Err(Errno::NOTDIR));
    assert_eq!(f.stage.create_file(file, b"x", &NEW), Err(Errno::NOTDIR));
    assert_eq!(f.stage.read_dir(file), Err(Errno::NOTDIR));
    assert_eq!(f.stage.parent(file), Err(Errno::NOTDIR));
    assert_eq!(f.stage.read_link(file), Err(Errno::INVAL));
    assert_eq!(f.stage.open(dir, Access::Read, false).unwrap_err(), Errno::ISDIR);
    assert_eq!(f.open("link", Access::Read).unwrap_err(), Errno::LOOP);
    assert_eq!(f.stage.set_attr(dir, &SetAttr { size: Some(0), ..Default::default() }), Err(Errno::ISDIR));
    assert_eq!(f.stage.attr(NodeId(999)), Err(Errno::STALE));
    assert_eq!(f.stage.make_node(dir, b"d", FileKind::Directory, 0, &NEW), Err(Errno::PERM));
    assert_eq!(f.stage.make_symlink(dir, b"d", b"", &NEW), Err(Errno::NOENT));
    assert_eq!(f.stage.make_symlink(dir, b"d", &[b'x'; 4096], &NEW), Err(Errno::NAMETOOLONG));
    let odd = RenameFlags::WHITEOUT;
    assert_eq!(f.stage.rename(dir, b"main", dir, b"x", odd), Err(Errno::INVAL));
    let both = RenameFlags::EXCHANGE | RenameFlags::NOREPLACE;
    assert_eq!(f.stage.rename(dir, b"main", dir, b"deep", both), Err(Errno::INVAL));
}

#[test]
fn a_removed_directory_takes_nothing() {
    let f = Fixture::new(project);
    let deep = f.node("src/deep").unwrap();
    f.unlink("src/deep", "leaf").unwrap();
    f.stage.rmdir(f.node("src").unwrap(), b"deep").unwrap();
    assert_eq!(f.stage.attr(deep).unwrap().nlink, 0);
    assert_eq!(f.stage.create_file(deep, b"x", &NEW), Err(Errno::NOENT));
    assert_eq!(f.stage.lookup(deep, b"leaf"), Err(Errno::NOENT));
    assert_eq!(f.stage.read_dir(deep), Err(Errno::NOENT));
    assert_eq!(f.rename("", "readme", "src", "deep"), Ok(()));
    assert_eq!(f.stage.rename(NodeId::ROOT, b"link", deep, b"x", RenameFlags::empty()), Err(Errno::NOENT));
}

#[test]
fn new_nodes_inherit_from_setgid_directories() {
    let f = Fixture::new(project);
    let dir = f.stage.make_dir(NodeId::ROOT, b"shared", &NewNode { mode: 0o2775, uid: 1, gid: 7 }).unwrap();
    assert_eq!((dir.mode, dir.uid, dir.gid), (0o2775, 1, 7));
    let file = f.stage.create_file(dir.node, b"f", &NewNode { mode: 0o640, uid: 2, gid: 2 }).unwrap();
    assert_eq!((file.mode, file.uid, file.gid), (0o640, 2, 7));
    let sub = f.stage.make_dir(dir.node, b"d", &NewNode { mode: 0o755, uid: 2, gid: 2 }).unwrap();
    assert_eq!((sub.mode, sub.gid, sub.nlink), (0o2755, 7, 2));
    assert_eq!(f.stage.attr(dir.node).unwrap().nlink, 3);
    let device = f.stage.make_node(dir.node, b"n", FileKind::CharDevice, 0x0103, &NEW).unwrap();
    assert_eq!((device.kind, device.rdev), (FileKind::CharDevice, 0x0103));
}

#[test]
fn links_count_names() {
    let f = Fixture::new(project);
    let node = f.create("", "one", b"content");
    f.stage.link(node, f.node("src").unwrap(), b"two").unwrap();
    assert_eq!(f.attr("src/two").unwrap().nlink, 2);
    f.unlink("", "one").unwrap();
    f.unlink("src", "two").unwrap();
    assert_eq!(f.stage.attr(node).unwrap().nlink, 0);
    assert_eq!(f.stage.link(node, NodeId::ROOT, b"back"), Err(Errno::NOENT));
    assert_eq!(f.stage.link(NodeId::ROOT, NodeId::ROOT, b"root"), Err(Errno::PERM));
    let (_temp, changes) = f.seal();
    assert!(changes.changes.is_empty(), "made and removed: {:?}", summary(&changes));
}

#[test]
fn a_temporary_name_leaves_nothing_behind() {
    // What sed -i and editors do.
    let f = Fixture::new(project);
    f.create("", "sedXYZ", b"new text");
    f.rename("", "sedXYZ", "", "readme").unwrap();
    f.create("", "new", b"1");
    f.create("", "sedABC", b"2");
    f.rename("", "sedABC", "", "new").unwrap();
    let (_temp, changes) = f.seal();
    assert_eq!(summary(&changes), ["new: - > file 1", "readme: file 7 > file 8"]);
}

#[test]
fn a_moved_tree_is_listed_path_by_path() {
    let f = Fixture::new(project);
    f.rename("", "src", "", "lib").unwrap();
    assert_eq!(f.node("src"), Err(Errno::NOENT));
    assert_eq!((f.read("lib/main"), f.read("lib/deep/leaf")), (b"main".to_vec(), b"leaf".to_vec()));
    let (temp, changes) = f.seal();
    assert_eq!(
        summary(&changes),
        [
            "lib: - > directory",
            "lib/deep: - > directory",
            "lib/deep/leaf: - > file 4",
            "lib/main: - > file 4",
            "src: directory > -",
            "src/deep: directory > -",
            "src/deep/leaf: file 4 > -",
            "src/main: file 4 > -",
        ]
    );
    for change in &changes.changes {
        if let Some(object) = change.after.as_ref().and_then(|a| a.object) {
            let content = fs::read(temp.path().join(format!("stage/upper/{:x}", object.0))).unwrap();
            assert_eq!(content, change.path.split().unwrap().1, "{change:?}");
        }
    }
}

#[test]
fn moved_away_and_back_is_no_change() {
    let f = Fixture::new(project);
    f.rename("", "src", "", "lib").unwrap();
    f.rename("", "lib", "", "src").unwrap();
    f.rename("src", "main", "", "x").unwrap();
    f.rename("", "x", "src", "main").unwrap();
    let (_temp, changes) = f.seal();
    assert!(changes.changes.is_empty(), "{:?}", summary(&changes));
}

#[test]
fn a_vanished_file_is_not_in_the_way() {
    let f = Fixture::new(project);
    let mode = SetAttr { mode: Some(0o600), ..Default::default() };
    f.stage.set_attr(f.node("src/deep/leaf").unwrap(), &mode).unwrap();
    fs::remove_file(f.lower.join("src/deep/leaf")).unwrap();
    assert!(f.names("src/deep").is_empty());
    assert_eq!(f.node("src/deep/leaf"), Err(Errno::NOENT));
    f.stage.rmdir(f.node("src").unwrap(), b"deep").unwrap();
    let (_temp, changes) = f.seal();
    assert_eq!(summary(&changes), ["src/deep: directory > -", "src/deep/leaf: ? > -"]);
}
