//! The live limit of a stage's size: what its contents and its journal occupy, counted while they grow.
//!
//! A change that takes space asks for a [`Grant`] of what it can take at the most, does its work, and then says what
//! the content really occupies. Grants that are out count as taken, so that writers at once don't pass together.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{SeekFrom, fstat, seek};

use super::NodeId;
use crate::Errno;
use crate::journal::Record;

/// Unit in which file systems give out space, in bytes.
const BLOCK: u64 = 4096;
/// What changes that take no space of their own, such as removals, may add to the journal past the limit: a fraction
/// of the limit, and at least this many bytes. Without it a full stage could not be emptied.
const MARGIN_SHARE: u64 = 8;
const MARGIN: u64 = 1024 * 1024;
/// How long a change waits for space: what was removed just now is given back when the kernel says that nobody has it
/// open, which it says a moment later.
const PATIENCE: Duration = Duration::from_millis(50);
/// Most ranges taken ahead that are remembered of one content.
const MAX_AHEAD: usize = 64;

/// The limit and what is taken of it, in bytes.
#[derive(Debug)]
pub(super) struct Quota {
    limit: u64,
    taken: Mutex<Taken>,
    given_back: Condvar,
}

#[derive(Debug, Default)]
struct Taken {
    /// What each content occupies.
    contents: HashMap<NodeId, u64>,
    /// Sum of these.
    sum: u64,
    /// Ranges that were taken ahead of being written: file systems show them as holes.
    ahead: HashMap<NodeId, Vec<Range<u64>>>,
    journal: u64,
    granted: u64,
}

impl Taken {
    fn all(&self) -> u64 {
        self.sum.saturating_add(self.journal).saturating_add(self.granted)
    }

    fn leaves(&self, limit: u64, bytes: u64) -> bool {
        self.all().checked_add(bytes).is_some_and(|all| all <= limit)
    }
}

/// Space that a change may take. Given back when it is dropped: by then the content has been counted.
#[derive(Debug)]
pub(super) struct Grant<'a> {
    quota: &'a Quota,
    bytes: u64,
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        self.quota.taken().granted -= self.bytes;
    }
}

impl Quota {
    pub fn new(limit: u64) -> Self {
        Self { limit, taken: Mutex::default(), given_back: Condvar::new() }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Space for `bytes` more, if it is there now.
    fn grant_now(&self, bytes: u64) -> Option<Grant<'_>> {
        let mut taken = self.taken();
        if !taken.leaves(self.limit, bytes) {
            return None;
        }
        taken.granted += bytes;
        Some(Grant { quota: self, bytes })
    }

    /// Space for `bytes` more.
    ///
    /// # Errors
    /// `DQUOT`.
    pub fn grant(&self, bytes: u64) -> Result<Grant<'_>, Errno> {
        if let Some(grant) = self.grant_now(bytes) {
            return Ok(grant);
        }
        let full = |taken: &mut Taken| !taken.leaves(self.limit, bytes);
        // Nothing that is given back would be enough for more than the limit.
        let patience = if bytes > self.limit { Duration::ZERO } else { PATIENCE };
        drop(self.given_back.wait_timeout_while(self.taken(), patience, full));
        self.grant_now(bytes).ok_or(Errno::DQUOT)
    }

    /// Space for what a change of `length` bytes from `offset` on can take in a content. Where that is too much, the
    /// holes in the range are looked at: what is there already costs nothing to overwrite.
    ///
    /// # Errors
    /// `DQUOT`.
    pub fn grant_range(&self, id: NodeId, file: &File, offset: u64, length: u64) -> Result<Grant<'_>, Errno> {
        let range = blocks(offset, length);
        if let Some(grant) = self.grant_now(range.end - range.start) {
            return Ok(grant);
        }
        let ahead = self.taken().ahead.get(&id).cloned().unwrap_or_default();
        let open = |hole: Range<u64>| hole.end - hole.start - overlap(&ahead, &hole);
        self.grant(holes(file, range).into_iter().map(open).sum())
    }

    /// Space was taken ahead.
    pub fn take_ahead(&self, id: NodeId, offset: u64, length: u64) {
        let mut taken = self.taken();
        let ranges = taken.ahead.entry(id).or_default();
        let mut range = blocks(offset, length);
        ranges.retain(|r| {
            let apart = r.end < range.start || range.end < r.start;
            if !apart {
                range = r.start.min(range.start)..r.end.max(range.end);
            }
            apart
        });
        ranges.push(range);
        // What is forgotten is paid for twice.
        let surplus = ranges.len().saturating_sub(MAX_AHEAD);
        ranges.drain(..surplus);
    }

    /// Space that was taken ahead may have been given back.
    pub fn give_back(&self, id: NodeId) {
        self.taken().ahead.remove(&id);
    }

    /// Counts what a content occupies now.
    pub fn count(&self, id: NodeId, file: &File) {
        // Under the lock, so that the last to count is the last to have looked.
        let mut taken = self.taken();
        let Ok(stat) = fstat(file) else { return };
        let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        let before = taken.contents.insert(id, bytes).unwrap_or(0);
        taken.sum = taken.sum - before + bytes;
    }

    /// A content is gone.
    pub fn forget(&self, id: NodeId) {
        let mut taken = self.taken();
        taken.ahead.remove(&id);
        if let Some(bytes) = taken.contents.remove(&id) {
            taken.sum -= bytes;
            self.given_back.notify_all();
        }
    }

    /// The journal's length.
    pub fn set_journal(&self, bytes: u64) {
        self.taken().journal = bytes;
    }

    /// Whether a record of that kind may still be added.
    ///
    /// # Errors
    /// `DQUOT`.
    pub fn admit(&self, record: &Record) -> Result<(), Errno> {
        let grows = matches!(record, Record::Create { .. } | Record::Link { .. } | Record::SetXattr { .. });
        let margin = if grows { 0 } else { (self.limit / MARGIN_SHARE).max(MARGIN) };
        if self.taken().all() >= self.limit.saturating_add(margin) { Err(Errno::DQUOT) } else { Ok(()) }
    }

    /// The limit, and what is left of it.
    pub fn room(&self) -> (u64, u64) {
        (self.limit, self.limit.saturating_sub(self.taken().all()))
    }
}

