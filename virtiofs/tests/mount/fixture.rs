//! A mounted stage beside a plain copy of what it stages.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sched::CloneFlags;
use pvisor_virtiofs::fuse::{self, Server};
use pvisor_virtiofs::stage::{Stage, StageOptions};
use pvisor_virtiofs::{FsOptions, StageFs};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountPropagationFlags, UnmountFlags};

/// A mounted stage; `None` of the parts once it is taken down.
pub struct Fixture {
    dir: tempfile::TempDir,
    pub filesystem: Arc<StageFs>,
    server: Option<Server>,
}

/// What a tree shows of itself: one line for each path.
pub type Tree = BTreeMap<PathBuf, String>;

impl Fixture {
    /// Fills a directory with the script, copies it, mounts a stage of it; `None`, with the reason on stderr, where
    /// this process may not.
    pub fn new(fill: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not run: mounting needs root");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        // The tests drop privileges and go through it.
        shell(dir.path(), "chmod 755 . && mkdir lower mnt", &[]);
        shell(&dir.path().join("lower"), fill, &[]);
        shell(dir.path(), "cp -a lower plain", &[]);
        nix::sched::unshare(CloneFlags::CLONE_NEWNS).unwrap();
        rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        let device = match rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
            Ok(device) => device,
            Err(error) => {
                eprintln!("not run: /dev/fuse: {error}");
                return None;
            }
        };
        let stage = Stage::create(&dir.path().join("stage"), &dir.path().join("lower"), StageOptions::default());
        let filesystem = Arc::new(StageFs::new(Arc::new(stage.unwrap()), FsOptions::default()));
        fuse::mount(device.as_fd(), &dir.path().join("mnt"), 0, 0).unwrap();
        let server = fuse::serve(Arc::clone(&filesystem), device, NonZeroUsize::new(3).unwrap()).unwrap();
        Some(Self { dir, filesystem, server: Some(server) })
    }

    /// The staged view.
    pub fn mnt(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// The plain copy.
    pub fn plain(&self) -> PathBuf {
        self.dir.path().join("plain")
    }

    /// What is staged, as the person has it.
    pub fn lower(&self) -> PathBuf {
        self.dir.path().join("lower")
    }

    /// Runs a script in both; panics where the outcome or the trees differ. Returns what it printed.
    pub fn both(&self, script: &str) -> String {
        self.both_with(script, &[])
    }

    /// As `both`, with arguments `$1` and so on.
    pub fn both_with(&self, script: &str, args: &[&OsStr]) -> String {
        let staged = run(&self.mnt(), script, args);
        let plain = run(&self.plain(), script, args);
        assert_eq!(told(&staged), told(&plain), "staged and plain say different things of\n{script}");
        self.compare();
        String::from_utf8_lossy(&staged.stdout).into_owned()
    }

    /// Panics where the two trees differ.
    pub fn compare(&self) {
        let (staged, plain) = (tree(&self.mnt()), tree(&self.plain()));
        for (path, line) in &plain {
            assert_eq!(staged.get(path), Some(line), "{path:?} (left: staged, right: plain)");
        }
        let extra: Vec<_> = staged.keys().filter(|p| !plain.contains_key(*p)).collect();
        assert!(extra.is_empty(), "only in the stage: {extra:?}");
    }

    /// Runs Python in the staged view; returns what it printed.
    pub fn python(&self, code: &str) -> String {
        python(&self.mnt(), code)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let unmounted = rustix::mount::unmount(self.mnt(), UnmountFlags::empty());
        if unmounted.is_err() {
            let _ = rustix::mount::unmount(self.mnt(), UnmountFlags::DETACH);
        }
        let finished = self.server.take().map(|s| s.finish(Duration::from_secs(60)));
        if !std::thread::panicking() {
            unmounted.unwrap();
            finished.unwrap().unwrap();
        }
    }
}

/// Runs Python in a directory; returns what it printed.
pub fn python(dir: &Path, code: &str) -> String {
    let output = Command::new("python3").arg("-c").arg(code).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{code}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a script that must succeed.
pub fn shell(dir: &Path, script: &str, args: &[&OsStr]) -> String {
    let output = run(dir, script, args);
    assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn run(dir: &Path, script: &str, args: &[&OsStr]) -> Output {
    Command::new("sh")
        .args(["-c", script, "sh"])
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .env("LC_ALL", "C.UTF-8")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .unwrap()
}

fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Kind, mode, owner, size, names, content and, for directories, the type of each entry.
pub fn tree(dir: &Path) -> Tree {
    let mut tree = Tree::new();
    walk(dir, Path::new(""), &mut tree);
    tree
}

fn walk(root: &Path, relative: &Path, tree: &mut Tree) {
    let path = root.join(relative);
    let meta = path.symlink_metadata().unwrap();
    let mut line = format!("{:o} {}:{}", meta.mode(), meta.uid(), meta.gid());
    if meta.is_file() {
        let content = std::fs::read(&path).unwrap();
        assert_eq!(content.len() as u64, meta.size(), "{path:?}");
        let sum = content.iter().fold(0u64, |h, b| h.wrapping_mul(1_099_511_628_211) ^ u64::from(*b));
        line += &format!(" {} links {} content {sum:x}", meta.nlink(), meta.size());
    } else if meta.is_symlink() {
        line += &format!(" -> {:?}", std::fs::read_link(&path).unwrap());
    }
    tree.insert(relative.to_owned(), line);
    if meta.is_dir() {
        let mut children = 2;
        for entry in std::fs::read_dir(&path).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            let child = entry.path().symlink_metadata().unwrap();
            assert_eq!(kind, child.file_type(), "{:?}", entry.path());
            children += u64::from(kind.is_dir());
            walk(root, &relative.join(entry.file_name()), tree);
        }
        assert_eq!(meta.nlink(), children, "links of {path:?}");
    }
}
