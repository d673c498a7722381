//! Where the kernel's source comes from, what names it, and how it is unpacked.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use super::errand::Errand;
use super::progress::{Phase, Progress, Report};
use super::toolchain::{Tool, Toolchain};
use super::{KernelError, KernelSource};
use crate::Digest;

/// Debian's source package of the kernel that the recipe is made for.
pub(super) const PACKAGE: &str = "linux-source-6.12";
/// What no x86-64 kernel is made of, and takes time and room: two fifths of the tree.
const EXCLUDED: [&str; 3] = ["*/Documentation/*/*", "*/drivers/gpu/drm/amd/include/*", "*/tools/testing/*"];

/// A source that can be hashed and built.
#[derive(Debug)]
pub(super) enum Source {
    Tree(PathBuf),
    Archive { path: PathBuf, format: Format },
}

/// How an archive is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Plain,
    Gzip,
    Bzip2,
    Xz,
    Zstd,
}

impl Format {
    fn of(start: &[u8]) -> Option<Self> {
        let magics: [(&[u8], Self); 4] = [
            (b"\x1f\x8b", Self::Gzip),
            (b"BZh", Self::Bzip2),
            (b"\xfd7zXZ\0", Self::Xz),
            (b"\x28\xb5\x2f\xfd", Self::Zstd),
        ];
        let known = magics.iter().find(|(magic, _)| start.starts_with(magic)).map(|m| m.1);
        known.or_else(|| (start.get(257..262) == Some(b"ustar")).then_some(Self::Plain))
    }

    /// tar's option, and the program that it then needs.
    fn option(self) -> Option<(&'static str, Tool)> {
        Some(match self {
            Self::Plain => return None,
            Self::Gzip => ("--gzip", Tool { name: "gzip", package: "gzip" }),
            Self::Bzip2 => ("--bzip2", Tool { name: "bzip2", package: "bzip2" }),
            Self::Xz => ("--xz", Tool { name: "xz", package: "xz-utils" }),
            Self::Zstd => ("--zstd", Tool { name: "zstd", package: "zstd" }),
        })
    }

    pub(super) fn tool(self) -> Option<Tool> {
        self.option().map(|o| o.1)
    }
}

/// Steps of a build that handle the source.
pub(super) struct Handling<'a> {
    pub(super) toolchain: &'a Toolchain,
    pub(super) errand: Errand<'a>,
    /// Private directory of the build.
    pub(super) work: &'a Path,
}

impl Source {
    /// What `wanted` names; `None` where the distribution's archive is not at `installed`.
    pub(super) fn open(wanted: &KernelSource, installed: &Path) -> Result<Option<Self>, KernelError> {
        let path = match wanted {
            KernelSource::Distribution if !installed.exists() => return Ok(None),
            KernelSource::Distribution => installed,
            KernelSource::Path(path) => path,
        };
        let path = path.canonicalize().map_err(KernelError::io("find", path))?;
        if path.is_dir() {
            return Self::tree(path).map(Some);
        }
        let mut start = Vec::new();
        let read = File::open(&path).and_then(|f| f.take(512).read_to_end(&mut start));
        read.map_err(KernelError::io("read", &path))?;
        match Format::of(&start) {
            Some(format) => Ok(Some(Self::Archive { path, format })),
            None => Err(not_a_source(&path, "it is neither a directory nor a tar archive")),
        }
    }

    fn tree(path: PathBuf) -> Result<Self, KernelError> {
        if path.join("Makefile").is_file() {
            Ok(Self::Tree(path))
        } else {
            Err(not_a_source(&path, "it has no Makefile"))
        }
    }

    /// For people.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Tree(path) | Self::Archive { path, .. } => path,
        }
    }

    /// What names the content: the archive's hash, or one over every name, kind, permission to execute and content of
    /// the tree but for version control.
    pub(super) fn digest(&self, cancel: &AtomicBool) -> Result<Digest, KernelError> {
        match self {
            Self::Archive { path, .. } => Ok(Digest::of_file(path).map_err(KernelError::io("read", path))?.0),
            Self::Tree(path) => {
                let mut hasher = blake3::Hasher::new();
                hash_tree(path, &mut hasher, cancel)?;
                Ok(hasher.finalize().into())
            }
        }
    }
}

