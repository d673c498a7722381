//! From the journal to the tree.

use std::path::Path;

use super::LoadError;
use crate::journal::{Frames, Header, JournalError, Tail};
use crate::layout::JOURNAL;
use crate::tree::{Misfit, Tree};
use crate::{Errno, FileKind};

/// What a journal says.
#[derive(Debug)]
pub(crate) struct Replayed {
    pub header: Header,
    pub tree: Tree,
    /// Length of the whole frames, in bytes.
    pub end: u64,
    /// The last frame is cut off.
    pub torn: bool,
}

/// Why a journal can't be replayed.
#[derive(Debug)]
pub(crate) enum ReplayError {
    Journal(JournalError),
    Misfit { at: u64, misfit: Misfit },
}

impl From<JournalError> for ReplayError {
    fn from(e: JournalError) -> Self {
        Self::Journal(e)
    }
}

impl ReplayError {
    pub fn into_load(self, dir: &Path) -> LoadError {
        let path = dir.join(JOURNAL);
        match self {
            Self::Journal(JournalError::Io(source)) => LoadError::Io { path, source },
            Self::Journal(source) => LoadError::Journal { path, source },
            Self::Misfit { at, misfit } => LoadError::Misfit { path, at, source: misfit },
        }
    }
}

/// Applies the whole journal in `dir` to an empty tree. Nodes that nothing leads to any more are kept: their preimages
/// are needed.
pub(crate) fn replay(dir: &Path) -> Result<Replayed, ReplayError> {
    replay_into(dir, true)
}

/// [`replay`], for a tree that goes on being used: it forgets what nothing leads to.
pub(crate) fn replay_live(dir: &Path) -> Result<Replayed, ReplayError> {
    let mut replayed = replay_into(dir, false)?;
    let dead: Vec<_> = replayed.tree.nodes.iter().filter(|(_, n)| n.is_dead()).map(|(id, _)| *id).collect();
    for id in dead {
        replayed.tree.collect(id);
    }
    Ok(replayed)
}

fn replay_into(dir: &Path, keep_all: bool) -> Result<Replayed, ReplayError> {
    let mut frames = Frames::open(dir)?;
    let root = frames.header().root;
    if root.kind != FileKind::Directory {
        return Err(ReplayError::Journal(std::io::Error::from(Errno::NOTDIR).into()));
    }
    let mut tree = Tree::new(&root, keep_all);
    let mut torn = false;
    loop {
        let at = frames.at();
        let record = match frames.next() {
            Ok(Some(record)) => record,
            Ok(None) => break,
            Err(Tail::Torn) => {
                torn = true;
                break;
            }
            Err(Tail::Error(e)) => return Err(e.into()),
        };
        tree.check(&record).map_err(|misfit| ReplayError::Misfit { at, misfit })?;
        tree.commit(&record);
    }
    Ok(Replayed { header: frames.header().clone(), tree, end: frames.at(), torn })
}
