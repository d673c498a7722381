//! Remembered answers: `access.json` beside the runs, the person's own and nobody else's.

use std::fs::{DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pvisor_spec::{OsBytes, Subject};
use serde::{Deserialize, Serialize};

use crate::report::{Failure, chain};
use crate::runs::{LockAttempt, StoreError, Sync, exclusive_within, write_json};

/// Names of the file and of its lock.
const FILE: &str = "access.json";
const LOCK: &str = "access.lock";
/// Name and version of the format.
const SCHEMA: &str = "pvisor.access/1";
/// Largest file that is read, in bytes.
const MAX_BYTES: u64 = 4 << 20;
/// Most answers that are kept.
const MOST: usize = 10_000;
/// How long another process may take to write its answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// One remembered answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Remembered {
    /// What was asked for.
    pub(crate) subject: Subject,
    /// The answer.
    pub(crate) allowed: bool,
    /// The project that it is for, without symbolic links; `None`: all of this user's.
    pub(crate) project: Option<OsBytes>,
    /// When it was given: milliseconds since the Unix epoch.
    pub(crate) time_ms: u64,
}

/// The file as it is written.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    schema: String,
    answers: Vec<Remembered>,
    /// BLAKE3 over the answers as compact JSON, hexadecimal.
    digest: String,
}

/// Why answers can't be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryError {
    #[error("can't read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("others can read or write {}, or it belongs to somebody else", path.display())]
    NotPrivate { path: PathBuf },
    #[error("{} has {MOST} answers", path.display())]
    Full { path: PathBuf },
    #[error("{} is in use", path.display())]
    Busy { path: PathBuf },
    #[error(transparent)]
    Write(#[from] StoreError),
}

impl From<MemoryError> for Failure {
    fn from(error: MemoryError) -> Self {
        let failure = Self::new("remembered_answers", chain(&error));
        match error {
            MemoryError::Damaged { path, .. } => {
                failure.hint(format!("nothing in it counts: move it away, and answer anew: {}", path.display()))
            }
            MemoryError::NotPrivate { path } => {
                failure.hint(format!("whoever can write it gives your answers: chmod 600 {}", path.display()))
            }
            MemoryError::Full { .. } => failure.hint("`pvisor access forget` makes room"),
            MemoryError::Busy { .. } => failure.hint("try again"),
            MemoryError::Read { .. } | MemoryError::Write(_) => failure,
        }
    }
}

/// All remembered answers of one person.
#[derive(Debug)]
pub(crate) struct Memory {
    dir: PathBuf,
}

impl Memory {
    /// Those beside the runs in that directory, which need not exist.
    pub(crate) fn at(run_home: &Path) -> Self {
        Self { dir: run_home.to_owned() }
    }

    /// Every answer, in the order in which they were given.
    ///
    /// # Errors
    /// There is a file, but it can't be read, trusted or understood: nothing of it counts.
    pub(crate) fn all(&self) -> Result<Vec<Remembered>, MemoryError> {
        let path = self.dir.join(FILE);
        let fail = |source| MemoryError::Read { path: path.clone(), source };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(fail(e)),
        };
        let meta = file.metadata().map_err(fail)?;
        if meta.mode() & 0o077 != 0 || meta.uid() != rustix::process::geteuid().as_raw() {
            return Err(MemoryError::NotPrivate { path });
        }
        let mut text = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(fail)?;
        parse(&text).map_err(|reason| MemoryError::Damaged { path, reason })
    }

    /// The answers that count in that project, each subject once: one for the project goes before one for all.
    ///
    /// # Errors
    /// As [`Memory::all`].
    pub(crate) fn of_project(&self, project: &OsBytes) -> Result<Vec<Remembered>, MemoryError> {
        let all = self.all()?;
        let (own, general): (Vec<_>, Vec<_>) = all
            .into_iter()
            .filter(|answer| answer.project.as_ref().is_none_or(|of| of == project))
            .partition(|answer| answer.project.is_some());
        let mut counting = own;
        for answer in general {
            if !counting.iter().any(|own| own.subject == answer.subject) {
                counting.push(answer);
            }
        }
        Ok(counting)
    }

    /// Remembers an answer in place of an earlier one to the same question.
    ///
    /// # Errors
    /// The file can't be read, trusted, understood or written; it is as it was then.
    pub(crate) fn add(&self, answer: Remembered) -> Result<(), MemoryError> {
        self.change(|answers| {
            answers.retain(|old| (&old.subject, &old.project) != (&answer.subject, &answer.project));
            answers.push(answer);
        })
        .map(drop)
    }

    /// Forgets the answers that `which` names; returns how many.
    ///
    /// # Errors
    /// As [`Memory::add`].
    pub(crate) fn forget(&self, which: impl Fn(&Remembered) -> bool) -> Result<usize, MemoryError> {
        self.change(|answers| answers.retain(|answer| !which(answer)))
    }

    /// Changes the answers; returns by how many there are fewer.
    fn change(&self, change: impl FnOnce(&mut Vec<Remembered>)) -> Result<usize, MemoryError> {
        let unusable = |source| StoreError::Unusable { path: self.dir.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir).map_err(unusable)?;
        let lock = self.dir.join(LOCK);
        let _lock = match exclusive_within(&lock, PATIENCE).map_err(unusable)? {
            LockAttempt::Held(lock) => lock,
            LockAttempt::Busy => return Err(MemoryError::Busy { path: lock }),
        };
        let mut answers = self.all()?;
        let before = answers.len();
        change(&mut answers);
        let path = self.dir.join(FILE);
        if answers.len() > MOST {
            return Err(MemoryError::Full { path });
        }
        let digest = digest(&answers);
        let after = answers.len();
        write_json(&path, &Wire { schema: SCHEMA.to_owned(), answers, digest }, Sync::Name)?;
        Ok(before.saturating_sub(after))
    }
}

