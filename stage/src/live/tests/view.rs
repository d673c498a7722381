//! What shows of the lower.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::private_mounts::{mount_tmpfs, with_private_mounts};

#[test]
fn edits_by_the_person_show_at_once() {
    let f = Fixture::new(project);
    assert_eq!(f.read("readme"), b"read me");
    fs::write(f.lower.join("readme"), "edited").unwrap();
    assert_eq!((f.read("readme"), f.attr("readme").unwrap().size), (b"edited".to_vec(), 6));
    fs::write(f.lower.join("src/new"), "").unwrap();
    fs::remove_file(f.lower.join("link")).unwrap();
    assert_eq!(f.names("src"), ["deep", "main", "new"]);
    assert_eq!(f.names(""), ["readme", "src"]);
    assert_eq!(f.attr("link"), Err(Errno::NOENT));
}

#[test]
fn a_file_replaced_by_the_person_is_another_node() {
    let f = Fixture::new(project);
    let old = f.node("readme").unwrap();
    let open = f.open("readme", Access::Read).unwrap();
    fs::write(f.lower.join("temp"), "saved by an editor").unwrap();
    fs::rename(f.lower.join("temp"), f.lower.join("readme")).unwrap();
    let new = f.node("readme").unwrap();
    assert_ne!(old, new);
    assert_eq!(f.read("readme"), b"saved by an editor");
    assert_eq!(read(&open), b"read me");
    assert_eq!(f.stage.attr(old), Err(Errno::STALE));
    assert_eq!(f.stage.open(old, Access::Read, false).unwrap_err(), Errno::STALE);
    fs::remove_file(f.lower.join("readme")).unwrap();
    fs::create_dir(f.lower.join("readme")).unwrap();
    assert_eq!(f.attr("readme").unwrap().kind, FileKind::Directory);
    assert_eq!(f.stage.set_attr(new, &SetAttr { mode: Some(0), ..Default::default() }), Err(Errno::STALE));
}

#[test]
fn inode_numbers_are_those_of_the_lower_and_stay() {
    let f = Fixture::new(project);
    let ino = fs::metadata(f.lower.join("src/main")).unwrap().ino();
    assert_eq!(f.attr("src/main").unwrap().ino, ino);
    f.write("src/main", 0, b"changed");
    f.rename("src", "main", "", "moved").unwrap();
    assert_eq!(f.attr("moved").unwrap().ino, ino);
    let entries = f.stage.read_dir(NodeId::ROOT).unwrap();
    assert_eq!(entries.iter().find(|e| e.name == b"moved").unwrap().ino, ino);
    let new = f.create("", "new", b"");
    assert_eq!(f.stage.attr(new).unwrap().ino, (1 << 48) + new.0);
}

#[test]
fn hidden_paths_are_absent_but_names_are_free() {
    let hidden = |lower: &Path| {
        let pattern = |tail: &str| format!("{}/{tail}", lower.display());
        StageOptions { hidden: vec![pattern("**/.secret"), pattern("src/deep")], ..Default::default() }
    };
    let fill = |lower: &Path| {
        project(lower);
        fs::write(lower.join(".secret"), "key").unwrap();
        fs::write(lower.join("src/.secret"), "key").unwrap();
    };
    let f = Fixture::with(fill, hidden);
    assert_eq!(
        (f.names(""), f.names("src")),
        (vec!["link".into(), "readme".into(), "src".into()], vec!["main".into()])
    );
    assert_eq!(f.node("src/.secret"), Err(Errno::NOENT));
    assert_eq!(f.unlink("src", ".secret"), Err(Errno::NOENT));
    f.create("src", ".secret", b"mine");
    assert_eq!(f.read("src/.secret"), b"mine");
    f.unlink("src", ".secret").unwrap();
    assert_eq!(f.node("src/.secret"), Err(Errno::NOENT));
    f.unlink("src", "main").unwrap();
    assert_eq!(f.stage.rmdir(NodeId::ROOT, b"src"), Err(Errno::NOTEMPTY));
    // What is hidden does not move along either.
    f.rename("", "src", "", "moved").unwrap();
    assert!(f.names("moved").is_empty());
    f.create("moved", ".secret", b"another");
    let (_temp, changes) = f.seal();
    assert_eq!(
        summary(&changes),
        ["moved: - > directory", "moved/.secret: - > file 7", "src: directory > -", "src/main: file 4 > -"]
    );
}

