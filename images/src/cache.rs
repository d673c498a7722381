//! The directory that artefacts are kept in, and how they get there.
//!
//! An artefact is a directory `<kind>-<key>` with a manifest. It appears by one `rename` of a complete, synced directory
//! and is immutable afterwards, so whoever sees it sees all of it. Work in progress is in `work-<kind>-*`, which only
//! the holder of `<kind>.lock` may touch: what is left of a killed builder is removed by the next one.

use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;

use crate::ManifestError;

/// Why the cache can't be used. Lower-case fragments that name the path.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// No variable says where the cache is.
    #[error("no place for guest images: set PVISOR_IMAGES, XDG_CACHE_HOME or HOME to an absolute path")]
    NoPlace,
    /// A file operation failed.
    #[error("can't {action} {}", path.display())]
    Io {
        /// What was tried: `read`, `create` …
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// An artefact is not what its manifest says.
    #[error("the cached {} is damaged: `pvisor image rm` it, it will be built anew", path.display())]
    Damaged {
        /// The artefact's directory.
        path: PathBuf,
        /// What is wrong.
        source: ManifestError,
    },
    /// No artefact has that name.
    #[error("no cached image is called {0:?}")]
    NoSuchArtefact(String),
    /// The name fits several artefacts.
    #[error("{name:?} fits several images: {}", names.join(", "))]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// What it fits.
        names: Vec<String>,
    },
}

impl CacheError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

/// The cache of one user. Nothing is created before something is built.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// `$PVISOR_IMAGES`, else `pvisor/images` in `$XDG_CACHE_HOME` or `~/.cache`. Relative values count as unset, as the
    /// XDG base directory specification wants it.
    ///
    /// # Errors
    /// None of the variables is set.
    pub fn of_user() -> Result<Self, CacheError> {
        let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        absolute("PVISOR_IMAGES")
            .or_else(|| absolute("XDG_CACHE_HOME").map(|p| p.join("pvisor/images")))
            .or_else(|| absolute("HOME").map(|p| p.join(".cache/pvisor/images")))
            .map(Self::at)
            .ok_or(CacheError::NoPlace)
    }

    /// The cache in this directory.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directories directly below, with their names. An absent cache is empty.
    pub(crate) fn entries(&self) -> Result<Vec<(String, PathBuf)>, CacheError> {
        let failed = || CacheError::io("list", &self.dir);
        let listing = match fs::read_dir(&self.dir) {
            Ok(listing) => listing,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(failed()(e)),
        };
        let mut entries = Vec::new();
        for entry in listing {
            let entry = entry.map_err(failed())?;
            if let Ok(name) = entry.file_name().into_string()
                && entry.file_type().is_ok_and(|t| t.is_dir())
            {
                entries.push((name, entry.path()));
            }
        }
        entries.sort();
        Ok(entries)
    }

    /// Becomes the only builder of this kind; `None`: another one is at it.
    pub(crate) fn try_lock(&self, kind: &'static str) -> Result<Option<Workshop>, CacheError> {
        let (lock, path) = self.lock_file(kind)?;
        match lock.try_lock() {
            Ok(()) => Workshop::open(self.clone(), kind, lock).map(Some),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(CacheError::io("lock", &path)(e)),
        }
    }

    /// Becomes the only builder of this kind; waits for another one.
    pub(crate) fn lock(&self, kind: &'static str) -> Result<Workshop, CacheError> {
        let (lock, path) = self.lock_file(kind)?;
        lock.lock().map_err(CacheError::io("lock", &path))?;
        Workshop::open(self.clone(), kind, lock)
    }

    fn lock_file(&self, kind: &str) -> Result<(File, PathBuf), CacheError> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        created.map_err(CacheError::io("create", &self.dir))?;
        let path = self.dir.join(format!("{kind}.lock"));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        Ok((file.map_err(CacheError::io("open", &path))?, path))
    }
}

/// The right to build one kind of artefact.
#[derive(Debug)]
pub(crate) struct Workshop {
    cache: Cache,
    kind: &'static str,
    lock: File,
}

impl Workshop {
    fn open(cache: Cache, kind: &'static str, lock: File) -> Result<Self, CacheError> {
        let workshop = Self { cache, kind, lock };
        let prefix = workshop.prefix();
        for (name, path) in workshop.cache.entries()? {
            if name.starts_with(&prefix) {
                fs::remove_dir_all(&path).map_err(CacheError::io("remove", &path))?;
            }
        }
        Ok(workshop)
    }

