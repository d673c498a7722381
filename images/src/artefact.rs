//! What there is: kernels, the agent, initramfs archives, root filesystems; and getting rid of them.

use std::path::PathBuf;

use crate::cache::Workshop;
use crate::kernel;
use crate::{AGENT, ArtefactKind, Cache, CacheError, Digest, Manifest, agent_digest, initramfs_bytes};

const CACHED: [ArtefactKind; 3] = [ArtefactKind::Kernel, ArtefactKind::Initramfs, ArtefactKind::Rootfs];

/// One line of `pvisor image list`.
#[derive(Clone, Debug)]
pub struct Artefact {
    /// What it is.
    pub kind: ArtefactKind,
    /// What `pvisor image rm` takes.
    pub name: String,
    /// Digest of what it was made from, or of its content; `None` where the manifest can't be read.
    pub digest: Option<Digest>,
    /// Size in bytes of what its manifest names.
    pub size: u64,
    /// Its directory; `None`: built into this program.
    pub path: Option<PathBuf>,
    /// What this program would use.
    pub current: bool,
    /// For people: a kernel's release, what is wrong with a damaged one; may be empty.
    pub detail: String,
}

/// All artefacts, by kind and name. Sizes and digests come from the manifests: contents are verified on use.
///
/// # Errors
/// The cache can't be read.
pub fn list(cache: &Cache) -> Result<Vec<Artefact>, CacheError> {
    let kernel = kernel::find(cache)?.map(|k| k.manifest().name());
    let initramfs = Manifest::new(ArtefactKind::Initramfs, Digest::of(&initramfs_bytes())).name();
    let current = |name: &str| kernel.as_deref() == Some(name) || initramfs == name;
    let mut artefacts = vec![Artefact {
        kind: ArtefactKind::Agent,
        name: ArtefactKind::Agent.word().to_owned(),
        digest: Some(agent_digest()),
        size: AGENT.len() as u64,
        path: None,
        current: true,
        detail: "built into this program".to_owned(),
    }];
    for (name, path) in cache.entries()? {
        if let Some(kind) = kind_of(&name) {
            let current = current(&name) || kind == ArtefactKind::Rootfs;
            artefacts.push(describe(kind, name, path, current));
        }
    }
    artefacts.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
    Ok(artefacts)
}

fn kind_of(name: &str) -> Option<ArtefactKind> {
    CACHED.into_iter().find(|k| name.strip_prefix(k.word()).is_some_and(|rest| rest.starts_with('-')))
}

fn describe(kind: ArtefactKind, name: String, path: PathBuf, current: bool) -> Artefact {
    match Manifest::read(&path) {
        Ok(manifest) => Artefact {
            kind,
            name,
            digest: Some(manifest.key),
            size: manifest.size(),
            path: Some(path),
            current,
            detail: manifest.kernel.map(|k| k.release).unwrap_or_default(),
        },
        Err(e) => {
            let detail = format!("damaged: {e}");
            Artefact { kind, name, digest: None, size: 0, path: Some(path), current: false, detail }
        }
    }
}

/// Removes the artefact whose name begins with `name`, and returns its whole name. Guests that run keep what they
/// loaded. Waits for a builder of that kind.
///
/// # Errors
/// There is none or more than one, or it can't be removed.
pub fn remove(cache: &Cache, name: &str) -> Result<String, CacheError> {
    let mut fitting: Vec<_> = cache.entries()?.into_iter().filter(|(n, _)| n.starts_with(name)).collect();
    fitting.retain(|(n, _)| kind_of(n).is_some());
    if let Some(exact) = fitting.iter().position(|(n, _)| n == name) {
        fitting = vec![fitting.swap_remove(exact)];
    }
    match (fitting.pop(), fitting.is_empty()) {
        (Some((found, path)), true) => {
            // Found by kind above.
            let kind = kind_of(&found).ok_or_else(|| CacheError::NoSuchArtefact(name.to_owned()))?;
            cache.lock(kind.word())?.discard(&path)?;
            Ok(found)
        }
        (Some((last, _)), false) => {
            let mut names: Vec<String> = fitting.into_iter().map(|f| f.0).collect();
            names.push(last);
            Err(CacheError::Ambiguous { name: name.to_owned(), names })
        }
        (None, _) => Err(CacheError::NoSuchArtefact(name.to_owned())),
    }
}