impl Handling<'_> {
    /// Fetches the distribution's package with apt: no root needed, and apt checks the signatures.
    pub(super) fn fetch(&self, installed: &Path, report: Report<'_>) -> Result<Source, KernelError> {
        report(Progress { phase: Phase::Downloading, fraction: None, detail: PACKAGE });
        let none = |reason: String| KernelError::NoSource { installed: installed.to_owned(), package: PACKAGE, reason };
        for (program, package) in [("apt-get", "apt"), ("dpkg-deb", "dpkg")] {
            if !self.toolchain.has(program) {
                return Err(none(format!("there is no {program} (Debian package {package})")));
            }
        }
        let mut fetch = self.toolchain.command("apt-get");
        // Its own user could not write here; for others than root the option means nothing.
        fetch.args(["download", "--quiet", "-o", "APT::Sandbox::User=root", PACKAGE]).current_dir(self.work);
        self.errand.run(fetch, &mut |_| {}).map_err(|e| fetch_failed(e, none))?;
        let package = self.only(|name| name.ends_with(".deb")).ok_or_else(|| none("apt brought nothing".into()))?;
        let unpacked = self.work.join("package");
        let mut unpack = self.toolchain.command("dpkg-deb");
        unpack.arg("--extract").args([&package, &unpacked]);
        self.errand.run(unpack, &mut |_| {}).map_err(|e| fetch_failed(e, none))?;
        let archive = unpacked.join(installed.strip_prefix("/").unwrap_or(installed));
        Source::open(&KernelSource::Path(archive), installed)?.ok_or_else(|| none("the package is empty".into()))
    }

    fn only(&self, fits: impl Fn(&str) -> bool) -> Option<PathBuf> {
        let entries = fs::read_dir(self.work).ok()?;
        entries.flatten().map(|e| e.path()).find(|p| p.file_name().is_some_and(|n| fits(&n.to_string_lossy())))
    }

    /// A directory that can be built from: the tree itself, or the archive unpacked.
    pub(super) fn unpack(&self, source: &Source, report: Report<'_>) -> Result<PathBuf, KernelError> {
        let (path, format) = match source {
            Source::Tree(path) => return Ok(path.clone()),
            Source::Archive { path, format } => (path, *format),
        };
        let target = self.work.join("source");
        fs::create_dir(&target).map_err(KernelError::io("create", &target))?;
        let messages = self.work.join("tar.log");
        let log = File::create(&messages).map_err(KernelError::io("create", &messages))?;
        let mut command = self.toolchain.command("tar");
        command
            .args(["--extract", "--file=-", "--strip-components=1", "--no-same-owner"])
            .args(EXCLUDED.map(exclusion));
        command.args(format.option().map(|o| o.0)).current_dir(&target);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn();
        let mut tar = child.map_err(|source| KernelError::Run { program: "tar".into(), source })?;
        // Dropping the pipe ends tar, whatever happened; it is always waited for.
        let fed = tar.stdin.take().map_or(Ok(()), |pipe| self.feed(path, pipe, report));
        let status = tar.wait().map_err(|source| KernelError::Run { program: "tar".into(), source })?;
        fed?;
        if !status.success() {
            let said = fs::read_to_string(&messages).unwrap_or_default();
            return Err(not_a_source(path, said.lines().take(3).collect::<Vec<_>>().join("; ").trim()));
        }
        match Source::tree(target)? {
            Source::Tree(tree) => Ok(tree),
            Source::Archive { .. } => Err(not_a_source(path, "it unpacks to no tree")),
        }
    }

    /// Writes the archive to tar. That tar stops reading is for its exit status to tell.
    fn feed(&self, path: &Path, mut pipe: impl io::Write, report: Report<'_>) -> Result<(), KernelError> {
        let failed = || KernelError::io("read", path);
        let mut file = File::open(path).map_err(failed())?;
        let size = file.metadata().map_err(failed())?.len().max(1);
        let mut buffer = vec![0; 1 << 20];
        let mut done = 0;
        while !self.errand.cancel.load(Ordering::Relaxed) {
            let n = match file.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(failed()(e)),
            };
            match pipe.write_all(&buffer[..n]) {
                Err(e) if e.kind() == ErrorKind::BrokenPipe => return Ok(()),
                written => written.map_err(KernelError::io("unpack", path))?,
            }
            done += n as u64;
            report(Progress { phase: Phase::Unpacking, fraction: Some(done as f64 / size as f64), detail: "" });
        }
        Err(KernelError::Cancelled)
    }
}

