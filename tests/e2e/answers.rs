//! Help, manual, completions, logs: commands that answer and do nothing.

use std::fs;

use crate::world::World;

#[test]
fn help_names_every_command_and_no_hidden_one() {
    let world = World::new();
    let help = world.pvisor(&["--help"]).expect(0).stdout();
    for command in [
        "run",
        "list",
        "status",
        "review",
        "apply",
        "discard",
        "kill",
        "logs",
        "image",
        "doctor",
        "schema",
        "completions",
        "man",
    ] {
        assert!(help.lines().any(|l| l.trim_start().starts_with(&format!("{command} "))), "{command}:\n{help}");
        world.pvisor(&[command, "--help"]).expect(0);
    }
    assert!(!help.contains("internal"), "{help}");
    assert!(world.pvisor(&["--version"]).expect(0).stdout().starts_with("pvisor "));
}

#[test]
fn the_manual_and_completions_know_the_options() {
    let world = World::new();
    let man = world.pvisor(&["man"]).expect(0).stdout();
    assert!(man.contains("stage\\-durability") && !man.contains("internal"), "{man}");
    for shell in ["bash", "zsh", "fish"] {
        let script = world.pvisor(&["completions", shell]).expect(0).stdout();
        assert!(script.contains("stage-durability"), "{shell}");
    }
    world.pvisor(&["completions", "dos"]).expect(2);
}

#[test]
fn a_console_log_is_printed() {
    let world = World::new();
    world.pvisor(&world.host_args(&[], "true")).expect(0);
    world.pvisor(&["logs"]).expect(1).says(&["no console log", "guests"]);
    let id = world.status()["id"].as_str().unwrap().to_owned();
    fs::write(world.runs().join(&id).join("console.log.old"), "first\n").unwrap();
    fs::write(world.runs().join(&id).join("console.log"), b"\x1b[1mthen\xff\n").unwrap();
    assert_eq!(world.pvisor(&["logs", &id]).expect(0).0.stdout, b"first\n\x1b[1mthen\xff\n");
}

#[test]
fn what_the_network_did_is_told_in_words_or_as_it_is_logged() {
    let world = World::new();
    world.pvisor(&world.host_args(&[], "true")).expect(0);
    world.pvisor(&["logs", "--network"]).expect(1).says(&["no log of its network"]);
    let status = world.status();
    let (id, start) = (status["id"].as_str().unwrap(), status["started_ms"].as_u64().unwrap());
    let event = |name: &str| {
        format!(
            r#"{{"time_ms":{},"event":"name_denied","name":"{name}","query":"A","decided_by":"not_listed","count":2}}"#,
            start + 1234
        )
    };
    let (good, hostile) = (event("evil.example"), event("\\u001b[2J"));
    // A run that was killed may have left half of a line.
    fs::write(world.runs().join(id).join("events.jsonl"), format!("{good}\n{hostile}\n{}", &good[..40])).unwrap();
    let told = world.pvisor(&["logs", "--network", "--follow"]).expect(0).stdout();
    let words = |name: &str| format!("    1.234 denied name {name} (A): not in the allow list, 2 times\n");
    assert_eq!(told, words("evil.example") + &words("\\u{1b}[2J"));
    let json = world.pvisor(&["logs", "--network", "--json", id]).expect(0).stdout();
    assert_eq!(json.lines().next(), Some(good.as_str()));
    assert_eq!(json.lines().count(), 2);
    world.pvisor(&["logs", "--json"]).expect(2);
}

#[test]
fn the_schema_of_a_bundle_fits_a_bundle() {
    let world = World::new();
    let schema = world.pvisor(&["schema", "bundle"]).expect(0).json();
    world.pvisor(&world.host_args(&[], "true")).expect(0);
    let id = world.status()["id"].as_str().unwrap().to_owned();
    let bundle = fs::read(world.runs().join(id).join("bundle.json")).unwrap();
    let bundle: serde_json::Value = serde_json::from_slice(&bundle).unwrap();
    let properties = schema["properties"].as_object().unwrap();
    for field in bundle.as_object().unwrap().keys() {
        assert!(properties.contains_key(field), "{field} is not in the schema");
    }
    let required = schema["required"].as_array().unwrap();
    for field in required {
        assert!(!bundle[field.as_str().unwrap()].is_null() || field == "executor", "{field} is not in the bundle");
    }
}
