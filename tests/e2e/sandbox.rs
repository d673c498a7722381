//! The filesystem sandbox and the presets, as a person meets them. What can't be done in them is in `tests/escape`.

use std::fs;
use std::process::Stdio;

use crate::world::{World, finish, wait};

const SAFE: [&str; 4] = ["run", "--executor", "host", "--safe"];

fn safe<'a>(options: &[&'a str], script: &'a str) -> Vec<&'a str> {
    [&SAFE, options, &["--", "sh", "-c", script]].concat()
}

/// A home directory with a secret and something else in it.
fn furnish_home(world: &World) -> std::path::PathBuf {
    let home = world.path().join("home");
    fs::create_dir_all(home.join(".ssh")).unwrap();
    fs::write(home.join(".ssh/id_ed25519"), "secret\n").unwrap();
    fs::write(home.join("notes"), "plain\n").unwrap();
    home
}

#[test]
fn a_safe_run_has_a_home_without_secrets_that_is_thrown_away() {
    let world = World::new();
    let home = furnish_home(&world);
    let script = "cat ~/notes; ls -A ~; echo new > ~/made; cat ~/made; echo x >> README.md; env | grep -c TOKEN";
    let mut command = world.std_command(&safe(&[], script));
    command.env("HOME", &home).env("API_TOKEN", "secret");
    // grep found nothing.
    let done = finish(command).expect(1);
    assert_eq!(done.stdout(), "plain\nnotes\nnew\n0\n", "{done}");
    assert!(!home.join("made").exists());
    assert_eq!(world.pvisor(&["review", "--json"]).json()["changes"].as_array().unwrap().len(), 1);
    let run = fs::read_dir(world.runs()).unwrap().next().unwrap().unwrap().path();
    assert!(!run.join("home").exists(), "the home's changes are still there");
    world.assert_nothing_left();
}

#[test]
fn everything_about_a_strict_run_is_enforced_and_observed() {
    let world = World::new();
    world.pvisor(&["run", "--executor", "host", "--strict", "--", "true"]).expect(0);
    let status = world.status();
    for observation in status["observations"].as_array().unwrap() {
        assert_eq!(observation["level"], "enforced", "{observation:#}");
        assert_eq!(observation["known_by"], "observed", "{observation:#}");
    }
    for (field, value) in status["safety"].as_object().unwrap() {
        assert_eq!(*value, true, "{field}");
    }
    let probes = status["probes"].as_array().unwrap();
    let held = |name: &str| probes.iter().any(|p| p["name"] == name && p["holds"] == true);
    for name in [
        "read_outside",
        "write_outside",
        "connect_path_socket",
        "connect_abstract_socket",
        "connect_host_loopback",
        "reach_internet",
        "signal_host_process",
        "forbidden_system_call",
        "make_user_namespace",
        "inherited_descriptor",
        "open_host_device",
        "use_a_capability",
    ] {
        assert!(held(name), "{name}: {probes:#?}");
    }
}

#[test]
fn a_strict_run_does_not_start_with_less() {
    let world = World::new();
    let before = world.listing();
    let script = format!("touch {}", world.path().join("ran").display());
    let args = ["run", "--executor", "host", "--strict", "--keep-capabilities", "--", "sh", "-c", &script];
    let refused = world.pvisor(&args).expect(125);
    refused.says(&["required and not enforced", "Subprocess"]);
    assert_eq!(world.status()["outcome"]["refused"]["kind"], "control_missing");
    assert!(!world.path().join("ran").exists());
    assert_eq!(world.listing(), before);
}

