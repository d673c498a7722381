//! Several handles, processes and people on the same files.

use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{RenameFlags, renameat_with};

use crate::fixture::{Fixture, python, shell};

/// Waits for what takes a moment; panics where it never comes.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("never: {what}");
}

#[test]
fn hard_links_of_the_original_stay_one_file() {
    let Some(fs) = Fixture::new("echo one > a; mkdir d; ln a d/b; ln a c") else { return };
    fs.both("stat -c %h a; echo two >> d/b; cat a c d/b; stat -c %h a c d/b");
    fs.both("rm a; cat c; stat -c %h c; echo three > c; cat d/b");
    let ino = shell(&fs.mnt(), "stat -c %i c d/b | sort -u | wc -l", &[]);
    assert_eq!(ino.trim(), "1");
}

#[test]
fn mappings_and_early_readers_see_later_writes() {
    let Some(fs) = Fixture::new("head -c 20000 /dev/zero | tr '\\0' a > f") else { return };
    let said = fs.python(
        "import mmap,os
ro=os.open('f',os.O_RDONLY); m=mmap.mmap(ro,0,prot=mmap.PROT_READ)
assert m[5000:5003]==b'aaa'
rw=os.open('f',os.O_RDWR); w=mmap.mmap(rw,0)
w[5000:5003]=b'xyz'; w.flush()
print(m[5000:5003], os.pread(ro,3,5000))
os.pwrite(rw,b'123',10000)
print(m[10000:10003], w[10000:10003], os.pread(ro,3,10000))
w[0:2]=b'!!'; del w
print(open('f','rb').read()[:3])",
    );
    assert_eq!(said, "b'xyz' b'xyz'\nb'123' b'123' b'123'\nb'!!a'\n");
    assert_eq!(std::fs::read(fs.lower().join("f")).unwrap(), vec![b'a'; 20000]);
}

#[test]
fn appends_of_several_processes_do_not_overwrite_each_other() {
    let Some(fs) = Fixture::new("echo start > log") else { return };
    let writer = "import os,sys\nf=os.open('log',os.O_WRONLY|os.O_APPEND)\nfor i in range(200): os.write(f,f'{sys.argv[1]}-{i:03}-{\"x\"*40}\\n'.encode())";
    std::fs::write(fs.mnt().join("w.py"), writer).unwrap();
    shell(&fs.mnt(), "for w in 1 2 3 4; do python3 w.py $w & done; wait", &[]);
    let log = std::fs::read_to_string(fs.mnt().join("log")).unwrap();
    assert_eq!(log.lines().count(), 801);
    assert!(log.lines().skip(1).all(|l| l.len() == 46), "torn lines");
}

#[test]
fn an_append_goes_after_what_the_person_added_just_before() {
    let Some(fs) = Fixture::new("echo 1 > log") else { return };
    // The kernel has the size in its cache now.
    assert_eq!(std::fs::metadata(fs.mnt().join("log")).unwrap().len(), 2);
    shell(&fs.lower(), "echo by the person >> log", &[]);
    shell(&fs.mnt(), "echo by the command >> log", &[]);
    let log = std::fs::read_to_string(fs.mnt().join("log")).unwrap();
    assert_eq!(log, "1\nby the person\nby the command\n");
}

#[test]
fn edits_by_the_person_show_until_the_command_has_its_own() {
    let Some(fs) = Fixture::new("echo old > f; mkdir d; echo old > mine") else { return };
    let read = |name: &str| std::fs::read_to_string(fs.mnt().join(name)).unwrap_or_default();
    assert_eq!((read("f"), read("mine")), ("old\n".into(), "old\n".into()));
    assert!(!fs.mnt().join("d/new").exists());
    shell(&fs.mnt(), "echo command > mine", &[]);
    shell(&fs.lower(), "echo much newer > f; echo made > d/new; echo person > mine", &[]);
    until("the edits show", || read("f") == "much newer\n" && read("d/new") == "made\n");
    assert_eq!(read("mine"), "command\n");
}