/// The whole blocks around a range.
fn blocks(offset: u64, length: u64) -> Range<u64> {
    let end = offset.saturating_add(length).checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX);
    offset / BLOCK * BLOCK..end
}

/// Ranges that nothing was written to.
fn holes(file: &File, range: Range<u64>) -> Vec<Range<u64>> {
    let mut holes = Vec::new();
    let mut at = range.start;
    while at < range.end {
        // No data after this, or no notion of holes: then everything is taken for one.
        let data = seek(file, SeekFrom::Data(at)).map_or(range.end, |data| data.clamp(at, range.end));
        if data > at {
            holes.push(at..data);
        }
        if data == range.end {
            break;
        }
        let hole = seek(file, SeekFrom::Hole(data)).unwrap_or(data);
        // The file's last block is stored whole.
        at = hole.checked_next_multiple_of(BLOCK).unwrap_or(range.end).clamp(data + 1, range.end);
    }
    holes
}

/// How much of `hole` is in the ranges, which do not overlap.
fn overlap(ranges: &[Range<u64>], hole: &Range<u64>) -> u64 {
    ranges.iter().map(|r| r.end.min(hole.end).saturating_sub(r.start.max(hole.start))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn grants_that_are_out_count_as_taken() {
        let quota = Quota::new(10 * BLOCK);
        let first = quota.grant(6 * BLOCK).unwrap();
        assert_eq!(quota.grant(5 * BLOCK).err(), Some(Errno::DQUOT));
        drop(first);
        assert!(quota.grant(10 * BLOCK).is_ok());
        assert_eq!(quota.room(), (10 * BLOCK, 10 * BLOCK));
        assert_eq!(quota.grant(u64::MAX).err(), Some(Errno::DQUOT));
    }

    #[test]
    fn a_change_waits_for_what_is_about_to_be_given_back() {
        let quota = Quota::new(10 * BLOCK);
        let (file, removed) = (tempfile::tempfile().unwrap(), NodeId(1));
        file.write_all_at(&[1; 8 * BLOCK as usize], 0).unwrap();
        quota.count(removed, &file);
        std::thread::scope(|scope| {
            let change = scope.spawn(|| quota.grant(5 * BLOCK).map(drop));
            std::thread::sleep(PATIENCE / 10);
            quota.forget(removed);
            assert_eq!(change.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn what_is_stored_already_is_not_paid_for_twice() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 3 * BLOCK as usize], 4 * BLOCK).unwrap();
        file.write_all_at(&[1; 100], 9 * BLOCK).unwrap();
        assert_eq!(holes(&file, 4 * BLOCK..7 * BLOCK), []);
        assert_eq!(holes(&file, 0..12 * BLOCK), [0..4 * BLOCK, 7 * BLOCK..9 * BLOCK, 10 * BLOCK..12 * BLOCK]);
        let quota = Quota::new(8 * BLOCK);
        let id = NodeId(7);
        quota.count(id, &file);
        assert!(quota.grant_range(id, &file, 4 * BLOCK + 5, 3 * BLOCK - 5).is_ok());
        assert!(quota.grant_range(id, &file, 9 * BLOCK + 100, BLOCK - 100).is_ok());
        assert_eq!(quota.grant_range(id, &file, 0, 9 * BLOCK).err(), Some(Errno::DQUOT));
        // Taken ahead, it is no hole any more.
        quota.take_ahead(id, BLOCK, BLOCK);
        quota.take_ahead(id, 2 * BLOCK, 2 * BLOCK);
        assert_eq!(quota.taken().ahead[&id].first(), Some(&(BLOCK..4 * BLOCK)));
        assert_eq!(quota.taken().ahead[&id].len(), 1);
        assert!(quota.grant_range(id, &file, 0, 9 * BLOCK).is_ok());
        quota.give_back(id);
        assert_eq!(quota.grant_range(id, &file, 0, 9 * BLOCK).err(), Some(Errno::DQUOT));
        quota.forget(id);
        assert_eq!(quota.room().1, 8 * BLOCK);
    }
}
