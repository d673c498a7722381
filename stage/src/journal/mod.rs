//! The append-only record of everything that a stage changes. Its frames, replayed over an untouched tree, give the
//! staged tree.
//!
//! | bytes | what |
//! |---|---|
//! | envelope | header: which lower, which masks |
//! | then per frame: 4 | length of the record, little-endian |
//! | 4 | CRC-32 of the record, little-endian |
//! | length | record, postcard |

mod reader;
mod record;
#[cfg(test)]
mod tests;
mod writer;

pub use reader::JournalError;
pub(crate) use reader::{Frames, Tail};
pub(crate) use record::{FreshKind, HashState, Header, Pin, Record};
pub(crate) use writer::Journal;

/// Longest record, in bytes; pins with many extended attributes are the longest.
pub(crate) const MAX_RECORD: usize = 8 * 1024 * 1024;
/// Longest header payload, in bytes.
pub(crate) const MAX_HEADER: usize = 8 * 1024 * 1024;