#[test]
fn what_is_mounted_is_there_as_it_was_asked_for() {
    let world = World::new();
    let dir = world.path().join("data");
    fs::create_dir_all(dir.join("deep")).unwrap();
    fs::write(dir.join("f"), "data\n").unwrap();
    fs::write(dir.join("deep/key.pem"), "key\n").unwrap();
    let at = dir.to_str().unwrap();
    let script = format!("cat {at}/f; echo x > {at}/f || cat {at}/deep/key.pem || echo hidden");
    let done = world.pvisor(&safe(&["--mount", &format!("{at}:read"), "--access", "*.pem:deny"], &script)).expect(0);
    assert_eq!(done.stdout(), "data\nhidden\n", "{done}");
    assert_eq!(fs::read_to_string(dir.join("f")).unwrap(), "data\n");
    let mount = format!("{at}:write:/srv/data");
    world.pvisor(&safe(&["--mount", &mount], "echo y > /srv/data/f")).expect(0);
    assert_eq!(fs::read_to_string(dir.join("f")).unwrap(), "y\n");
    world.pvisor(&safe(&["--mount", "/no/such:read"], "true")).expect(125).says(&["/no/such", "--mount"]);
    let around = format!("{}:read", world.path().display());
    world.pvisor(&safe(&["--mount", &around], "true")).expect(125).says(&["nothing can be mounted"]);
    let records = format!("{}:read:/srv", world.runs().display());
    world.pvisor(&safe(&["--mount", &records], "true")).expect(125).says(&["the records of runs"]);
}

#[test]
fn mounts_in_what_is_shown_are_read_only_too() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tried: it takes a mount on the host");
    }
    let world = World::new();
    let dir = world.path().join("data");
    fs::create_dir_all(dir.join("nested")).unwrap();
    let at = dir.to_str().unwrap();
    // In a namespace of its own, so that nothing can be left mounted.
    let script = format!(
        "mount -t tmpfs t {at}/nested && echo seen > {at}/nested/f && {} run --executor host --safe --mount {at}:read \
         -- sh -c 'cat {at}/nested/f; echo x > {at}/nested/f || echo refused'",
        env!("CARGO_BIN_EXE_pvisor")
    );
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).current_dir(world.project()).env("PVISOR_RUN_HOME", world.runs());
    let done = finish(command).expect(0);
    assert_eq!(done.stdout(), "seen\nrefused\n", "{done}");
}

#[test]
fn tools_work_in_it() {
    let world = World::new();
    let script = "git init -q . && git add . && git -c user.name=n -c user.email=e commit -qm one && git log --oneline | wc -l; \
                  printf 'int main(){return 0;}' > a.c && cc a.c -o a && ./a && python3 -c 'print(2)'; \
                  tar cf t.tar src && tar tf t.tar | wc -l; mktemp -d >/dev/null && nproc >/dev/null && echo done";
    let done = world.pvisor(&safe(&[], script)).expect(0);
    assert_eq!(done.stdout(), "1\n2\n2\ndone\n", "{done}");
}

#[test]
fn a_hundred_and_twenty_eight_at_once() {
    let world = World::new();
    let home = furnish_home(&world);
    let before = world.listing();
    let children: Vec<_> = (0..128)
        .map(|i| {
            let script = format!("echo {i} > mine; echo {i} > ~/mine; cat mine ~/mine; exit {}", i % 100);
            let mut command = world.std_command(&safe(&[], &script));
            command.env("HOME", &home).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for (i, child) in children.into_iter().enumerate() {
        let done = wait(child).expect(i32::try_from(i % 100).unwrap());
        assert_eq!(done.stdout(), format!("{i}\n{i}\n"), "{done}");
    }
    assert_eq!(world.listing(), before);
    assert!(!home.join("mine").exists());
    let list = world.pvisor(&["list", "--json"]).expect(0).json();
    assert_eq!(list["runs"].as_array().unwrap().len(), 128);
    assert!(list["runs"].as_array().unwrap().iter().all(|r| r["changes"] == 1 && r["stage"] == "sealed"), "{list:#}");
    for run in fs::read_dir(world.runs()).unwrap() {
        let run = run.unwrap().path();
        let left: Vec<_> = fs::read_dir(&run).unwrap().map(|e| e.unwrap().file_name()).collect();
        let ours = ["bundle.json", "lock", "run.json", "stage"];
        assert!(left.iter().all(|name| ours.iter().any(|o| name == *o)), "{left:?}");
    }
    let groups = std::process::Command::new("find").args(["/sys/fs/cgroup", "-name", "pvisor-run-*"]).output().unwrap();
    let ids: Vec<String> = list["runs"].as_array().unwrap().iter().map(|r| r["id"].to_string()).collect();
    let groups = String::from_utf8_lossy(&groups.stdout).into_owned();
    assert!(!ids.iter().any(|id| groups.contains(id.trim_matches('"'))), "{groups}");
    world.assert_nothing_left();
}