#[test]
fn patterns_stay_within_a_component() {
    let star = |lower: &Path| StageOptions { hidden: vec![format!("{}/*main", lower.display())], ..Default::default() };
    let f = Fixture::with(project, star);
    assert!(f.node("src/main").is_ok());
    let bad = StageOptions { hidden: vec!["[".into()], ..Default::default() };
    let error = Stage::create(&f.temp.path().join("other"), &f.lower, bad).unwrap_err();
    assert!(matches!(error, OpenError::Pattern(_)), "{error}");
    assert!(!f.temp.path().join("other").exists());
}

#[test]
fn boundaries_are_empty_and_stay() {
    let bound = |lower: &Path| StageOptions { boundaries: vec![lower.join("src/deep")], ..Default::default() };
    let f = Fixture::with(project, bound);
    assert!(f.names("src/deep").is_empty());
    assert_eq!(f.attr("src/deep").unwrap().nlink, 2);
    assert_eq!(f.node("src/deep/leaf"), Err(Errno::NOENT));
    f.create("src/deep", "leaf", b"own");
    assert_eq!(f.names("src/deep"), ["leaf"]);
    f.unlink("src/deep", "leaf").unwrap();
    let src = f.node("src").unwrap();
    assert_eq!(f.stage.rmdir(src, b"deep"), Err(Errno::BUSY));
    assert_eq!(f.rename("src", "deep", "", "x"), Err(Errno::BUSY));
    assert_eq!(f.rename("", "src", "", "x"), Err(Errno::BUSY));
}

#[test]
fn it_works_without_a_proc_file_system() {
    with_private_mounts(without_proc);
}

fn without_proc() {
    mount_tmpfs(Path::new("/proc"), "");
    let f = Fixture::new(project);
    assert_eq!(f.read("src/deep/leaf"), b"leaf");
    f.write("readme", 0, b"R");
    let (_temp, changes) = f.seal();
    assert_eq!(summary(&changes), ["readme: file 7 > file 7"]);
}

#[test]
fn mounts_below_the_lower_are_followed() {
    with_private_mounts(mount_below);
}

fn mount_below() {
    let f = Fixture::new(project);
    let at = f.lower.join("src/deep");
    mount_tmpfs(&at, "");
    fs::write(at.join("mounted"), "m").unwrap();
    assert_eq!(f.names("src/deep"), ["mounted"]);
    let attr = f.attr("src/deep/mounted").unwrap();
    assert!(attr.ino > 1 << 49, "{attr:?}");
    let listed = f.stage.read_dir(f.node("src/deep").unwrap()).unwrap();
    assert_eq!(listed[0].ino, attr.ino);
    f.write("src/deep/mounted", 1, b"ore");
    assert_eq!(f.attr("src/deep/mounted").unwrap().ino, attr.ino);
    assert_eq!((f.read("src/deep/mounted"), fs::read(at.join("mounted")).unwrap()), (b"more".to_vec(), b"m".to_vec()));
}

#[test]
fn a_hard_link_survives_the_loss_of_a_name() {
    let fill = |lower: &Path| {
        project(lower);
        fs::hard_link(lower.join("readme"), lower.join("src/too")).unwrap();
    };
    let f = Fixture::new(fill);
    let node = f.node("readme").unwrap();
    assert_eq!(f.node("src/too"), Ok(node));
    f.stage.set_attr(node, &SetAttr { mode: Some(0o600), ..Default::default() }).unwrap();
    fs::remove_file(f.lower.join("src/too")).unwrap();
    assert_eq!((f.attr("readme").unwrap().mode, f.read("readme")), (0o600, b"read me".to_vec()));
    assert_eq!(f.names(""), ["link", "readme", "src"]);
    assert_eq!(f.names("src"), ["deep", "main"]);
    f.write("readme", 0, b"R");
    assert_eq!(f.read("readme"), b"Read me");
}