fn exclusion(pattern: &str) -> String {
    format!("--exclude={pattern}")
}

fn fetch_failed(error: KernelError, none: impl FnOnce(String) -> KernelError) -> KernelError {
    match error {
        KernelError::Step { tail, status, .. } => none(format!("{status}: {}", tail.trim().replace('\n', "; "))),
        KernelError::Run { program, source } => none(format!("can't run {program}: {source}")),
        other => other,
    }
}

fn not_a_source(path: &Path, reason: &str) -> KernelError {
    KernelError::NotASource { path: path.to_owned(), reason: reason.to_owned() }
}

fn hash_tree(dir: &Path, hasher: &mut blake3::Hasher, cancel: &AtomicBool) -> Result<(), KernelError> {
    if cancel.load(Ordering::Relaxed) {
        return Err(KernelError::Cancelled);
    }
    let listing = fs::read_dir(dir).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let mut entries = listing.map_err(KernelError::io("list", dir))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries.iter().filter(|e| e.file_name() != ".git") {
        let path = entry.path();
        let failed = || KernelError::io("read", &path);
        let meta = entry.metadata().map_err(failed())?;
        let executable = meta.permissions().mode() & 0o111 != 0;
        let mut add = |kind: u8, content: &[u8]| {
            for part in [&[kind], entry.file_name().as_bytes(), content] {
                hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
            }
        };
        if meta.is_dir() {
            add(b'd', b"");
            hash_tree(&path, hasher, cancel)?;
            hasher.update(b"end");
        } else if meta.is_symlink() {
            add(b'l', fs::read_link(&path).map_err(failed())?.as_os_str().as_bytes());
        } else if meta.is_file() {
            let content = String::from(Digest::of_file(&path).map_err(failed())?.0);
            add(if executable { b'x' } else { b'f' }, content.as_bytes());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn digest(dir: &Path) -> Digest {
        Source::open(&KernelSource::Path(dir.to_owned()), dir)
            .unwrap()
            .unwrap()
            .digest(&AtomicBool::new(false))
            .unwrap()
    }

    #[test]
    fn a_tree_is_named_by_all_of_it_but_version_control() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("Makefile"), "all:\n").unwrap();
        fs::write(root.join("a/b/c"), "1").unwrap();
        let mut seen = vec![digest(root)];
        let changes: [&dyn Fn(); 5] = [
            &|| fs::write(root.join("a/b/c"), "2").unwrap(),
            &|| fs::set_permissions(root.join("a/b/c"), fs::Permissions::from_mode(0o755)).unwrap(),
            &|| fs::rename(root.join("a/b/c"), root.join("a/c")).unwrap(),
            &|| symlink("a/c", root.join("link")).unwrap(),
            &|| fs::create_dir(root.join("empty")).unwrap(),
        ];
        for change in changes {
            change();
            let now = digest(root);
            assert!(!seen.contains(&now));
            seen.push(now);
        }
        fs::create_dir(root.join(".git")).unwrap();
        fs::write(root.join(".git/index"), "x").unwrap();
        assert_eq!(digest(root), seen[5]);
    }

    #[test]
    fn what_is_no_source_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let installed = dir.path().join("none.tar.xz");
        let file = dir.path().join("file");
        fs::write(&file, "text").unwrap();
        for path in [dir.path().to_owned(), file, installed.clone()] {
            assert!(Source::open(&KernelSource::Path(path.clone()), &installed).is_err(), "{}", path.display());
        }
        assert!(Source::open(&KernelSource::Distribution, &installed).unwrap().is_none());
    }
}
