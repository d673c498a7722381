//! Programs that ask much of a file system, in a staged host run; then applied, and looked at again without the stage.

use std::fs;
use std::process::Command;

use crate::world::{Done, World, finish};

/// A script in the project itself.
fn plain(world: &World, script: &str) -> Done {
    let mut command = Command::new("sh");
    command.args(["-ec", script]).current_dir(world.project()).env("GIT_CONFIG_GLOBAL", "/dev/null");
    finish(command)
}

/// The script in a staged run, then applied.
fn staged_and_applied(world: &World, script: &str) {
    let before = world.listing();
    let stage = world.stage();
    let script = format!("set -e; export GIT_CONFIG_GLOBAL=/dev/null\n{script}");
    world.pvisor(&world.host_args(&["--stage", &stage], &script)).expect(0);
    assert_eq!(world.listing(), before, "a run wrote the project");
    world.pvisor(&["apply", "--allow-exec-sinks", &stage]).expect(0);
    world.assert_nothing_left();
}

#[test]
fn a_database_with_a_write_ahead_log_keeps_what_was_committed() {
    let world = World::new();
    plain(&world, "python3 -c \"import sqlite3; c=sqlite3.connect('db'); c.execute('pragma journal_mode=wal'); c.execute('create table t(w int, n int)'); c.commit()\"")
        .expect(0);
    let writer = "import sqlite3,sys\nc=sqlite3.connect('db',timeout=60); w=int(sys.argv[1])\nfor n in range(100000):\n  c.execute('insert into t values(?,?)',(w,n)); c.commit()\n  print(n,flush=True)\n  if n>=int(sys.argv[2]): break\n";
    fs::write(world.project().join("writer.py"), writer).unwrap();
    // Three come to their end; the fourth is killed in the middle, and what it was told to be committed is there.
    staged_and_applied(
        &world,
        "for w in 1 2 3; do python3 writer.py $w 60 >/dev/null & done
         : >said; python3 writer.py 4 99999 >>said & victim=$!
         while [ $(wc -l <said) -lt 40 ]; do sleep 0.05; done; kill -9 $victim; wait || true
         python3 -c \"import sqlite3; print(sqlite3.connect('db').execute('pragma integrity_check').fetchone()[0])\" >verdict",
    );
    assert_eq!(fs::read_to_string(world.project().join("verdict")).unwrap(), "ok\n");
    let said = plain(
        &world,
        "python3 -c \"import sqlite3; c=sqlite3.connect('db'); print(c.execute('pragma integrity_check').fetchone()[0], *[c.execute('select count(*) from t where w=?',(w,)).fetchone()[0] for w in (1,2,3,4)])\"; wc -l <said",
    )
    .expect(0);
    let said = said.stdout();
    let words: Vec<&str> = said.split_whitespace().collect();
    assert_eq!(words[..4], ["ok", "61", "61", "61"], "{said}");
    let (kept, told): (u32, u32) = (words[4].parse().unwrap(), words[5].parse().unwrap());
    assert!(kept >= told && told >= 40, "{kept} rows of {told} that were committed");
}

#[test]
fn a_clone_that_was_packed_and_checked_is_whole_after_apply() {
    let world = World::new();
    plain(
        &world,
        "git init -q -b main origin; cd origin; git config user.name n; git config user.email e
         for i in $(seq 200); do mkdir -p d$((i % 20)); seq $i $((i * 7)) > d$((i % 20))/f$i; done
         git add .; git commit -qm one; echo x >> d1/f1; git commit -qam two",
    )
    .expect(0);
    staged_and_applied(
        &world,
        "git clone -q origin copy; cd copy; git config user.name n; git config user.email e
         git mv d1 moved; git commit -qam three; git gc -q --prune=now; git fsck --strict --full
         git worktree add -q ../tree HEAD~1; git status --porcelain",
    );
    let said = plain(&world, "cd copy; git fsck --strict --full 2>&1; git status --porcelain; git log --oneline | wc -l; git -C ../tree status --porcelain").expect(0);
    assert_eq!(said.stdout().trim(), "3", "{said}");
}

#[test]
fn what_cargo_and_make_built_in_a_stage_is_fresh_after_apply() {
    let world = World::new();
    fs::write(
        world.project().join("Cargo.toml"),
        "[package]\nname = \"p\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n",
    )
    .unwrap();
    fs::write(world.project().join("src/main.rs"), "fn main() { p::f(); println!(\"ran\"); }\n").unwrap();
    fs::write(world.project().join("Makefile"), "out: in\n\tcp in out\n").unwrap();
    fs::write(world.project().join("in"), "x\n").unwrap();
    staged_and_applied(&world, "cargo build --offline --quiet; ./target/debug/p; make -s; make -q");
    let said = plain(&world, "make -q; cargo build --offline --verbose 2>&1; ./target/debug/p").expect(0).stdout();
    assert!(said.contains("Fresh p v0.1.0") && !said.contains("Compiling") && said.ends_with("ran\n"), "{said}");
}

#[test]
fn npm_installs_from_archives_in_a_stage() {
    if Command::new("npm").arg("--version").output().is_err() {
        eprintln!("not run: no npm");
        return;
    }
    let world = World::new();
    // Eight packages that need each other in a row, each with a program and a nested directory.
    plain(
        &world,
        "export npm_config_cache=$PWD/../npm npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false
         deps='{'
         for i in 1 2 3 4 5 6 7 8; do
            mkdir -p ../pkg/$i/lib/deep
            need='{}'; [ $i = 1 ] || need=\"{\\\"p$((i-1))\\\":\\\"1.0.0\\\"}\"
            printf '{\"name\":\"p%s\",\"version\":\"1.0.0\",\"bin\":{\"p%s\":\"run.js\"},\"peerDependencies\":%s}' $i $i \"$need\" > ../pkg/$i/package.json
            printf '#!/usr/bin/env node\\nconsole.log(\"p%s\")\\n' $i > ../pkg/$i/run.js
            seq 200 > ../pkg/$i/lib/deep/data
            (cd ../pkg/$i && npm pack --silent --pack-destination ../../project >/dev/null)
            deps=\"$deps\\\"p$i\\\":\\\"file:p$i-1.0.0.tgz\\\",\"
         done
         printf '{\"name\":\"top\",\"version\":\"1.0.0\",\"dependencies\":%s}' \"${deps%,}}\" > package.json
         npm install --package-lock-only --offline --silent",
    )
    .expect(0);
    staged_and_applied(
        &world,
        "export npm_config_cache=$PWD/../npm2 npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false
         npm ci --offline --silent; npm ls --silent; ./node_modules/.bin/p8",
    );
    let said = plain(&world, "ls node_modules | wc -l; ./node_modules/.bin/p3; wc -l <node_modules/p5/lib/deep/data")
        .expect(0);
    assert_eq!(said.stdout().split_whitespace().collect::<Vec<_>>(), ["8", "p3", "200"], "{said}");
}
