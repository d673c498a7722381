//! Host names in the one spelling that rules and queries are compared in.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest name in bytes, without the trailing dot.
const MAX_NAME: usize = 253;
/// Longest label in bytes.
const MAX_LABEL: usize = 63;

/// A host name: lower-case ASCII, no trailing dot, labels of `a-z 0-9 - _`, never something that a resolver could take
/// for an address.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Box<str>);

/// Why a text is no host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No label at all.
    #[error("empty name")]
    Empty,
    /// Over 253 bytes, or a label over 63.
    #[error("name or label too long")]
    Long,
    /// Two dots in a row, or a dot in front.
    #[error("empty label")]
    EmptyLabel,
    /// A character that no host name has: NUL, space, `@`, a slash …
    #[error("character that no host name has")]
    Character,
    /// `127.1`, `0x7f000001`, `2130706433`: some resolvers take it for an address.
    #[error("ends in a number, which some programs take for an address: write addresses as 192.0.2.1")]
    Number,
    /// Letters outside ASCII that have no form in the domain name system.
    #[error("not a valid internationalised name")]
    International,
}

impl Name {
    /// A name from the bytes of a query or from text that is already ASCII. One trailing dot is dropped, case is folded.
    ///
    /// # Errors
    /// Everything that is no host name.
    pub fn from_ascii(bytes: &[u8]) -> Result<Self, NameError> {
        let bytes = bytes.strip_suffix(b".").unwrap_or(bytes);
        if bytes.is_empty() {
            return Err(NameError::Empty);
        }
        if bytes.len() > MAX_NAME {
            return Err(NameError::Long);
        }
        let mut text = String::with_capacity(bytes.len());
        for label in bytes.split(|&b| b == b'.') {
            if label.is_empty() {
                return Err(NameError::EmptyLabel);
            }
            if label.len() > MAX_LABEL {
                return Err(NameError::Long);
            }
            if !text.is_empty() {
                text.push('.');
            }
            for &byte in label {
                match byte {
                    b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => text.push(char::from(byte)),
                    b'A'..=b'Z' => text.push(char::from(byte.to_ascii_lowercase())),
                    _ => return Err(NameError::Character),
                }
            }
        }
        if ends_in_a_number(&text) {
            return Err(NameError::Number);
        }
        Ok(Self(text.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the name is below `zone`, at any depth; a name is not below itself.
    pub fn is_below(&self, zone: &Name) -> bool {
        self.0.strip_suffix(&*zone.0).is_some_and(|rest| rest.ends_with('.'))
    }
}

fn ends_in_a_number(text: &str) -> bool {
    let last = text.rsplit('.').next().unwrap_or_default();
    let digits = last.bytes().all(|b| b.is_ascii_digit());
    let hex = last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_hexdigit()));
    digits || hex
}

impl FromStr for Name {
    type Err = NameError;

    /// A name as people write it, in any script.
    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.is_ascii() {
            return Self::from_ascii(text.as_bytes());
        }
        let ascii = idna::domain_to_ascii(text).map_err(|_| NameError::International)?;
        Self::from_ascii(ascii.as_bytes())
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0.into()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn one_spelling_for_all() {
        for text in ["example.com", "EXAMPLE.com", "example.com.", "Example.Com."] {
            assert_eq!(name(text).as_str(), "example.com");
        }
        assert_eq!(name("bücher.example").as_str(), "xn--bcher-kva.example");
        assert_eq!(name("BÜCHER.example").as_str(), "xn--bcher-kva.example");
        // Full-width letters and the ideographic full stop fold to the plain ones.
        assert_eq!(name("ｅｘａｍｐｌｅ。com").as_str(), "example.com");
        assert_eq!(name("_sip._tcp.example.com").as_str(), "_sip._tcp.example.com");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for (text, why) in [
            ("", NameError::Empty),
            (".", NameError::Empty),
            ("a..b", NameError::EmptyLabel),
            (".a", NameError::EmptyLabel),
            ("example.com..", NameError::EmptyLabel),
            ("evil\0.allowed.com", NameError::Character),
            ("allowed.com:443@evil", NameError::Character),
            ("a b", NameError::Character),
            ("a/b", NameError::Character),
            ("%2e.com", NameError::Character),
            ("*.com", NameError::Character),
            ("127.0.0.1", NameError::Number),
            ("127.1", NameError::Number),
            ("2130706433", NameError::Number),
            ("0x7f000001", NameError::Number),
            ("0X7F.1.0x", NameError::Number),
            ("0177.0.0.01", NameError::Number),
            ("１２７.０.０.１", NameError::Number),
            ("[::ffff:127.0.0.1]", NameError::Character),
        ] {
            assert_eq!(text.parse::<Name>(), Err(why), "{text:?}");
        }
        assert_eq!("a".repeat(64).parse::<Name>(), Err(NameError::Long));
        assert_eq!(["a"; 128].join(".").parse::<Name>(), Err(NameError::Long));
        assert!(["a"; 127].join(".").parse::<Name>().is_ok());
    }

    #[test]
    fn below_means_whole_labels() {
        let zone = name("allowed.com");
        assert!(name("a.allowed.com").is_below(&zone));
        assert!(name("b.a.allowed.com").is_below(&zone));
        assert!(!name("allowed.com").is_below(&zone));
        assert!(!name("notallowed.com").is_below(&zone));
        assert!(!name("allowed.com.evil.org").is_below(&zone));
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_stable_name_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(name) = Name::from_ascii(&bytes) {
                prop_assert_eq!(Name::from_ascii(name.as_str().as_bytes()).unwrap(), name.clone());
                prop_assert!(name.as_str().parse::<std::net::IpAddr>().is_err());
            }
        }

        #[test]
        fn any_text_gives_a_stable_name_or_an_error(text in "\\PC{0,30}") {
            if let Ok(name) = text.parse::<Name>() {
                prop_assert_eq!(name.as_str().parse::<Name>().unwrap(), name.clone());
            }
        }
    }
}
