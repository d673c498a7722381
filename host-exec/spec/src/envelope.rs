//! The frame around every binary file that pvisor writes.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | magic: which kind of file |
//! | 8..10 | major version, little-endian; another one is refused |
//! | 10..12 | minor version, little-endian; a newer one is accepted |
//! | 12..20 | length of the payload in bytes, little-endian |
//! | 20..52 | BLAKE3 of bytes 0..20 and the payload |
//! | 52.. | payload |

/// Eight bytes that name a kind of file.
pub type Magic = [u8; 8];

/// A kind of file and the version this program writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Which kind of file.
    pub magic: Magic,
    /// Readers of another major version refuse the file.
    pub major: u16,
    /// Readers accept any minor version of their major version.
    pub minor: u16,
}

/// Why the bytes are not a whole file of that kind.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Too short to hold the header, or cut in the payload.
    #[error("cut off: {have} bytes of {want}")]
    Short {
        /// Bytes there are.
        have: u64,
        /// Bytes there should be.
        want: u64,
    },
    /// The first eight bytes are others.
    #[error("not a file of this kind")]
    Magic,
    /// Written by an incompatible version.
    #[error("written in format {found}, this pvisor reads format {known}")]
    Version {
        /// Major version in the file.
        found: u16,
        /// Major version that this program reads.
        known: u16,
    },
    /// The checksum does not match.
    #[error("checksum mismatch: the file was damaged or edited")]
    Checksum,
    /// Bytes follow the payload.
    #[error("{0} bytes too many")]
    Trailing(u64),
}

impl Envelope {
    /// Length of everything before the payload, in bytes.
    pub const HEADER: usize = 52;

    /// Header and payload as they stand in the file.
    pub fn wrap(&self, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::HEADER + payload.len());
        out.extend_from_slice(&self.magic);
        out.extend_from_slice(&self.major.to_le_bytes());
        out.extend_from_slice(&self.minor.to_le_bytes());
        out.extend_from_slice(&(payload.len() as u64).to_le_bytes());
        let sum = checksum(&out, payload);
        out.extend_from_slice(&sum);
        out.extend_from_slice(payload);
        out
    }

    /// The payload of a whole file.
    ///
    /// # Errors
    /// Every deviation of the header, the length or the checksum.
    pub fn unwrap<'a>(&self, file: &'a [u8]) -> Result<&'a [u8], EnvelopeError> {
        let have = file.len() as u64;
        let Some((header, payload)) = file.split_at_checked(Self::HEADER) else {
            return Err(EnvelopeError::Short { have, want: Self::HEADER as u64 });
        };
        let (fields, sum) = header.split_at(20);
        if fields[0..8] != self.magic {
            return Err(EnvelopeError::Magic);
        }
        let major = u16::from_le_bytes([fields[8], fields[9]]);
        if major != self.major {
            return Err(EnvelopeError::Version { found: major, known: self.major });
        }
        let mut length = [0; 8];
        length.copy_from_slice(&fields[12..20]);
        let length = u64::from_le_bytes(length);
        let body = payload.len() as u64;
        if body < length {
            return Err(EnvelopeError::Short { have, want: length.saturating_add(Self::HEADER as u64) });
        }
        if body > length {
            return Err(EnvelopeError::Trailing(body - length));
        }
        if checksum(fields, payload) != sum {
            return Err(EnvelopeError::Checksum);
        }
        Ok(payload)
    }
}

fn checksum(fields: &[u8], payload: &[u8]) -> [u8; 32] {
    *blake3::Hasher::new().update(fields).update(payload).finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Envelope = Envelope { magic: *b"PVTEST\0\0", major: 1, minor: 3 };

    #[test]
    fn payload_comes_back() {
        for payload in [&b""[..], b"x", &[7; 5000]] {
            assert_eq!(KIND.unwrap(&KIND.wrap(payload)).unwrap(), payload);
        }
    }

    #[test]
    fn any_changed_or_missing_byte_is_noticed() {
        let whole = KIND.wrap(b"payload");
        for at in 0..whole.len() {
            let mut broken = whole.clone();
            broken[at] ^= 1;
            assert!(KIND.unwrap(&broken).is_err(), "byte {at} changed");
            assert!(KIND.unwrap(&whole[..at]).is_err(), "cut at {at}");
        }
        let longer = [&whole[..], b"x"].concat();
        assert_eq!(KIND.unwrap(&longer), Err(EnvelopeError::Trailing(1)));
    }

    #[test]
    fn versions_are_judged_before_anything_else_is_decoded() {
        let newer_minor = Envelope { minor: 9, ..KIND }.wrap(b"p");
        assert_eq!(KIND.unwrap(&newer_minor).unwrap(), b"p");
        let other_major = Envelope { major: 2, ..KIND }.wrap(b"p");
        assert_eq!(KIND.unwrap(&other_major), Err(EnvelopeError::Version { found: 2, known: 1 }));
    }
}