/// Removes what this program would not use (root filesystems stay: they were asked for by name), and what killed
/// builders left. Kinds that are being built are left alone. Returns the names of what is gone.
///
/// # Errors
/// The cache can't be read, or something can't be removed.
pub fn collect_garbage(cache: &Cache) -> Result<Vec<String>, CacheError> {
    let mut removed = Vec::new();
    if !cache.dir().exists() {
        return Ok(removed);
    }
    for kind in CACHED {
        // Opening the workshop sweeps up after killed builders.
        if let Some(workshop) = cache.try_lock(kind.word())? {
            remove_stale(cache, kind, &workshop, &mut removed)?;
        }
    }
    Ok(removed)
}

fn remove_stale(
    cache: &Cache,
    kind: ArtefactKind,
    workshop: &Workshop,
    removed: &mut Vec<String>,
) -> Result<(), CacheError> {
    for artefact in list(cache)?.into_iter().filter(|a| a.kind == kind && !a.current) {
        if let Some(path) = artefact.path {
            workshop.discard(&path)?;
            removed.push(artefact.name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::ensure_initramfs;

    fn plant(cache: &Cache, kind: ArtefactKind, key: &[u8]) -> String {
        let mut manifest = Manifest::new(kind, Digest::of(key));
        let dir = cache.dir().join(manifest.name());
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("content"), key).unwrap();
        manifest.add(&dir, "content").unwrap();
        manifest.write(&dir).unwrap();
        manifest.name()
    }

    fn names(cache: &Cache) -> Vec<String> {
        list(cache).unwrap().into_iter().map(|a| a.name).collect()
    }

    #[test]
    fn an_empty_cache_has_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().join("none"));
        assert_eq!(names(&cache), ["agent"]);
        assert!(collect_garbage(&cache).unwrap().is_empty());
        assert!(!cache.dir().exists());
    }

    #[test]
    fn everything_is_listed_and_only_what_is_used_is_current() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        let initramfs = ensure_initramfs(&cache).unwrap();
        let old = plant(&cache, ArtefactKind::Initramfs, b"old");
        let root = plant(&cache, ArtefactKind::Rootfs, b"root");
        let kernel = plant(&cache, ArtefactKind::Kernel, b"kernel of nobody");
        fs::create_dir(cache.dir().join("kernel-empty")).unwrap();
        fs::create_dir(cache.dir().join("unrelated")).unwrap();
        let artefacts = list(&cache).unwrap();
        let current: Vec<_> = artefacts.iter().filter(|a| a.current).collect();
        assert_eq!(artefacts.len(), 6);
        assert_eq!(
            current.iter().map(|a| a.kind).collect::<Vec<_>>(),
            [ArtefactKind::Agent, ArtefactKind::Initramfs, ArtefactKind::Rootfs]
        );
        assert_eq!(current[1].digest, Some(initramfs.digest));
        assert_eq!(current[1].size, initramfs.size);
        let damaged = artefacts.iter().find(|a| a.name == "kernel-empty").unwrap();
        assert!(damaged.detail.starts_with("damaged: ") && damaged.digest.is_none());

        let half = cache.lock("kernel").unwrap().directory().unwrap().keep();
        let mut removed = collect_garbage(&cache).unwrap();
        removed.sort();
        let mut expected = vec![old, kernel, "kernel-empty".to_owned()];
        expected.sort();
        assert_eq!(removed, expected);
        assert!(!half.exists() && cache.dir().join("unrelated").exists());
        assert!(initramfs.path.exists() && cache.dir().join(root).exists());
    }

    #[test]
    fn garbage_of_a_kind_that_is_being_built_stays() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        plant(&cache, ArtefactKind::Kernel, b"old");
        let builder = cache.lock("kernel").unwrap();
        assert!(collect_garbage(&cache).unwrap().is_empty());
        drop(builder);
        assert_eq!(collect_garbage(&cache).unwrap().len(), 1);
    }

    #[test]
    fn removal_needs_one_name() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        let a = plant(&cache, ArtefactKind::Kernel, b"a");
        plant(&cache, ArtefactKind::Kernel, b"b");
        assert!(matches!(remove(&cache, "kernel-"), Err(CacheError::Ambiguous { names, .. }) if names.len() == 2));
        for name in ["kernel-zzz", "agent", "unrelated", "../x", "/"] {
            assert!(matches!(remove(&cache, name), Err(CacheError::NoSuchArtefact(_))), "{name}");
        }
        assert_eq!(remove(&cache, &a[..12]).unwrap(), a);
        assert_eq!(names(&cache).len(), 2);
    }
}
