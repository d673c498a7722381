//! Values of options: lengths of time, sizes, variables.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{TypedValueParser, ValueParserFactory};

/// Why a value is not one. Lower-case fragments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ValueError {
    #[error("expected a length of time such as 500ms, 90s, 10m or 2h")]
    Span,
    #[error("expected a size such as 512M or 4G")]
    Memory,
    #[error("between 128M and 1T")]
    MemoryRange,
    #[error("at least 1M")]
    Bytes,
    #[error("expected bytes a second such as 500K or 10M")]
    Rate,
    #[error("expected PORT, HOST-PORT:PORT or ADDRESS:HOST-PORT:PORT, such as 8080:80 or [::1]:8080:80")]
    Published,
    #[error("expected PATH:read or PATH:write, and perhaps :TARGET")]
    Mount,
    #[error("expected GLOB:deny, GLOB:ask or GLOB:warn")]
    Access,
}

/// A length of time in milliseconds; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) u64);

impl FromStr for Span {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit_ms: u64 = match unit.trim_start() {
            "ms" => 1,
            "s" | "" => 1000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(ValueError::Span),
        };
        match scaled(number, unit_ms).ok_or(ValueError::Span)? {
            0 => Err(ValueError::Span),
            ms => Ok(Self(ms)),
        }
    }
}

/// A size of memory in MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory(pub(crate) u32);

impl FromStr for Memory {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let mib = kibibytes(text).ok_or(ValueError::Memory)? >> 10;
        match u32::try_from(mib) {
            Ok(mib @ 128..=1_048_576) => Ok(Self(mib)),
            _ => Err(ValueError::MemoryRange),
        }
    }
}

/// A size on disk in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl FromStr for Bytes {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let bytes = kibibytes(text).and_then(|kib| kib.checked_mul(1 << 10)).ok_or(ValueError::Memory)?;
        if bytes < 1 << 20 { Err(ValueError::Bytes) } else { Ok(Self(bytes)) }
    }
}

/// Bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate(pub(crate) NonZeroU64);

impl FromStr for Rate {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let bytes = match text.bytes().all(|b| b.is_ascii_digit()) {
            true => text.parse().ok(),
            false => kibibytes(text.trim_end_matches("/s")).and_then(|kib| kib.checked_mul(1 << 10)),
        };
        bytes.and_then(NonZeroU64::new).map(Self).ok_or(ValueError::Rate)
    }
}

/// A port of the command and where the host listens for it; without an address: at the host's loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) host: SocketAddr,
    pub(crate) port: u16,
}

impl FromStr for Published {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (rest, inside) = text.rsplit_once(':').unwrap_or((text, text));
        let (address, outside) = match rest.rsplit_once(':') {
            Some((address, port)) => {
                let bare = address.strip_prefix('[').and_then(|a| a.strip_suffix(']'));
                let address: IpAddr = bare.unwrap_or(address).parse().map_err(|_| ValueError::Published)?;
                if address.is_ipv6() != bare.is_some() {
                    return Err(ValueError::Published);
                }
                (address, port)
            }
            None => (Ipv4Addr::LOCALHOST.into(), rest),
        };
        match (outside.parse(), inside.parse()) {
            (Ok(outside), Ok(port @ 1..)) => Ok(Self { host: SocketAddr::new(address, outside), port }),
            _ => Err(ValueError::Published),
        }
    }
}

/// A size with a unit, in KiB.
fn kibibytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_kib: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 1 << 10,
        "g" | "gb" | "gib" => 1 << 20,
        "t" | "tb" | "tib" => 1 << 30,
        _ => return None,
    };
    scaled(number, unit_kib)
}

/// `number`, with up to three decimals, times `unit`, without rounding surprises.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || part.is_empty() || part.len() > 3 {
        return None;
    }
    let thousandths = format!("{part:0<3}").parse::<u64>().ok()?;
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    whole.checked_add(thousandths.checked_mul(unit)? / 1000)
}

/// How a mounted path can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountUse {
    Read,
    Write,
    Stage,
}

/// `SRC:read|write|stage[:TARGET]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountArg {
    pub(crate) source: PathBuf,
    pub(crate) how: MountUse,
    pub(crate) target: Option<PathBuf>,
}

impl FromStr for MountArg {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        for (word, how) in [(":read", MountUse::Read), (":write", MountUse::Write), (":stage", MountUse::Stage)] {
            let Some((source, rest)) = text.rsplit_once(word) else { continue };
            let target = match rest.strip_prefix(':') {
                Some(target) if target.starts_with('/') => Some(PathBuf::from(target)),
                None if rest.is_empty() => None,
                _ => continue,
            };
            if !source.is_empty() {
                return Ok(Self { source: source.into(), how, target });
            }
        }
        Err(ValueError::Mount)
    }
}

/// What becomes of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessVerdict {
    Deny,
    Ask,
    Warn,
}

/// `GLOB:deny|ask|warn`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccessRule {
    pub(crate) glob: String,
    pub(crate) verdict: AccessVerdict,
}

impl FromStr for AccessRule {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (glob, verdict) = text.rsplit_once(':').ok_or(ValueError::Access)?;
        let verdict = match verdict {
            "deny" => AccessVerdict::Deny,
            "ask" => AccessVerdict::Ask,
            "warn" => AccessVerdict::Warn,
            _ => return Err(ValueError::Access),
        };
        if glob.is_empty() || globset::Glob::new(glob).is_err() {
            return Err(ValueError::Access);
        }
        Ok(Self { glob: glob.to_owned(), verdict })
    }
}

