//! Reading, writing, copy-up.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, SeekFrom, XattrFlags};

use super::*;

#[test]
fn a_handle_opened_before_copy_up_sees_later_writes() {
    let f = Fixture::new(project);
    let old = f.open("readme", Access::Read).unwrap();
    assert_eq!(read(&old), b"read me");
    assert!(!old.is_staged());
    f.write("readme", 0, b"R");
    assert_eq!(read(&old), b"Read me");
    assert!(old.is_staged());
    assert_eq!(old.write_at(b"x", 0), Err(Errno::BADF));
    assert_eq!(fs::read(f.lower.join("readme")).unwrap(), b"read me");
    let write = f.open("readme", Access::Write).unwrap();
    assert_eq!(write.read_at(&mut [0; 4], 0), Err(Errno::BADF));
    assert_eq!(old.node(), write.node());
}

#[test]
fn an_unlinked_file_works_until_it_is_closed() {
    let f = Fixture::new(project);
    let new = f.create("", "temp", b"12345");
    let file = f.stage.open(new, Access::ReadWrite, false).unwrap();
    let lower = f.open("src/main", Access::Read).unwrap();
    let content = f.dir().join(format!("upper/{:x}", new.0));
    f.unlink("", "temp").unwrap();
    f.unlink("src", "main").unwrap();
    f.stage.forget(new, 1);
    assert_eq!((file.write_at(b"abc", 5), read(&file)), (Ok(3), b"12345abc".to_vec()));
    let attr = f.stage.attr(new).unwrap();
    assert_eq!((attr.nlink, attr.size), (0, 8));
    assert_eq!(f.stage.set_attr(new, &SetAttr { size: Some(2), ..Default::default() }).unwrap().size, 2);
    assert_eq!(read(&lower), b"main");
    assert_eq!(f.stage.attr(lower.node()).unwrap().nlink, 0);
    assert!(content.exists());
    drop(file);
    assert!(!content.exists());
    assert_eq!(f.stage.attr(new), Err(Errno::STALE));
}

#[test]
fn copy_up_keeps_times_owner_mode_and_attributes() {
    let fill = |lower: &Path| {
        project(lower);
        let path = lower.join("readme");
        rustix::fs::setxattr(&path, "user.note", b"kept", XattrFlags::empty()).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_times(fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH + Duration::new(1234, 5678))).unwrap();
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o4751)).unwrap();
    };
    let f = Fixture::new(fill);
    let before = f.attr("readme").unwrap();
    let file = f.open("readme", Access::ReadWrite).unwrap();
    let after = f.attr("readme").unwrap();
    assert_eq!((after.mtime, after.mode, after.size), ((1234, 5678), 0o4751, 7));
    assert_eq!((after.ino, after.uid, after.nlink), (before.ino, before.uid, before.nlink));
    assert_eq!(f.stage.get_xattr(file.node(), b"user.note").unwrap(), b"kept");
    assert_eq!((file.clear_privileges(), file.clear_privileges()), (Ok(true), Ok(false)));
    file.write_at(b"x", 0).unwrap();
    let after = f.attr("readme").unwrap();
    assert_eq!(after.mode, 0o751);
    assert!(after.mtime > (1_000_000_000, 0));
}

#[test]
fn times_are_set_before_and_after_copy_up() {
    let f = Fixture::new(project);
    let node = f.node("readme").unwrap();
    let set = |s| SetAttr { mtime: Some(SetTime::At(s, 9)), atime: Some(SetTime::At(s + 1, 8)), ..Default::default() };
    assert_eq!(f.stage.set_attr(node, &set(100)).unwrap().mtime, (100, 9));
    let file = f.open("readme", Access::Write).unwrap();
    let attr = f.stage.attr(node).unwrap();
    assert_eq!((attr.mtime, attr.atime), ((100, 9), (101, 8)));
    file.write_at(b"x", 0).unwrap();
    assert!(f.stage.attr(node).unwrap().mtime.0 > 100);
    assert_eq!(f.stage.set_attr(node, &set(200)).unwrap().mtime, (200, 9));
    let now = SetAttr { mtime: Some(SetTime::Now), ..Default::default() };
    assert!(f.stage.set_attr(node, &now).unwrap().mtime.0 > 200);
    // Only times of an otherwise untouched file: nothing to review.
    let other = f.node("src/main").unwrap();
    f.stage.set_attr(other, &set(300)).unwrap();
    drop(file);
    let (_temp, changes) = f.seal();
    assert_eq!(summary(&changes), ["readme: file 7 > file 7"]);
}

