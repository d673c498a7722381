//! The seal's file.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::LoadError;
use crate::layout::{SEAL, SEAL_ENVELOPE, nofollow};
use crate::stat::Time;
use crate::{ContentHash, NodeId};

/// Longest seal, in bytes: some ten million contents.
const MAX_SEAL: u64 = 1 << 30;

/// One staged content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SealedContent {
    node: u64,
    pub size: u64,
    pub hash: ContentHash,
    pub mtime: Time,
}

impl SealedContent {
    pub fn new(id: NodeId, size: u64, hash: ContentHash, mtime: Time) -> Self {
        Self { node: id.0, size, hash, mtime }
    }

    pub fn id(&self) -> NodeId {
        NodeId(self.node)
    }
}

/// What is sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SealBody {
    /// Length of the journal in bytes.
    pub journal_length: u64,
    /// BLAKE3 of the journal.
    pub journal_hash: ContentHash,
    /// Number of net changes.
    pub changes: u64,
    /// All contents in upper, by node.
    pub contents: Vec<SealedContent>,
}

/// A seal and its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SealedStage {
    pub digest: ContentHash,
    pub body: SealBody,
}

impl SealedStage {
    /// The seal's file for a body.
    pub fn encode(body: &SealBody) -> Result<Vec<u8>, postcard::Error> {
        Ok(SEAL_ENVELOPE.wrap(&postcard::to_stdvec(body)?))
    }

    /// Reads the seal in `dir`.
    pub fn read(dir: &Path) -> Result<Self, LoadError> {
        let path = dir.join(SEAL);
        let file = match OpenOptions::new().read(true).custom_flags(nofollow()).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(LoadError::NotSealed(dir.to_owned())),
            other => other.map_err(LoadError::io(&path))?,
        };
        let mut bytes = Vec::new();
        file.take(MAX_SEAL + 1).read_to_end(&mut bytes).map_err(LoadError::io(&path))?;
        if bytes.len() as u64 > MAX_SEAL {
            return Err(LoadError::Damaged { path: dir.to_owned(), what: "the seal is larger than any can be" });
        }
        Self::decode(dir, &bytes)
    }

    /// Takes the bytes of a seal's file.
    pub fn decode(dir: &Path, bytes: &[u8]) -> Result<Self, LoadError> {
        let payload = SEAL_ENVELOPE.unwrap(bytes).map_err(|source| LoadError::Seal { path: dir.join(SEAL), source })?;
        let Ok((body, [])) = postcard::take_from_bytes(payload) else {
            return Err(LoadError::Damaged { path: dir.to_owned(), what: "the seal does not decode" });
        };
        Ok(Self { digest: *blake3::hash(bytes).as_bytes(), body })
    }
}
