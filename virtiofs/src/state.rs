//! What a kernel holds of a filesystem, as bytes: so that a guest can go on in another process.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use pvisor_spec::Envelope;
use pvisor_stage::{Access, NodeId};
use serde::{Deserialize, Serialize};

use crate::directory::{Directory, Listed};
use crate::file::File;
use crate::filesystem::StageFs;
use crate::handle::{Handle, MAX_HANDLES};

const ENVELOPE: Envelope = Envelope { magic: *b"PVFSHND\0", major: 1, minor: 0 };

/// Largest state that is read, in bytes.
const MAX_STATE: usize = 1 << 30;

/// Why a state can't be taken over.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Larger than any that is written.
    #[error("filesystem state of {0} bytes is too large")]
    Size(usize),
    /// Not a whole state of this version.
    #[error("filesystem state is damaged")]
    Envelope(#[from] pvisor_spec::EnvelopeError),
    /// The content is no state.
    #[error("filesystem state can't be decoded")]
    Decode(#[from] postcard::Error),
    /// The content contradicts itself.
    #[error("filesystem state is inconsistent: {0}")]
    Inconsistent(&'static str),
    /// The stage does not take the references.
    #[error("references of the filesystem state do not fit the stage")]
    References(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A file that was open can't be opened again.
    #[error("node {node} can't be opened again")]
    Open {
        /// Its node.
        node: u64,
        /// Why.
        #[source]
        source: rustix::io::Errno,
    },
    /// The filesystem is fenced.
    #[error("the filesystem is closed")]
    Closed,
}

#[derive(Serialize, Deserialize)]
struct State {
    references: Vec<u8>,
    next_file: u64,
    files: Vec<SavedFile>,
    next_directory: u64,
    directories: Vec<SavedDirectory>,
}

#[derive(Serialize, Deserialize)]
struct SavedFile {
    handle: u64,
    node: u64,
    access: SavedAccess,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum SavedAccess {
    Read,
    Write,
    ReadWrite,
}

#[derive(Serialize, Deserialize)]
struct SavedDirectory {
    handle: u64,
    node: u64,
    listing: Option<Vec<Listed>>,
}

impl StageFs {
    /// Everything that a kernel may refer to later. No request may be at work meanwhile.
    ///
    /// # Errors
    /// The filesystem is fenced.
    pub fn capture_state(&self) -> Result<Vec<u8>, StateError> {
        let stage = self.enter().map_err(|_| StateError::Closed)?;
        let files = self.files.all().into_iter().map(|(handle, file)| SavedFile {
            handle: handle.0,
            node: file.open.node().0,
            access: SavedAccess::from(file.access),
        });
        let directories = self.directories.all().into_iter().map(|(handle, directory)| {
            let listing = directory.listing.lock().unwrap_or_else(PoisonError::into_inner);
            SavedDirectory { handle: handle.0, node: directory.node.0, listing: listing.as_ref().map(|l| l.to_vec()) }
        });
        let state = State {
            references: stage.capture_references(),
            next_file: self.files.next(),
            files: files.collect(),
            next_directory: self.directories.next(),
            directories: directories.collect(),
        };
        Ok(ENVELOPE.wrap(&postcard::to_stdvec(&state)?))
    }

    /// Checks a state as far as it can be without touching anything.
    ///
    /// # Errors
    /// It is damaged, of another version, or contradicts itself.
    pub fn validate_state(&self, state: &[u8]) -> Result<(), StateError> {
        decode(state).map(drop)
    }

    /// Takes a state over, in place of everything that is open now. On an error nothing of it is taken over but
    /// references in the stage.
    ///
    /// # Errors
    /// As [`StageFs::validate_state`]; the stage is not the one that the state was captured from, or a continuation of
    /// it.
    pub fn restore_state(&self, state: &[u8]) -> Result<(), StateError> {
        let stage = self.enter().map_err(|_| StateError::Closed)?;
        let state = decode(state)?;
        stage.restore_references(&state.references).map_err(|e| StateError::References(Box::new(e)))?;
        let mut files = Vec::with_capacity(state.files.len());
        for saved in state.files {
            let access = Access::from(saved.access);
            let open = stage
                .open(NodeId(saved.node), access, false)
                .map_err(|source| StateError::Open { node: saved.node, source })?;
            files.push((Handle(saved.handle), File::new(open, access)));
        }
        let directories = state.directories.into_iter().map(|saved| {
            let listing = Mutex::new(saved.listing.map(Arc::from));
            (Handle(saved.handle), Directory { node: NodeId(saved.node), listing })
        });
        self.directories.replace(state.next_directory, directories.collect());
        self.files.replace(state.next_file, files);
        Ok(())
    }
}

fn decode(bytes: &[u8]) -> Result<State, StateError> {
    if bytes.len() > MAX_STATE {
        return Err(StateError::Size(bytes.len()));
    }
    let state: State = postcard::from_bytes(ENVELOPE.unwrap(bytes)?)?;
    check_handles(state.next_file, state.files.iter().map(|f| f.handle))?;
    check_handles(state.next_directory, state.directories.iter().map(|d| d.handle))?;
    for listing in state.directories.iter().filter_map(|d| d.listing.as_ref()) {
        let dots = listing.len() >= 2 && listing[0].name == b"." && listing[1].name == b"..";
        if !dots || !listing[2..].iter().all(|l| pvisor_stage::is_name(&l.name)) {
            return Err(StateError::Inconsistent("a directory listing has a name that no directory can have"));
        }
    }
    Ok(state)
}

fn check_handles(next: u64, handles: impl ExactSizeIterator<Item = u64>) -> Result<(), StateError> {
    if handles.len() > MAX_HANDLES {
        return Err(StateError::Inconsistent("too many handles"));
    }
    let mut seen = BTreeSet::new();
    for handle in handles {
        if handle >= next || !seen.insert(handle) {
            return Err(StateError::Inconsistent("a handle is used twice or was never given out"));
        }
    }
    Ok(())
}

impl From<Access> for SavedAccess {
    fn from(access: Access) -> Self {
        match access {
            Access::Read => Self::Read,
            Access::Write => Self::Write,
            Access::ReadWrite => Self::ReadWrite,
        }
    }
}

impl From<SavedAccess> for Access {
    fn from(access: SavedAccess) -> Self {
        match access {
            SavedAccess::Read => Self::Read,
            SavedAccess::Write => Self::Write,
            SavedAccess::ReadWrite => Self::ReadWrite,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caller, Errno, FsOptions};
    use pvisor_stage::{Keep, Stage, StageOptions};
    use std::path::Path;

    const ME: Caller = Caller { uid: 0, gid: 0 };

    fn filesystem(dir: &Path, name: &str) -> StageFs {
        let options = StageOptions { keep: Keep::ThrowAway, ..StageOptions::default() };
        let stage = Stage::create(&dir.join(name), &dir.join("lower"), options).unwrap();
        StageFs::new(Arc::new(stage), FsOptions::default())
    }

    fn setup() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("lower/d")).unwrap();
        std::fs::write(dir.path().join("lower/d/f"), "content").unwrap();
        std::fs::write(dir.path().join("lower/d/g"), "").unwrap();
        dir
    }

    #[test]
    fn nodes_files_and_streams_go_on_in_another_process() {
        let dir = setup();
        let first = filesystem(dir.path(), "one");
        let d = first.lookup(NodeId::ROOT, b"d").unwrap().attr.node;
        let f = first.lookup(d, b"f").unwrap().attr.node;
        let file = first.open(f, 0, false).unwrap().handle;
        let closed = first.open(f, 0, false).unwrap().handle;
        first.release(closed).unwrap();
        let stream = first.open_dir(d).unwrap();
        let mut next = 0;
        first
            .read_dir(stream, 0, |item| {
                next = item.next_offset;
                item.name != b"f"
            })
            .unwrap();
        let state = first.capture_state().unwrap();
        first.validate_state(&state).unwrap();

        let second = filesystem(dir.path(), "two");
        second.restore_state(&state).unwrap();
        std::fs::remove_file(dir.path().join("lower/d/g")).unwrap();
        assert_eq!(second.lookup(d, b"f").unwrap().attr.node, f);
        let mut buffer = [0; 16];
        assert_eq!(second.read(file, &mut buffer, 3).unwrap(), 4);
        assert_eq!(second.read(closed, &mut buffer, 0), Err(Errno::BADF));
        let mut names = Vec::new();
        second
            .read_dir(stream, next, |item| {
                names.push(item.name.to_vec());
                true
            })
            .unwrap();
        assert_eq!(names, [b"g".to_vec()], "the stream goes on in the listing that it had");
        assert!(second.open(f, 0, false).unwrap().handle > closed);
    }

    #[test]
    fn damaged_states_are_refused_and_change_nothing() {
        let dir = setup();
        let fs = filesystem(dir.path(), "one");
        let (_, opened) = fs.create(ME, NodeId::ROOT, b"new", 0o600, 2, false).unwrap();
        let state = fs.capture_state().unwrap();
        for cut in 0..state.len() {
            assert!(fs.validate_state(&state[..cut]).is_err());
        }
        let mut broken = state.clone();
        *broken.last_mut().unwrap() ^= 1;
        assert!(fs.restore_state(&broken).is_err());
        let listed = |name: &[u8]| Listed { name: name.to_vec(), ino: 1, kind: 8 };
        let odd = |files: Vec<SavedFile>, listing: Vec<Listed>| {
            let directories = vec![SavedDirectory { handle: 1, node: 1, listing: Some(listing) }];
            let state = State { references: vec![], next_file: 5, files, next_directory: 2, directories };
            fs.validate_state(&ENVELOPE.wrap(&postcard::to_stdvec(&state).unwrap()))
        };
        let file = |handle| SavedFile { handle, node: 1, access: SavedAccess::Read };
        let dots = || vec![listed(b"."), listed(b"..")];
        assert!(odd(vec![file(4)], dots()).is_ok());
        assert!(odd(vec![file(4), file(4)], dots()).is_err());
        assert!(odd(vec![file(5)], dots()).is_err());
        assert!(odd(vec![], vec![listed(b".")]).is_err());
        assert!(odd(vec![], [dots(), vec![listed(b"a/b")]].concat()).is_err());
        assert_eq!(fs.write(opened.handle, b"x", 0, crate::WriteKind::default()), Ok(1));
    }
}
