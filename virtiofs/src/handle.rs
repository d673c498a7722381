//! Tables of open files and directories by the number that the kernel holds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::io::Errno;

/// The number of an open file or directory, as it stands in requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// Most handles of one kind that can be open at a time.
pub(crate) const MAX_HANDLES: usize = 1 << 20;

/// Open things by handle. Handles are never used twice, so a late request can't hit another file.
pub(crate) struct HandleTable<T> {
    next: AtomicU64,
    open: RwLock<BTreeMap<u64, Arc<T>>>,
}

impl<T> HandleTable<T> {
    pub(crate) fn new() -> Self {
        Self { next: AtomicU64::new(1), open: RwLock::new(BTreeMap::new()) }
    }

    /// Takes the thing and numbers it.
    ///
    /// # Errors
    /// ENFILE: too many are open.
    pub(crate) fn insert(&self, thing: T) -> Result<Handle, Errno> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= MAX_HANDLES {
            return Err(Errno::NFILE);
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        open.insert(number, Arc::new(thing));
        Ok(Handle(number))
    }

    /// # Errors
    /// EBADF: no such handle.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<T>, Errno> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(&handle.0).cloned().ok_or(Errno::BADF)
    }

    /// # Errors
    /// EBADF: no such handle.
    pub(crate) fn remove(&self, handle: Handle) -> Result<Arc<T>, Errno> {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&handle.0).ok_or(Errno::BADF)
    }

    /// The number that the next handle gets.
    pub(crate) fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// All open things in order of their handles.
    pub(crate) fn all(&self) -> Vec<(Handle, Arc<T>)> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.iter().map(|(number, thing)| (Handle(*number), Arc::clone(thing))).collect()
    }

    /// Puts other things in place of all there are.
    pub(crate) fn replace(&self, next: u64, things: Vec<(Handle, T)>) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        self.next.store(next, Ordering::Relaxed);
        *open = things.into_iter().map(|(handle, thing)| (handle.0, Arc::new(thing))).collect();
    }

    /// Drops everything.
    pub(crate) fn clear(&self) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_never_used_twice() {
        let table = HandleTable::new();
        let first = table.insert('a').unwrap();
        assert_eq!(*table.remove(first).unwrap(), 'a');
        let second = table.insert('b').unwrap();
        assert_ne!(first, second);
        assert_eq!(table.get(first).unwrap_err(), Errno::BADF);
        assert_eq!(table.remove(first).unwrap_err(), Errno::BADF);
        assert_eq!(*table.get(second).unwrap(), 'b');
    }

    #[test]
    fn a_replaced_table_goes_on_numbering_where_the_other_stood() {
        let table = HandleTable::new();
        table.replace(9, vec![(Handle(4), 'x'), (Handle(7), 'y')]);
        assert_eq!(table.all().iter().map(|(h, t)| (h.0, **t)).collect::<Vec<_>>(), [(4, 'x'), (7, 'y')]);
        assert_eq!(table.insert('z').unwrap(), Handle(9));
    }
}
