//! Small JSON files that are always whole.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::StoreError;

/// Largest file that is read, in bytes: an environment of a few MiB, every byte of it escaped, still fits.
const MAX_BYTES: u64 = 32 << 20;

/// How well a document survives a power cut; whoever reads it meanwhile sees the old one or the new one in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sync {
    /// It may be lost or empty.
    None,
    /// Its content is whole; its name may still be missing.
    Content,
    /// It is there. So is everything in the directory that was written before with [`Sync::Content`].
    Name,
}

/// Replaces the file. Mode 0600.
pub(crate) fn write_json(path: &Path, value: &impl Serialize, sync: Sync) -> Result<(), StoreError> {
    let fail = |source| StoreError::Write { path: path.to_owned(), source };
    let dir = path.parent().ok_or_else(|| fail(io::Error::other("it has no parent directory")))?;
    let mut json = serde_json::to_vec_pretty(value).map_err(|e| fail(e.into()))?;
    json.push(b'\n');
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(dir).map_err(fail)?;
    file.write_all(&json).map_err(fail)?;
    if sync != Sync::None {
        file.as_file().sync_all().map_err(fail)?;
    }
    file.persist(path).map_err(|e| fail(e.error))?;
    if sync == Sync::Name {
        File::open(dir).and_then(|d| d.sync_all()).map_err(fail)?;
    }
    Ok(())
}

/// Reads a document; `None` where there is no file.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StoreError> {
    let fail = |source| StoreError::Read { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(fail(e)),
    };
    let corrupt = |reason| StoreError::Corrupt { path: path.to_owned(), reason };
    let mut json = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut json).map_err(fail)?;
    if json.len() as u64 > MAX_BYTES {
        return Err(corrupt(format!("longer than {MAX_BYTES} bytes")));
    }
    serde_json::from_slice(&json).map(Some).map_err(|e| corrupt(e.to_string()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_document_comes_back_and_only_its_owner_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        assert_eq!(read_json::<Vec<u8>>(&path).unwrap(), None);
        write_json(&path, &vec![1u8, 2], Sync::None).unwrap();
        write_json(&path, &vec![3u8], Sync::Name).unwrap();
        assert_eq!(read_json::<Vec<u8>>(&path).unwrap(), Some(vec![3]));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(dir.path().read_dir().unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn damage_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        std::fs::write(&path, b"[1,").unwrap();
        let error = read_json::<Vec<u8>>(&path).unwrap_err();
        assert!(matches!(&error, StoreError::Corrupt { path: p, .. } if *p == path), "{error}");
    }
}
