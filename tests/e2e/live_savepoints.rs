//! Savepoints of runs that go on: consistent, whole or not at all, and not noticed by the command.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::killed::{Dice, worker};
use crate::undo::repository;
use crate::world::{World, finish, signal, start_until, until, wait};

/// Writes without end, in every way, until `../stop` is there; `../beat` tells that it goes on.
///
/// `pair` has the same number at both ends, written by one call; `a` is replaced before `b`; `m` is written through a
/// mapping, first page first; the database has as many rows in one table as in the other.
const WRITER: &str = r#"
import mmap, os, sqlite3, subprocess
db = sqlite3.connect('db', timeout=60)
db.execute('pragma journal_mode=wal')
db.execute('create table t(n int)'); db.execute('create table u(n int)'); db.commit()
pair = os.open('pair', os.O_RDWR | os.O_CREAT, 0o644)
with open('m', 'wb') as f: f.write(bytes(12288))
m = mmap.mmap(os.open('m', os.O_RDWR), 12288)
n = 0
while not os.path.exists('../stop'):
    n += 1
    number = n.to_bytes(8, 'little')
    os.pwrite(pair, number + bytes(3 << 20) + number, 0)
    for name in 'ab':
        with open('new', 'w') as f: f.write(str(n))
        os.rename('new', name)
    m[0:8] = number
    m[8192:8200] = number
    with db:
        db.execute('insert into t values(?)', (n,)); db.execute('insert into u values(?)', (n,))
    with open('log', 'a') as f: f.write(f'{n}\n')
    if n % 8 == 0: subprocess.run(['true'], close_fds=False, check=True)
    with open('../beat', 'w') as f: f.write(str(n))
    if n == 5: print('ready', flush=True)
"#;

/// Looks at what a savepoint has.
const CHECK: &str = r#"
import sqlite3
raw = open('pair', 'rb').read()
ends = [int.from_bytes(raw[:8], 'little'), int.from_bytes(raw[-8:], 'little')]
assert ends[0] == ends[1] > 0, ends
a, b = int(open('a').read()), int(open('b').read())
assert 0 <= a - b <= 1 and 0 <= ends[0] - a <= 1, (ends, a, b)
m = open('m', 'rb').read()
x, y = int.from_bytes(m[:8], 'little'), int.from_bytes(m[8192:8200], 'little')
assert 0 <= x - y <= 1 and 0 <= b - x <= 1, (b, x, y)
log = open('log').read().split('\n')
assert log == [str(i + 1) for i in range(len(log) - 1)] + [''], log[-3:]
db = sqlite3.connect('db')
assert db.execute('pragma integrity_check').fetchone()[0] == 'ok'
t, u = [db.execute(f'select count(*) from {name}').fetchone()[0] for name in 'tu']
assert t == u and 0 <= y - t <= 1 and 0 <= t - (len(log) - 1) <= 1, (y, t, u, len(log))
"#;

/// A run that writes; its first lines are out.
fn writing(world: &World) -> Child {
    for name in ["stop", "beat"] {
        let _ = fs::remove_file(world.path().join(name));
    }
    fs::write(world.path().join("writer.py"), WRITER).unwrap();
    let args = ["run", "--executor", "host", "--stage", "../stage", "--", "python3", "../writer.py"];
    start_until(world.std_command(&args), "ready")
}

fn stop(world: &World) {
    fs::write(world.path().join("stop"), "").unwrap();
}

fn beat(world: &World) -> u64 {
    fs::read_to_string(world.path().join("beat")).unwrap_or_default().parse().unwrap_or(0)
}

fn now_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// The command still does something.
fn assert_goes_on(world: &World) {
    let now = beat(world);
    until("the command goes on", || beat(world) > now + 1);
}

