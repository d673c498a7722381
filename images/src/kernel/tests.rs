//! The build driver on a source that "compiles" in no time.

use std::env;
use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::builder::{Build, KernelRequest};
use super::recipe::Recipe;
use super::toolchain::Tool;
use super::*;

const TOOLS: [Tool; 2] = [Tool { name: "make", package: "make" }, Tool { name: "tar", package: "tar" }];
const FAKE_FRAGMENT: &str = "CONFIG_FAKE=y\n# CONFIG_OTHER is not set\n";

/// A source whose `vmlinux` is made by these shell lines.
struct Fake {
    dir: tempfile::TempDir,
    cancel: AtomicBool,
    recipe: Recipe,
}

impl Fake {
    fn new(compile: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fake = Self {
            cancel: AtomicBool::new(false),
            recipe: Recipe {
                fragment: FAKE_FRAGMENT,
                tools: &TOOLS,
                installed: dir.path().join("not-installed.tar.xz"),
                lines: 4,
                space: 1,
            },
            dir,
        };
        fs::create_dir(fake.source()).unwrap();
        fs::write(fake.source().join("kernel.elf"), image::tests::kernel()).unwrap();
        fake.set_compile(compile);
        fake
    }

    fn set_compile(&self, lines: &str) {
        let mut makefile = String::from("allnoconfig:\n\t@cp \"$(KCONFIG_ALLCONFIG)\" \"$(O)/.config\"\nvmlinux:\n");
        for line in lines.lines() {
            makefile.push_str(&format!("\t{line}\n"));
        }
        fs::write(self.source().join("Makefile"), makefile).unwrap();
    }

    fn source(&self) -> PathBuf {
        self.dir.path().join("linux")
    }

    fn cache(&self) -> Cache {
        Cache::at(self.dir.path().join("cache"))
    }

    fn build_from(&self, source: KernelSource, report: Report<'_>) -> Result<Kernel, KernelError> {
        let request = KernelRequest { source, jobs: NonZeroUsize::MIN, cancel: &self.cancel };
        let path = env::var_os("PATH").unwrap();
        Build { recipe: &self.recipe, search_path: &path, cache: &self.cache(), request: &request }.run(report)
    }

    fn build(&self) -> Result<Kernel, KernelError> {
        self.build_from(KernelSource::Path(self.source()), &mut |_| {})
    }

    /// Names in the cache, but for locks.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.cache().dir()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        entries.filter(|n| !n.ends_with(".lock")).collect()
    }
}

const GOOD: &str = "@for i in 1 2 3; do echo \"  CC      $$i.o\"; done
@cp kernel.elf \"$(O)/vmlinux\"
@mkdir -p \"$(O)/include/config\"; echo 6.1-fake > \"$(O)/include/config/kernel.release\"
@echo x >> ../built";

fn times_built(fake: &Fake) -> usize {
    fs::read(fake.dir.path().join("built")).map_or(0, |b| b.len() / 2)
}

#[test]
fn a_kernel_is_built_once_for_each_source() {
    let fake = Fake::new(GOOD);
    let mut phases = Vec::new();
    let kernel = fake
        .build_from(KernelSource::Path(fake.source()), &mut |p| {
            assert!(p.fraction.is_none_or(|f| (0.0..=1.0).contains(&f)));
            if phases.last() != Some(&p.phase) {
                phases.push(p.phase);
            }
        })
        .unwrap();
    assert_eq!(phases, [Phase::Hashing, Phase::Configuring, Phase::Compiling, Phase::Publishing]);
    assert_eq!(kernel.release(), "6.1-fake");
    assert_eq!(kernel.load().unwrap().layout().entry, 0x100_0010);
    assert_eq!(fs::read_to_string(kernel.dir.join("config")).unwrap(), FAKE_FRAGMENT);
    assert_eq!(fake.left(), [kernel.manifest().name()]);

    assert_eq!(fake.build().unwrap().path(), kernel.path());
    assert_eq!(times_built(&fake), 1);
    fs::write(fake.source().join("driver.c"), "int x;").unwrap();
    assert_ne!(fake.build().unwrap().path(), kernel.path());
    assert_eq!(times_built(&fake), 2);
}

