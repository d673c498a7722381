//! What a guest boots into: the agent as `/init`, the console's device node, and empty directories to mount on.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cpio::Archive;
use crate::{AGENT, ArtefactKind, Cache, CacheError, Digest, Manifest};

const FILE: &str = "initramfs.cpio";
const DIRECTORIES: [&str; 6] = ["dev", "newroot", "proc", "run", "sys", "tmp"];

/// An initramfs in the cache.
#[derive(Clone, Debug)]
pub struct Initramfs {
    /// The uncompressed archive.
    pub path: PathBuf,
    /// BLAKE3 of the archive.
    pub digest: Digest,
    /// Size of the archive in bytes.
    pub size: u64,
}

/// The archive for the agent in this program.
pub fn initramfs_bytes() -> Vec<u8> {
    let mut archive = Archive::default();
    for name in DIRECTORIES {
        archive.directory(name, 0o755);
    }
    // The kernel opens it for its first process before that can mount anything.
    archive.device("dev/console", 0o600, (5, 1));
    archive.file("init", 0o755, AGENT);
    archive.finish()
}

/// The initramfs of this program, put into `cache` when it is not there or damaged.
///
/// # Errors
/// The cache can't be read or written.
pub fn ensure_initramfs(cache: &Cache) -> Result<Initramfs, CacheError> {
    let archive = initramfs_bytes();
    let digest = Digest::of(&archive);
    let mut manifest = Manifest::new(ArtefactKind::Initramfs, digest);
    let name = manifest.name();
    let found = |dir: &Path| Initramfs { path: dir.join(FILE), digest, size: archive.len() as u64 };
    let place = cache.dir().join(&name);
    if intact(&place) {
        return Ok(found(&place));
    }
    let workshop = cache.lock(ArtefactKind::Initramfs.word())?;
    if intact(&place) {
        return Ok(found(&place));
    }
    let work = workshop.directory()?;
    let made = work.path().join("result");
    let failed = || CacheError::io("write", &made);
    fs::create_dir(&made).map_err(failed())?;
    fs::write(made.join(FILE), &archive).map_err(failed())?;
    manifest.add(&made, FILE).map_err(failed())?;
    manifest.write(&made).map_err(failed())?;
    Ok(found(&workshop.publish(&made, &name)?))
}

/// The digest in the manifest's name is the archive's, so a whole file that fits the manifest is the right one.
fn intact(dir: &Path) -> bool {
    Manifest::read(dir)
        .is_ok_and(|m| m.files.get(FILE).is_some_and(|f| f.digest == m.key) && m.verify(dir, FILE).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_published_once_and_repaired_when_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().join("cache"));
        let first = ensure_initramfs(&cache).unwrap();
        assert_eq!(fs::read(&first.path).unwrap(), initramfs_bytes());
        assert_eq!(Digest::of_file(&first.path).unwrap(), (first.digest, first.size));

        fs::write(&first.path, "damaged").unwrap();
        let again = ensure_initramfs(&cache).unwrap();
        assert_eq!(again.path, first.path);
        assert_eq!(fs::read(&again.path).unwrap(), initramfs_bytes());
        assert_eq!(cache.entries().unwrap().len(), 1);
    }

    #[test]
    fn many_at_once_agree() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| ensure_initramfs(&cache).unwrap().path)).collect();
            let paths: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
            assert!(paths.iter().all(|p| *p == paths[0] && p.is_file()));
        });
        assert_eq!(cache.entries().unwrap().len(), 1);
    }
}
