//! Building and listing what guests boot from.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

use crate::world::{World, signal, until, wait};

#[test]
fn an_interrupted_build_leaves_nothing() {
    if !Path::new("/usr/src/linux-source-6.12.tar.xz").exists() {
        return eprintln!("not tried: the package linux-source-6.12 is not installed");
    }
    let world = World::new();
    let images = world.path().join("images");
    let mut command = world.std_command(&["image", "kernel"]);
    command.env("PVISOR_IMAGES", &images).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("unpacking") {
        line.clear();
        assert_ne!(told.read_line(&mut line).unwrap(), 0, "it ended before it unpacked anything");
    }
    until("something is unpacked", || images.read_dir().is_ok_and(|mut d| d.any(|e| is_work(&e.unwrap().path()))));
    signal(child.id(), "INT");
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut told, &mut rest).unwrap();
    wait(child).expect(130);
    assert!(rest.contains("interrupted"), "{rest}");
    let left: Vec<_> = images.read_dir().unwrap().map(|e| e.unwrap().path()).filter(|p| is_work(p)).collect();
    assert!(left.is_empty(), "{left:?}");
    world.assert_nothing_left();
}

fn is_work(path: &Path) -> bool {
    path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("work-"))
}

#[test]
fn an_empty_cache_has_the_agent_alone() {
    let world = World::new();
    let images = world.path().join("images");
    let pvisor = |args: &[&str]| {
        let mut command = world.std_command(args);
        command.env("PVISOR_IMAGES", &images);
        crate::world::finish(command)
    };
    let list = pvisor(&["image", "list", "--json"]).expect(0).json();
    assert_eq!(list["images"].as_array().unwrap().len(), 1, "{list:#}");
    assert_eq!(list["images"][0]["kind"], "agent");
    assert!(list["images"][0]["digest"].as_str().is_some_and(|d| d.len() == 64), "{list:#}");
    assert!(pvisor(&["image", "list"]).expect(0).stdout().contains("agent"));
    assert_eq!(pvisor(&["image", "gc", "--json"]).expect(0).json()["removed"], serde_json::json!([]));
    pvisor(&["image", "rm", "nothing"]).expect(1).says(&["nothing", "pvisor image list"]);
}