/// `NAME=VALUE`, or `NAME` alone: the caller's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EnvPair {
    pub(crate) name: OsString,
    pub(crate) value: Option<OsString>,
}

/// Reads [`EnvPair`]s, which need not be UTF-8.
#[derive(Clone)]
pub(crate) struct EnvPairParser;

impl ValueParserFactory for EnvPair {
    type Parser = EnvPairParser;

    fn value_parser() -> EnvPairParser {
        EnvPairParser
    }
}

impl TypedValueParser for EnvPairParser {
    type Value = EnvPair;

    fn parse_ref(
        &self,
        command: &clap::Command,
        _arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<EnvPair, clap::Error> {
        let bytes = value.as_bytes();
        let (name, rest) = match bytes.iter().position(|b| *b == b'=') {
            Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
            None => (bytes, None),
        };
        if name.is_empty() {
            let text = format!("{:?} has no name before the equals sign", value.display().to_string());
            return Err(clap::Error::raw(clap::error::ErrorKind::ValueValidation, text).with_cmd(command));
        }
        Ok(EnvPair {
            name: OsString::from_vec(name.to_vec()),
            value: rest.map(|value| OsString::from_vec(value.to_vec())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time() {
        for (text, ms) in
            [("500ms", 500), ("90s", 90_000), ("10m", 600_000), ("2h", 7_200_000), ("1.5s", 1500), ("7", 7000)]
        {
            assert_eq!(text.parse(), Ok(Span(ms)), "{text}");
        }
        for bad in
            ["", "s", "0s", "-1s", "1.s", ".5s", "1w", "99999999999999999999s", "18446744073709551615h", "1.2.3s"]
        {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }

    #[test]
    fn rates() {
        for (text, bytes) in [("1500", 1500), ("500K", 512_000), ("10M/s", 10 << 20), ("1.5G", 3 << 29)] {
            assert_eq!(text.parse(), Ok(Rate(NonZeroU64::new(bytes).unwrap())), "{text}");
        }
        for bad in ["", "0", "0K", "K", "10X", "-1K", "99999999999999999999", "18014398509481984K"] {
            assert_eq!(bad.parse::<Rate>(), Err(ValueError::Rate), "{bad}");
        }
    }

    #[test]
    fn published_ports() {
        for (text, host, port) in [
            ("8080", "127.0.0.1:8080", 8080),
            ("0:80", "127.0.0.1:0", 80),
            ("0.0.0.0:8080:80", "0.0.0.0:8080", 80),
            ("[::1]:8080:80", "[::1]:8080", 80),
        ] {
            assert_eq!(text.parse(), Ok(Published { host: host.parse().unwrap(), port }), "{text}");
        }
        for bad in
            ["", "0", "80:0", "x:80", "1:2:3", "::1:8080:80", "[127.0.0.1]:1:2", "70000", "1.2.3.4:80", "host:1:2"]
        {
            assert_eq!(bad.parse::<Published>(), Err(ValueError::Published), "{bad}");
        }
    }

    #[test]
    fn mounts_and_rules() {
        let mount = |text: &str| text.parse::<MountArg>();
        let of = |source: &str, how, target: Option<&str>| {
            Ok(MountArg { source: source.into(), how, target: target.map(PathBuf::from) })
        };
        assert_eq!(mount("/a:read"), of("/a", MountUse::Read, None));
        assert_eq!(mount("b:c:write:/t"), of("b:c", MountUse::Write, Some("/t")));
        assert_eq!(mount("~/x:stage"), of("~/x", MountUse::Stage, None));
        for bad in ["/a", "/a:rw", ":read", "/a:read:relative", "/a:readx", ""] {
            assert_eq!(mount(bad), Err(ValueError::Mount), "{bad}");
        }
        let rule = "*.pem:deny".parse::<AccessRule>().unwrap();
        assert_eq!((rule.glob.as_str(), rule.verdict), ("*.pem", AccessVerdict::Deny));
        for bad in ["*.pem", ":deny", "a:allow", "[:deny"] {
            assert_eq!(bad.parse::<AccessRule>(), Err(ValueError::Access), "{bad}");
        }
    }

    #[test]
    fn sizes() {
        for (text, mib) in [("512M", 512), ("4G", 4096), ("1.5g", 1536), ("131072KiB", 128), ("1T", 1 << 20)] {
            assert_eq!(text.parse(), Ok(Memory(mib)), "{text}");
        }
        for (text, bytes) in [("1M", 1 << 20), ("1.5GiB", 3 << 29), ("2T", 2 << 40)] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        assert_eq!("1023K".parse::<Bytes>(), Err(ValueError::Bytes));
        assert_eq!("99999999999T".parse::<Bytes>(), Err(ValueError::Memory));
        assert_eq!("1M".parse::<Memory>(), Err(ValueError::MemoryRange));
        assert_eq!("2T".parse::<Memory>(), Err(ValueError::MemoryRange));
        for bad in ["", "512", "M", "4X", "-4G", "99999999999999999999G"] {
            assert!(bad.parse::<Memory>().is_err(), "{bad}");
        }
    }
}