/// Forks a savepoint, applies the fork elsewhere, and looks at that.
fn assert_consistent(world: &World, name: &str) {
    world.pvisor(&["checkpoint", "verify", "last", name]).expect(0);
    let fork = world.pvisor(&["fork", "../stage", "--savepoint", name, "--json"]).expect(0).json();
    let fork = fork["forks"][0]["id"].as_str().unwrap();
    let target = world.path().join(format!("target-{name}"));
    let _ = fs::remove_dir_all(&target);
    fs::create_dir(&target).unwrap();
    world.pvisor(&["apply", fork, "--target", target.to_str().unwrap()]).expect(0);
    let mut check = Command::new("python3");
    check.args(["-c", CHECK]).current_dir(&target);
    finish(check).expect(0);
    world.pvisor(&["discard", fork]).expect(0);
    fs::remove_dir_all(world.runs().join(fork)).unwrap();
}

#[test]
fn a_run_that_writes_all_the_time_is_saved_and_goes_on() {
    let world = World::new();
    let child = writing(&world);
    let mut pauses = Vec::new();
    for n in 1..=20 {
        let made = world.pvisor(&["checkpoint", "create", "last", "--json"]).expect(0).json();
        assert_eq!((made["name"].as_str(), made["seal"].is_null()), (Some(&*n.to_string()), true), "{made:#}");
        pauses.push(made["pause_ms"].as_u64().unwrap());
        assert_goes_on(&world);
        if n % 5 == 0 {
            // Earlier ones stay as they were, whatever was written since.
            (1..=n).for_each(|n| assert_consistent(&world, &n.to_string()));
        }
    }
    println!("pauses in ms: {pauses:?}");
    let named = world.pvisor(&["checkpoint", "create", "last", "--name", "end"]).expect(0);
    assert!(named.stdout().contains("the command was held still for"), "{named}");
    world.pvisor(&["checkpoint", "create", "last", "--name", "end"]).expect(1).says(&["already"]);
    world.pvisor(&["checkpoint", "create", "last", "--name", "../x"]).expect(2).says(&["can't be a savepoint's name"]);
    stop(&world);
    wait(child).expect(0);
    assert_eq!(world.status()["stage"]["state"], "sealed");
    assert_consistent(&world, "20");
    // What the run left in the end has not been touched by its savepoints.
    world.pvisor(&["apply", "../stage"]).expect(0);
    let mut check = Command::new("python3");
    check.args(["-c", CHECK]).current_dir(world.project());
    finish(check).expect(0);
    assert!(!world.runs().join("control").exists());
    world.assert_nothing_left();
}

#[test]
fn who_was_stopped_stays_stopped_and_all_others_go_on() {
    let world = World::new();
    let script = "sleep 1000 & stopped=$!; kill -STOP $stopped; sleep 1000 & other=$!; echo ready
                  while [ ! -e ../stop ]; do sleep 0.05; done
                  cut -d' ' -f3 /proc/$stopped/stat /proc/$other/stat | tr -d '\\n' > ../states; kill -9 $stopped $other";
    let child = start_until(world.std_command(&world.host_args(&["--stage", "../stage"], script)), "ready");
    for _ in 0..5 {
        world.pvisor(&["checkpoint", "create", "last"]).expect(0);
    }
    stop(&world);
    wait(child).expect(0);
    assert_eq!(fs::read_to_string(world.path().join("states")).unwrap(), "TS");
}

#[test]
fn a_pause_that_is_too_short_is_told_and_the_run_goes_on() {
    let world = World::new();
    let script = "for i in $(seq 200); do sleep 1000 & all=\"$all $!\"; done; echo ready
                  while [ ! -e ../stop ]; do sleep 0.05; done; echo x > x; kill -9 $all";
    let child = start_until(world.std_command(&world.host_args(&["--stage", "../stage"], script)), "ready");
    // The machine may be quick for once.
    let short = |_| world.pvisor(&["checkpoint", "create", "last", "--max-pause", "1ms", "--json"]);
    let late = (0..50).map(short).find(|done| done.code() != 0).expect("200 processes stopped within 1 ms, 50 times");
    let late = late.expect(1).json();
    assert_eq!(late["kind"], "pause_limit", "{late:#}");
    assert!(late["message"].as_str().unwrap().contains("limit of 1ms"), "{late:#}");
    world.pvisor(&["checkpoint", "create", "last", "--name", "longer"]).expect(0);
    stop(&world);
    wait(child).expect(0);
    world.pvisor(&["apply", "last"]).expect(0);
    assert!(world.project().join("x").exists());
    world.assert_nothing_left();
}

