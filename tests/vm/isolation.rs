//! What the guest must not reach. Each is an attempt that would succeed if the control were missing.

use std::fs;

use crate::sandbox::{Sandbox, stdout, text};

#[test]
#[ignore = "needs a KVM that runs guests"]
fn writes_outside_the_project_never_reach_the_host() {
    let sandbox = Sandbox::new();
    let outside = sandbox.path().join("outside");
    fs::write(&outside, "mine").unwrap();
    let script = format!(
        "echo theirs > /usr/planted; echo theirs > /etc/hostname; rm -f {0}; echo x > {0}; ln -s / link; echo theirs > link/usr/planted2; cat /usr/planted",
        outside.display()
    );
    let hostname = fs::read("/etc/hostname").unwrap_or_default();
    let out = sandbox.sh(&script);
    assert!(stdout(&out).contains("theirs"), "the guest's own root should be writable: {}", text(&out));
    assert_eq!(fs::read(&outside).unwrap(), b"mine");
    assert!(!std::path::Path::new("/usr/planted").exists() && !std::path::Path::new("/usr/planted2").exists());
    assert_eq!(fs::read("/etc/hostname").unwrap_or_default(), hostname);
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn secrets_and_the_hosts_own_proc_are_not_there() {
    let sandbox = Sandbox::new();
    let home = std::env::var("HOME").unwrap();
    let ssh = std::path::Path::new(&home).join(".ssh");
    let made = fs::create_dir(&ssh).is_ok();
    fs::write(ssh.join("pvisor-test-key"), "PRIVATE").unwrap();
    let script = format!(
        "cat {}/pvisor-test-key; ls -a {home} | grep -x .ssh; cat /etc/shadow; ls /proc/{}/ ",
        ssh.display(),
        std::process::id()
    );
    let out = sandbox.sh(&script);
    fs::remove_file(ssh.join("pvisor-test-key")).unwrap();
    if made {
        fs::remove_dir(&ssh).unwrap();
    }
    assert_eq!(stdout(&out), "", "{}", text(&out));
}

#[test]
#[ignore = "needs a KVM that runs guests"]
fn the_run_leaves_true_evidence() {
    let sandbox = Sandbox::new();
    let out = sandbox.sh("ls -l /proc/self/fd | wc -l; cat /dev/vport*; echo port=$?");
    assert!(stdout(&out).contains("port=1"), "the agent's port is open to the command: {}", text(&out));
    let status = sandbox.status();
    for fact in ["network_non_bypassable", "filesystem_write_non_bypassable", "subprocess_non_bypassable"] {
        assert_eq!(status["safety"][fact], true, "{fact}: {status:#}");
    }
    assert_eq!(status["executor"], "krun");
}
