//! Copy-on-write workspace: a command works on a directory, its changes are kept beside it, a person reviews and
//! applies or discards them. See `DESIGN.md` beside this crate.

mod change;

pub use change::{
    After, Before, Change, ChangeSet, ContentHash, Fingerprint, Kind, Meta, ObjectId, RelPath, RelPathError,
    is_fingerprinted, is_name,
};
