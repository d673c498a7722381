//! What a command is and how it ends.

use std::os::unix::fs::PermissionsExt;

use pvisor_proto::{Bytes, End, Rlimit, StartFailed};

use crate::harness::{Guest, command, possible, sh};

#[test]
fn status_and_signal_come_back() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    for code in [0u8, 1, 7, 255] {
        assert_eq!(guest.shell(&format!("exit {code}"), b"").end, Some(End::Exited(code)));
    }
    assert_eq!(guest.shell("kill -TERM $$", b"").end, Some(End::Signaled(15)));
    assert_eq!(guest.shell("ulimit -c 0; kill -SEGV $$", b"").end, Some(End::Signaled(11)));
    guest.shutdown();
}

#[test]
fn argv_env_and_cwd_are_those_asked_for() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let mut start = command(&["/bin/sh", "-c", r#"printf '%s|' "$0" "$@" "$A" "$PWD" $(umask); env | wc -l"#, "zero"]);
    start.argv.push(Bytes(b"\xff y".to_vec()));
    start.env = vec!["A=b c".into()];
    start.cwd = "/usr".into();
    start.umask = 0o077;
    let outcome = guest.run(start, b"");
    // The shell adds PWD, SHLVL and _ by itself, as it likes.
    let expected = b"zero|\xff y|b c|/usr|0077|";
    assert!(outcome.stdout.starts_with(expected), "{}", outcome.text());
    guest.shutdown();
}

#[test]
fn a_program_that_is_not_there_is_told_from_one_that_cannot_run() {
    if !possible() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let file = |name: &str, content: &str, mode: u32| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let plain = file("plain", "echo no", 0o644);
    let orphan = file("orphan", "#!/no/such/interpreter\n", 0o755);
    let mut guest = Guest::boot();
    let mut attempt = |argv: &[&str]| guest.try_start(command(argv)).unwrap_err();
    assert_eq!(attempt(&["no-such-program-anywhere"]), StartFailed::NotFound);
    assert_eq!(attempt(&["/no/such/program"]), StartFailed::NotFound);
    assert_eq!(attempt(&["/etc/passwd/program"]), StartFailed::NotFound);
    assert_eq!(attempt(&[""]), StartFailed::NotFound);
    assert_eq!(attempt(&[&plain]), StartFailed::NotExecutable(libc::EACCES));
    assert_eq!(attempt(&["/usr"]), StartFailed::NotExecutable(libc::EACCES));
    assert_eq!(attempt(&[&orphan]), StartFailed::NotExecutable(libc::ENOENT));
    assert!(matches!(attempt(&[]), StartFailed::Other(f) if f.errno == libc::EINVAL));
    // The guest is as good as before.
    assert_eq!(guest.shell("exit 3", b"").end, Some(End::Exited(3)));
    guest.shutdown();
}

#[test]
fn a_script_without_an_interpreter_runs_in_the_shell() {
    if !possible() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script");
    std::fs::write(&script, "echo \"$0 $1\"").unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let mut guest = Guest::boot();
    let outcome = guest.run(command(&[script.to_str().unwrap(), "one"]), b"");
    assert_eq!(outcome.text(), format!("{} one\n", script.display()));
    guest.shutdown();
}

#[test]
fn the_search_passes_over_what_the_user_cannot_see() {
    if !possible() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (secret, denied, good) = (dir.path().join("secret"), dir.path().join("denied"), dir.path().join("good"));
    for (place, mode) in [(&secret, 0o700), (&denied, 0o755), (&good, 0o755)] {
        std::fs::create_dir(place).unwrap();
        std::fs::set_permissions(place, PermissionsExt::from_mode(mode)).unwrap();
    }
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for (place, mode) in [(&secret, 0o755), (&denied, 0o600), (&good, 0o755)] {
        std::fs::write(place.join("prog"), format!("#!/bin/sh\necho {}", place.display())).unwrap();
        std::fs::set_permissions(place.join("prog"), PermissionsExt::from_mode(mode)).unwrap();
    }
    let mut guest = Guest::boot();
    let mut start = command(&["prog"]);
    start.uid = 65534;
    start.gid = 65534;
    let path = |dirs: &[&std::path::PathBuf]| {
        let dirs: Vec<String> = dirs.iter().map(|d| d.display().to_string()).collect();
        vec![Bytes::from(format!("PATH={}", dirs.join(":")).as_str())]
    };
    start.env = path(&[&secret, &denied, &good]);
    assert_eq!(guest.run(start.clone(), b"").text(), format!("{}\n", good.display()));
    start.env = path(&[&secret, &denied]);
    assert_eq!(guest.try_start(start.clone()), Err(StartFailed::NotExecutable(libc::EACCES)));
    start.env = path(&[&secret]);
    assert_eq!(guest.try_start(start), Err(StartFailed::NotFound));
    guest.shutdown();
}

#[test]
fn user_groups_and_rights_are_those_asked_for() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let mut start = sh("id -u; id -g; id -G; grep -E '^(CapEff|CapPrm|SigIgn|SigBlk):' /proc/self/status; \
                        cat /proc/self/oom_score_adj; head -c 1 /etc/shadow 2>&1 | grep -c denied; echo x > /dev/stderr");
    (start.uid, start.gid, start.groups) = (12345, 23456, vec![23456, 34567]);
    let outcome = guest.run(start, b"");
    let zero = "0000000000000000";
    assert_eq!(
        outcome.text(),
        format!("12345\n23456\n23456 34567\nCapPrm:\t{zero}\nCapEff:\t{zero}\n0\n1\n")
            .replace("CapPrm", &format!("SigBlk:\t{zero}\nSigIgn:\t{zero}\nCapPrm"))
    );
    assert_eq!(outcome.errors(), "x\n");
    guest.shutdown();
}

