//! A stage whose size is limited.

use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags};

use super::*;

const LIMIT: u64 = 4 * 1024 * 1024;

fn limited() -> Fixture {
    let options = |_: &Path| StageOptions { max_bytes: Some(LIMIT), ..StageOptions::default() };
    Fixture::with(
        |lower| {
            fs::write(lower.join("large"), vec![7; 8 << 20]).unwrap();
            fs::write(lower.join("small"), vec![7; 64 << 10]).unwrap();
            fs::create_dir(lower.join("d")).unwrap();
            fs::write(lower.join("d/f"), "f").unwrap();
        },
        options,
    )
}

/// Writes blocks to a new file until one is refused; the file and how much it took.
fn fill(f: &Fixture, name: &str) -> (OpenFile, u64) {
    let file = f.stage.open(f.create("", name, b""), Access::ReadWrite, false).unwrap();
    let mut at = 0;
    loop {
        match file.write_at(&[1; 64 << 10], at) {
            Ok(n) => at += n as u64,
            Err(e) => {
                assert_eq!(e, Errno::DQUOT);
                return (file, at);
            }
        }
        assert!(at <= LIMIT);
    }
}

#[test]
fn a_write_past_the_limit_is_refused_at_that_moment_and_the_rest_is_there() {
    let f = limited();
    assert!(f.stage.is_limited());
    let (file, written) = fill(&f, "big");
    assert!(written >= LIMIT - (256 << 10), "{written}");
    // What is there can be overwritten, read, and cut.
    assert_eq!(file.write_at(&[2; 64 << 10], 0), Ok(64 << 10));
    assert_eq!(file.write_at(&[2; 100], written - 100), Ok(100));
    assert_eq!(file.write_at(&[2; 64 << 10], written + (1 << 20)), Err(Errno::DQUOT));
    let stat = f.stage.statfs().unwrap();
    assert_eq!(stat.blocks * stat.fragment_size, LIMIT);
    assert!(stat.blocks_available * stat.fragment_size < 128 << 10);
    f.stage.set_attr(file.node(), &SetAttr { size: Some(written / 2), ..SetAttr::default() }).unwrap();
    assert!(f.stage.statfs().unwrap().blocks_available * stat.fragment_size > LIMIT / 3);
    assert_eq!(file.write_at(&[3; 64 << 10], written / 2), Ok(64 << 10));
    drop(file);
    let (_temp, changes) = f.seal();
    assert_eq!(changes.changes.len(), 1);
}

#[test]
fn copy_up_past_the_limit_is_refused_and_what_takes_nothing_is_not() {
    let f = limited();
    assert_eq!(f.open("large", Access::Write).err(), Some(Errno::DQUOT));
    let longer = SetAttr { size: Some(1 << 40), ..SetAttr::default() };
    assert_eq!(f.stage.set_attr(f.node("large").unwrap(), &longer).err(), Some(Errno::DQUOT));
    // Nothing of the attempts is left.
    assert!(fs::read_dir(f.dir().join("upper")).unwrap().next().is_none());
    assert_eq!(f.open("large", Access::Read).unwrap().read_at(&mut [0; 10], 0), Ok(10));
    // A hole at the end takes no space.
    f.stage.set_attr(f.node("small").unwrap(), &longer).unwrap();
    let cut = f.stage.open(f.node("large").unwrap(), Access::Write, true).unwrap();
    assert_eq!(cut.write_at(b"new", 0), Ok(3));
}

