//! The build itself: from a source to a published kernel.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::errand::Errand;
use super::progress::{Phase, Progress, Report};
use super::recipe::{Recipe, VERSION};
use super::source::{Handling, Source};
use super::toolchain::Toolchain;
use super::{CONFIG, Kernel, KernelError, VMLINUX, newest};
use crate::cache::Workshop;
use crate::{ArtefactKind, Cache, KernelImage, KernelRecord, Manifest};

/// What to build from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelSource {
    /// The distribution's package: as installed, else fetched with apt.
    Distribution,
    /// A source tree or a tar archive of one.
    Path(PathBuf),
}

/// What to build, and how.
#[derive(Clone, Debug)]
pub struct KernelRequest<'a> {
    /// What to build from.
    pub source: KernelSource,
    /// Compilers that run at once.
    pub jobs: NonZeroUsize,
    /// Set it to end the build soon, with [`KernelError::Cancelled`].
    pub cancel: &'a AtomicBool,
}

impl<'a> KernelRequest<'a> {
    /// The distribution's source, as many jobs as there are processors.
    pub fn new(cancel: &'a AtomicBool) -> Self {
        let jobs = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self { source: KernelSource::Distribution, jobs, cancel }
    }
}

/// Builds a guest kernel, unless the cache has the very same one. Takes minutes, and about 2 GiB meanwhile.
///
/// Whatever ends it, the cache has the whole kernel or nothing of it; the same holds for a killed process, whose
/// leftovers go with the next build. Only one build runs at a time, others wait and use its result.
///
/// # Errors
/// Missing tools (all at once), no source, a failed step, an interruption.
pub fn build(cache: &Cache, request: &KernelRequest<'_>, report: Report<'_>) -> Result<Kernel, KernelError> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(KernelError::Machine(std::env::consts::ARCH));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    Build { recipe: &Recipe::guest(), search_path: &path, cache, request }.run(report)
}

/// One build and all that decides it.
pub(super) struct Build<'a> {
    pub(super) recipe: &'a Recipe,
    pub(super) search_path: &'a std::ffi::OsStr,
    pub(super) cache: &'a Cache,
    pub(super) request: &'a KernelRequest<'a>,
}

/// A build that has the right to build, its tools and a place.
struct Bench<'a> {
    build: &'a Build<'a>,
    toolchain: Toolchain,
    workshop: Workshop,
    work: TempDir,
    log: PathBuf,
}