#[test]
fn truncating_copies_no_more_than_is_kept() {
    let fill = |lower: &Path| {
        fs::write(lower.join("big"), vec![7; 1 << 20]).unwrap();
        fs::write(lower.join("other"), vec![7; 1 << 20]).unwrap();
    };
    let f = Fixture::new(fill);
    let node = f.node("big").unwrap();
    let attr = f.stage.set_attr(node, &SetAttr { size: Some(10), ..Default::default() }).unwrap();
    assert_eq!((attr.size, f.read("big")), (10, vec![7; 10]));
    assert!(attr.mtime > fs::metadata(f.lower.join("big")).map(|m| (m.mtime(), m.mtime_nsec() as u32)).unwrap());
    let file = f.stage.open(f.node("other").unwrap(), Access::Write, true).unwrap();
    assert_eq!(f.attr("other").unwrap().size, 0);
    assert_eq!(file.write_at(b"x", 0), Ok(1));
    let huge = SetAttr { size: Some(u64::MAX), ..Default::default() };
    assert_eq!(f.stage.set_attr(node, &huge), Err(Errno::FBIG));
}

#[test]
fn holes_stay_holes() {
    let fill = |lower: &Path| {
        let file = fs::File::create(lower.join("sparse")).unwrap();
        file.set_len(8 << 30).unwrap();
        file.write_all_at(b"data", 1 << 30).unwrap();
    };
    let f = Fixture::new(fill);
    f.write("sparse", 8 << 30, b"!");
    let attr = f.attr("sparse").unwrap();
    assert_eq!(attr.size, (8 << 30) + 1);
    assert!(attr.blocks * 512 < 1 << 20, "{attr:?}");
    let file = f.open("sparse", Access::ReadWrite).unwrap();
    let mut bytes = [0; 4];
    file.read_at(&mut bytes, 1 << 30).unwrap();
    assert_eq!(&bytes, b"data");
    assert_eq!(file.seek_data_or_hole(SeekFrom::Data(0)), Ok(1 << 30));
    assert_eq!(file.seek_data_or_hole(SeekFrom::Data(1 << 40)), Err(Errno::NXIO));
    assert_eq!(file.seek_data_or_hole(SeekFrom::Start(0)), Err(Errno::INVAL));
    file.allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 1 << 30, 4096).unwrap();
    file.read_at(&mut bytes, 1 << 30).unwrap();
    assert_eq!(bytes, [0; 4]);
    assert_eq!(file.allocate(FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
    // Hashing gigabytes of zeros has its own test.
    f.unlink("", "sparse").unwrap();
}

#[test]
fn ranges_are_copied_between_files() {
    let f = Fixture::new(project);
    let to = f.create("", "copy", b"");
    let (from, to) = (f.open("readme", Access::Read).unwrap(), f.stage.open(to, Access::ReadWrite, false).unwrap());
    assert_eq!(from.copy_range(2, &to, 3, 100), Ok(5));
    assert_eq!(read(&to), b"\0\0\0ad me");
    assert_eq!(to.copy_range(0, &from, 0, 1), Err(Errno::BADF));
    assert_eq!(from.with_fd(|fd| crate::stat::Stat::of(fd)).unwrap().size, 7);
    to.sync(false).unwrap();
    from.sync(true).unwrap();
    f.stage.sync().unwrap();
}

#[test]
fn attributes_follow_the_flags() {
    let f = Fixture::new(project);
    let node = f.node("src").unwrap();
    let (create, replace) = (XattrFlags::CREATE, XattrFlags::REPLACE);
    assert_eq!(f.stage.set_xattr(node, b"user.a", b"1", replace), Err(Errno::NODATA));
    assert_eq!(f.stage.set_xattr(node, b"user.a", b"1", create), Ok(()));
    assert_eq!(f.stage.set_xattr(node, b"user.a", b"2", create), Err(Errno::EXIST));
    assert_eq!(f.stage.set_xattr(node, b"user.b", &[5; 65536], XattrFlags::empty()), Ok(()));
    assert_eq!(f.stage.set_xattr(node, b"user.c", &[5; 65537], XattrFlags::empty()), Err(Errno::TOOBIG));
    assert_eq!(f.stage.set_xattr(node, b"user.a", b"", XattrFlags::from_bits_retain(8)), Err(Errno::INVAL));
    assert_eq!(f.stage.list_xattr(node).unwrap(), [b"user.a", b"user.b"]);
    assert_eq!(f.stage.get_xattr(node, b"user.b").unwrap().len(), 65536);
    assert_eq!(f.stage.remove_xattr(node, b"user.a"), Ok(()));
    assert_eq!(f.stage.remove_xattr(node, b"user.a"), Err(Errno::NODATA));
    assert_eq!(f.stage.get_xattr(node, b"security.capability"), Err(Errno::NODATA));
    assert_eq!(f.stage.get_xattr(node, b"system.posix_acl_access"), Err(Errno::OPNOTSUPP));
    assert_eq!(f.stage.set_xattr(node, b"trusted.x", b"", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    assert_eq!(f.stage.set_xattr(node, b"user.", b"", XattrFlags::empty()), Err(Errno::INVAL));
    assert_eq!(f.stage.set_xattr(node, &[b'u'; 256], b"", XattrFlags::empty()), Err(Errno::RANGE));
    let link = f.node("link").unwrap();
    assert_eq!(f.stage.set_xattr(link, b"user.a", b"", XattrFlags::empty()), Err(Errno::PERM));
    let (_temp, changes) = f.seal();
    assert_eq!(summary(&changes), ["src: directory > directory"]);
}

#[test]
fn a_copy_up_under_way_is_waited_for_by_writers_of_that_file_alone() {
    let f = Fixture::new(project);
    let node = f.node("readme").unwrap();
    let old = f.stage.open(node, Access::Read, false).unwrap();
    let body = f.stage.shared.body(node).unwrap();
    let copying = body.copying.lock().unwrap();
    // Whatever waited for the copy would wait for ever here.
    assert_eq!(
        (read(&old), f.read("readme"), f.attr("readme").unwrap().size),
        (b"read me".to_vec(), b"read me".to_vec(), 7)
    );
    f.stage.set_attr(node, &SetAttr { mode: Some(0o600), ..Default::default() }).unwrap();
    f.write("src/main", 0, b"M");
    f.create("", "new", b"n");
    f.rename("", "readme", "src", "moved").unwrap();
    f.unlink("src/deep", "leaf").unwrap();
    assert_eq!(f.names("src"), ["deep", "main", "moved"]);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| f.write("src/moved", 0, b"R"));
        drop(copying);
        writer.join().unwrap();
    });
    assert_eq!((read(&old), f.attr("src/moved").unwrap().mode), (b"Read me".to_vec(), 0o600));
}

