//! What a run says of itself where the kernel gives less: no user namespaces, no namespaces at all, no Landlock. The
//! claims have to shrink with it.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use seccompiler::{SeccompAction, SeccompFilter};
use serde_json::Value;

use crate::world::{Done, World, finish};

/// A user that no system has.
const SOMEBODY: u32 = 54_321;

/// Runs its arguments as a container's root may have to live: in a user namespace below which there is none.
const CONTAINED: &str = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
/// The same without any capability: no namespace of any kind is to be had.
const BARE: &str =
    "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --ambient-caps -all --inh-caps -all -- \"$@\"";

/// `landlock_create_ruleset`, `landlock_add_rule`, `landlock_restrict_self`: the same on all architectures.
const LANDLOCK: [i64; 3] = [444, 445, 446];

fn wrapped(world: &World, unshare: &[&str], script: &str, args: &[&str]) -> Command {
    let pvisor = world.std_command(args);
    let mut command = Command::new("unshare");
    command.args(unshare).args(["sh", "-c", script, "sh"]).arg(pvisor.get_program()).args(pvisor.get_args());
    command.current_dir(world.project()).stdin(std::process::Stdio::null());
    for (name, value) in pvisor.get_envs() {
        command.env(name, value.unwrap());
    }
    command
}

fn contained(world: &World, args: &[&str]) -> Command {
    wrapped(world, &["-U", "-r"], CONTAINED, args)
}

/// Only root can become somebody else.
fn bare(world: &World, args: &[&str]) -> Command {
    let runs = world.runs();
    let _ = std::fs::create_dir(&runs);
    std::os::unix::fs::chown(&runs, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    let mut command = wrapped(world, &["-U", "--map-current-user", "--keep-caps"], BARE, args);
    command.uid(SOMEBODY).gid(SOMEBODY).env("HOME", &runs);
    command
}

/// Runs it where the kernel knows nothing of Landlock.
fn without_landlock(command: Command) -> Done {
    let rules = LANDLOCK.map(|call| (call, Vec::new())).into();
    let missing = SeccompAction::Errno(rustix::io::Errno::NOSYS.raw_os_error().cast_unsigned());
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, missing, arch).unwrap();
    let program: seccompiler::BpfProgram = filter.try_into().unwrap();
    // It holds for this thread and what it starts.
    let run = std::thread::spawn(move || {
        seccompiler::apply_filter(&program).unwrap();
        finish(command)
    });
    run.join().unwrap()
}

fn observation<'a>(status: &'a Value, dimension: &str) -> &'a Value {
    status["observations"].as_array().unwrap().iter().find(|o| o["dimension"] == dimension).unwrap()
}

fn receipt<'a>(status: &'a Value, control: &str) -> Option<&'a Value> {
    status["receipts"].as_array().unwrap().iter().find(|r| r["control"] == control)
}

fn assert_safety(status: &Value, held: bool) {
    assert!(status["safety"].as_object().unwrap().values().all(|is_held| *is_held == held), "{status:#}");
}

/// A file outside of everything, and a script that tries to read and to write it.
fn secret(world: &World) -> String {
    let file = world.path().join("outside");
    std::fs::write(&file, "a secret of the host").unwrap();
    format!("cat {0} 2>/dev/null || echo held; echo x 2>/dev/null >> {0} || true", file.display())
}

fn assert_kept(world: &World, done: &Done) {
    assert_eq!(done.stdout(), "held\n", "{done}");
    assert_eq!(std::fs::read_to_string(world.path().join("outside")).unwrap(), "a secret of the host");
}

#[test]
fn without_user_namespaces_root_is_kept_by_the_others() {
    let world = World::new();
    let script = secret(&world);
    let done = finish(contained(&world, &["run", "--executor", "host", "--safe", "--", "sh", "-c", &script])).expect(0);
    assert_kept(&world, &done);
    let status = world.status();
    assert!(receipt(&status, "user_namespace").is_none(), "{status:#}");
    assert!(receipt(&status, "pid_namespace").is_some(), "{status:#}");
    assert_safety(&status, true);
    world.assert_nothing_left();
}

