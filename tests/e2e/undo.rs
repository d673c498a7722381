//! Applying to a real repository, and taking it back.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use crate::world::{World, listing};

/// What a development session does to a repository.
const SESSION: &str = "set -e; echo changed >> README.md; mv src/lib.rs src/main.rs; mkdir -p a/b; echo new > a/b/c; \
     chmod +x README.md; ln -s a/b/c link; rm -r old; git add -A; git commit -qm session; git gc -q";

fn git(dir: &Path, args: &[&str]) -> String {
    let out = Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@example.org"])
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        // `git status` would write the index.
        .env("GIT_OPTIONAL_LOCKS", "0")
        .output()
        .unwrap();
    assert!(out.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A world whose project is a repository with a history.
pub fn repository() -> World {
    let world = World::new();
    let project = world.project();
    fs::create_dir_all(project.join("old/deep")).unwrap();
    for n in 0..20 {
        fs::write(project.join(format!("old/deep/{n}")), format!("content {n}\n")).unwrap();
    }
    git(&project, &["init", "-q", "-b", "main"]);
    git(&project, &["add", "-A"]);
    git(&project, &["commit", "-qm", "first"]);
    git(&project, &["config", "user.name", "t"]);
    git(&project, &["config", "user.email", "t@example.org"]);
    world
}

/// Everything but times of what is below a directory: path, kind and mode, owner, content.
fn state(top: &Path) -> Vec<(std::path::PathBuf, u32, u32, Vec<u8>)> {
    let described = listing(top).into_iter().map(|(path, content)| {
        let meta = path.symlink_metadata().unwrap();
        (path, meta.mode(), meta.uid(), content)
    });
    described.collect()
}

#[test]
fn a_session_in_a_repository_is_applied_and_undone_again_and_again() {
    let world = repository();
    let project = world.project();
    let before = state(&project);
    let head = git(&project, &["rev-parse", "HEAD"]);
    let inode = fs::metadata(project.join("src/lib.rs")).unwrap().ino();
    world.staged(SESSION).expect(0);
    assert_eq!(state(&project), before);
    for _ in 0..2 {
        let told = world.pvisor(&["apply", "last"]).expect(0);
        assert!(told.stdout().contains("within 7 days: pvisor undo run-"), "{told}");
        assert_ne!(git(&project, &["rev-parse", "HEAD"]), head);
        git(&project, &["fsck", "--strict"]);
        assert_eq!(git(&project, &["status", "--porcelain"]), "");
        let list = world.pvisor(&["list", "--json"]).expect(0).json();
        assert!(list["runs"][0]["originals_until_ms"].is_u64(), "{list:#}");
        assert!(world.pvisor(&["list"]).expect(0).stdout().contains("applied    7 days"));
        assert!(world.pvisor(&["status"]).expect(0).stdout().contains("kept for 7 days more: pvisor undo"));
        let planned = world.pvisor(&["undo", "last", "--dry-run", "--json"]).expect(0).json();
        let told = world.pvisor(&["undo", "last", "--json"]).expect(0).json();
        assert_eq!(told["written"], planned["written"]);
        assert_eq!(state(&project), before);
        assert_eq!(fs::metadata(project.join("src/lib.rs")).unwrap().ino(), inode);
        assert_eq!(git(&project, &["rev-parse", "HEAD"]), head);
        git(&project, &["fsck", "--strict"]);
        assert_eq!(git(&project, &["status", "--porcelain"]), "");
        let status = world.status();
        assert_eq!(status["stage"]["state"], "sealed");
        assert!(status["stage"]["applied_ms"].is_null() && status["stage"]["originals_until_ms"].is_null());
        world.pvisor(&["undo", "last"]).expect(1);
    }
    assert!(world.pvisor(&["review", "last"]).expect(0).stdout().contains("README.md"));
}

#[test]
fn an_edit_since_is_a_conflict_and_nothing_is_undone() {
    let world = repository();
    world.staged(SESSION).expect(0);
    world.pvisor(&["apply", "last"]).expect(0);
    fs::write(world.project().join("a/b/c"), "mine\n").unwrap();
    let now = state(&world.project());
    let done = world.pvisor(&["undo", "last"]).expect(3);
    done.says(&["nothing was undone", "a/b/c", "was changed since it was applied"]);
    let json = world.pvisor(&["undo", "last", "--json"]).expect(3).json();
    assert_eq!((json["kind"].as_str(), json["conflicts"][0]["path"].as_str()), (Some("conflict"), Some("a/b/c")));
    assert_eq!(state(&world.project()), now);
    // Without that path the rest can be had; it can follow once the edit is gone.
    let told = world.pvisor(&["undo", "last", "--exclude", "a/b/c"]).expect(0);
    assert!(told.stdout().contains("left as applied"), "{told}");
    assert!(world.project().join("a/b/c").exists() && world.project().join("old").exists());
    // The same content with another time is no edit.
    fs::write(world.project().join("a/b/c"), "new\n").unwrap();
    world.pvisor(&["undo", "last"]).expect(0);
    assert!(!world.project().join("a").exists());
}

#[test]
fn a_parent_that_became_a_link_leads_nowhere() {
    let world = repository();
    world.staged("mkdir a; echo new > a/f; echo changed > src/lib.rs").expect(0);
    world.pvisor(&["apply", "last"]).expect(0);
    let outside = world.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("f"), "new\n").unwrap();
    fs::write(outside.join("lib.rs"), "changed\n").unwrap();
    let project = world.project();
    for name in ["a", "src"] {
        fs::rename(project.join(name), world.path().join(format!("real-{name}"))).unwrap();
        symlink(&outside, project.join(name)).unwrap();
    }
    world.pvisor(&["undo", "last"]).expect(3);
    assert_eq!(fs::read_to_string(outside.join("f")).unwrap(), "new\n");
    assert_eq!(fs::read_to_string(outside.join("lib.rs")).unwrap(), "changed\n");
}

#[test]
fn originals_that_are_not_wanted_or_expired_are_not_kept() {
    let world = repository();
    world.staged("echo changed > src/lib.rs; rm -r old").expect(0);
    let kept = || Path::new(&world.stage()).join("originals").exists();
    let told = world.pvisor(&["apply", "last", "--no-keep-originals"]).expect(0);
    assert!(!told.stdout().contains("undo") && !kept());
    world.pvisor(&["undo", "last"]).expect(1).says(&["no originals are kept"]);
    let world = repository();
    world.staged("echo changed > src/lib.rs; rm -r old").expect(0);
    let kept = || Path::new(&world.stage()).join("originals").exists();
    world.pvisor(&["apply", "last", "--keep-originals=2"]).expect(0);
    assert!(kept());
    assert!(world.pvisor(&["list"]).expect(0).stdout().contains("2 days"));
    // A command of any kind looks for what has had its time, and leaves alone what has not.
    let marks = world.runs().join("originals");
    let mark = fs::read_dir(&marks).unwrap().next().unwrap().unwrap().file_name().into_string().unwrap();
    let (until, run) = mark.split_once('.').unwrap();
    fs::write(marks.join(format!("1.{run}")), "").unwrap();
    fs::write(marks.join(format!("{until}.nobody")), "").unwrap();
    world.pvisor(&["doctor"]);
    assert!(kept() && marks.join(&mark).exists() && !marks.join(format!("1.{run}")).exists());
    world.pvisor(&["undo", "last"]).expect(0);
    assert!(!kept());
}

#[test]
fn a_discarded_stage_takes_its_originals_with_it() {
    let world = repository();
    world.staged("echo changed > src/lib.rs").expect(0);
    world.pvisor(&["apply", "last"]).expect(0);
    world.pvisor(&["discard", "last"]).expect(0);
    assert!(!Path::new(&world.stage()).exists());
    world.pvisor(&["undo", "last"]).expect(1);
    assert_eq!(fs::read_to_string(world.project().join("src/lib.rs")).unwrap(), "changed\n");
}

#[test]
fn another_target_is_undone_by_its_name() {
    let world = repository();
    world.staged("echo changed > src/lib.rs").expect(0);
    let copy = world.path().join("copy");
    assert!(Command::new("cp").arg("-a").arg(world.project()).arg(&copy).status().unwrap().success());
    fs::set_permissions(copy.join("src/lib.rs"), fs::Permissions::from_mode(0o644)).unwrap();
    let before = state(&copy);
    world.pvisor(&["apply", "last", "--target", "../copy"]).expect(0);
    assert_ne!(state(&copy), before);
    world.pvisor(&["undo", "last"]).expect(1);
    world.pvisor(&["undo", "last", "--target", "../copy"]).expect(0);
    assert_eq!(state(&copy), before);
}
