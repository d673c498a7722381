//! Reading a journal back. Everything in it is checked before it is believed.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use pvisor_spec::EnvelopeError;

use super::writer::HEADER;
use super::{Header, MAX_HEADER, MAX_RECORD, Record};
use crate::layout::{JOURNAL, JOURNAL_ENVELOPE, nofollow};

/// Why a journal can't be read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file can't be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The header is damaged or of another format.
    #[error("the header is no good")]
    Header(#[source] EnvelopeError),
    /// The frame at this byte is damaged.
    #[error("damaged at byte {at}: {what}")]
    Frame {
        /// Offset in the file.
        at: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// The frames of a journal, in order.
#[derive(Debug)]
pub(crate) struct Frames {
    file: BufReader<File>,
    header: Header,
    at: u64,
    body: Vec<u8>,
}

impl Frames {
    /// Opens the journal in `dir` and checks its header.
    pub fn open(dir: &Path) -> Result<Self, JournalError> {
        let mut options = OpenOptions::new();
        let mut file = BufReader::new(options.read(true).custom_flags(nofollow()).open(dir.join(JOURNAL))?);
        let mut bytes = Vec::with_capacity(HEADER);
        file.by_ref().take(HEADER as u64).read_to_end(&mut bytes)?;
        let length = bytes.get(12..20).map_or(0, |b| b.iter().rev().fold(0_u64, |n, b| n << 8 | u64::from(*b)));
        // Without the cap a damaged length would read the frames for a header.
        let length = length.min(MAX_HEADER as u64);
        file.by_ref().take(length).read_to_end(&mut bytes)?;
        let payload = JOURNAL_ENVELOPE.unwrap(&bytes).map_err(JournalError::Header)?;
        let header = decode(payload).ok_or(JournalError::Frame { at: 0, what: "the header does not decode" })?;
        Ok(Self { file, header, at: bytes.len() as u64, body: Vec::new() })
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Where the next frame starts: after an error, where the good part ends.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The next record; `None` at the end. A frame that is cut off at the end of the file is [`Torn`](Tail::Torn).
    pub fn next(&mut self) -> Result<Option<Record>, Tail> {
        let mut head = Vec::with_capacity(8);
        self.file.by_ref().take(8).read_to_end(&mut head).map_err(JournalError::Io)?;
        if head.is_empty() {
            return Ok(None);
        }
        let Ok::<[u8; 8], _>([a, b, c, d, e, f, g, h]) = head.try_into() else { return Err(Tail::Torn) };
        let length = u32::from_le_bytes([a, b, c, d]);
        let sum = u32::from_le_bytes([e, f, g, h]);
        if length == 0 || length as usize > MAX_RECORD {
            return Err(self.damaged("impossible length"));
        }
        self.body.clear();
        self.file.by_ref().take(u64::from(length)).read_to_end(&mut self.body).map_err(JournalError::Io)?;
        if self.body.len() < length as usize {
            return Err(Tail::Torn);
        }
        if crc32fast::hash(&self.body) != sum {
            return Err(self.damaged("checksum mismatch"));
        }
        let record = decode(&self.body).ok_or_else(|| self.damaged("it does not decode"))?;
        self.at += 8 + u64::from(length);
        Ok(Some(record))
    }

    fn damaged(&self, what: &'static str) -> Tail {
        Tail::Error(JournalError::Frame { at: self.at, what })
    }
}

/// Why there is no next record.
#[derive(Debug)]
pub(crate) enum Tail {
    /// The file ends in the middle of a frame: the writer was stopped there, and never acknowledged it.
    Torn,
    /// Anything else.
    Error(JournalError),
}

impl From<JournalError> for Tail {
    fn from(e: JournalError) -> Self {
        Self::Error(e)
    }
}

fn decode<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Some(value),
        _ => None,
    }
}