#[test]
fn without_any_namespace_landlock_is_alone_and_little_is_claimed() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tried: it takes another user");
    }
    let world = World::new();
    let script = secret(&world);
    for preset in ["--safe", "--strict"] {
        let args = ["run", "--executor", "host", preset, "--", "sh", "-c", &script];
        finish(bare(&world, &args)).expect(125).says(&["no namespaces are to be had", "user.max_user_namespaces"]);
    }
    let args = ["run", "--executor", "host", "--filesystem", "sandbox", "--", "sh", "-c", &script];
    let done = finish(bare(&world, &args)).expect(0);
    assert_kept(&world, &done);
    let status = finish(bare(&world, &["status", "--json"])).json();
    for (dimension, level, by) in [
        ("filesystem_read", "enforced", &["landlock"][..]),
        ("filesystem_write", "enforced", &["landlock"]),
        ("subprocess", "cooperative", &["process_group"]),
        ("network", "unenforced", &[]),
        ("secrets", "unenforced", &[]),
        ("devices", "unenforced", &[]),
    ] {
        let seen = observation(&status, dimension);
        assert_eq!((&seen["level"], &seen["controls"]), (&level.into(), &serde_json::json!(by)), "{status:#}");
    }
    assert_eq!(status["safety"]["subprocess_non_bypassable"], false, "its processes can get away: {status:#}");
    let landlock = receipt(&status, "landlock").unwrap();
    assert!(landlock["detail"].as_str().unwrap().contains("without a projected root"), "{landlock:#}");
    world.assert_nothing_left();
}

#[test]
fn without_landlock_the_projected_root_is_alone() {
    let world = World::new();
    let script = secret(&world);
    let args = ["run", "--executor", "host", "--safe", "--", "sh", "-c", &script];
    let done = without_landlock(world.std_command(&args)).expect(0);
    assert_kept(&world, &done);
    let status = world.status();
    let landlock = receipt(&status, "landlock").unwrap();
    assert_eq!(landlock["level"], "unenforced", "{landlock:#}");
    assert_eq!(observation(&status, "filesystem_read")["controls"], serde_json::json!(["projected_root"]));
    assert_safety(&status, true);
}

#[test]
fn without_namespaces_and_landlock_no_sandbox_is_claimed() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tried: it takes another user");
    }
    let world = World::new();
    let script = secret(&world);
    let args = ["run", "--executor", "host", "--filesystem", "sandbox", "--", "sh", "-c", &script];
    without_landlock(bare(&world, &args)).expect(125).says(&["Landlock"]);
    let args = ["run", "--executor", "host", "--", "sh", "-c", &script];
    let done = without_landlock(bare(&world, &args)).expect(0);
    assert!(done.stdout().starts_with("a secret of the host"), "{done}");
    let status = finish(bare(&world, &["status", "--json"])).json();
    assert_safety(&status, false);
}

/// Runs its arguments where no control group is to be had.
const UNGROUPED: &str = "mount -t tmpfs none /sys/fs/cgroup && exec \"$@\"";

/// Starts up to 100 processes, and says how many there were.
const FORKS: &str = "n=0; while [ $n -lt 100 ]; do sleep 3 & n=$((n+1)); done; echo $n";

#[test]
fn without_a_control_group_no_limit_is_claimed_that_the_kernel_does_not_keep() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tried: it takes a mount on the host");
    }
    let world = World::new();
    let ungrouped = |args: &[&str]| finish(wrapped(&world, &["--mount"], UNGROUPED, args));
    let run = |options: &[&str], script: &str| {
        ungrouped(&[&["run", "--executor", "host"], options, &["--", "sh", "-c", script]].concat())
    };
    // The kernel does not count the processes of the machine's root.
    let done = run(&["--pids", "50", "--max-open-files", "500"], FORKS).expect(0);
    assert_eq!(done.stdout(), "100\n", "then the claim can be made: {done}");
    let status = world.status();
    assert_eq!(observation(&status, "resources")["level"], "cooperative", "{status:#}");
    let limits = receipt(&status, "process_limits").unwrap();
    let detail = limits["detail"].as_str().unwrap();
    assert!(detail.contains("Nofile 500") && detail.ends_with("a control group: pids"), "{detail}");
    // What was asked for by name and is held by nothing is not passed over.
    for options in [&["--pids", "50"][..], &["--cpus", "1"], &["--strict"]] {
        run(options, "true").expect(125).says(&["required and not enforced", "Resources"]);
    }
    run(&["--max-file-size", "1M", "--memory", "512M"], "true").expect(0);
    assert_eq!(observation(&world.status(), "resources")["level"], "enforced");
}
