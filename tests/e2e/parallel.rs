//! Many runs at once do not get in each other's way.

use std::process::Stdio;

use crate::world::{World, wait};

#[test]
fn sixteen_runs_of_one_project() {
    let world = World::new();
    let before = world.listing();
    let children: Vec<_> = (0..16)
        .map(|i| {
            let script = format!("echo {i} > mine; cat README.md >/dev/null; ls | wc -l; exit {i}");
            let stage = format!("../s{i}");
            let args = world.host_args(&["--stage", &stage], &script);
            let mut command = world.std_command(&args);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for (i, child) in children.into_iter().enumerate() {
        let done = wait(child).expect(i32::try_from(i).unwrap());
        assert_eq!(done.stdout().trim(), "3", "{done}");
    }
    assert_eq!(world.listing(), before);
    let list = world.pvisor(&["list", "--json"]).expect(0).json();
    assert_eq!(list["runs"].as_array().unwrap().len(), 16);
    assert!(list["runs"].as_array().unwrap().iter().all(|r| r["changes"] == 1 && r["stage"] == "sealed"), "{list:#}");
    world.assert_nothing_left();
}
