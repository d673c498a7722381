//! The tests.

use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;
use pvisor_spec::{CommandEnd, FilesystemMode, KnownBy, Level, NetworkMode};

use crate::harness::{Setup, Told, soon};

pub type Case = fn(&Setup);

pub const ALL: &[(&str, Case)] = &[
    ("ends are told apart", ends),
    ("programs are found or not", programs),
    ("the command has its surroundings", surroundings),
    ("the project is staged", staged),
    ("a project that was just changed can be written", fresh_project),
    ("standard input comes through", input),
    ("an open standard input holds nothing up", open_input),
    ("closed outputs", closed_outputs),
    ("descendants end with the run", descendants),
    ("a killed worker leaves nothing", killed_worker),
    ("a killed supervisor leaves nothing", killed_supervisor),
    ("the time limit", time_limit),
    ("signals are passed on", signals),
    ("a second interrupt ends it", interrupts),
    ("no descriptor leaks", descriptors),
    ("the network can be denied", network),
    ("receipts say what is", receipts),
    ("what can't be had is refused", refusals),
    ("without namespaces", without_namespaces),
    ("another user", another_user),
    ("twenty at a time", parallel),
    ("a terminal", terminal),
    ("a job of a shell", job_control),
    ("a large tree", large_tree),
];

fn end(told: &Told) -> CommandEnd {
    *told.outcome.as_ref().unwrap_or_else(|e| panic!("{e:?}\n{}", told.stderr))
}

fn ends(setup: &Setup) {
    let end = |script: &str| end(&setup.run(&setup.shell(script)));
    assert_eq!(end("exit 0"), CommandEnd::Exited(0));
    assert_eq!(end("exit 7"), CommandEnd::Exited(7));
    assert_eq!(end("exit 255"), CommandEnd::Exited(255));
    assert_eq!(end("kill -9 $$"), CommandEnd::Signaled(9));
    assert_eq!(end("kill -TERM $$"), CommandEnd::Signaled(15));
    // A real-time signal.
    assert_eq!(end("kill -40 $$"), CommandEnd::Signaled(40));
}