#[test]
fn a_run_without_a_stage_can_not_be_saved() {
    let world = repository();
    let script = "echo ready; while [ ! -e ../stop ]; do sleep 0.05; done";
    let child = start_until(world.std_command(&world.host_args(&[], script)), "ready");
    world.pvisor(&["checkpoint", "create", "last"]).expect(1).says(&["has no stage", "--stage"]);
    stop(&world);
    wait(child).expect(0);
}

/// Savepoints that are there are whole, and those that were begun before `killed_ms` (milliseconds since the Unix epoch)
/// consistent: one that was asked for later is of a run that broke off, in the middle of whatever it did.
fn assert_whole_or_none(world: &World, killed_ms: u64) {
    let list = world.pvisor(&["checkpoint", "list", "last", "--json"]).expect(0).json();
    assert_eq!(list["damaged"], serde_json::json!([]), "{list:#}");
    let savepoints = list["savepoints"].as_array().unwrap();
    for savepoint in savepoints {
        world.pvisor(&["checkpoint", "verify", "last", savepoint["name"].as_str().unwrap()]).expect(0);
    }
    if let Some(last) = savepoints.iter().rfind(|s| s["created_ms"].as_u64().unwrap() < killed_ms) {
        assert_consistent(world, last["name"].as_str().unwrap());
    }
}

#[test]
fn whoever_is_killed_leaves_whole_savepoints_and_the_run() {
    let rounds: u64 = std::env::var("PVISOR_KILL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(48) / 8;
    let mut dice = Dice::new();
    let world = World::new();
    for _ in 0..rounds {
        let run = writing(&world);
        let victims = dice.below(3);
        let mut killed_ms = u64::MAX;
        // Who asks can be killed again and again, the others once.
        for _ in 0..if victims == 0 { 4 } else { 1 } {
            let asking = world.std_command(&["checkpoint", "create", "last"]).stdout(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_micros(dice.below(60_000)));
            killed_ms = now_ms();
            let victim = [asking.id(), worker(run.id()), run.id()][usize::try_from(victims).unwrap()];
            let _ = Command::new("kill").args(["-KILL", &victim.to_string()]).stderr(Stdio::null()).status();
            wait(asking);
        }
        if victims == 0 {
            assert_goes_on(&world);
            world.pvisor(&["checkpoint", "create", "last"]).expect(0);
            assert_whole_or_none(&world, u64::MAX);
            stop(&world);
            wait(run).expect(0);
            world.pvisor(&["review", "last"]).expect(0);
        } else {
            wait(run);
            world.pvisor(&["status", "last"]).expect(0);
            world.assert_nothing_left();
            assert_whole_or_none(&world, killed_ms);
            world.pvisor(&["checkpoint", "gc", "last"]).expect(0);
            assert_no_halves(&world.path().join("stage"));
        }
        assert!(world.listing().len() == 3, "a run wrote the project");
        world.pvisor(&["discard", "last"]).expect(0);
        fs::remove_dir_all(world.runs()).unwrap();
    }
}

fn assert_no_halves(stage: &Path) {
    let Ok(savepoints) = fs::read_dir(stage.join("savepoints")) else { return };
    let names: Vec<_> = savepoints.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().all(|n| !n.starts_with('.')), "{names:?}");
}

#[test]
fn a_process_that_is_killed_while_it_is_held_is_gone() {
    let world = World::new();
    let run = writing(&world);
    let asking = world.std_command(&["checkpoint", "create", "last"]).stdout(Stdio::null()).spawn().unwrap();
    signal(run.id(), "INT");
    signal(run.id(), "INT");
    wait(asking);
    let code = wait(run).0.status.code();
    assert!(code.is_some_and(|code| code != 0), "{code:?}");
    world.assert_nothing_left();
}
