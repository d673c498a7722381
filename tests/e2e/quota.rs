//! Runs whose stage may hold only so much.

use std::fs;

use crate::world::World;

#[test]
fn the_write_that_goes_past_the_limit_fails_and_what_fits_can_be_applied() {
    let world = World::new();
    let stage = world.stage();
    fs::write(world.project().join("large"), vec![b'x'; 6 << 20]).unwrap();
    let script = "echo kept > kept; dd if=/dev/zero of=big bs=65536 count=200; echo dd=$?; cat README.md >> large; \
                  fallocate -l 10M ahead; rm -f ahead; df --output=size,avail -B1 . | tail -1; rm big; \
                  dd if=/dev/zero of=fits bs=65536 count=20 2>/dev/null; echo fits=$?";
    let options = ["--stage", &stage, "--stage-max-size", "4M"];
    let done = world.pvisor(&world.host_args(&options, script)).expect(0);
    assert!(done.stdout().contains("dd=1") && done.stdout().contains("fits=0"), "{done}");
    let quota = done.stderr().matches("Disk quota exceeded").count();
    assert!(quota >= 2 && done.stderr().contains("No space left on device"), "{done}");
    let sizes = done.stdout().lines().find(|l| l.trim().starts_with("4194304")).map(str::to_owned);
    let left = sizes.and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok());
    assert!(left.is_some_and(|left| left < 256 << 10), "{done}");
    let status = world.status();
    assert_eq!(status["stage"]["max_bytes"], 4 << 20);
    assert!(
        status["stage"]["held_bytes"].as_u64().is_some_and(|held| (1 << 20..=4 << 20).contains(&held)),
        "{status:#}"
    );
    assert_eq!(status["stage"]["state"], "sealed");
    let told = world.pvisor(&["status"]).expect(0);
    assert!(told.stdout().contains("of at most 4.0 MiB"), "{told}");
    let bundle = world.runs().join(status["id"].as_str().unwrap()).join("bundle.json");
    let bundle: serde_json::Value = serde_json::from_slice(&fs::read(bundle).unwrap()).unwrap();
    assert_eq!(bundle["spec"]["stage"]["max_bytes"], 4 << 20);
    world.pvisor(&["apply", "last"]).expect(0);
    assert_eq!(fs::metadata(world.project().join("fits")).unwrap().len(), 20 << 16);
    assert_eq!(fs::metadata(world.project().join("large")).unwrap().len(), 6 << 20);
    assert!(world.project().join("kept").exists() && !world.project().join("big").exists());
}

#[test]
fn a_size_that_is_none_is_a_usage_error() {
    let world = World::new();
    for bad in ["4", "1K", "-1M", "many"] {
        world.pvisor(&["run", &format!("--stage-max-size={bad}"), "--", "true"]).expect(2);
    }
}
