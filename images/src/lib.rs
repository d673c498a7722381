//! What a guest boots from: its kernel, and the agent in an initramfs. Everything is built from source on this machine,
//! kept in a cache by the hash of what it was built from, and verified when it is used.

mod agent;
mod artefact;
mod cache;
mod cpio;
mod digest;
mod initramfs;
pub mod kernel;
mod manifest;

pub use agent::{AGENT, agent_digest};
pub use artefact::{Artefact, collect_garbage, list, remove};
pub use cache::{Cache, CacheError};
pub use digest::{Digest, ParseDigestError};
pub use initramfs::{Initramfs, ensure_initramfs, initramfs_bytes};
pub use kernel::{
    ImageError, Kernel, KernelError, KernelImage, KernelLayout, KernelRequest, KernelSource, build as build_kernel,
    find as find_kernel,
};
pub use manifest::{ArtefactKind, FileRecord, KernelRecord, Manifest, ManifestError};
