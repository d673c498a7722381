//! Frames: a message with its length, its id and a checksum.
//!
//! | bytes | what |
//! |---|---|
//! | 0..3 | `PVA` |
//! | 3 | major version of the protocol |
//! | 4..8 | length of the body in bytes, little-endian |
//! | 8..16 | id of the request or command, little-endian |
//! | 16..20 | CRC-32 (IEEE) of bytes 0..16 and the body, little-endian |
//! | 20.. | body: the message in postcard encoding |

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes before the body.
pub const HEADER: usize = 20;

/// Major version of the protocol: sides of different major versions can't talk.
pub const MAJOR: u8 = 1;

const NAME: [u8; 3] = *b"PVA";

/// A kind of message with the size that one of its frames may have.
pub trait Message: Serialize + DeserializeOwned {
    /// Most bytes of a body; longer ones are neither sent nor accepted.
    const MAX_BODY: usize;
}

/// The bytes are no stream of frames. Nothing after that can be trusted, so the stream is at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A frame does not begin as one.
    #[error("not a frame of the agent protocol")]
    Magic,
    /// The other side speaks another version.
    #[error("the other side speaks version {found} of the protocol, this one version {MAJOR}")]
    Version {
        /// Major version of the other side.
        found: u8,
    },
    /// The length is beyond what this kind of message may have.
    #[error("a frame of {length} bytes, at most {max} are allowed")]
    TooLong {
        /// Bytes of the body.
        length: u32,
        /// Bytes allowed.
        max: usize,
    },
    /// The checksum does not match.
    #[error("checksum of a frame does not match")]
    Checksum,
    /// The body is no message.
    #[error("a frame holds no known message")]
    Body,
}

/// The message can't be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {length} bytes, at most {max} are allowed")]
pub struct EncodeError {
    /// Bytes of the body.
    pub length: usize,
    /// Bytes allowed.
    pub max: usize,
}

/// Appends the frame of a message to `out`, which stays as it was on an error.
///
/// # Errors
/// The message is larger than its kind may be.
pub fn encode<M: Message>(id: u64, message: &M, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER]);
    let mut body = Appender { out, room: M::MAX_BODY, length: 0 };
    let encoded = postcard::to_extend(message, &mut body).is_ok();
    let Appender { length, .. } = body;
    let length32 = match u32::try_from(length) {
        Ok(length32) if encoded && length <= M::MAX_BODY => length32,
        _ => {
            out.truncate(start);
            return Err(EncodeError { length, max: M::MAX_BODY });
        }
    };
    let (header, body) = out[start..].split_at_mut(HEADER);
    header[0..3].copy_from_slice(&NAME);
    header[3] = MAJOR;
    header[4..8].copy_from_slice(&length32.to_le_bytes());
    header[8..16].copy_from_slice(&id.to_le_bytes());
    let sum = checksum(&header[0..16], body);
    header[16..20].copy_from_slice(&sum.to_le_bytes());
    Ok(())
}

/// Appends up to `room` bytes and counts the rest.
struct Appender<'a> {
    out: &'a mut Vec<u8>,
    room: usize,
    length: usize,
}

impl Extend<u8> for &mut Appender<'_> {
    fn extend<I: IntoIterator<Item = u8>>(&mut self, bytes: I) {
        for byte in bytes {
            if self.length < self.room {
                self.out.push(byte);
            }
            self.length += 1;
        }
    }
}

fn checksum(header: &[u8], body: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(header);
    sum.update(body);
    sum.finalize()
}

/// Makes messages of a byte stream that may arrive in pieces of any size.
///
/// Holds no more than one frame and what was fed since [`Decoder::next`] last returned `None`.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
    broken: Option<FrameError>,
}

impl Decoder {
    /// A decoder at the beginning of a frame.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes as they came.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.broken.is_some() {
            return;
        }
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether the stream stands between two frames.
    pub fn is_empty(&self) -> bool {
        self.buffer.len() == self.start
    }

    /// The next message and its id, as soon as all of it has come.
    ///
    /// # Errors
    /// The bytes are no frame of such a message; every later call says the same.
    #[allow(clippy::should_implement_trait, reason = "the kind of message is a parameter")]
    pub fn next<M: Message>(&mut self) -> Result<Option<(u64, M)>, FrameError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let found = parse::<M>(&self.buffer[self.start..]);
        match found {
            Ok(Some((id, message, length))) => {
                self.start += length;
                if self.start == self.buffer.len() {
                    self.buffer.clear();
                    self.start = 0;
                    // One large message must not hold its memory for ever.
                    self.buffer.shrink_to(HEADER + 64 * 1024);
                }
                Ok(Some((id, message)))
            }
            Ok(None) => Ok(None),
            Err(error) => {
                self.broken = Some(error);
                self.buffer = Vec::new();
                self.start = 0;
                Err(error)
            }
        }
    }
}

/// The message at the beginning of `bytes` and the length of its frame; `None`: not all there yet. What is wrong is
/// said as soon as it shows.
fn parse<M: Message>(bytes: &[u8]) -> Result<Option<(u64, M, usize)>, FrameError> {
    let known = bytes.len().min(NAME.len());
    if bytes[..known] != NAME[..known] {
        return Err(FrameError::Magic);
    }
    if let Some(&found) = bytes.get(3).filter(|&&found| found != MAJOR) {
        return Err(FrameError::Version { found });
    }
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let [_, _, _, _, l0, l1, l2, l3, i0, i1, i2, i3, i4, i5, i6, i7, s0, s1, s2, s3] = *header;
    let length = u32::from_le_bytes([l0, l1, l2, l3]);
    let size = length as usize;
    if size > M::MAX_BODY {
        return Err(FrameError::TooLong { length, max: M::MAX_BODY });
    }
    let Some(body) = rest.get(..size) else {
        return Ok(None);
    };
    if checksum(&header[0..16], body) != u32::from_le_bytes([s0, s1, s2, s3]) {
        return Err(FrameError::Checksum);
    }
    match postcard::take_from_bytes::<M>(body) {
        Ok((message, [])) => Ok(Some((u64::from_le_bytes([i0, i1, i2, i3, i4, i5, i6, i7]), message, HEADER + size))),
        _ => Err(FrameError::Body),
    }
}

#[cfg(test)]
mod tests;