#[test]
fn a_damaged_kernel_is_noticed_and_built_anew() {
    let fake = Fake::new(GOOD);
    let kernel = fake.build().unwrap();
    let mut bytes = fs::read(kernel.path()).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(kernel.path(), bytes).unwrap();
    assert!(matches!(kernel.load(), Err(KernelError::Damaged { .. })));
    fake.build().unwrap().load().unwrap();
    assert_eq!(times_built(&fake), 2);
}

#[test]
fn archives_are_unpacked() {
    let fake = Fake::new(GOOD.replace("../built", "/dev/null").as_str());
    for (option, name) in [("--create", "a.tar"), ("--gzip", "a.tar.gz")] {
        let archive = fake.dir.path().join(name);
        let mut tar = Command::new("tar");
        tar.arg("--create").arg(option).arg("--file").arg(&archive).arg("linux");
        assert!(tar.current_dir(fake.dir.path()).status().unwrap().success());
        let kernel = fake.build_from(KernelSource::Path(archive.clone()), &mut |_| {}).unwrap();
        kernel.load().unwrap();
        assert_eq!(
            kernel.manifest().kernel.as_ref().unwrap().source,
            archive.canonicalize().unwrap().to_str().unwrap()
        );
    }
    let archive = fake.dir.path().join("a.tar.gz");
    let bytes = fs::read(&archive).unwrap();
    fs::write(&archive, &bytes[..bytes.len() / 2]).unwrap();
    let error = fake.build_from(KernelSource::Path(archive), &mut |_| {}).unwrap_err();
    assert!(matches!(error, KernelError::NotASource { .. }), "{error}");
    assert!(fake.left().iter().all(|n| n.starts_with("kernel-")), "{:?}", fake.left());
}

#[test]
fn a_failed_step_shows_its_end_and_keeps_its_log() {
    let fake = Fake::new("@for i in $$(seq 100); do echo line $$i; done; echo broken >&2; exit 3");
    let error = fake.build().unwrap_err();
    let KernelError::Step { step: "make vmlinux", tail, log, .. } = &error else { panic!("{error}") };
    assert!(tail.contains("line 90") && tail.contains("broken") && !tail.contains("line 50"), "{tail}");
    assert!(fs::read_to_string(log).unwrap().contains("line 50\n"));
    assert_eq!(fake.left(), ["kernel-build.log"]);
}

#[test]
fn results_that_are_no_guest_kernel_are_not_published() {
    let fake = Fake::new(&GOOD.replace("kernel.elf", "Makefile"));
    assert!(matches!(fake.build(), Err(KernelError::Image(_))));
    let mut fake = Fake::new(GOOD);
    fake.recipe.fragment = "CONFIG_FAKE=y\n";
    let makefile = fake.source().join("Makefile");
    let text = fs::read_to_string(&makefile).unwrap().replace("@cp \"$(KCONFIG_ALLCONFIG)\"", "@cp Makefile");
    fs::write(makefile, text).unwrap();
    let Err(KernelError::Unmet(unmet)) = fake.build() else { panic!() };
    assert_eq!(unmet, ["CONFIG_FAKE=y"]);
    assert!(fake.left().is_empty());
    fake.recipe.space = u64::MAX;
    assert!(matches!(fake.build(), Err(KernelError::Space { .. })));
}

