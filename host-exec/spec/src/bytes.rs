//! Bytes that the operating system calls a string.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An argument, a variable or a path: any bytes, UTF-8 or not.
///
/// In JSON it is a plain string where it is UTF-8, else `{"hex": "…"}`, so that nothing is lost either way.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(with = "Wire<'static>"))]
pub struct OsBytes(Vec<u8>);

impl OsBytes {
    /// The bytes as the kernel takes them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes as a path.
    pub fn as_path(&self) -> &Path {
        Path::new(self.as_os_str())
    }

    /// The bytes as an operating system string.
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    /// For people: bytes that are not UTF-8 are replaced.
    pub fn display(&self) -> impl fmt::Display + '_ {
        self.as_os_str().display()
    }
}

impl fmt::Debug for OsBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_os_str(), f)
    }
}

impl From<&OsStr> for OsBytes {
    fn from(s: &OsStr) -> Self {
        Self(s.as_bytes().to_vec())
    }
}

impl From<OsString> for OsBytes {
    fn from(s: OsString) -> Self {
        Self(s.into_vec())
    }
}

impl From<PathBuf> for OsBytes {
    fn from(p: PathBuf) -> Self {
        p.into_os_string().into()
    }
}

impl From<&Path> for OsBytes {
    fn from(p: &Path) -> Self {
        p.as_os_str().into()
    }
}

impl From<&str> for OsBytes {
    fn from(s: &str) -> Self {
        Self(s.as_bytes().to_vec())
    }
}

impl From<Vec<u8>> for OsBytes {
    fn from(b: Vec<u8>) -> Self {
        Self(b)
    }
}

impl From<OsBytes> for OsString {
    fn from(b: OsBytes) -> Self {
        OsString::from_vec(b.0)
    }
}

impl From<OsBytes> for PathBuf {
    fn from(b: OsBytes) -> Self {
        PathBuf::from(OsString::from(b))
    }
}

#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
enum Wire<'a> {
    Text(std::borrow::Cow<'a, str>),
    Hex { hex: String },
}

impl Serialize for OsBytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let wire = match std::str::from_utf8(&self.0) {
            Ok(text) => Wire::Text(text.into()),
            Err(_) => Wire::Hex { hex: self.0.iter().map(|b| format!("{b:02x}")).collect() },
        };
        wire.serialize(s)
    }
}

impl<'de> Deserialize<'de> for OsBytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        match Wire::deserialize(d)? {
            Wire::Text(text) => Ok(Self(text.into_owned().into_bytes())),
            Wire::Hex { hex } => from_hex(&hex).map(Self).ok_or_else(|| serde::de::Error::custom("not hexadecimal")),
        }
    }
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = hex.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
    let digits = digits?;
    let pairs = digits.chunks_exact(2);
    pairs.remainder().is_empty().then(|| pairs.map(|p| p[0] << 4 | p[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn json_keeps_every_byte(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let value = OsBytes::from(bytes);
            let json = serde_json::to_string(&value).unwrap();
            prop_assert_eq!(serde_json::from_str::<OsBytes>(&json).unwrap(), value);
        }
    }

    #[test]
    fn half_a_byte_is_refused() {
        assert!(serde_json::from_str::<OsBytes>(r#"{"hex":"abc"}"#).is_err());
        assert!(serde_json::from_str::<OsBytes>(r#"{"hex":"zz"}"#).is_err());
    }
}