#[test]
fn one_copy_up_for_many_writers_and_no_wait_for_others() {
    let fill = |lower: &Path| {
        fs::write(lower.join("big"), vec![1; 32 << 20]).unwrap();
        fs::write(lower.join("small"), "s").unwrap();
    };
    let f = Fixture::new(fill);
    let node = f.node("big").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u8)
            .map(|n| {
                let f = &f;
                scope.spawn(move || {
                    let file = f.stage.open(node, Access::Write, false).unwrap();
                    file.write_at(&[n + 10; 1000], u64::from(n) * 1000).unwrap();
                })
            })
            .collect();
        let other = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert_eq!(f.read("small"), b"s");
                f.write("small", 0, b"s");
                assert_eq!(f.attr("big").unwrap().size, 32 << 20);
            }
        });
        writers.into_iter().for_each(|w| w.join().unwrap());
        done.store(true, Ordering::Relaxed);
        other.join().unwrap();
    });
    let mut head = vec![0; 5000];
    f.open("big", Access::Read).unwrap().read_at(&mut head, 0).unwrap();
    for (n, byte) in head.iter().enumerate() {
        let writer = u8::try_from(n / 1000).unwrap();
        assert_eq!(*byte, if writer < 4 { writer + 10 } else { 1 });
    }
    assert_eq!(fs::read_dir(f.dir().join("upper")).unwrap().count(), 2);
}

#[test]
fn a_file_that_is_made_open_is_the_file_that_others_find() {
    let f = Fixture::new(project);
    let new = NewNode { mode: 0o4755, uid: 7, gid: 8 };
    let (attr, file) = f.stage.create_open(NodeId::ROOT, b"made", &new).unwrap();
    assert_eq!((attr.node, attr.mode, attr.size), (file.node(), 0o4755, 0));
    assert_eq!((file.write_at(b"content", 0), file.clear_privileges()), (Ok(7), Ok(true)));
    let other = f.open("made", Access::Read).unwrap();
    let mut buffer = [0; 16];
    assert_eq!((other.read_at(&mut buffer, 0), &buffer[..7]), (Ok(7), &b"content"[..]));
    assert_eq!(f.attr("made").unwrap().mode, 0o755);
    // Open files outlive their names.
    f.stage.unlink(NodeId::ROOT, b"made").unwrap();
    f.stage.forget(attr.node, 1);
    drop(other);
    assert_eq!(file.read_at(&mut buffer, 3), Ok(4));
    assert_eq!(f.stage.create_open(NodeId::ROOT, b"readme", &new).err(), Some(Errno::EXIST));
}