#[test]
fn without_any_source_the_message_says_what_to_do() {
    let fake = Fake::new(GOOD);
    let bin = fake.dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    for tool in ["make", "tar", "xz", "gcc", "ld"] {
        std::os::unix::fs::symlink("/bin/true", bin.join(tool)).unwrap();
    }
    let request = KernelRequest::new(&fake.cancel);
    let build = Build { recipe: &fake.recipe, search_path: bin.as_os_str(), cache: &fake.cache(), request: &request };
    let error = build.run(&mut |_| {}).unwrap_err().to_string();
    for part in ["not-installed.tar.xz", "apt-get", "linux-source-6.12", "--source"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(fake.left().is_empty());
}

#[test]
fn nothing_is_fetched_while_the_cache_has_a_kernel() {
    let fake = Fake::new(GOOD);
    let kernel = fake.build().unwrap();
    let found = fake.build_from(KernelSource::Distribution, &mut |p| assert_ne!(p.phase, Phase::Downloading)).unwrap();
    assert_eq!(found.path(), kernel.path());
}

#[test]
fn an_interrupted_build_leaves_no_process_and_nothing_in_the_cache() {
    let fake = Fake::new("@echo $$$$ > ../pid; echo started; sleep 1000 & sleep 1000");
    let started = Instant::now();
    let result = fake.build_from(KernelSource::Path(fake.source()), &mut |p| {
        if p.detail == "started" {
            fake.cancel.store(true, Ordering::Relaxed);
        }
    });
    assert!(matches!(result, Err(KernelError::Cancelled)), "{result:?}");
    assert!(fake.left().is_empty());
    let pid = fs::read_to_string(fake.dir.path().join("pid")).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists());
    assert!(started.elapsed() < Duration::from_secs(500), "it waited for the compiler");
}

/// Not a test of its own: the builder that [`a_killed_builder_is_swept_up_after`] kills.
#[test]
fn builder_to_kill() {
    let Some(dir) = env::var_os("PVISOR_TEST_BUILD") else { return };
    let dir = PathBuf::from(dir);
    let cancel = AtomicBool::new(false);
    let request =
        KernelRequest { source: KernelSource::Path(dir.join("linux")), jobs: NonZeroUsize::MIN, cancel: &cancel };
    let recipe = Recipe { fragment: FAKE_FRAGMENT, tools: &TOOLS, space: 1, ..Recipe::guest() };
    let path = env::var_os("PATH").unwrap_or_default();
    let cache = Cache::at(dir.join("cache"));
    let build = Build { recipe: &recipe, search_path: &path, cache: &cache, request: &request };
    let _ = build.run(&mut |_| {});
}

#[test]
fn a_killed_builder_is_swept_up_after() {
    let fake = Fake::new("@while :; do echo tick; touch ../ticked; sleep 0.05; done");
    let ticked = fake.dir.path().join("ticked");
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "kernel::tests::builder_to_kill"])
        .env("PVISOR_TEST_BUILD", fake.dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(100);
    while !ticked.exists() {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "the builder did not start");
        thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    assert!(fake.left().iter().any(|n| n.starts_with("work-kernel-")), "{:?}", fake.left());
    assert!(find(&fake.cache()).unwrap().is_none());

    // Waits until the orphaned compiler has noticed, since that still writes into the directory.
    fake.set_compile(GOOD);
    let kernel = fake.build().unwrap();
    kernel.load().unwrap();
    assert_eq!(fake.left(), [kernel.manifest().name()]);
}

#[test]
fn two_builders_build_once() {
    let fake = Fake::new(&format!("@sleep 0.3\n{GOOD}"));
    thread::scope(|scope| {
        let threads = [(); 3].map(|()| scope.spawn(|| fake.build().unwrap().path()));
        let paths = threads.map(|t| t.join().unwrap());
        assert!(paths.iter().all(|p| *p == paths[0]));
    });
    assert_eq!(times_built(&fake), 1);
}

#[test]
fn only_kernels_of_this_program_are_found() {
    let fake = Fake::new(GOOD);
    fake.build().unwrap();
    assert!(find(&fake.cache()).unwrap().is_none(), "built from another fragment");
    let ours = Fake { recipe: Recipe { tools: &TOOLS, space: 1, ..Recipe::guest() }, ..Fake::new(GOOD) };
    let kernel = ours.build().unwrap();
    assert_eq!(find(&ours.cache()).unwrap().unwrap().path(), kernel.path());
    fs::write(kernel.dir.join("manifest.json"), "{}").unwrap();
    assert!(find(&ours.cache()).unwrap().is_none());
}
