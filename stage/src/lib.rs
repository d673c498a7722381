//! Copy-on-write workspace: a command works on a directory, its changes are kept beside it, a person reviews and
//! applies or discards them. See `DESIGN.md` beside this crate.

mod apply;
mod change;
mod journal;
mod layout;
mod live;
mod load;
mod lower;
#[cfg(test)]
mod private_mounts;
mod review;
mod savepoint;
mod seal;
mod stat;
mod tree;
mod upper;

pub use apply::{
    Applied, ApplyError, ApplyOptions, Conflict, ConflictKind, DiscardError, Discarded, Fault, HomeError, Keeping,
    LedgerError, OriginalsKept, Partial, PartialCause, RecoverError, Recovery, Selection, SelectionError, UndoError,
    UndoOptions, Undone, apply, apply_changes, discard, expire_originals, recover, undo,
};
pub use change::{
    After, Before, Change, ChangeSet, ContentHash, Fingerprint, Kind, Meta, ObjectId, RelPath, RelPathError, is_name,
};
pub use journal::JournalError;
pub use live::{
    Access, Attr, Entry, Keep, NewNode, NodeId, OpenError, OpenFile, ReferencesError, SetAttr, SetTime, Stage,
    StageOptions, StatFs,
};
pub use load::{LoadError, StageStatus, held_bytes, load_changes, status};
pub use lower::PatternError;
pub use review::{
    Binaries, Danger, ExecSink, Flag, FlagKind, REVIEW_SCHEMA, Review, ReviewDocument, ReviewEntry, ReviewError, Side,
    SideKind, Status, Visible, review, review_changes,
};
pub use savepoint::{
    Collected, PreparedSavepoint, Savepoint, SavepointError, TakenSavepoint, collect_savepoints, create_savepoint,
    delete_savepoint, fork, restore_savepoint, savepoint, savepoints, verify_savepoint,
};
pub use seal::{Seal, SealError, seal};
pub use stat::{FileKind, Time};
pub use tree::Misfit;

pub use rustix::fs::{FallocateFlags, RenameFlags, SeekFrom, XattrFlags};

/// An operating system error number.
pub type Errno = rustix::io::Errno;