#[test]
fn an_edit_that_hides_its_traces_shows_all_the_same() {
    let Some(fs) = Fixture::new("echo first > f; echo first > g; touch -d 2001-01-01 f g") else { return };
    let read = |name: &str| std::fs::read_to_string(fs.mnt().join(name)).unwrap();
    assert_eq!((read("f"), read("g")), ("first\n".into(), "first\n".into()));
    shell(&fs.lower(), "printf 'other\n' > f; printf 'other\n' > g; touch -d 2001-01-01 f g", &[]);
    until("the edits show", || read("f") == "other\n" && read("g") == "other\n");
    shell(&fs.mnt(), "echo more >> g", &[]);
    assert_eq!(read("g"), "other\nmore\n");
}

/// The kernel keeps what it was told for a day: what shows here was told.
#[test]
fn what_the_person_does_to_untouched_names_is_told_to_the_kernel() {
    let fill = "mkdir -p d/e gone; echo 1 > d/saved; echo 1 > d/e/f; echo 1 > gone/f; echo 1 > mode; ln -s a link; \
                echo 1 > renamed; cd d/e; seq 500 | xargs touch";
    let Some(fs) = Fixture::new(fill) else { return };
    let names = |dir: &Path| shell(dir, "find . | LC_ALL=C sort", &[]);
    let facts = |dir: &Path| shell(dir, "cat d/saved; stat -c %a mode; readlink link; cat new d/e/f 2>&1; true", &[]);
    shell(&fs.mnt(), "mv renamed elsewhere", &[]);
    let before = (names(&fs.mnt()), facts(&fs.mnt()));
    assert_eq!((names(&fs.mnt()), facts(&fs.mnt())), before);
    let edit = "echo 2 > d/.saved; mv d/.saved d/saved; chmod 600 mode; ln -sfn b link; echo 2 > new; rm -r gone; \
                mkdir gone; echo 3 > gone/other; echo 33 > d/e/f; rm d/e/7; echo 2 > renamed";
    shell(&fs.lower(), edit, &[]);
    let expected = names(&fs.lower()).replace("./renamed\n", "");
    until("names", || names(&fs.mnt()).replace("./elsewhere\n", "") == expected);
    until("contents and attributes", || facts(&fs.mnt()) == facts(&fs.lower()));
    until("the moved file", || shell(&fs.mnt(), "cat elsewhere", &[]) == "2\n");
}

#[test]
fn a_listing_is_whole_while_others_list_and_change_the_directory() {
    let Some(fs) = Fixture::new("mkdir d; cd d; seq 5000 | xargs touch") else { return };
    let said = fs.python(
        "import os,threading
stop=False
def churn():
  i=0
  while not stop:
    i+=1
    open(f'd/x{i}','w').close(); list(os.scandir('d')); os.unlink(f'd/x{i}')
t=threading.Thread(target=churn); t.start()
ok=True
for _ in range(20):
  names=[e.name for e in os.scandir('d')]
  old=[n for n in names if not n.startswith('x')]
  ok = ok and len(old)==5000==len(set(old))
stop=True; t.join(); print(ok)",
    );
    assert_eq!(said.trim(), "True");
}

#[test]
fn more_files_are_in_use_than_are_kept_open() {
    let Some(fs) = Fixture::new("mkdir d; cd d; seq 3000 | xargs touch") else { return };
    let said = fs.python(
        "import os
fs=[os.open(f'd/{i}',os.O_RDWR) for i in range(1,301)]
gone=[os.open(f'g{i}',os.O_RDWR|os.O_CREAT) for i in range(50)]
for i in range(50): os.write(gone[i],b'gone'); os.unlink(f'g{i}')
for i in range(301,3001): open(f'd/{i}','a').write(str(i))
for i,f in enumerate(fs): os.write(f,b'%d'%(i+1))
print(all(os.pread(f,9,0)==b'gone' for f in gone), all(open(f'd/{i}').read()==str(i) for i in range(1,3001)))",
    );
    assert_eq!(said.trim(), "True True");
}

