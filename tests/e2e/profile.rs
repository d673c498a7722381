//! What a profile adds to a run, and what it does not.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::world::{Done, World, finish};

/// A home directory with state of an agent, credentials and something private in it.
fn furnish_home(world: &World) -> PathBuf {
    let home = world.path().join("home");
    for dir in [".codex/rules", ".codex/sessions", ".ssh", ".aws"] {
        fs::create_dir_all(home.join(dir)).unwrap();
    }
    for (file, text) in [
        (".codex/auth.json", "token\n"),
        (".codex/config.toml", "settings\n"),
        (".codex/secret.pem", "key\n"),
        (".ssh/id_ed25519", "secret\n"),
    ] {
        fs::write(home.join(file), text).unwrap();
    }
    home
}

/// A program called `codex` in a directory of its own, which the search path begins with.
fn codex(world: &World, script: &str) -> PathBuf {
    let bin = world.path().join("project/bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join("codex"), format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(bin.join("codex"), fs::Permissions::from_mode(0o755)).unwrap();
    bin.join("codex")
}

fn run(world: &World, home: &Path, args: &[&str]) -> Done {
    let mut command = world.std_command(args);
    command.env("HOME", home).env("OPENAI_API_KEY", "sk-secret").env("OTHER_TOKEN", "other");
    finish(command)
}

const SAFE: [&str; 4] = ["run", "--executor", "host", "--safe"];

#[test]
fn state_persists_settings_do_not_change_and_the_rest_is_thrown_away() {
    let world = World::new();
    let home = furnish_home(&world);
    let script = "cat ~/.codex/auth.json; echo two > ~/.codex/auth.json; echo s > ~/.codex/sessions/1; \
                  (echo evil > ~/.codex/config.toml) 2>/dev/null || echo kept; rm ~/.codex/config.toml 2>/dev/null; \
                  mv ~/.codex/rules ~/.codex/old 2>/dev/null || echo stays; \
                  echo x > ~/other; cat ~/.ssh/id_ed25519 2>/dev/null; echo \"$OPENAI_API_KEY $OTHER_TOKEN\"; \
                  echo x > made; head -1 /proc/self/mountinfo >/dev/null";
    let options = ["--profile", "codex", "--overlaynet-deny-all", "--", "sh", "-c", script];
    let done = run(&world, &home, &[&SAFE[..], &options].concat()).expect(0);
    assert_eq!(done.stdout(), "token\nkept\nstays\nsk-secret \n", "{done}");
    let told = done.stderr();
    let codex = home.join(".codex");
    for part in ["profile codex", "for good", codex.to_str().unwrap(), "OPENAI_API_KEY", "deny-all"] {
        assert!(told.contains(part), "{part} is not told: {done}");
    }
    assert!(!told.contains("sk-secret"), "{done}");
    let read = |path: &str| fs::read_to_string(home.join(path)).unwrap();
    assert_eq!((read(".codex/auth.json"), read(".codex/sessions/1")), ("two\n".into(), "s\n".into()));
    assert_eq!(read(".codex/config.toml"), "settings\n");
    assert!(!home.join("other").exists() && !world.project().join("made").exists());
    let status = world.status();
    assert_eq!(status["profile"]["name"], "codex", "{status:#}");
    let writable: Vec<&Value> =
        status["profile"]["mounts"].as_array().unwrap().iter().filter(|m| m["writable"] == true).collect();
    assert_eq!(writable.len(), 1, "{status:#}");
    assert_eq!(writable[0]["target"], codex.to_str().unwrap());
    assert!(!status.to_string().contains("sk-secret"));
    let bundle = fs::read_dir(world.runs()).unwrap().find_map(|e| {
        let path = e.unwrap().path().join("bundle.json");
        path.exists().then(|| fs::read_to_string(path).unwrap())
    });
    let bundle: Value = serde_json::from_str(&bundle.unwrap()).unwrap();
    assert_eq!(bundle["spec"]["sources"]["profile"]["variables"], serde_json::json!(["OPENAI_API_KEY"]));
    assert_eq!(status["bundle_intact"], true);
    world.assert_nothing_left();
}

#[test]
fn rules_of_the_person_win() {
    let world = World::new();
    let home = furnish_home(&world);
    let script = "cat ~/.codex/secret.pem 2>/dev/null || echo none; ls ~/.codex | head -1";
    let args = |rule| {
        [&SAFE[..], &["--profile", "codex", "--overlaynet-deny-all", "--access", rule, "--", "sh", "-c", script]]
            .concat()
    };
    let done = run(&world, &home, &args("*.pem:deny")).expect(0);
    assert_eq!(done.stdout(), "none\nauth.json\n", "{done}");
    let done = run(&world, &home, &args("~/.codex:deny")).expect(0);
    assert_eq!(done.stdout(), "none\n", "{done}");
    assert!(done.stderr().contains("not granted") && done.stderr().contains("a rule denies it"), "{done}");
}

/// The network is judged by what would be installed: no service of an agent is reached from a test.
#[test]
fn hosts_are_opened_where_nothing_else_is_said() {
    let world = World::new();
    let home = furnish_home(&world);
    let dry = |options: &[&str]| {
        let line = [&SAFE[..], &["--dry-run", "--profile", "codex"], options, &["--", "codex"]].concat();
        run(&world, &home, &line).expect(0).json()
    };
    let allowed = |spec: &Value| spec["network"]["egress"]["allow"].as_array().map_or(0, Vec::len);
    let spec = dry(&[]);
    assert_eq!((spec["network"]["egress"]["default"].as_str(), allowed(&spec)), (Some("nothing"), 3), "{spec:#}");
    assert_eq!(spec["sources"]["profile"]["hosts"].as_array().unwrap().len(), 3);
    let spec = dry(&["--overlaynet-allow", "crates.io:443"]);
    assert_eq!((spec["network"]["egress"]["default"].as_str(), allowed(&spec)), (Some("nothing"), 4), "{spec:#}");
    let spec = dry(&["--overlaynet-allow", "public"]);
    assert_eq!(spec["network"]["egress"]["default"], "public", "{spec:#}");
    let spec = dry(&["--overlaynet-allow", "crates.io", "--overlaynet-deny", "*.openai.com"]);
    assert_eq!(spec["sources"]["profile"]["hosts"], serde_json::json!(["chatgpt.com:443"]));
    let spec = dry(&["--overlaynet-deny-all"]);
    assert_eq!(spec["network"], "deny_all", "{spec:#}");
    assert_eq!(spec["sources"]["profile"]["hosts"], serde_json::json!([]));
}

#[test]
fn a_safe_run_of_a_known_agent_gets_a_hint_and_nothing_more() {
    let world = World::new();
    let home = furnish_home(&world);
    let program = codex(&world, "cat ~/.codex/auth.json; echo x > ~/.codex/auth.json; echo $OPENAI_API_KEY");
    let done = run(&world, &home, &[&SAFE[..], &["--", program.to_str().unwrap()]].concat()).expect(0);
    assert_eq!(done.stdout(), "token\n\n", "{done}");
    assert!(done.stderr().contains("--profile codex"), "{done}");
    assert_eq!(fs::read_to_string(home.join(".codex/auth.json")).unwrap(), "token\n");
    assert_eq!(world.status()["profile"], Value::Null);
    let stage = world.stage();
    let plain = ["run", "--executor", "host", "--stage", &stage, "--", program.to_str().unwrap()];
    assert!(!run(&world, &home, &plain).expect(0).stderr().contains("--profile"));
}

#[test]
fn profiles_are_listed_and_shown() {
    let world = World::new();
    let list = world.pvisor(&["profile", "list"]).expect(0).stdout();
    for name in ["codex", "claude", "gemini", "opencode", "aider", "goose", "zcode"] {
        assert!(list.contains(name), "{list}");
        let shown = world.pvisor(&["profile", "show", name]).expect(0).stdout();
        for part in ["commands", "writes", "~/.", "variables", "hosts", ":443", "caution"] {
            assert!(shown.contains(part), "{name}: {part} is not shown:\n{shown}");
        }
        let json = world.pvisor(&["profile", "show", name, "--json"]).expect(0).json();
        assert_eq!(json["name"], name);
    }
    let json = world.pvisor(&["profile", "list", "--json"]).expect(0).json();
    assert_eq!(json["profiles"].as_array().unwrap().len(), 7);
    world.pvisor(&["profile", "show", "nope"]).expect(1).says(&["nope", "codex"]);
    world.pvisor(&["run", "--profile", "nope", "--", "true"]).expect(2).says(&["nope", "codex"]);
}