    fn prefix(&self) -> String {
        format!("work-{}-", self.kind)
    }

    /// A standard input for build tools: empty, and it holds the lock. Tools that outlive a killed builder so keep
    /// others from removing the directory that they still write to.
    pub(crate) fn stdin(&self) -> Result<Stdio, CacheError> {
        let lock = self.lock.try_clone();
        Ok(lock.map_err(CacheError::io("hold the lock of", self.cache.dir()))?.into())
    }

    /// A new private directory, removed when dropped.
    pub(crate) fn directory(&self) -> Result<TempDir, CacheError> {
        let dir = tempfile::Builder::new().prefix(&self.prefix()).tempdir_in(self.cache.dir());
        dir.map_err(CacheError::io("create a directory in", self.cache.dir()))
    }

    /// Moves the complete artefact in `from`, a directory below [`Self::directory`] that holds nothing but files, to its
    /// place. One that is there already (a damaged one, or callers would not build) is replaced.
    pub(crate) fn publish(&self, from: &Path, name: &str) -> Result<PathBuf, CacheError> {
        for entry in fs::read_dir(from).map_err(CacheError::io("list", from))? {
            sync(&entry.map_err(CacheError::io("list", from))?.path())?;
        }
        sync(from)?;
        let place = self.cache.dir.join(name);
        self.discard(&place)?;
        fs::rename(from, &place).map_err(CacheError::io("publish", &place))?;
        sync(&self.cache.dir)?;
        Ok(place)
    }

    /// Removes an artefact: it is gone for everybody before the first of its files is.
    pub(crate) fn discard(&self, place: &Path) -> Result<(), CacheError> {
        let trash = self.directory()?;
        match fs::rename(place, trash.path().join("artefact")) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(CacheError::io("remove", place)(e)),
        }
        let path = trash.path().to_owned();
        trash.close().map_err(CacheError::io("remove", &path))
    }
}

/// Writes through to the disk.
fn sync(path: &Path) -> Result<(), CacheError> {
    File::open(path).and_then(|f| f.sync_all()).map_err(CacheError::io("sync", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(cache: &Cache) -> Vec<String> {
        cache.entries().unwrap().into_iter().map(|e| e.0).collect()
    }

    #[test]
    fn nothing_is_created_by_looking() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().join("not/there"));
        assert!(cache.entries().unwrap().is_empty());
        assert!(!cache.dir().exists());
    }

    #[test]
    fn what_a_killed_builder_left_goes_with_the_next_of_its_kind() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        let workshop = cache.lock("a").unwrap();
        let half = workshop.directory().unwrap().keep();
        fs::write(half.join("vmlinux"), "half").unwrap();
        drop(workshop);
        let other = cache.lock("b").unwrap();
        assert!(half.exists(), "another kind's work was removed");
        drop(other);
        drop(cache.lock("a").unwrap());
        assert!(names(&cache).is_empty());
    }

    #[test]
    fn one_builder_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        let first = cache.lock("a").unwrap();
        assert!(cache.try_lock("a").unwrap().is_none());
        assert!(cache.try_lock("b").unwrap().is_some());
        let mut tool = std::process::Command::new("sleep").arg("1000").stdin(first.stdin().unwrap()).spawn().unwrap();
        drop(first);
        assert!(cache.try_lock("a").unwrap().is_none(), "a tool of the first builder still runs");
        tool.kill().unwrap();
        tool.wait().unwrap();
        assert!(cache.try_lock("a").unwrap().is_some());
    }

    #[test]
    fn a_published_artefact_replaces_a_damaged_one_whole() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        let workshop = cache.lock("a").unwrap();
        for content in ["old", "new"] {
            let work = workshop.directory().unwrap();
            let made = work.path().join("result");
            fs::create_dir(&made).unwrap();
            fs::write(made.join(content), content).unwrap();
            workshop.publish(&made, "a-1").unwrap();
        }
        assert_eq!(names(&cache), ["a-1"]);
        let files: Vec<_> = fs::read_dir(dir.path().join("a-1")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(files, ["new"]);
        workshop.discard(&dir.path().join("a-1")).unwrap();
        workshop.discard(&dir.path().join("a-1")).unwrap();
        assert!(names(&cache).is_empty());
    }
}