#[test]
fn locks_are_held_and_waited_for() {
    let Some(fs) = Fixture::new("touch lock; echo 0 > n") else { return };
    shell(&fs.mnt(), "for i in $(seq 50); do flock lock sh -c 'n=$(cat n); echo $((n+1)) > n' & done; wait", &[]);
    assert_eq!(std::fs::read_to_string(fs.mnt().join("n")).unwrap().trim(), "50");
    let said = fs.python(
        "import fcntl,os,sys
f=open('lock','r+'); fcntl.lockf(f,fcntl.LOCK_EX)
if os.fork()==0:
  try: fcntl.lockf(open('lock','r+'),fcntl.LOCK_EX|fcntl.LOCK_NB); print('taken twice')
  except OSError as e: print(e.errno)
  sys.stdout.flush(); os._exit(0)
os.wait()",
    );
    assert_eq!(said.trim(), "11");
}

#[test]
fn an_open_file_outlives_its_name() {
    let Some(fs) = Fixture::new("echo lower > f; echo target > over") else { return };
    let code = "import os
f=os.open('f',os.O_RDWR); g=os.open('g',os.O_RDWR|os.O_CREAT,0o600); r=os.open('over',os.O_RDONLY)
os.write(g,b'hello'); os.unlink('f'); os.unlink('g')
open('new','w').write('new'); os.rename('new','over')
os.pwrite(f,b'X',0)
print(os.fstat(f).st_nlink, os.fstat(g).st_nlink, os.fstat(r).st_nlink, os.pread(f,9,0), os.pread(g,9,0), os.pread(r,9,0), open('over').read(), sorted(os.listdir('.')))";
    assert_eq!(fs.python(code), python(&fs.plain(), code));
    fs.compare();
}

#[test]
fn exclusive_creation_and_exchange_are_exact() {
    let Some(fs) = Fixture::new("echo a > a; mkdir b; echo c > b/c") else { return };
    let code = "import os
def t(f):
  try: return f() is None
  except OSError as e: return e.errno
print(t(lambda: os.close(os.open('a',os.O_CREAT|os.O_EXCL|os.O_WRONLY))), t(lambda: os.close(os.open('n',os.O_CREAT|os.O_EXCL|os.O_WRONLY))), t(lambda: os.mkdir('b')), t(lambda: os.open('x'*300,os.O_RDONLY)), t(lambda: os.open('a/b',os.O_RDONLY)), t(lambda: os.open('b',os.O_WRONLY)))";
    assert_eq!(fs.python(code), python(&fs.plain(), code));
    let unnamed = fs.python(
        "import os
try: os.open('.',os.O_TMPFILE|os.O_RDWR); print('made')
except OSError as e: print(e.errno)",
    );
    assert_eq!(unnamed.trim(), "95", "O_TMPFILE is refused so that programs fall back to a name");
    for dir in [fs.mnt(), fs.plain()] {
        let (a, b) = (dir.join("a"), dir.join("b"));
        let exchange = |flags| renameat_with(rustix::fs::CWD, &a, rustix::fs::CWD, &b, flags);
        assert_eq!(exchange(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
        exchange(RenameFlags::EXCHANGE).unwrap();
        assert_eq!(std::fs::read_to_string(dir.join("a/c")).unwrap(), "c\n");
    }
}

#[test]
fn a_directory_can_be_emptied_while_it_is_read() {
    let Some(fs) = Fixture::new("mkdir d; cd d; seq 2000 | xargs touch") else { return };
    let said = fs.python(
        "import os
n=0
for e in os.scandir('d'):
  os.unlink(e.path); n+=1
  if n%100==0: open(f'd/late{n}','w').close()
print(n>=2000, all(x.startswith('late') for x in os.listdir('d')))",
    );
    assert_eq!(said.trim(), "True True");
}

#[test]
fn after_a_fence_nothing_reaches_the_stage() {
    let Some(fs) = Fixture::new("echo a > a") else { return };
    let file = std::fs::OpenOptions::new().write(true).open(fs.mnt().join("a")).unwrap();
    fs.filesystem.fence();
    let refused = |e: std::io::Error| e.raw_os_error() == Some(107);
    assert!(file.write_at(b"x", 0).is_err_and(refused));
    assert!(std::fs::write(fs.mnt().join("new"), "x").is_err_and(refused));
}