impl Build<'_> {
    pub(super) fn run(&self, report: Report<'_>) -> Result<Kernel, KernelError> {
        let source = Source::open(&self.request.source, &self.recipe.installed)?;
        let format = match &source {
            Some(Source::Archive { format, .. }) => format.tool(),
            Some(Source::Tree(_)) => None,
            None => super::source::Format::Xz.tool(),
        };
        let tools: Vec<_> = self.recipe.tools.iter().copied().chain(format).collect();
        let toolchain = Toolchain::find(self.search_path, &tools)?;
        // Before waiting for the lock: most calls end here.
        let wanted = source.as_ref().map(|s| self.manifest(s, &toolchain, report)).transpose()?;
        if let Some(kernel) = self.cached(wanted.as_ref())? {
            return Ok(kernel);
        }
        let workshop = self.wait(report)?;
        self.check_space()?;
        let work = workshop.directory()?;
        let log = work.path().join("build.log");
        let bench = Bench { build: self, toolchain, workshop, work, log };
        let (source, wanted) = match (source, wanted) {
            (Some(source), Some(wanted)) => (source, wanted),
            _ => {
                // Somebody else may have been faster.
                if let Some(kernel) = self.cached(None)? {
                    return Ok(kernel);
                }
                let source = bench.handling().fetch(&self.recipe.installed, report)?;
                let wanted = self.manifest(&source, &bench.toolchain, report)?;
                (source, wanted)
            }
        };
        match self.cached(Some(&wanted))? {
            Some(kernel) => Ok(kernel),
            None => bench.build(&source, wanted, report),
        }
    }

    /// What the kernel from this source will be, but for its files.
    fn manifest(&self, source: &Source, toolchain: &Toolchain, report: Report<'_>) -> Result<Manifest, KernelError> {
        report(Progress { phase: Phase::Hashing, fraction: None, detail: "" });
        let source_digest = source.digest(self.request.cancel)?;
        let mut manifest = Manifest::new(ArtefactKind::Kernel, self.recipe.key(source_digest, &toolchain.version));
        manifest.kernel = Some(KernelRecord {
            release: String::new(),
            source: source.path().display().to_string(),
            source_digest,
            fragment: self.recipe.fragment_digest(),
            recipe: VERSION,
            compiler: toolchain.version.clone(),
        });
        Ok(manifest)
    }

    /// The wanted kernel, if the cache has it undamaged. Where the source is not even here, to be hashed, the newest kernel of
    /// this recipe is the wanted one: nothing is fetched just to look.
    fn cached(&self, wanted: Option<&Manifest>) -> Result<Option<Kernel>, KernelError> {
        let kernel = match wanted {
            Some(wanted) => Kernel::open(&self.cache.dir().join(wanted.name())).ok(),
            None => newest(self.cache, self.recipe)?,
        };
        Ok(kernel.filter(|k| k.verify().is_ok()))
    }

    fn wait(&self, report: Report<'_>) -> Result<Workshop, KernelError> {
        loop {
            if let Some(workshop) = self.cache.try_lock(ArtefactKind::Kernel.word())? {
                return Ok(workshop);
            }
            if self.request.cancel.load(Ordering::Relaxed) {
                return Err(KernelError::Cancelled);
            }
            report(Progress { phase: Phase::Waiting, fraction: None, detail: "" });
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn check_space(&self) -> Result<(), KernelError> {
        let dir = self.cache.dir();
        let stat = rustix::fs::statvfs(dir).map_err(|e| KernelError::io("examine", dir)(e.into()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize) >> 20;
        if free < self.recipe.space {
            return Err(KernelError::Space { path: dir.to_owned(), free, needed: self.recipe.space });
        }
        Ok(())
    }
}

impl Bench<'_> {
    fn errand(&self, step: &'static str) -> Errand<'_> {
        Errand { step, log: &self.log, cancel: self.build.request.cancel }
    }

    fn handling(&self) -> Handling<'_> {
        Handling { toolchain: &self.toolchain, errand: self.errand("fetching the source"), work: self.work.path() }
    }

    fn build(&self, source: &Source, wanted: Manifest, report: Report<'_>) -> Result<Kernel, KernelError> {
        let made = self.make(source, wanted, report);
        if let Err(KernelError::Step { step, status, tail, .. }) = made {
            // The one thing that is kept of a failed build.
            let kept = self.build.cache.dir().join("kernel-build.log");
            fs::rename(&self.log, &kept).map_err(KernelError::io("keep", &kept))?;
            return Err(KernelError::Step { step, status, tail, log: kept });
        }
        made
    }

    fn make(&self, source: &Source, wanted: Manifest, report: Report<'_>) -> Result<Kernel, KernelError> {
        let tree = self.handling().unpack(source, report)?;
        let out = self.directory("out")?;
        self.configure(&tree, &out, report)?;
        self.compile(&tree, &out, report)?;
        report(Progress { phase: Phase::Publishing, fraction: None, detail: "" });
        self.publish(wanted, &out)
    }

    fn directory(&self, name: &str) -> Result<PathBuf, KernelError> {
        let path = self.work.path().join(name);
        fs::create_dir(&path).map_err(KernelError::io("create", &path))?;
        Ok(path)
    }

    /// `make` with everything fixed that would otherwise show in the result.
    fn command(&self, tree: &Path, out: &Path) -> Result<Command, KernelError> {
        let mut make = self.toolchain.command("make");
        make.arg("-C").arg(tree).arg(format!("O={}", out.display())).arg("ARCH=x86_64");
        make.env("KBUILD_BUILD_TIMESTAMP", "1970-01-01").env("KBUILD_BUILD_VERSION", "1");
        make.env("KBUILD_BUILD_USER", "pvisor").env("KBUILD_BUILD_HOST", "pvisor");
        make.stdin(self.workshop.stdin()?);
        Ok(make)
    }

    fn configure(&self, tree: &Path, out: &Path, report: Report<'_>) -> Result<(), KernelError> {
        report(Progress { phase: Phase::Configuring, fraction: None, detail: "" });
        let fragment = self.work.path().join("fragment");
        fs::write(&fragment, self.build.recipe.fragment).map_err(KernelError::io("write", &fragment))?;
        let mut make = self.command(tree, out)?;
        make.arg("allnoconfig").env("KCONFIG_ALLCONFIG", &fragment);
        self.errand("make allnoconfig").run(make, &mut |_| {})?;
        let config = out.join(".config");
        let text = fs::read_to_string(&config).map_err(KernelError::io("read", &config))?;
        let unmet = self.build.recipe.unmet(&text);
        if unmet.is_empty() { Ok(()) } else { Err(KernelError::Unmet(unmet)) }
    }

    fn compile(&self, tree: &Path, out: &Path, report: Report<'_>) -> Result<(), KernelError> {
        let mut make = self.command(tree, out)?;
        make.arg(format!("-j{}", self.build.request.jobs)).arg("vmlinux");
        let mut lines = 0;
        self.errand("make vmlinux").run(make, &mut |line| {
            lines += 1;
            // Other versions print more or fewer lines: the bar stops short of its end rather than lie there.
            let fraction = (f64::from(lines) / f64::from(self.build.recipe.lines)).min(0.99);
            report(Progress { phase: Phase::Compiling, fraction: Some(fraction), detail: line.trim() });
        })
    }

    fn publish(&self, mut manifest: Manifest, out: &Path) -> Result<Kernel, KernelError> {
        let result = self.directory("result")?;
        for (from, to) in [("vmlinux", VMLINUX), (".config", CONFIG)] {
            let to = result.join(to);
            fs::rename(out.join(from), &to).map_err(KernelError::io("keep", &to))?;
        }
        // What can't be booted is not published.
        KernelImage::load(&result.join(VMLINUX))?;
        let release = out.join("include/config/kernel.release");
        let release = fs::read_to_string(&release).map_err(KernelError::io("read", &release))?;
        if let Some(kernel) = &mut manifest.kernel {
            kernel.release = release.trim().to_owned();
        }
        let failed = || KernelError::io("write", &result);
        for file in [VMLINUX, CONFIG] {
            manifest.add(&result, file).map_err(failed())?;
        }
        manifest.write(&result).map_err(failed())?;
        let place = self.workshop.publish(&result, &manifest.name())?;
        Ok(Kernel { dir: place, manifest })
    }
}