fn programs(setup: &Setup) {
    let end = |argv: &[&str]| {
        let told = setup.run(&setup.command(argv));
        assert!(!told.started || matches!(told.outcome, Ok(CommandEnd::Exited(_))));
        end(&told)
    };
    assert_eq!(end(&["no-such-program-anywhere"]), CommandEnd::NotFound);
    assert_eq!(end(&["/no/such/program"]), CommandEnd::NotFound);
    assert_eq!(end(&[""]), CommandEnd::NotFound);
    assert_eq!(end(&["./file"]), CommandEnd::NotExecutable);
    assert_eq!(end(&["/"]), CommandEnd::NotExecutable);
    assert_eq!(end(&["true"]), CommandEnd::Exited(0));
    let script = setup.path("odd-script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(end(&[script.to_str().unwrap()]), CommandEnd::NotExecutable);
    let mut wish = setup.command(&["odd-script"]);
    wish.spec.command.env = vec![format!("PATH=/bin:{}", setup.path("").display()).as_str().into()];
    assert_eq!(setup.run(&wish).outcome, Ok(CommandEnd::NotExecutable));
}

fn surroundings(setup: &Setup) {
    let told = setup.run(&setup.shell("pwd; id -u; id -g; umask; cat file; echo $PPID; env | sort; trap"));
    let lines: Vec<&str> = told.stdout.lines().collect();
    assert_eq!(lines[0], setup.project().to_str().unwrap(), "{told:?}");
    assert_eq!(lines[1..3], [setup.uid.to_string(), setup.uid.to_string()]);
    assert_eq!(lines[3..6], ["0027", "original", "1"]);
    let path = format!("PATH={}", std::env::var("PATH").unwrap_or_default());
    let pwd = format!("PWD={}", setup.project().display());
    let rest: Vec<&str> = lines[6..].iter().copied().filter(|l| *l != pwd && !l.starts_with("_=")).collect();
    assert_eq!(rest, ["ODD=a b=c", path.as_str()]);
    // Signals are as a shell would have left them.
    let told = setup.run(&setup.shell("sed -nE 's/^Sig(Blk|Ign):.*(.{8})$/\\2/p' /proc/self/status"));
    // The two above the first 31 are the C library's own, which ignores them when it spawns.
    let masks: Vec<u32> = told.stdout.lines().map(|l| u32::from_str_radix(l, 16).unwrap() & 0x7fff_ffff).collect();
    assert_eq!(masks, [0, 0], "{told:?}");
    // Other processes do not show.
    let told = setup.run(&setup.shell("ls /proc | grep -c '^[0-9]'; kill -0 1 2>/dev/null; ls -d /proc/1"));
    assert!(told.stdout.starts_with(['2', '3', '4']), "{}", told.stdout);
    let mut wish = setup.shell("pwd");
    wish.spec.command.cwd = "/usr".into();
    assert_eq!(setup.run(&wish).stdout, "/usr\n");
}

fn staged(setup: &Setup) {
    let wish = setup.shell("echo changed > file; mkdir d; echo made > d/new; cat file d/new; rm file; ls");
    let told = setup.run(&wish);
    assert_eq!((end(&told), told.stdout.as_str()), (CommandEnd::Exited(0), "changed\nmade\nd\n"));
    setup.check_clean();
    assert!(setup.staged(&wish).contains(&b"made\n".to_vec()));
    // Without a stage the project is written, as was asked for.
    let mut direct = setup.shell("echo direct > made; cat made");
    direct.spec.stage = None;
    assert_eq!(setup.run(&direct).stdout, "direct\n");
    std::fs::remove_file(setup.project().join("made")).unwrap();
}

/// The attributes of a directory that has just changed were told to the kernel and taken back in the same moment.
fn fresh_project(setup: &Setup) {
    for round in 0..40 {
        let made = setup.project().join("made");
        std::fs::write(&made, "").unwrap();
        std::fs::remove_file(&made).unwrap();
        let told = setup.run(&setup.shell("echo x > new && ls -A . > /dev/null && mkdir d && cat new"));
        assert_eq!((end(&told), told.stdout.as_str()), (CommandEnd::Exited(0), "x\n"), "{round}: {told:?}");
    }
}

fn input(setup: &Setup) {
    let data: Vec<u8> = (0..10_000_000u32).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let told = setup.run_with_input(&setup.shell("cat > f; wc -c < f; md5sum < f"), data.clone());
    let mut plain = std::process::Command::new("md5sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut plain.stdin.take().unwrap(), &data).unwrap();
    let sum = String::from_utf8(plain.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(told.stdout, format!("10000000\n{sum}"));
}

fn open_input(setup: &Setup) {
    let mut running = setup.start(&setup.shell("echo hi"), |c| {
        c.stdin(Stdio::piped());
    });
    let _open = running.child.stdin.take();
    assert_eq!(running.finish().stdout, "hi\n");
}

fn closed_outputs(setup: &Setup) {
    let mut running = setup.start(&setup.command(&["yes", &setup.mark]), |_| {});
    let mut out = running.child.stdout.take().unwrap();
    out.read_exact(&mut [0; 10]).unwrap();
    drop(out);
    assert_eq!(end(&running.finish()), CommandEnd::Signaled(13));
    let mut wish = setup.shell("echo lost; exit 3");
    wish.around = Some("exec \"$@\" <&- >&- 2>&-");
    assert_eq!(end(&setup.run(&wish)), CommandEnd::Exited(3));
}

fn descendants(setup: &Setup) {
    let told = setup.run(&setup.shell(
        "setsid -f sh -c 'sleep 1000' $1; (setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' $1 >/dev/null 2>&1 &) ; nohup sleep 1000$$ >/dev/null 2>&1 & echo done",
    ));
    assert_eq!((end(&told), told.stdout.as_str()), (CommandEnd::Exited(0), "done\n"));
    setup.check_clean();
    let mut wish = setup.shell("for i in $(seq 200); do (sh -c 'sleep 1000' $1 &) ; done >/dev/null 2>&1; exit 4");
    wish.spec.stage = None;
    assert_eq!(end(&setup.run(&wish)), CommandEnd::Exited(4));
}

fn killed_worker(setup: &Setup) {
    let wish = setup.shell("setsid -f sh -c 'sleep 1000' $1; echo x > f; while :; do echo y >> f; done");
    let running = setup.start(&wish, |_| {});
    let command = running.wait_started();
    assert!(std::fs::metadata(format!("/proc/{command}")).is_ok());
    running.signal(Signal::SIGKILL);
    assert_eq!(running.finish().outcome.unwrap_err().kind, "lost");
    setup.check_clean();
    assert!(soon(|| std::fs::metadata(format!("/proc/{command}")).is_err()));
}

fn killed_supervisor(setup: &Setup) {
    let mut wish = setup.shell("setsid -f sh -c 'sleep 1000' $1; echo x > f; while :; do echo y >> f; done");
    // A shell stays the worker's parent.
    wish.around = Some("\"$@\"; exit 1");
    let running = setup.start(&wish, |_| {});
    running.wait_started();
    running.signal(Signal::SIGKILL);
    assert_eq!(running.finish().outcome.unwrap_err().kind, "lost");
}

fn time_limit(setup: &Setup) {
    let mut wish = setup.shell("sleep 1000");
    wish.spec.timeout_ms = Some(200);
    assert_eq!(end(&setup.run(&wish)), CommandEnd::TimedOut);
    let mut wish = setup.shell("trap '' TERM; while :; do sleep 1000; done");
    wish.spec.timeout_ms = Some(200);
    assert_eq!(end(&setup.run(&wish)), CommandEnd::TimedOut);
    let mut wish = setup.shell("trap 'echo bye; exit 0' TERM; while :; do sleep 0.05; done");
    (wish.spec.timeout_ms, wish.spec.grace_ms) = (Some(500), 60_000);
    let told = setup.run(&wish);
    assert_eq!((end(&told), told.stdout.as_str()), (CommandEnd::TimedOut, "bye\n"));
    let mut wish = setup.shell("kill -STOP $$");
    wish.spec.timeout_ms = Some(300);
    assert_eq!(end(&setup.run(&wish)), CommandEnd::TimedOut);
    let mut wish = setup.shell("exit 5");
    wish.spec.timeout_ms = Some(600_000);
    assert_eq!(end(&setup.run(&wish)), CommandEnd::Exited(5));
}

fn signals(setup: &Setup) {
    for (signal, number) in [
        (Signal::SIGINT, 2),
        (Signal::SIGTERM, 15),
        (Signal::SIGHUP, 1),
        (Signal::SIGQUIT, 3),
        (Signal::SIGUSR1, 10),
        (Signal::SIGUSR2, 12),
        (Signal::SIGWINCH, 28),
    ] {
        let ready = setup.path(&format!("ready-{number}"));
        let script =
            format!("trap 'exit 4{}' {number}; : > {}; while :; do sleep 0.02; done", number % 10, ready.display());
        let running = setup.start(&setup.shell(&script), |_| {});
        running.wait_for(&ready);
        running.signal(signal);
        assert_eq!(end(&running.finish()), CommandEnd::Exited(40 + number % 10));
    }
    let running = setup.start(&setup.command(&["sleep", "1000"]), |_| {});
    running.wait_started();
    running.signal(Signal::SIGINT);
    assert_eq!(end(&running.finish()), CommandEnd::Signaled(2));
}

fn interrupts(setup: &Setup) {
    let ready = setup.path("ready");
    let script = format!("trap '' INT TERM; : > {}; while :; do sleep 0.02; done", ready.display());
    let running = setup.start(&setup.shell(&script), |_| {});
    running.wait_for(&ready);
    running.signal(Signal::SIGINT);
    std::thread::sleep(Duration::from_millis(200));
    running.signal(Signal::SIGINT);
    assert_eq!(end(&running.finish()), CommandEnd::Signaled(9));
}

fn descriptors(setup: &Setup) {
    const AROUND: Option<&str> = Some("exec 9</etc/passwd 7<. 3<. 4<. \"$@\"");
    let mut wish = setup.command(&["ls", "-l", "/proc/self/fd"]);
    wish.around = AROUND;
    let told = setup.run(&wish);
    // The fourth is the one that ls reads the directory with.
    let open: Vec<&str> = told.stdout.lines().filter(|l| l.contains(" -> ")).collect();
    assert_eq!(open.len(), 4, "{told:?}");
    assert!(open[3].contains(" 3 -> /proc/"), "{told:?}");
    let mut wish = setup.shell("cat <&9; : <&7");
    wish.around = AROUND;
    let told = setup.run(&wish);
    assert_eq!((told.stdout.as_str(), told.outcome), ("", Ok(CommandEnd::Exited(2))));
}

fn network(setup: &Setup) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let code = format!(
        "import socket
s=socket.socket(); s.bind(('127.0.0.1',0)); s.listen(); c=socket.create_connection(s.getsockname(),5); print('own loopback works')
for a in (('127.0.0.1',{}),('1.1.1.1',53)):
  try: socket.create_connection(a,5); print('reached',a)
  except OSError as e: print('no')
print([l.split(':')[0].strip() for l in open('/proc/net/dev').readlines()[2:]][:1])",
        address.port()
    );
    let python =
        std::process::Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    let python = String::from_utf8(python.stdout).unwrap();
    let python = if setup.root() { python.trim() } else { "/usr/bin/python3" };
    let mut wish = setup.command(&[python, "-c", &code]);
    wish.spec.network = NetworkMode::DenyAll;
    for stage in [wish.spec.stage.clone(), None] {
        wish.spec.stage = stage;
        let told = setup.run(&wish);
        assert_eq!(told.stdout, "own loopback works\nno\nno\n['lo']\n", "{told:?}");
        let receipt = told.receipts.iter().find(|r| r.control.0 == "network_namespace").unwrap();
        assert_eq!((receipt.level, receipt.known_by), (Level::Cooperative, KnownBy::Observed));
    }
}

fn receipts(setup: &Setup) {
    const PROCESS: [&str; 3] = ["no_capabilities", "no_new_privs", "seccomp"];
    let told = setup.run(&setup.shell("grep -E '^(Cap|NoNew|Seccomp:)' /proc/self/status | cut -f2 | sort -u"));
    let names: Vec<&str> = told.receipts.iter().map(|r| r.control.0.as_str()).collect();
    let around = ["user_namespace", "pid_namespace", "mount_namespace", "stage_mount"];
    assert_eq!(names, [&around[..], &PROCESS].concat(), "{told:?}");
    assert!(told.receipts.iter().all(|r| r.known_by == KnownBy::Observed), "{told:?}");
    let levels: Vec<Level> = told.receipts.iter().map(|r| r.level).collect();
    assert_eq!(levels[..4], [Level::Enforced, Level::Enforced, Level::Unenforced, Level::Unenforced]);
    assert!(told.receipts[3].detail.contains(setup.project().to_str().unwrap()));
    let kernel: Vec<&str> = told.stdout.lines().filter(|l| *l != "000001ffffffffff").collect();
    assert!(kernel == ["0000000000000000", "1", "2"], "{kernel:?}");
    // Root who keeps his capabilities can leave, and that is said.
    let mut wish = setup.shell("true");
    wish.spec.confinement.keep_capabilities = true;
    let told = setup.run(&wish);
    assert!(!told.receipts.iter().any(|r| PROCESS.contains(&r.control.0.as_str())), "{told:?}");
    let processes = told.receipts.iter().find(|r| r.control.0 == "pid_namespace").unwrap();
    assert_eq!(processes.level == Level::Cooperative, setup.root(), "{processes:?}");
}

fn refusals(setup: &Setup) {
    let kind = |change: &dyn Fn(&mut pvisor_spec::RunSpec)| {
        let mut wish = setup.shell("echo must not run > /dev/stderr");
        change(&mut wish.spec);
        let told = setup.run(&wish);
        assert!(!told.started && told.stderr.is_empty(), "{told:?}");
        let broken = told.outcome.unwrap_err();
        assert!(!broken.message.is_empty());
        broken.kind
    };
    assert_eq!(kind(&|s| s.command.cwd = "/no/such/directory".into()), "cwd");
    assert_eq!(kind(&|s| s.command.argv.clear()), "internal");
    assert_eq!(kind(&|s| s.command.argv.push(vec![b'a', 0].into())), "usage");
    let full = setup.path("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("x"), "").unwrap();
    assert_eq!(kind(&|s| s.stage.as_mut().unwrap().dir = full.clone().into()), "stage");
    assert_eq!(kind(&|s| s.stage.as_mut().unwrap().dir = setup.project().join("stage").into()), "stage");
    if !setup.root() {
        assert_eq!(kind(&|s| s.command.uid = 0), "identity");
        assert_eq!(kind(&|s| s.command.groups = vec![0]), "identity");
    }
}

fn without_namespaces(setup: &Setup) {
    // A user namespace in which none more can be made, and no capability to make the others.
    const NONE: &str = "exec unshare --user --map-current-user --keep-caps sh -c 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --ambient-caps=-all --inh-caps=-all --bounding-set=-all \"$@\"' sh \"$@\"";
    let mut wish = setup.shell("setsid -f sh -c 'sleep 1000' $1; (setsid sh -c 'sleep 1000' $1 &); echo ran");
    (wish.spec.stage, wish.around) = (None, Some(NONE));
    let told = setup.run(&wish);
    assert_eq!((end(&told), told.stdout.as_str()), (CommandEnd::Exited(0), "ran\n"), "{told:?}");
    assert_eq!((told.receipts[0].control.0.as_str(), told.receipts[0].level), ("process_group", Level::Cooperative));
    setup.check_clean();
    let mut killed = setup.shell("setsid -f sh -c 'sleep 1000' $1; sleep 1000");
    (killed.spec.stage, killed.around, killed.spec.timeout_ms) = (None, Some(NONE), Some(300));
    assert_eq!(end(&setup.run(&killed)), CommandEnd::TimedOut);
    // Landlock is then all that there is of a sandbox, and that is said.
    let mut sandboxed = setup.shell("cat file; cat ../outside || echo hidden; echo x > ../made || echo refused");
    std::fs::write(setup.path("outside"), "seen\n").unwrap();
    (sandboxed.spec.stage, sandboxed.around, sandboxed.spec.filesystem) = (None, Some(NONE), FilesystemMode::Sandbox);
    let told = setup.run(&sandboxed);
    assert_eq!(told.stdout, "original\nhidden\nrefused\n", "{told:?}");
    assert!(!setup.path("made").exists());
    let landlock = told.receipts.iter().find(|r| r.control.0 == "landlock").unwrap();
    assert!(landlock.detail.contains("alone: without"), "{landlock:?}");
    for network in [NetworkMode::Host, NetworkMode::DenyAll] {
        let mut wish = setup.shell("echo must not run");
        wish.around = Some(NONE);
        wish.spec.network = network.clone();
        if network == NetworkMode::DenyAll {
            wish.spec.stage = None;
        }
        let told = setup.run(&wish);
        let broken = told.outcome.unwrap_err();
        assert_eq!((broken.kind.as_str(), told.stdout.as_str()), ("namespaces", ""));
        assert!(!broken.hint.is_empty());
    }
}

fn another_user(setup: &Setup) {
    if !setup.root() {
        return;
    }
    let mut wish = setup.shell("id -u; id -g; id -G; chmod 777 . 2>/dev/null; echo x > file 2>/dev/null; cat file; cat /etc/shadow 2>&1 | grep -c denied");
    (wish.spec.command.uid, wish.spec.command.gid, wish.spec.command.groups) = (65534, 65533, vec![65533, 4]);
    let told = setup.run(&wish);
    assert_eq!(told.stdout, "65534\n65533\n65533 4\noriginal\n1\n", "{told:?}");
}

fn parallel(setup: &Setup) {
    std::thread::scope(|scope| {
        for number in 0..20 {
            scope.spawn(move || {
                let wish = setup.shell(&format!(
                    "for i in $(seq 30); do echo {number} > g$i; done; cat g* | sort -u; exit {number}"
                ));
                let told = setup.run(&wish);
                assert_eq!((end(&told), told.stdout.trim()), (CommandEnd::Exited(number), number.to_string().as_str()));
                assert_eq!(setup.staged(&wish).len(), 30);
            });
        }
    });
}

/// Runs Python that acts as the terminal around a worker, whose arguments it gets.
fn with_terminal(setup: &Setup, script: &str, driver: &'static str) -> Told {
    let mut wish = setup.shell(script);
    wish.around = Some(driver);
    setup.run(&wish)
}

fn terminal(setup: &Setup) {
    // The worker leads a session on a new terminal, as a shell's only job.
    const DRIVER: &str = "exec /usr/bin/python3 -c '
import os,pty,sys,time
pid,master=pty.fork()
if pid==0: os.execv(sys.argv[1],sys.argv[1:])
seen=b\"\"
while b\"ready\" not in seen: seen+=os.read(master,1000)
os.write(master,b\"\\x03\")
try:
  while True:
    more=os.read(master,1000)
    if not more: break
    seen+=more
except OSError: pass
os.waitpid(pid,0)
sys.stdout.write(seen.decode())
' \"$@\"";
    let script = "trap 'echo interrupted; exit 9' INT; ps -o pgid=,tpgid= -p $$ | { read a b; [ $a = $b ] && echo foreground; }; echo ready; while :; do sleep 0.02; done";
    let told = with_terminal(setup, script, DRIVER);
    assert_eq!(end(&told), CommandEnd::Exited(9), "{told:?}");
    assert!(told.stdout.contains("foreground") && told.stdout.contains("interrupted"), "{told:?}");
}

fn job_control(setup: &Setup) {
    // A shell with one job: stopped by ^Z, seen as stopped, sent on; then it reads from the terminal and ends. Last,
    // the shell has its terminal back.
    const DRIVER: &str = "exec /usr/bin/python3 -c '
import os,pty,signal,sys,time
pid,master=pty.fork()
if pid==0:
  signal.signal(signal.SIGTTOU,signal.SIG_IGN)
  job=os.fork()
  if job==0:
    os.setpgid(0,0); os.tcsetpgrp(0,os.getpid()); signal.signal(signal.SIGTTOU,signal.SIG_DFL)
    os.execv(sys.argv[1],sys.argv[1:])
  _,status=os.waitpid(job,os.WUNTRACED)
  print(\"stopped\",os.WIFSTOPPED(status),os.tcgetpgrp(0)==job,flush=True)
  os.tcsetpgrp(0,job); os.killpg(job,signal.SIGCONT)
  _,status=os.waitpid(job,0)
  print(\"back\",os.tcgetpgrp(0)==job,flush=True)
  os._exit(0)
seen=b\"\"
def until(word):
  global seen
  while word not in seen: seen+=os.read(master,1000)
until(b\"ready\"); os.write(master,b\"\\x1a\")
until(b\"stopped True True\"); os.write(master,b\"word\\n\")
until(b\"back True\")
sys.stdout.write(seen.decode())
' \"$@\"";
    let script = "echo ready; read w; echo got $w; exit 6";
    let told = with_terminal(setup, script, DRIVER);
    assert_eq!(end(&told), CommandEnd::Exited(6), "{told:?}");
    for line in ["stopped True True", "got word", "back True"] {
        assert!(told.stdout.contains(line), "{line}: {told:?}");
    }
}

fn large_tree(setup: &Setup) {
    let wish = setup.shell(
        "for d in $(seq 20); do mkdir -p t/d$d; (cd t/d$d; seq 100 | xargs touch); done; find t -type f | wc -l; mv t u; rm -r u/d1; find u -type f | wc -l",
    );
    assert_eq!(setup.run(&wish).stdout, "2000\n1900\n");
}
