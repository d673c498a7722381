//! Programs that people run.

use crate::fixture::{Fixture, shell, tree};

const TREE: &str = "
    mkdir -p src/deep/er docs
    for i in 1 2 3 4 5; do echo \"line $i of a file\" > src/f$i; done
    echo deep > src/deep/er/x
    ln -s ../src/f1 docs/link
    ln src/f2 docs/hard
    printf '#!/bin/sh\\necho ran\\n' > run.sh && chmod 755 run.sh
    touch -d 2001-02-03T04:05:06.123456789Z src/f3
";

#[test]
fn everyday_changes_come_to_the_same() {
    let Some(fs) = Fixture::new(TREE) else { return };
    let before = tree(&fs.lower());
    for script in [
        "cat src/* 2>&1; ls -la docs | awk '{print $1,$2,$5,$9}'",
        "sed -i s/file/FILE/ src/f1 src/f2 && cat src/f1 docs/hard docs/link",
        "echo more >> src/f3; truncate -s 3 src/f4; : > src/f5; cat src/f3 src/f4; stat -c %s src/f5",
        "mkdir -p new/a/b && echo x > new/a/b/c && rmdir docs; echo $?",
        "mv src/deep new/moved && ls new/moved/er && cat new/moved/er/x",
        "rm -r src && test ! -e src && mkdir src && ls -A src && echo again > src/f1",
        "ln new/a/b/c hard2 && echo y >> hard2 && cat new/a/b/c && stat -c %h hard2",
        "ln -sf nowhere dangling; readlink dangling; cat dangling; rm dangling",
        "chmod 600 run.sh; stat -c %a run.sh; chmod 4755 run.sh; stat -c %a run.sh; chmod 2775 docs; stat -c %a docs",
        "touch -d 2011-11-11T11:11:11.111222333Z run.sh docs; stat -c '%y' run.sh docs",
        "touch -d 1950-01-01T00:00:00.25Z run.sh; stat -c '%y' run.sh",
        "cp -a new copy && diff -r new copy && rm -rf new",
        "mkfifo pipe && stat -c %F pipe && mknod dev c 1 3 && stat -c '%F %t %T' dev",
        "mv nothing else; rmdir copy; rm docs; mkdir docs; cat docs; cd run.sh; ln docs d2; true",
        "./copy/../run.sh; chmod 755 run.sh; ./run.sh",
    ] {
        fs.both(script);
    }
    assert_eq!(tree(&fs.lower()), before, "the staged directory itself was touched");
}

#[test]
fn git_works_in_a_stage() {
    let Some(fs) = Fixture::new(
        "git init -q --bare ../bare.git
         git init -q -b main ../seed && cd ../seed
         git config user.name n; git config user.email e
         mkdir -p a/b; for i in $(seq 300); do echo content $i > a/b/f$i; done
         git add . && git commit -qm one && git push -q ../bare.git main
         cd ../lower && git clone -q ../bare.git existing -b main",
    ) else {
        return;
    };
    let said = shell(
        &fs.mnt(),
        "set -e
         git clone -q ../bare.git fresh -b main
         for r in fresh existing; do
            cd $r
            git config user.name n; git config user.email e
            git status --porcelain
            sed -i s/content/changed/ a/b/f1; rm a/b/f2; echo n > new
            git add -A; git commit -qm two
            git mv a/b moved; git commit -qm three
            git gc -q --prune=now; git fsck --strict 2>&1
            git checkout -q HEAD~2; git checkout -q main
            git status --porcelain; git log --oneline | wc -l
            cd ..
         done
         diff -r fresh/moved existing/moved && echo same",
        &[],
    );
    assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["3", "3", "same"], "{said}");
    assert_eq!(shell(&fs.lower(), "cd existing; git status --porcelain; git log --oneline | wc -l", &[]).trim(), "1");
}

#[test]
fn a_database_with_a_write_ahead_log_holds_under_several_writers() {
    let Some(fs) = Fixture::new("true") else { return };
    fs.python(
        "import sqlite3; c=sqlite3.connect('db'); print(c.execute('pragma journal_mode=wal').fetchone()[0]);
c.execute('create table t(w,n)'); c.commit()",
    );
    let writer = "import sqlite3,sys\nc=sqlite3.connect('db',timeout=60)\nfor i in range(50):\n  c.execute('insert into t values(?,?)',(sys.argv[1],i)); c.commit()";
    std::fs::write(fs.mnt().join("w.py"), writer).unwrap();
    shell(
        &fs.mnt(),
        "for w in 1 2 3 4; do python3 w.py $w & pids=\"$pids $!\"; done; for p in $pids; do wait $p || exit 1; done",
        &[],
    );
    let said = fs.python(
        "import sqlite3; c=sqlite3.connect('db'); print(c.execute('select count(*) from t').fetchone()[0], c.execute('pragma integrity_check').fetchone()[0])",
    );
    assert_eq!(said.trim(), "200 ok");
}

#[test]
fn thousands_of_files_are_found_and_removed() {
    let Some(fs) = Fixture::new(
        "for d in $(seq 50); do mkdir -p many/d$d; (cd many/d$d; seq 100 | xargs touch); done; mkdir flat; cd flat; seq 3000 | xargs touch",
    ) else {
        return;
    };
    assert_eq!(fs.both("find . -type f | wc -l").trim(), "8000");
    assert_eq!(fs.both("find . | sort | md5sum; ls -f flat | wc -l").lines().nth(1), Some("3002"));
    fs.both("rm -rf many/d7 many/d8 && find many -type f | wc -l");
    fs.both("rm -rf many flat && ls -A && mkdir many && ls -A many");
}

#[test]
fn moved_directories_keep_what_is_in_them() {
    let Some(fs) = Fixture::new("mkdir -p a/b/c d e/f; echo 1 > a/b/c/x; echo 2 > a/y; echo 3 > e/f/z") else { return };
    for script in [
        "mv a moved && find moved | sort && cat moved/b/c/x",
        "mv moved d/ && echo new > d/moved/b/new && mv d/moved/b back && find . | sort",
        "mv -T back e; echo $?; mkdir empty; mv -T back empty && find . | sort",
        "mv e e/f/sub; echo $?; mv e/f/z e/w && mv e d/moved && find . | sort",
        "mkdir a && mv d/moved/y a/ && cat a/y; rm -r d && find . | sort",
    ] {
        fs.both(script);
    }
}

#[test]
fn large_files_come_through_whole() {
    let Some(fs) = Fixture::new("head -c 20000000 /dev/urandom > big") else { return };
    fs.both("md5sum < big; cp big copy; cmp big copy; dd if=copy of=copy bs=1M seek=5 count=1 conv=notrunc 2>/dev/null; md5sum < copy");
    fs.both("truncate -s 100M sparse; echo end >> sparse; tail -c 4 sparse; test $(stat -c %b sparse) -lt 1000 && echo still sparse");
}

#[test]
fn programs_in_the_stage_run_and_are_busy_while_they_do() {
    let Some(fs) = Fixture::new("cp /bin/sleep . && cp /bin/echo .") else { return };
    assert_eq!(fs.both("./echo hello").trim(), "hello");
    let said = shell(&fs.mnt(), "./sleep 100 & p=$!; sleep 0.3; (echo x > sleep) 2>&1; kill $p", &[]);
    assert!(said.contains("busy"), "{said}");
    fs.both("cp /bin/true made && ./made && rm made; ./made 2>/dev/null; echo $?");
}