#[test]
fn nothing_of_the_agent_is_inherited() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let text = guest.shell("ls /proc/$$/fd; ps -o pid=,sid=,pgid= -p $$", b"").text();
    let words: Vec<&str> = text.split_whitespace().collect();
    let [fds @ .., pid, session, group] = words.as_slice() else { panic!("{text}") };
    assert_eq!(fds, ["0", "1", "2"]);
    assert_eq!((pid, pid), (session, group));
    guest.shutdown();
}

#[test]
fn limits_are_applied_and_a_bad_one_is_told() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let mut start = sh("ulimit -n; ulimit -Hn; ulimit -c");
    start.rlimits = vec![
        Rlimit { resource: libc::RLIMIT_NOFILE as u8, soft: 123, hard: 456 },
        Rlimit { resource: libc::RLIMIT_CORE as u8, soft: u64::MAX, hard: u64::MAX },
    ];
    assert_eq!(guest.run(start.clone(), b"").text(), "123\n456\nunlimited\n");
    start.rlimits = vec![Rlimit { resource: 200, soft: 0, hard: 0 }];
    let failed = guest.try_start(start).unwrap_err();
    assert!(matches!(&failed, StartFailed::Other(f) if f.errno == libc::EINVAL && f.what == "resource limits"));
    guest.shutdown();
}

#[test]
fn a_missing_working_directory_is_told() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let mut start = sh("true");
    start.cwd = "/no/such/dir".into();
    let failed = guest.try_start(start.clone()).unwrap_err();
    assert!(matches!(&failed, StartFailed::Other(f) if f.errno == libc::ENOENT && f.what == "working directory"));
    start.cwd = "relative".into();
    assert!(matches!(guest.try_start(start), Err(StartFailed::Other(f)) if f.errno == libc::EINVAL));
    guest.shutdown();
}

#[test]
fn arguments_and_environment_may_be_as_large_as_the_kernel_allows() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let mut start = sh("env | grep -c ^VARIABLE_; env | wc -c");
    for i in 0..500 {
        start.env.push(format!("VARIABLE_{i}={}", "v".repeat(200)).as_str().into());
    }
    assert!(guest.run(start.clone(), b"").text().starts_with("500\n"));

    // 3 MiB: more than the usual stack limit allows, and fine with a larger one.
    let megabytes = |n: usize| (0..n * 16).map(|i| Bytes::from(format!("L{i}={}", "x".repeat(65_500)).as_str()));
    start.env.extend(megabytes(3));
    let failed = guest.try_start(start.clone()).unwrap_err();
    assert!(matches!(&failed, StartFailed::Other(f) if f.errno == libc::E2BIG), "{failed:?}");
    start.rlimits = vec![Rlimit { resource: libc::RLIMIT_STACK as u8, soft: 64 << 20, hard: u64::MAX }];
    start.argv = command(&["sh", "-c", "env | wc -c"]).argv;
    // `env` gets the same environment, and the same limit.
    let text = guest.run(start, b"").text();
    assert!(text.trim().parse::<usize>().unwrap() > 3 << 20, "{text}");
    guest.shutdown();
}

#[test]
fn one_command_at_a_time_and_many_after_another() {
    if !possible() {
        return;
    }
    let mut guest = Guest::boot();
    let id = guest.start(sh("read line; exit 4"));
    assert!(matches!(guest.try_start(sh("true")), Err(StartFailed::Other(f)) if f.errno == libc::EBUSY));
    assert_eq!(guest.finish(id, Some(b"x\n")).end, Some(End::Exited(4)));
    for _ in 0..50 {
        assert_eq!(guest.run(command(&["true"]), b"").end, Some(End::Exited(0)));
    }
    guest.shutdown();
}
