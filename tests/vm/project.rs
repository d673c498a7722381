//! The staged project as the guest sees and changes it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::sandbox::{Sandbox, finish, stdout, text};

#[test]
#[ignore = "needs a KVM that runs guests"]
fn every_kind_of_change_is_staged_reviewed_and_applied() {
    let sandbox = Sandbox::new();
    let project = sandbox.project();
    fs::write(project.join("old"), "old\n").unwrap();
    fs::write(project.join("gone"), "gone\n").unwrap();
    fs::create_dir_all(project.join("tree/deep")).unwrap();
    for i in 0..50 {
        fs::write(project.join(format!("tree/deep/{i}")), format!("{i}\n")).unwrap();
    }
    let before = sandbox.listing();
    let script = r"set -e
        sed -i s/a/b/ README.md
        echo more >> old
        rm gone
        mv tree moved
        mkdir -p new/dir; echo x > new/dir/file
        ln -s ../old new/link
        ln old new/hard
        chmod 755 src/lib.rs
        printf 'odd\n' > 'odd name	with tab'
        rm -r src; mkdir src; echo y > src/other
        truncate -s 2 moved/deep/7
        ls moved/deep | wc -l";
    let out = sandbox.sh(script);
    assert_eq!((out.status.code(), stdout(&out).trim()), (Some(0), "50"), "{}", text(&out));
    assert_eq!(sandbox.listing(), before, "the project was written");
    let review = finish(sandbox.pvisor(&["review", "last"]));
    for name in ["README.md", "old", "gone", "moved", "new/dir/file", "new/link", "new/hard", "src/other"] {
        assert!(stdout(&review).contains(name), "{name} is missing: {}", text(&review));
    }
    let apply = finish(sandbox.pvisor(&["apply", "last"]));
    assert!(apply.status.success(), "{}", text(&apply));
    assert_eq!(fs::read_to_string(project.join("README.md")).unwrap(), "b project\n");
    assert_eq!(fs::read_to_string(project.join("old")).unwrap(), "old\nmore\n");
    assert!(!project.join("gone").exists() && !project.join("tree").exists() && !project.join("src/lib.rs").exists());
    assert_eq!(fs::read_to_string(project.join("moved/deep/8")).unwrap(), "8\n");
    assert_eq!(fs::read_to_string(project.join("moved/deep/7")).unwrap(), "7\n");
    assert_eq!(fs::read_link(project.join("new/link")).unwrap().to_str(), Some("../old"));
    let inode = |p: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(project.join(p)).unwrap());
    assert_eq!(inode("old"), inode("new/hard"));
    assert_eq!(fs::metadata(project.join("src")).unwrap().permissions().mode() & 0o777, 0o755);
    let again = finish(sandbox.pvisor(&["apply", "last"]));
    assert!(text(&again).contains("nothing left"), "{}", text(&again));
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn a_persons_edit_during_the_run_is_a_conflict() {
    let sandbox = Sandbox::new();
    let out = sandbox.sh("echo staged > README.md");
    assert!(out.status.success(), "{}", text(&out));
    fs::write(sandbox.project().join("README.md"), "edited by the person\n").unwrap();
    let apply = finish(sandbox.pvisor(&["apply", "last"]));
    assert_eq!(apply.status.code(), Some(3), "{}", text(&apply));
    assert!(text(&apply).contains("README.md"), "{}", text(&apply));
    assert_eq!(fs::read_to_string(sandbox.project().join("README.md")).unwrap(), "edited by the person\n");
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn sqlite_git_and_a_build_work_in_the_stage() {
    let sandbox = Sandbox::new();
    let script = r#"set -e
        git init -q . && git config user.email a@b && git config user.name n
        git add -A && git commit -qm one && git gc -q && git fsck
        /usr/bin/python3 - <<'P'
import sqlite3
db = sqlite3.connect("data.db"); db.execute("pragma journal_mode=wal"); db.execute("create table t(x)")
db.executemany("insert into t values(?)", [(i,) for i in range(500)]); db.commit()
print(db.execute("pragma integrity_check").fetchone()[0], db.execute("select count(*) from t").fetchone()[0])
P
        printf 'int main(void){return 42;}' > m.c && cc m.c -o m
        set +e; ./m; echo $?"#;
    let out = sandbox.sh(script);
    assert!(stdout(&out).contains("ok 500\n") && stdout(&out).trim().ends_with("42"), "{}", text(&out));
    let apply = finish(sandbox.pvisor(&["apply", "last"]));
    assert!(apply.status.success(), "{}", text(&apply));
    let fsck =
        std::process::Command::new("git").args(["fsck", "--strict"]).current_dir(sandbox.project()).output().unwrap();
    assert!(fsck.status.success(), "{}", text(&fsck));
}
