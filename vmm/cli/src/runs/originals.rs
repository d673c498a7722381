//! Which runs keep originals, and until when, without reading all records.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;

use pvisor_spec::RunId;

use super::{Store, StoreError};

/// Directory of the marks: empty files named `<milliseconds>.<run>`.
const MARKS: &str = "originals";

impl Store {
    /// Marks a run as one that keeps originals until then. To be done before they are kept.
    ///
    /// # Errors
    /// The mark can't be made.
    pub(crate) fn mark_originals(&self, id: RunId, until_ms: u64) -> Result<(), StoreError> {
        let dir = self.home().join(MARKS);
        let path = dir.join(format!("{until_ms}.{id}"));
        let fail = |source| StoreError::Write { path: path.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(fail)?;
        File::create(&path).map(drop).map_err(fail)
    }

    /// Runs whose originals have had their time, with the time of their mark. What can't be read is no one's.
    pub(crate) fn due_originals(&self, now_ms: u64) -> Vec<(u64, RunId)> {
        let Ok(marks) = fs::read_dir(self.home().join(MARKS)) else { return Vec::new() };
        let mark = |entry: io::Result<fs::DirEntry>| {
            let name = entry.ok()?.file_name();
            let (until, id) = name.to_str()?.split_once('.')?;
            Some((until.parse().ok()?, id.parse().ok()?))
        };
        marks.filter_map(mark).filter(|(until, _)| *until <= now_ms).collect()
    }

    /// Takes a mark away; one that is gone already is fine.
    pub(crate) fn unmark_originals(&self, (until_ms, id): (u64, RunId)) {
        if let Err(error) = fs::remove_file(self.home().join(MARKS).join(format!("{until_ms}.{id}")))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, %id, "a mark of kept originals stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_due_one_by_one() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::at(dir.path().to_owned());
        let (a, b) = (RunId::new(), RunId::new());
        assert!(store.due_originals(u64::MAX).is_empty());
        store.mark_originals(a, 100).unwrap();
        store.mark_originals(b, 200).unwrap();
        store.mark_originals(a, 300).unwrap();
        fs::write(dir.path().join(MARKS).join("1.nobody"), "").unwrap();
        assert_eq!(store.due_originals(99), []);
        assert_eq!(store.due_originals(100), [(100, a)]);
        store.unmark_originals((100, a));
        store.unmark_originals((100, a));
        assert_eq!(store.due_originals(250), [(200, b)]);
    }
}
