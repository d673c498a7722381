//! What a savepoint consists of.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use pvisor_spec::Envelope;
use serde::{Deserialize, Serialize};

use super::{Savepoint, SavepointError, place};
use crate::apply::Blame;
use crate::journal::Journal;
use crate::layout::{SEAL, UPPER, nofollow};
use crate::load::{SealedContent, SealedStage};
use crate::upper::{Upper, content_name, hash_file};
use crate::{ContentHash, NodeId};

/// Name of the file.
pub(super) const MANIFEST: &str = "manifest";
const ENVELOPE: Envelope = Envelope { magic: *b"PVSTGSPT", major: 1, minor: 0 };
/// Longest manifest, in bytes: some ten million contents.
const LIMIT: u64 = 1 << 30;

/// The whole record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub name: String,
    pub created_ms: u64,
    /// Bytes of the journal.
    pub journal_length: u64,
    /// BLAKE3 of them.
    pub journal_hash: ContentHash,
    /// Digest of the stage's seal, and its number of changes.
    pub seal: Option<(ContentHash, u64)>,
    pub contents: Vec<SealedContent>,
}

impl Manifest {
    /// The file.
    pub fn encode(&self) -> Result<Vec<u8>, SavepointError> {
        let payload = postcard::to_stdvec(self).map_err(|e| SavepointError::damaged(&self.name, e.to_string()))?;
        Ok(ENVELOPE.wrap(&payload))
    }

    /// Reads the one of a savepoint.
    pub fn read(dir: &Path, name: &str) -> Result<Self, SavepointError> {
        let at = place(dir, name);
        let path = at.join(MANIFEST);
        if at.symlink_metadata().is_err() {
            return Err(SavepointError::Unknown(name.to_owned()));
        }
        let file = OpenOptions::new().read(true).custom_flags(nofollow()).open(&path).blame("open", &path)?;
        let mut bytes = Vec::new();
        file.take(LIMIT + 1).read_to_end(&mut bytes).blame("read", &path)?;
        if bytes.len() as u64 > LIMIT {
            return Err(SavepointError::damaged(name, "its manifest is larger than any can be"));
        }
        let manifest = Self::decode(&bytes).map_err(|what| SavepointError::damaged(name, what))?;
        if manifest.name != name {
            return Err(SavepointError::damaged(name, "its manifest is of another savepoint"));
        }
        Ok(manifest)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let payload = ENVELOPE.unwrap(bytes).map_err(|e| e.to_string())?;
        let (manifest, rest): (Self, _) = postcard::take_from_bytes(payload).map_err(|e| e.to_string())?;
        if !rest.is_empty() {
            return Err("bytes follow the manifest".to_owned());
        }
        // Names of contents are made of their ids, so each can be there only once.
        if !manifest.contents.is_sorted_by(|a, b| a.id() < b.id()) {
            return Err("its contents are not in order".to_owned());
        }
        Ok(manifest)
    }

    pub fn describe(&self) -> Savepoint {
        Savepoint {
            name: self.name.clone(),
            created_ms: self.created_ms,
            seal: self.seal,
            contents: self.contents.len() as u64,
            bytes: self.contents.iter().fold(0, |sum, c| sum.saturating_add(c.size)),
        }
    }

    /// Compares everything in the savepoint's directory with what is said here.
    pub fn verify(&self, dir: &Path) -> Result<(), SavepointError> {
        let at = place(dir, &self.name);
        let damaged = |what: &str| SavepointError::damaged(&self.name, what);
        let (hash, length) = Journal::hash(&at).map_err(|e| damaged(&format!("its journal: {e}")))?;
        if (hash, length) != (self.journal_hash, self.journal_length) {
            return Err(damaged("its journal is not the one that was saved"));
        }
        if let Some((digest, changes)) = self.seal {
            let sealed = SealedStage::read(&at).map_err(|_| damaged("its seal"))?;
            if (sealed.digest, sealed.body.changes) != (digest, changes) {
                return Err(damaged("its seal is not the one that was saved"));
            }
        } else if at.join(SEAL).symlink_metadata().is_ok() {
            return Err(damaged("it has a seal that was not saved"));
        }
        let upper = Upper::open(&at).blame("open", at.join(UPPER))?;
        let check = |content: &SealedContent| {
            let name = content_name(content.id());
            let file = upper.content(content.id(), false).map_err(|e| damaged(&format!("content {name}: {e}")))?;
            if is_content(&file, content).blame("read", at.join(UPPER).join(&name))? {
                return Ok(());
            }
            Err(damaged(&format!("content {name} is not what was saved")))
        };
        crate::seal::each(&self.contents, check).into_iter().collect()
    }
}

fn is_content(file: &File, content: &SealedContent) -> Result<bool, crate::Errno> {
    let stat = crate::stat::Stat::of(file)?;
    if stat.kind != crate::FileKind::File || stat.size != content.size {
        return Ok(false);
    }
    let (hash, size) = hash_file(file)?;
    Ok((hash, size) == (content.hash, content.size))
}

/// What is said of contents in `dir` that nobody writes.
pub(super) fn describe_contents(
    upper: &Upper,
    ids: &[NodeId],
    dir: &Path,
) -> Result<Vec<SealedContent>, SavepointError> {
    let one = |id: &NodeId| describe_content(upper, *id).blame("read", dir.join(UPPER).join(content_name(*id)));
    Ok(crate::seal::each(ids, one).into_iter().collect::<Result<_, _>>()?)
}

fn describe_content(upper: &Upper, id: NodeId) -> Result<SealedContent, crate::Errno> {
    let file = upper.content(id, false)?;
    let (hash, size) = hash_file(&file)?;
    Ok(SealedContent::new(id, size, hash, crate::stat::Stat::of(&file)?.mtime))
}
