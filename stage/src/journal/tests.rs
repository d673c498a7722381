//! Writing a journal and reading it back, whole and broken.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::FileKind;
use crate::layout::JOURNAL;
use crate::stat::Stat;

fn header() -> Header {
    let root = Stat {
        kind: FileKind::Directory,
        dev: 1,
        ino: 2,
        nlink: 2,
        mode: 0o755,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 4096,
        blocks: 8,
        atime: (1, 2),
        mtime: (3, 4),
        ctime: (5, 6),
        btime: (7, 8),
    };
    Header {
        lower: b"/p".to_vec(),
        root,
        boot: vec![],
        hidden: vec!["/p/*".into()],
        boundaries: vec![b"/p/b".to_vec()],
    }
}

fn record(n: u64) -> Record {
    match n % 3 {
        0 => Record::Content { node: n },
        1 => Record::Remove { parent: n, name: vec![b'x'; 20], at: (n.cast_signed(), 1) },
        _ => Record::SetXattr { node: n, name: b"user.x".to_vec(), value: vec![7; 1000], at: (-1, 999_999_999) },
    }
}

/// Records until the end or the first error, and where that was.
fn read(dir: &Path) -> (Vec<Record>, Result<(), Tail>, u64) {
    let mut frames = Frames::open(dir).unwrap();
    let mut records = Vec::new();
    let end = loop {
        match frames.next() {
            Ok(Some(record)) => records.push(record),
            Ok(None) => break Ok(()),
            Err(tail) => break Err(tail),
        }
    };
    (records, end, frames.at())
}

fn write(dir: &Path, count: u64) -> Vec<Record> {
    let mut journal = Journal::create(dir, &header()).unwrap();
    let records: Vec<_> = (0..count).map(record).collect();
    records.iter().for_each(|r| journal.append(r).unwrap());
    records
}

#[test]
fn records_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let records = write(dir.path(), 2000);
    let (found, end, at) = read(dir.path());
    assert_eq!(found, records);
    assert!(end.is_ok());
    assert_eq!(at, fs::metadata(dir.path().join(JOURNAL)).unwrap().len());
    assert_eq!(*Frames::open(dir.path()).unwrap().header(), header());
}

#[test]
fn a_torn_tail_is_told_from_damage_and_can_be_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let records = write(dir.path(), 3);
    let path = dir.path().join(JOURNAL);
    let whole = fs::read(&path).unwrap();
    let (_, _, full) = read(dir.path());
    let mut starts = vec![];
    for cut in (0..whole.len()).rev() {
        fs::write(&path, &whole[..cut]).unwrap();
        let Ok(_) = Frames::open(dir.path()) else { continue };
        let (found, end, at) = read(dir.path());
        assert_eq!(found, records[..found.len()]);
        assert!(at <= cut as u64);
        match end {
            Ok(()) => starts.push(at),
            Err(Tail::Torn) => assert!(at < cut as u64),
            Err(Tail::Error(e)) => panic!("cut at {cut}: {e}"),
        }
    }
    assert_eq!(starts.len(), 3);
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let mut journal = Journal::resume(dir.path(), starts[0]).unwrap();
    journal.append(&records[2]).unwrap();
    assert_eq!(read(dir.path()).0, records);
    assert_eq!(fs::metadata(&path).unwrap().len(), full);
}

#[test]
fn every_changed_byte_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 3);
    let path = dir.path().join(JOURNAL);
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        for flip in [1, 0x80] {
            let mut broken = whole.clone();
            broken[at] ^= flip;
            fs::write(&path, broken).unwrap();
            // Minor versions are meant to be ignored, but the checksum has them too.
            let Ok(_) = Frames::open(dir.path()) else { continue };
            assert!(read(dir.path()).1.is_err(), "byte {at}");
        }
    }
}

#[test]
fn impossible_lengths_are_refused_before_anything_is_allocated() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 0);
    let path = dir.path().join(JOURNAL);
    let whole = fs::read(&path).unwrap();
    for length in [0_u32, 8 * 1024 * 1024 + 1, u32::MAX] {
        let mut more = whole.clone();
        more.extend_from_slice(&length.to_le_bytes());
        more.extend_from_slice(&[0; 100]);
        fs::write(&path, more).unwrap();
        assert!(matches!(read(dir.path()).1, Err(Tail::Error(JournalError::Frame { .. }))), "{length}");
    }
}

#[test]
fn a_record_that_is_too_long_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::create(dir.path(), &header()).unwrap();
    let long = Record::SetXattr { node: 1, name: vec![], value: vec![0; MAX_RECORD + 1], at: (0, 0) };
    assert_eq!(journal.append(&long), Err(crate::Errno::TOOBIG));
    journal.append(&record(0)).unwrap();
    assert_eq!(read(dir.path()).0, [record(0)]);
}

#[test]
fn nothing_follows_a_torn_frame_that_stays() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 1);
    let path = dir.path().join(JOURNAL);
    // Neither written nor cut.
    let mut journal = Journal::over(fs::File::open(&path).unwrap(), 10);
    assert_eq!(journal.append(&record(0)), Err(crate::Errno::IO));
    assert_eq!(journal.append(&record(0)), Err(crate::Errno::IO));
    assert!(journal.is_broken());
}

#[test]
fn a_void_journal_takes_everything() {
    let mut journal = Journal::void();
    assert_eq!(journal.append(&record(1)), Ok(()));
    assert!(journal.file().is_none());
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), keep in any::<bool>()) {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 0);
        let path = dir.path().join(JOURNAL);
        let mut whole = if keep { fs::read(&path).unwrap() } else { vec![] };
        whole.extend_from_slice(&bytes);
        fs::write(&path, whole).unwrap();
        if Frames::open(dir.path()).is_ok() {
            let _ = read(dir.path());
        }
    }
}
