//! `pvisor/config.toml` in the person's configuration directory: defaults of `run`.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use pvisor_spec::ExitCode;
use serde::Deserialize;

use super::Ambient;
use crate::args::{Bytes, DurabilityArg, ExecutorArg, Memory, Span};
use crate::report::{Failure, chain};

/// Largest file that is read, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Defaults of the options of `run`; `None` leaves the built-in one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) executor: ExecutorArg,
    pub(crate) cpus: Option<u8>,
    pub(crate) memory: Option<Memory>,
    pub(crate) timeout: Option<Span>,
    pub(crate) grace: Option<Span>,
    pub(crate) durability: Option<DurabilityArg>,
    pub(crate) stage_max_size: Option<Bytes>,
}

/// Why the configuration is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("can't read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} can be written by others", path.display())]
    Unsafe { path: PathBuf },
    #[error("{}: {reason}", path.display())]
    Malformed { path: PathBuf, reason: String },
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let message = chain(&error);
        let failure = Self::new("configuration", message).code(ExitCode::FAILED);
        match error {
            ConfigError::Read { .. } => failure.hint("make it readable, or move it away"),
            ConfigError::Unsafe { path } => failure.hint(format!(
                "whoever can write it decides how your commands run: chmod go-w {0}, and make it yours",
                path.display()
            )),
            ConfigError::Malformed { .. } => failure.hint("correct it, or move it away"),
        }
    }
}

/// The file as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Wire {
    run: RunWire,
    overlayfs: OverlayWire,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RunWire {
    executor: Option<String>,
    cpus: Option<u8>,
    memory: Option<String>,
    timeout: Option<String>,
    grace: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct OverlayWire {
    durability: Option<String>,
    max_size: Option<String>,
}

impl Config {
    /// The person's configuration; the built-in one where there is no file.
    ///
    /// # Errors
    /// There is a file, but it can't be read, trusted or understood.
    pub(crate) fn read(ambient: &Ambient) -> Result<Self, ConfigError> {
        let base = ambient.var("XDG_CONFIG_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
        let Some(base) = base.or_else(|| ambient.home().map(|h| h.join(".config"))) else {
            return Ok(Self::default());
        };
        let path = base.join("pvisor/config.toml");
        let fail = |source| ConfigError::Read { path: path.clone(), source };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Self::default());
            }
            Err(e) => return Err(fail(e)),
        };
        let meta = file.metadata().map_err(fail)?;
        if meta.mode() & 0o022 != 0 || (meta.uid() != ambient.uid && meta.uid() != 0) {
            return Err(ConfigError::Unsafe { path });
        }
        let mut text = String::new();
        file.take(MAX_BYTES).read_to_string(&mut text).map_err(fail)?;
        Self::parse(&text).map_err(|reason| ConfigError::Malformed { path, reason })
    }

    /// The configuration in that text.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wire: Wire = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())?;
        let run = wire.run;
        if run.cpus == Some(0) {
            return Err("run.cpus: at least 1".to_owned());
        }
        Ok(Self {
            executor: choice("run.executor", run.executor)?.unwrap_or_default(),
            cpus: run.cpus,
            memory: value("run.memory", run.memory)?,
            timeout: value("run.timeout", run.timeout)?,
            grace: value("run.grace", run.grace)?,
            durability: choice("overlayfs.durability", wire.overlayfs.durability)?,
            stage_max_size: value("overlayfs.max_size", wire.overlayfs.max_size)?,
        })
    }
}

fn value<T: std::str::FromStr<Err: std::fmt::Display>>(key: &str, text: Option<String>) -> Result<Option<T>, String> {
    text.map(|text| text.parse().map_err(|e| format!("{key}: {text:?}: {e}"))).transpose()
}

fn choice<T: clap::ValueEnum>(key: &str, text: Option<String>) -> Result<Option<T>, String> {
    let parse = |text: String| {
        T::from_str(&text, false).map_err(|_| {
            let known: Vec<String> =
                T::value_variants().iter().filter_map(|v| Some(v.to_possible_value()?.get_name().to_owned())).collect();
            format!("{key}: {text:?} is none of {}", known.join(", "))
        })
    };
    text.map(parse).transpose()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn every_key_is_taken_and_every_other_refused() {
        let all = "[run]\nexecutor = \"host\"\ncpus = 2\nmemory = \"1G\"\ntimeout = \"1h\"\ngrace = \"2s\"\n\
                   [overlayfs]\ndurability = \"strict\"\nmax_size = \"2G\"\n";
        let config = Config::parse(all).unwrap();
        assert_eq!((config.executor, config.memory), (ExecutorArg::Host, Some(Memory(1024))));
        assert_eq!(config.durability, Some(DurabilityArg::Strict));
        assert_eq!(config.stage_max_size, Some(Bytes(2 << 30)));
        for bad in
            ["[run]\nexecuter = \"host\"", "[run]\nexecutor = \"vm\"", "[run]\nmemory = \"1\"", "[run]\ncpus = 0"]
        {
            assert!(Config::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_file_that_others_can_write_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let mut ambient = Ambient::example(dir.path());
        ambient.uid = rustix::process::geteuid().as_raw();
        ambient.env = vec![("XDG_CONFIG_HOME".into(), dir.path().into())];
        assert_eq!(Config::read(&ambient).unwrap(), Config::default());
        let path = dir.path().join("pvisor/config.toml");
        std::fs::create_dir(dir.path().join("pvisor")).unwrap();
        std::fs::write(&path, "[run]\ncpus = 2\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(Config::read(&ambient).unwrap().cpus, Some(2));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(Config::read(&ambient), Err(ConfigError::Unsafe { .. })));
    }
}
