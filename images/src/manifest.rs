//! `manifest.json` of an artefact: what it is and what its files must hash to.
//!
//! It lies in the user's cache, where anything may have happened to it: it is bounded, checked and never believed
//! beyond what a hash confirms.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::Digest;

const SCHEMA: &str = "pvisor.image/1";
const FILE: &str = "manifest.json";
/// Largest manifest that is read, in bytes.
const MAX_SIZE: u64 = 64 << 10;

/// Why an artefact can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// A file of it can't be read.
    #[error("can't read its {file}")]
    Read {
        /// Which one.
        file: String,
        /// What the system says.
        source: io::Error,
    },
    /// The manifest is longer than any of ours.
    #[error("its manifest is too long")]
    TooLong,
    /// The manifest is not valid.
    #[error("its manifest is not valid")]
    Invalid(#[from] serde_json::Error),
    /// The manifest is of another version or belongs to another artefact.
    #[error("its manifest says {found:?} where {expected:?} is expected")]
    Mismatch {
        /// What it says.
        found: String,
        /// What it should say.
        expected: String,
    },
    /// A file is another one now.
    #[error("its {file} is not the file that was built: {expected} expected, {found} found")]
    Content {
        /// Which one.
        file: String,
        /// Digest when it was built.
        expected: Digest,
        /// Digest now.
        found: Digest,
    },
}

/// What an artefact is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtefactKind {
    /// A guest kernel.
    Kernel,
    /// The guest agent that is built into this program.
    Agent,
    /// What a guest boots into.
    Initramfs,
    /// A root filesystem.
    Rootfs,
}

impl ArtefactKind {
    /// The word in names of directories, and for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Agent => "agent",
            Self::Initramfs => "initramfs",
            Self::Rootfs => "rootfs",
        }
    }
}

/// One file of an artefact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// BLAKE3 of its content.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
}

/// Where a kernel comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelRecord {
    /// What `uname -r` says in a guest.
    pub release: String,
    /// The source's path or package.
    pub source: String,
    /// BLAKE3 of the source archive, or of the tree.
    pub source_digest: Digest,
    /// BLAKE3 of the configuration fragment.
    pub fragment: Digest,
    /// Version of the build's recipe.
    pub recipe: u32,
    /// First line of the compiler's version.
    pub compiler: String,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    schema: String,
    /// What the artefact is.
    pub kind: ArtefactKind,
    /// Digest of everything that it was made from.
    pub key: Digest,
    /// Seconds since the Unix epoch at which it was made.
    pub built_at: u64,
    /// Its files by name.
    pub files: BTreeMap<String, FileRecord>,
    /// Of kernels only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelRecord>,
}

impl Manifest {
    pub(crate) fn new(kind: ArtefactKind, key: Digest) -> Self {
        let built_at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Self { schema: SCHEMA.to_owned(), kind, key, built_at, files: BTreeMap::new(), kernel: None }
    }

    /// The artefact's directory name.
    pub fn name(&self) -> String {
        format!("{}-{}", self.kind.word(), self.key.short())
    }

    /// Size of all files in bytes.
    pub fn size(&self) -> u64 {
        self.files.values().fold(0, |sum, f| sum.saturating_add(f.size))
    }

    /// Records `file`, which lies in `dir` as it will be published.
    pub(crate) fn add(&mut self, dir: &Path, file: &str) -> io::Result<()> {
        let (digest, size) = Digest::of_file(&dir.join(file))?;
        self.files.insert(file.to_owned(), FileRecord { digest, size });
        Ok(())
    }

    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        File::create_new(dir.join(FILE))?.write_all(&json)
    }

    /// The manifest of the artefact in `dir`, whose name it must have.
    ///
    /// # Errors
    /// It can't be read, or is not valid there.
    pub fn read(dir: &Path) -> Result<Self, ManifestError> {
        let failed = |source| ManifestError::Read { file: FILE.to_owned(), source };
        let file = File::open(dir.join(FILE)).map_err(failed)?;
        if file.metadata().map_err(failed)?.len() > MAX_SIZE {
            return Err(ManifestError::TooLong);
        }
        let mut json = Vec::new();
        file.take(MAX_SIZE).read_to_end(&mut json).map_err(failed)?;
        let manifest: Self = serde_json::from_slice(&json)?;
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        for (found, expected) in [(&manifest.schema, SCHEMA), (&manifest.name(), name.as_ref())] {
            if found != expected {
                return Err(ManifestError::Mismatch { found: found.clone(), expected: expected.to_owned() });
            }
        }
        Ok(manifest)
    }

    /// Hashes `file` of the artefact in `dir`.
    ///
    /// # Errors
    /// It is not the recorded one.
    pub fn verify(&self, dir: &Path, file: &str) -> Result<(), ManifestError> {
        let failed = |source| ManifestError::Read { file: file.to_owned(), source };
        let record = self.files.get(file).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let found = Digest::of_file(&dir.join(file)).map_err(failed)?.0;
        if found != record.digest {
            return Err(ManifestError::Content { file: file.to_owned(), expected: record.digest, found });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn artefact(root: &Path) -> (Manifest, std::path::PathBuf) {
        let mut manifest = Manifest::new(ArtefactKind::Initramfs, Digest::of(b"key"));
        let dir = root.join(manifest.name());
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("content"), b"content").unwrap();
        manifest.add(&dir, "content").unwrap();
        manifest.write(&dir).unwrap();
        (manifest, dir)
    }

    #[test]
    fn it_comes_back_and_confirms_its_file() {
        let root = tempfile::tempdir().unwrap();
        let (manifest, dir) = artefact(root.path());
        let read = Manifest::read(&dir).unwrap();
        assert_eq!(read, manifest);
        read.verify(&dir, "content").unwrap();
        assert_eq!(read.size(), 7);
        fs::write(dir.join("content"), b"Content").unwrap();
        assert!(matches!(read.verify(&dir, "content"), Err(ManifestError::Content { .. })));
        fs::remove_file(dir.join("content")).unwrap();
        assert!(matches!(read.verify(&dir, "content"), Err(ManifestError::Read { .. })));
        assert!(matches!(read.verify(&dir, "other"), Err(ManifestError::Read { .. })));
    }

    #[test]
    fn any_other_manifest_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let (_, dir) = artefact(root.path());
        let path = dir.join(FILE);
        let good = fs::read_to_string(&path).unwrap();
        let long = " ".repeat(65 << 10);
        for bad in [
            good.replace("image/1", "image/2"),
            good.replace("initramfs", "kernel"),
            good.replace("\"key\": \"", "\"key\": \"0"),
            good.replace("built_at", "builtat"),
            good[..good.len() - 3].to_owned(),
            good.clone() + &long,
            String::new(),
        ] {
            fs::write(&path, &bad).unwrap();
            assert!(Manifest::read(&dir).is_err(), "{bad}");
        }
        fs::write(&path, &good).unwrap();
        let renamed = root.path().join("initramfs-0");
        fs::rename(&dir, &renamed).unwrap();
        assert!(matches!(Manifest::read(&renamed), Err(ManifestError::Mismatch { .. })));
    }
}
