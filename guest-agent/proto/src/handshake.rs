//! The handshake: each side shows that it knows the run's key.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Minor version of the protocol; the major version is [`crate::MAJOR`]. Both sides use what the lower one knows.
pub const MINOR: u16 = 0;

/// A secret of one run, 32 random bytes.
///
/// The first one reaches the agent on the kernel command line, where every program in the guest can read it later.
/// So it opens one handshake only: [`crate::Hello`] brings the key of the next, over a port that only the agent holds.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key([u8; 32]);

/// The text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a key: expected 64 hexadecimal digits")]
pub struct ParseKeyError;

/// Random bytes that a proof answers.
pub type Challenge = [u8; 32];

/// Proof of knowing a key.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Proof([u8; 32]);

impl PartialEq for Proof {
    /// In constant time.
    fn eq(&self, other: &Self) -> bool {
        blake3::Hash::from(self.0) == blake3::Hash::from(other.0)
    }
}

impl Eq for Proof {}

impl Key {
    /// A key of these bytes, which must be random.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, to keep them with a checkpoint.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The key as it stands on the kernel command line.
    pub fn to_hex(&self) -> String {
        use fmt::Write;
        self.0.iter().fold(String::with_capacity(64), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

impl fmt::Debug for Key {
    /// Never shows the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

impl FromStr for Key {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text: &[u8; 64] = text.as_bytes().try_into().map_err(|_| ParseKeyError)?;
        let mut key = [0; 32];
        for (byte, pair) in key.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Self(key))
    }
}

fn digit(c: u8) -> Result<u8, ParseKeyError> {
    match c {
        b'0'..=b'9' => Ok(c - b'0'),
        b'a'..=b'f' => Ok(c - b'a' + 10),
        b'A'..=b'F' => Ok(c - b'A' + 10),
        _ => Err(ParseKeyError),
    }
}

/// The proof that goes with the host's hello.
pub fn host_proof(key: &Key, challenge: &Challenge) -> Proof {
    proof(key, b"pvisor host\0", challenge)
}

/// The proof that goes with the guest's welcome.
pub fn guest_proof(key: &Key, challenge: &Challenge) -> Proof {
    proof(key, b"pvisor guest", challenge)
}

fn proof(key: &Key, side: &[u8; 12], challenge: &Challenge) -> Proof {
    Proof(*blake3::Hasher::new_keyed(&key.0).update(side).update(challenge).finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_back_from_text() {
        let key = Key::new(std::array::from_fn(|i| i as u8 * 7));
        assert_eq!(key.to_hex().parse::<Key>().unwrap(), key);
        assert_eq!(key.to_hex().to_uppercase().parse::<Key>().unwrap(), key);
        for text in ["", "00", &"0".repeat(63), &"0".repeat(65), &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(text.parse::<Key>(), Err(ParseKeyError), "{text}");
        }
        assert!(!format!("{key:?}").contains("07"));
    }

    #[test]
    fn a_proof_depends_on_key_challenge_and_side() {
        let (key, challenge) = (Key::new([1; 32]), [2; 32]);
        let proof = host_proof(&key, &challenge);
        assert_eq!(proof, host_proof(&key, &challenge));
        assert_ne!(proof, host_proof(&Key::new([3; 32]), &challenge));
        assert_ne!(proof, host_proof(&key, &[3; 32]));
        assert_ne!(proof, guest_proof(&key, &challenge));
    }
}