fn parse(text: &[u8]) -> Result<Vec<Remembered>, String> {
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("longer than {MAX_BYTES} bytes"));
    }
    let wire: Wire = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    if wire.schema != SCHEMA {
        return Err(format!("it says that it is {:?}, not {SCHEMA:?}", wire.schema));
    }
    if wire.digest != digest(&wire.answers) {
        return Err("its content was changed by something else".to_owned());
    }
    let bad = |answer: &&Remembered| match &answer.subject {
        Subject::Host(rule) => !pvisor_host_exec::is_destination(rule),
        Subject::Path(path) => !path.as_path().is_absolute(),
    };
    match wire.answers.iter().find(bad) {
        Some(answer) => Err(format!("{:?} is nothing that can be asked for", answer.subject)),
        None => Ok(wire.answers),
    }
}

fn digest(answers: &[Remembered]) -> String {
    let json = serde_json::to_vec(answers).unwrap_or_default();
    blake3::hash(&json).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn answer(host: &str, allowed: bool, project: Option<&str>) -> Remembered {
        Remembered { subject: Subject::Host(host.into()), allowed, project: project.map(Into::into), time_ms: 1 }
    }

    fn memory() -> (tempfile::TempDir, Memory) {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::at(&dir.path().join("runs"));
        (dir, memory)
    }

    #[test]
    fn answers_come_back_and_one_for_the_project_goes_first() {
        let (_dir, memory) = memory();
        assert_eq!(memory.all().unwrap(), []);
        for given in [
            answer("a.example", true, None),
            answer("a.example", false, Some("/p")),
            answer("b.example", true, Some("/q")),
            answer("c.example", false, None),
            answer("c.example", true, None),
        ] {
            memory.add(given).unwrap();
        }
        let of = |project: &str| memory.of_project(&project.into()).unwrap();
        assert_eq!(of("/p"), [answer("a.example", false, Some("/p")), answer("c.example", true, None)]);
        assert_eq!(of("/r"), [answer("a.example", true, None), answer("c.example", true, None)]);
        assert_eq!(memory.forget(|a| a.subject == Subject::Host("a.example".into())).unwrap(), 2);
        assert_eq!(memory.all().unwrap().len(), 2);
        let mode = memory.dir.join(FILE).metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn no_damage_grants_anything() {
        let (_dir, memory) = memory();
        memory.add(answer("good.example", false, None)).unwrap();
        let path = memory.dir.join(FILE);
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).unwrap();
            match memory.all() {
                // White space, or a digit of the digest's letter case: what counts is the same.
                Ok(answers) => assert_eq!(answers, [answer("good.example", false, None)]),
                Err(error) => assert!(chain(&error).contains("access.json"), "{error}"),
            }
            assert!(memory.all().is_ok() || memory.add(answer("x.example", true, None)).is_err());
        }
        for cut in 0..good.len() - 1 {
            std::fs::write(&path, &good[..cut]).unwrap();
            assert!(memory.all().is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn what_others_can_touch_does_not_count() {
        let (_dir, memory) = memory();
        memory.add(answer("a.example", true, None)).unwrap();
        let path = memory.dir.join(FILE);
        for mode in [0o640, 0o606, 0o620] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert!(matches!(memory.all(), Err(MemoryError::NotPrivate { .. })), "{mode:o}");
        }
    }

    #[test]
    fn writers_at_once_lose_no_answer() {
        let (_dir, memory) = memory();
        std::thread::scope(|scope| {
            for number in 0..8 {
                let memory = &memory;
                scope.spawn(move || memory.add(answer(&format!("h{number}.example"), true, None)).unwrap());
            }
        });
        assert_eq!(memory.all().unwrap().len(), 8);
    }
}
