//! Between the stage's types and those of the library that speaks with the kernel.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use pvisor_stage::{Attr, FileKind, SetTime};

/// Preferred size of a transfer, in bytes.
const BLOCK: u32 = 4096;

pub(super) fn errno(error: rustix::io::Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.raw_os_error())
}

/// Attributes under the number that the kernel knows the node by.
pub(super) fn attributes(attr: &Attr, number: u64) -> FileAttr {
    let ctime = time(attr.ctime);
    FileAttr {
        ino: INodeNo(number),
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime,
        crtime: ctime,
        kind: file_type(attr.kind),
        perm: u16::try_from(attr.mode & 0o7777).unwrap_or(0),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // The protocol has 32 bits for a device number.
        rdev: u32::try_from(attr.rdev).unwrap_or(0),
        blksize: BLOCK,
        flags: 0,
    }
}

/// Attributes that say only that a name leads nowhere.
pub(super) fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK,
        flags: 0,
    }
}

/// Attributes that say only what stands in a directory entry.
pub(super) fn listed(ino: u64, kind: u8) -> FileAttr {
    FileAttr { ino: INodeNo(ino), kind: entry_type(kind), ..absent() }
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// The type of a directory entry.
pub(super) fn entry_type(kind: u8) -> FileType {
    match kind {
        1 => FileType::NamedPipe,
        2 => FileType::CharDevice,
        4 => FileType::Directory,
        6 => FileType::BlockDevice,
        10 => FileType::Symlink,
        12 => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

fn time((seconds, nanos): (i64, u32)) -> SystemTime {
    let nanos = nanos.min(999_999_999);
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let start = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    start.and_then(|t| t.checked_add(Duration::new(0, nanos))).unwrap_or(UNIX_EPOCH)
}

/// A time to be set. The library takes the nanoseconds of a time before 1970 off instead of adding them; this is its
/// exact inverse.
pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(at) => match at.duration_since(UNIX_EPOCH) {
            Ok(since) => SetTime::At(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()),
            Err(before) => {
                let before = before.duration();
                SetTime::At(0i64.checked_sub_unsigned(before.as_secs()).unwrap_or(i64::MIN), before.subsec_nanos())
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn times_on_both_sides_of_1970_go_to_the_kernel_exactly(s in -1_000_000_000_000i64..1_000_000_000_000, n in 0u32..1_000_000_000) {
            let sent = time((s, n));
            let (seconds, nanos) = match sent.duration_since(UNIX_EPOCH) {
                Ok(since) => (i128::from(since.as_secs()), i128::from(since.subsec_nanos())),
                Err(e) => (-i128::from(e.duration().as_secs()), -i128::from(e.duration().subsec_nanos())),
            };
            prop_assert_eq!(seconds * 1_000_000_000 + nanos, i128::from(s) * 1_000_000_000 + i128::from(n));
        }
    }

    #[test]
    fn no_time_is_too_far() {
        for extreme in [i64::MIN, i64::MAX] {
            let _ = time((extreme, u32::MAX));
        }
        let early = UNIX_EPOCH - Duration::new(5, 300);
        assert_eq!(set_time(TimeOrNow::SpecificTime(early)), SetTime::At(-5, 300));
    }
}
