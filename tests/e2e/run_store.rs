//! What runs leave behind, and how it is found again.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::world::{World, listing};

fn ids(world: &World) -> Vec<String> {
    let list = world.pvisor(&["list", "--json"]).expect(0).json();
    list["runs"].as_array().unwrap().iter().map(|r| r["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn an_empty_store_is_no_error() {
    let world = World::new();
    assert!(world.pvisor(&["list"]).expect(0).stdout().contains("no runs yet"));
    assert_eq!(world.pvisor(&["list", "--json"]).expect(0).json()["runs"], serde_json::json!([]));
    assert!(!world.runs().exists());
}

#[test]
fn only_the_owner_reads_what_is_kept() {
    let world = World::new();
    let stage = world.runs();
    world.pvisor(&["run", "--executor", "host", "--stage", "../s", "--", "sh", "-c", "echo x > new"]).expect(0);
    for (path, _) in listing(&stage).into_iter().chain(listing(&world.path().join("s"))) {
        let meta = path.symlink_metadata().unwrap();
        let wanted = if meta.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(meta.permissions().mode() & 0o777, wanted, "{}", path.display());
    }
    assert_eq!(stage.metadata().unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn values_of_variables_are_not_kept() {
    let world = World::new();
    let mut command = world.std_command(&["run", "--executor", "host", "--env", "NAMED=secret-two", "--", "true"]);
    command.env("AMBIENT", "secret-one");
    crate::world::finish(command).expect(0);
    for (path, content) in listing(&world.runs()) {
        let text = String::from_utf8_lossy(&content);
        assert!(!text.contains("secret-one") && !text.contains("secret-two"), "{}", path.display());
    }
    let record = fs::read_to_string(world.runs().join(&ids(&world)[0]).join("run.json")).unwrap();
    assert!(record.contains("\"AMBIENT\"") && record.contains("\"NAMED\""), "{record}");
}

#[test]
fn a_run_has_several_names() {
    let world = World::new();
    world.staged("echo x > new").expect(0);
    world.pvisor(&world.host_args(&[], "exit 9")).expect(9);
    let ids = ids(&world);
    assert_eq!(ids.len(), 2, "newest first");
    let status = |name: &str| world.pvisor(&["status", name, "--json"]).expect(0).json();
    assert_eq!(status("last")["exit_code"], 9);
    assert_eq!(status(&ids[1])["exit_code"], 0);
    assert_eq!(status(&world.stage())["id"], ids[1].as_str());
    assert_eq!(status("../stage")["id"], ids[1].as_str());
    assert_eq!(status(&ids[1][..ids[1].len() - 3])["id"], ids[1].as_str());
    assert_eq!(status(&ids[1]["run-".len()..])["id"], ids[1].as_str());
    let common = ids[0].chars().zip(ids[1].chars()).take_while(|(a, b)| a == b).count();
    world.pvisor(&["status", &ids[0][..common]]).expect(4).says(&["2 runs", &ids[0], &ids[1]]);
    world.pvisor(&["status", "run-0"]).expect(4);
}

#[test]
fn a_damaged_record_hides_no_other_run() {
    let world = World::new();
    world.pvisor(&world.host_args(&[], "exit 9")).expect(9);
    world.pvisor(&world.host_args(&[], "exit 8")).expect(8);
    world.pvisor(&world.host_args(&[], "exit 7")).expect(7);
    let ids = ids(&world);
    let record = |at: usize| world.runs().join(&ids[at]).join("run.json");
    fs::write(record(0), "{").unwrap();
    fs::write(record(1), fs::read_to_string(record(1)).unwrap().replace("pvisor.run/1", "pvisor.run/2")).unwrap();
    let list = world.pvisor(&["list", "--json"]).expect(0).json();
    assert_eq!(list["runs"].as_array().unwrap().len(), 1);
    assert_eq!(list["unreadable"].as_array().unwrap().len(), 2);
    assert!(world.pvisor(&["list"]).expect(0).stdout().contains("unreadable"));
    assert_eq!(world.pvisor(&["status", &ids[2], "--json"]).expect(0).json()["exit_code"], 9);
    world.pvisor(&["status", &ids[0]]).expect(1).says(&["run.json", "damaged"]);
    // A new run is not held up by it.
    world.pvisor(&world.host_args(&[], "exit 6")).expect(6);
}

#[test]
fn an_edited_bundle_shows() {
    let world = World::new();
    world.pvisor(&world.host_args(&[], "exit 9")).expect(9);
    assert_eq!(world.status()["bundle_intact"], true);
    let bundle = world.runs().join(&ids(&world)[0]).join("bundle.json");
    let text = fs::read_to_string(&bundle).unwrap();
    fs::write(&bundle, text.replace("\"exited\": 9", "\"exited\": 0")).unwrap();
    assert_eq!(world.status()["bundle_intact"], false);
    assert!(world.pvisor(&["status"]).expect(0).stdout().contains("changed after it was written"));
    fs::write(&bundle, "{").unwrap();
    assert!(world.pvisor(&["status"]).expect(0).stdout().contains("damaged"));
    // Lost in a power cut: what is known is written anew.
    fs::remove_file(&bundle).unwrap();
    assert!(world.status()["outcome"]["interrupted"].is_object());
    assert!(bundle.exists());
}

#[test]
fn strange_things_in_the_store_are_passed_over() {
    let world = World::new();
    fs::create_dir_all(world.runs().join("run-not-a-uuid")).unwrap();
    fs::create_dir_all(world.runs().join("run-0198b7c0-0000-7000-8000-000000000000")).unwrap();
    fs::write(world.runs().join("run-0198b7c0-0000-7000-8000-000000000001"), "a file").unwrap();
    fs::write(world.runs().join("notes"), "mine").unwrap();
    let list = world.pvisor(&["list", "--json"]).expect(0).json();
    assert_eq!(list["runs"], serde_json::json!([]));
    assert_eq!(list["unreadable"].as_array().unwrap().len(), 2);
    assert!(world.runs().join("notes").exists());
}