#[test]
fn special_files_show_but_are_not_opened() {
    let fill = |lower: &Path| {
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, lower.join("pipe"), fifo, rustix::fs::Mode::from(0o600), 0).unwrap();
        std::os::unix::net::UnixListener::bind(lower.join("socket")).unwrap();
    };
    let f = Fixture::new(fill);
    let pipe = f.attr("pipe").unwrap();
    assert_eq!((pipe.kind, f.attr("socket").unwrap().kind), (FileKind::Fifo, FileKind::Socket));
    assert_eq!(f.open("pipe", Access::Read).unwrap_err(), Errno::NXIO);
    assert_eq!(f.open("socket", Access::Write).unwrap_err(), Errno::NXIO);
    assert_eq!(f.stage.set_attr(pipe.node, &SetAttr { size: Some(1), ..Default::default() }), Err(Errno::INVAL));
    assert_eq!(f.stage.set_xattr(pipe.node, b"user.x", b"", rustix::fs::XattrFlags::empty()), Err(Errno::PERM));
    assert_eq!(f.stage.list_xattr(pipe.node), Ok(vec![]));
    f.rename("", "pipe", "", "moved").unwrap();
    f.unlink("", "socket").unwrap();
    let (_temp, changes) = f.seal();
    assert_eq!(summary(&changes), ["moved: - > fifo", "pipe: fifo > -", "socket: socket > -"]);
}

#[test]
fn paths_longer_than_the_kernel_takes() {
    let name = "n".repeat(200);
    let fill = |lower: &Path| {
        let mut dir = rustix::fs::openat(rustix::fs::CWD, lower, dir_flags(), rustix::fs::Mode::empty()).unwrap();
        for _ in 0..45 {
            rustix::fs::mkdirat(&dir, &name, rustix::fs::Mode::from(0o755)).unwrap();
            dir = rustix::fs::openat(&dir, &name, dir_flags(), rustix::fs::Mode::empty()).unwrap();
        }
        let leaf = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
        let leaf = rustix::fs::openat(&dir, "leaf", leaf, rustix::fs::Mode::from(0o644)).unwrap();
        rustix::io::write(&leaf, b"far away").unwrap();
    };
    let f = Fixture::new(fill);
    let path = format!("{}leaf", format!("{name}/").repeat(45));
    assert_eq!(f.read(&path), b"far away");
    f.write(&path, 0, b"F");
    assert_eq!(f.read(&path), b"Far away");
    let (_temp, changes) = f.seal();
    assert_eq!(changes.changes.len(), 1);
}

fn dir_flags() -> rustix::fs::OFlags {
    rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY
}

#[test]
fn a_stage_must_not_show_itself() {
    let f = Fixture::new(project);
    let make = |dir: &Path, lower: &Path, options| Stage::create(dir, lower, options);
    let inside = make(&f.lower.join("stage"), &f.lower, StageOptions::default()).unwrap_err();
    assert!(matches!(inside, OpenError::Inside { .. }), "{inside}");
    assert!(!f.lower.join("stage").exists());
    let hidden = StageOptions { hidden: vec![format!("{}/stage", f.lower.display())], ..Default::default() };
    let covered = make(&f.lower.join("stage"), &f.lower, hidden).unwrap();
    assert_eq!(covered.lookup(NodeId::ROOT, b"stage"), Err(Errno::NOENT));
    let around = make(f.temp.path(), &f.lower, StageOptions::default()).unwrap_err();
    assert!(matches!(around, OpenError::NotEmpty(_)), "{around}");
    let busy = make(&f.dir(), &f.lower, StageOptions::default()).unwrap_err();
    assert!(matches!(busy, OpenError::InUse(_)), "{busy}");
    let none = make(&f.temp.path().join("s"), &f.temp.path().join("nowhere"), StageOptions::default()).unwrap_err();
    assert!(matches!(none, OpenError::Io { .. }), "{none}");
    let file = make(&f.temp.path().join("s"), &f.lower.join("readme"), StageOptions::default()).unwrap_err();
    assert!(matches!(file, OpenError::NotDirectory(_)), "{file}");
}
