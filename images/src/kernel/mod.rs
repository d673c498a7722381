//! The guest kernel: built from source once, then found in the cache.

mod builder;
mod errand;
mod error;
mod image;
mod progress;
mod recipe;
mod source;
mod toolchain;

use std::path::{Path, PathBuf};

pub use builder::{KernelRequest, KernelSource, build};
pub use error::KernelError;
pub use image::{ImageError, KernelImage, KernelLayout};
pub use progress::{Phase, Progress, Report};
pub use recipe::FRAGMENT;
pub use toolchain::{MissingTools, Tool};

use recipe::{Recipe, VERSION};

use crate::{ArtefactKind, Cache, CacheError, Manifest, ManifestError};

const VMLINUX: &str = "vmlinux";
const CONFIG: &str = "config";

/// A kernel in the cache.
#[derive(Clone, Debug)]
pub struct Kernel {
    dir: PathBuf,
    manifest: Manifest,
}

impl Kernel {
    pub(crate) fn open(dir: &Path) -> Result<Self, ManifestError> {
        Ok(Self { dir: dir.to_owned(), manifest: Manifest::read(dir)? })
    }

    /// The ELF file.
    pub fn path(&self) -> PathBuf {
        self.dir.join(VMLINUX)
    }

    /// What it was built from.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// What `uname -r` says in a guest.
    pub fn release(&self) -> &str {
        self.manifest.kernel.as_ref().map_or("", |k| &k.release)
    }

    /// Hashes the ELF file: some 10 ms.
    ///
    /// # Errors
    /// It is not the file that was built.
    pub fn verify(&self) -> Result<(), KernelError> {
        let verified = self.manifest.verify(&self.dir, VMLINUX);
        verified.map_err(|source| KernelError::Damaged { path: self.dir.clone(), source })
    }

    /// The verified kernel, as it lies in guest memory.
    ///
    /// # Errors
    /// It is not the file that was built, or can't be booted.
    pub fn load(&self) -> Result<KernelImage, KernelError> {
        self.verify()?;
        Ok(KernelImage::load(&self.path())?)
    }

    /// Whether this program would build it the same way today.
    pub fn is_current(&self) -> bool {
        self.fits(&Recipe::guest())
    }

    fn fits(&self, recipe: &Recipe) -> bool {
        let built = self.manifest.kernel.as_ref();
        self.manifest.kind == ArtefactKind::Kernel
            && built.is_some_and(|k| k.fragment == recipe.fragment_digest() && k.recipe == VERSION)
    }
}

/// The newest kernel in `cache` that was built for this program; `None`: one has to be built. Those whose manifest is
/// damaged do not count; the content is verified on use.
///
/// # Errors
/// The cache can't be read.
pub fn find(cache: &Cache) -> Result<Option<Kernel>, CacheError> {
    newest(cache, &Recipe::guest())
}

fn newest(cache: &Cache, recipe: &Recipe) -> Result<Option<Kernel>, CacheError> {
    let prefix = format!("{}-", ArtefactKind::Kernel.word());
    let entries = cache.entries()?;
    let kernels = entries.iter().filter(|(name, _)| name.starts_with(&prefix)).filter_map(|e| Kernel::open(&e.1).ok());
    Ok(kernels.filter(|k| k.fits(recipe)).max_by_key(|k| k.manifest.built_at))
}

#[cfg(test)]
mod tests;