#[test]
fn space_ahead_and_copies_in_the_kernel_are_held_to_it() {
    let f = limited();
    let file = f.stage.open(f.create("", "new", b""), Access::ReadWrite, false).unwrap();
    let keep = FallocateFlags::KEEP_SIZE;
    assert_eq!(file.allocate(keep, 0, 1 << 40), Err(Errno::NOSPC));
    file.allocate(keep, 0, LIMIT / 2).unwrap();
    assert_eq!(file.allocate(FallocateFlags::empty(), 0, LIMIT), Err(Errno::NOSPC));
    file.allocate(keep, 0, LIMIT - (64 << 10)).unwrap();
    // What was taken ahead can be written, to the last byte.
    for at in (0..LIMIT - (64 << 10)).step_by(64 << 10) {
        assert_eq!(file.write_at(&[1; 64 << 10], at), Ok(64 << 10), "{at}");
    }
    assert_eq!(file.write_at(&[1; 64 << 10], LIMIT - (64 << 10)), Err(Errno::DQUOT));
    let from = f.open("large", Access::Read).unwrap();
    assert_eq!(from.copy_range(0, &file, 0, 8 << 20), Err(Errno::NOSPC));
    assert_eq!(from.copy_range(0, &file, 0, 1 << 20), Ok(1 << 20));
    // More than there is to copy is not asked for.
    assert_eq!(from.copy_range((8 << 20) - 10, &file, 0, usize::MAX >> 2), Ok(10));
    file.allocate(FallocateFlags::PUNCH_HOLE | keep, 0, LIMIT / 2).unwrap();
    file.allocate(keep, 0, LIMIT / 2).unwrap();
}

#[test]
fn a_full_stage_can_be_emptied_but_nothing_be_made_in_it() {
    let f = limited();
    let (file, written) = fill(&f, "big");
    for at in (written..).step_by(4096) {
        if file.write_at(&[1; 4096], at).is_err() {
            break;
        }
    }
    // The last bytes go with names.
    let refused = (0..10_000).find_map(|n| f.stage.make_dir(NodeId::ROOT, format!("d{n}").as_bytes(), &NEW).err());
    assert_eq!(refused, Some(Errno::DQUOT));
    assert_eq!(f.stage.create_file(NodeId::ROOT, b"more", &NEW).err(), Some(Errno::DQUOT));
    assert_eq!(f.stage.make_symlink(NodeId::ROOT, b"more", b"big", &NEW).err(), Some(Errno::DQUOT));
    let node = f.node("small").unwrap();
    assert_eq!(f.stage.link(node, NodeId::ROOT, b"more").err(), Some(Errno::DQUOT));
    assert_eq!(f.stage.set_xattr(node, b"user.a", b"b", XattrFlags::empty()), Err(Errno::DQUOT));
    // These take space of the journal alone.
    f.stage.set_attr(node, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    f.stage.rename(NodeId::ROOT, b"small", NodeId::ROOT, b"renamed", RenameFlags::empty()).unwrap();
    f.stage.unlink(f.node("d").unwrap(), b"f").unwrap();
    f.stage.unlink(NodeId::ROOT, b"big").unwrap();
    // It counts while it is open.
    assert_eq!(f.stage.create_file(NodeId::ROOT, b"more", &NEW).err(), Some(Errno::DQUOT));
    f.stage.forget(file.node(), 1);
    drop(file);
    f.stage.create_file(NodeId::ROOT, b"more", &NEW).unwrap();
    let (_, again) = fill(&f, "again");
    assert!(again > LIMIT / 2, "{again}");
}

#[test]
fn the_journal_of_changes_that_take_no_space_ends_too() {
    let f = limited();
    let (_file, _) = fill(&f, "big");
    let node = f.node("big").unwrap();
    let mode = |n: u32| SetAttr { mode: Some(n & 0o777), ..SetAttr::default() };
    let refused = (0..1_000_000).find_map(|n| f.stage.set_attr(node, &mode(n)).err());
    assert_eq!(refused, Some(Errno::DQUOT));
    assert!(fs::metadata(f.dir().join("journal")).unwrap().len() < LIMIT / 2);
}

#[test]
fn writers_at_once_do_not_pass_together() {
    let f = limited();
    let files: Vec<OpenFile> =
        (0..8).map(|n| f.stage.open(f.create("", &format!("f{n}"), b""), Access::ReadWrite, false).unwrap()).collect();
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| {
                for at in 0.. {
                    if let Err(e) = file.write_at(&[1; 32 << 10], at * (32 << 10)) {
                        assert_eq!(e, Errno::DQUOT);
                        break;
                    }
                }
            });
        }
    });
    let held: u64 = fs::read_dir(f.dir().join("upper"))
        .unwrap()
        .map(|e| std::os::unix::fs::MetadataExt::blocks(&e.unwrap().metadata().unwrap()) * 512)
        .sum();
    assert!(held <= LIMIT && held > LIMIT / 2, "{held}");
}
