//! SIGKILL at random moments of run, apply, undo, savepoints and discard, process by process: nothing of the project is
//! lost, the next command recovers, and nothing half done can be read.
//!
//! `PVISOR_KILL_ROUNDS` is the number of kills (48 unless it is set), `PVISOR_KILL_SEED` repeats a sequence.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::world::{Done, World, finish, listing, wait};

/// What the command does to the project: every class of change, on enough paths to be killed in between.
const SESSION: &str =
    "for i in 0 1 2 3 4 5 6 7 8 9; do echo new $i > n$i; echo more >> f$i; rm r$i; chmod 600 m$i; done
     mkdir -p nd/deep; echo inner > nd/deep/inner; ln f0 hard; ln -s f1 link; mv d e; rm -r gone; chmod 700 stays
     rm turns; mkdir turns; echo x > turns/inside; head -c 300000 /dev/zero > big";

/// Path, mode and content of everything.
type State = BTreeMap<PathBuf, (u32, Vec<u8>)>;

/// Pseudo-random numbers (xorshift).
pub struct Dice(u64);

impl Dice {
    /// With the seed that was given, else another one each time; it is printed.
    pub fn new() -> Self {
        let given = std::env::var("PVISOR_KILL_SEED").ok().and_then(|s| s.parse().ok());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let seed = given.unwrap_or(u64::try_from(now & 0xffff_ffff_ffff).unwrap() | 1);
        eprintln!("PVISOR_KILL_SEED={seed}");
        Self(seed)
    }

    /// Below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n.max(1)
    }
}

/// One project with its runs, kill after kill.
struct Arena {
    world: World,
    /// The project before anything is applied, and with everything applied.
    before: State,
    after: State,
    /// How long each operation takes when nobody kills it.
    usual: BTreeMap<&'static str, Duration>,
    /// Kills of each operation, and how many of them came before its end.
    kills: BTreeMap<&'static str, (u64, u64)>,
}

impl Arena {
    fn new() -> Self {
        let world = World::new();
        let project = world.project();
        for n in 0..10 {
            for kind in ["f", "r", "m"] {
                fs::write(project.join(format!("{kind}{n}")), format!("{kind} {n}\n")).unwrap();
            }
        }
        for dir in ["d/deep", "gone/deep", "stays"] {
            fs::create_dir_all(project.join(dir)).unwrap();
            fs::write(project.join(dir).join("file"), format!("{dir}\n")).unwrap();
        }
        fs::write(project.join("turns"), "a file\n").unwrap();
        fs::write(project.join("big"), vec![b'b'; 200_000]).unwrap();
        let before = state(&world);
        Self { world, after: State::new(), before, usual: BTreeMap::new(), kills: BTreeMap::new() }
    }

    fn command(&self, operation: &'static str) -> Command {
        match operation {
            "run" => {
                let args = self.world.host_args(&["--stage", "../stage"], SESSION);
                self.world.std_command(&args)
            }
            "apply" => self.world.std_command(&["apply", "last"]),
            "undo" => self.world.std_command(&["undo", "last"]),
            "discard" => self.world.std_command(&["discard", "last"]),
            "save" => self.world.std_command(&["checkpoint", "create", "last"]),
            "restore" => self.world.std_command(&["checkpoint", "restore", "last"]),
            other => unreachable!("{other}"),
        }
    }

    /// To its end.
    fn whole(&mut self, operation: &'static str) -> Done {
        let start = Instant::now();
        let done = finish(self.command(operation));
        self.usual.entry(operation).or_insert_with(|| start.elapsed());
        assert_eq!(done.0.status.code(), Some(0), "{operation}: {done}");
        done
    }

    /// Killed at a random moment, or whole where it was quicker; whether it came to its end.
    fn killed(&mut self, operation: &'static str, dice: &mut Dice) -> bool {
        let usual = self.usual.get(operation).copied().unwrap_or(Duration::from_millis(60));
        let wait_for = Duration::from_micros(dice.below(u64::try_from(usual.as_micros()).unwrap() * 11 / 10));
        let mut child = self.command(operation).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(wait_for);
        let victim = if operation == "run" && dice.below(3) == 0 { worker(child.id()) } else { child.id() };
        if child.try_wait().unwrap().is_none() {
            let _ = Command::new("kill").args(["-KILL", &victim.to_string()]).stderr(Stdio::null()).status();
        }
        let ended = wait(child).0.status.success();
        // About two of three kills are to come before the end, on a busy machine too.
        let usual = if ended { usual.mul_f64(0.8) } else { usual.mul_f64(1.1) };
        self.usual.insert(operation, usual.clamp(Duration::from_millis(2), Duration::from_secs(2)));
        let (kills, cut) = self.kills.entry(operation).or_default();
        (*kills, *cut) = (*kills + 1, *cut + u64::from(!ended));
        ended
    }

    /// No path has anything but what it had before or has afterwards.
    fn assert_nothing_torn(&self) {
        for (path, (_, content)) in state(&self.world) {
            let known = [&self.before, &self.after].into_iter().filter_map(|s| s.get(&path));
            assert!(known.into_iter().any(|(_, c)| *c == content), "{} is torn", path.display());
        }
    }

    fn assert_is(&self, expected: &State, what: &str) {
        let now = state(&self.world);
        if now != *expected {
            let differs = now.keys().chain(expected.keys()).find(|p| now.get(*p) != expected.get(*p));
            panic!("{what}: {differs:?} differs");
        }
    }

    /// The next command finishes what was cut off; which of the two states that is.
    fn recovered(&self) -> bool {
        self.world.pvisor(&["status", "last"]).expect(0);
        let now = state(&self.world);
        if now == self.after {
            return true;
        }
        self.assert_is(&self.before, "recovery is all or nothing");
        false
    }

    fn stage_state(&self) -> String {
        self.world.status()["stage"]["state"].as_str().unwrap_or_default().to_owned()
    }

    /// A run that is killed leaves the project alone and can be discarded, or restored from a savepoint.
    fn kill_a_run(&mut self, dice: &mut Dice) {
        self.killed("run", dice);
        self.assert_is(&self.before, "a killed run");
        self.world.assert_nothing_left();
        if self.world.pvisor(&["status", "last"]).0.status.code() != Some(0) {
            // Killed before it had a record.
            return self.clear();
        }
        if self.stage_state() == "unsealed" && dice.below(2) == 0 {
            let made = self.world.pvisor(&["checkpoint", "create", "last"]);
            if made.code() == 0 {
                self.world.pvisor(&["checkpoint", "restore", "last"]).expect(0);
                assert_eq!(self.stage_state(), "sealed");
                self.world.pvisor(&["review", "last", "--diff"]).expect(0);
            }
        }
        self.assert_is(&self.before, "what is known of a killed run");
        self.clear();
    }

    /// Makes room for the next run.
    fn clear(&self) {
        let _ = self.world.pvisor(&["discard", "../stage"]);
        let stage = self.world.path().join("stage");
        if stage.exists() {
            // Cut off before there was anything that is known as a stage.
            let names: Vec<_> = fs::read_dir(&stage).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert!(!names.iter().any(|n| n == "seal"), "{names:?}");
            fs::remove_dir_all(stage).unwrap();
        }
    }

    /// Applies and undoes, killed in between.
    fn kill_an_apply_and_an_undo(&mut self, dice: &mut Dice) {
        self.killed("apply", dice);
        self.assert_nothing_torn();
        if !self.recovered() {
            self.whole("apply");
        }
        self.assert_is(&self.after, "applied");
        self.killed("undo", dice);
        self.assert_nothing_torn();
        if self.recovered() {
            self.whole("undo");
        }
        self.assert_is(&self.before, "undone");
        assert!(!self.world.path().join("stage/originals").exists());
    }

    fn kill_savepoints(&mut self, dice: &mut Dice) {
        self.killed("save", dice);
        let list = self.world.pvisor(&["checkpoint", "list", "last", "--json"]).expect(0).json();
        assert_eq!(list["damaged"], serde_json::json!([]), "{list:#}");
        for savepoint in list["savepoints"].as_array().unwrap() {
            self.world.pvisor(&["checkpoint", "verify", "last", savepoint["name"].as_str().unwrap()]).expect(0);
        }
        self.whole("save");
        self.killed("restore", dice);
        self.whole("restore");
        assert_eq!(self.stage_state(), "sealed");
        self.world.pvisor(&["checkpoint", "gc"]).expect(0);
        self.assert_is(&self.before, "savepoints");
    }

    fn kill_a_discard(&mut self, dice: &mut Dice) {
        self.killed("discard", dice);
        self.world.pvisor(&["discard", "last"]).expect(0);
        assert!(!self.world.path().join("stage").exists());
        self.assert_is(&self.before, "discarded");
    }

    fn total(&self) -> u64 {
        self.kills.values().map(|(kills, _)| kills).sum()
    }
}

/// The worker, or the supervisor where there is none (yet, or any more).
pub fn worker(supervisor: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).unwrap_or_default();
    children.split_whitespace().next().and_then(|pid| pid.parse().ok()).unwrap_or(supervisor)
}

fn state(world: &World) -> State {
    let described = listing(&world.project()).into_iter().map(|(path, content)| {
        let meta = path.symlink_metadata().unwrap();
        let mode = if meta.is_symlink() { 0 } else { meta.permissions().mode() };
        // The number of names tells hard links.
        let names = if meta.is_dir() { 0 } else { u32::try_from(meta.nlink()).unwrap() };
        (path, (mode << 8 | names, content))
    });
    described.collect()
}

#[test]
fn nothing_is_lost_wherever_a_process_is_killed() {
    let rounds: u64 = std::env::var("PVISOR_KILL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(48);
    let mut dice = Dice::new();
    let mut arena = Arena::new();
    while arena.total() < rounds {
        arena.kill_a_run(&mut dice);
        arena.whole("run");
        if arena.after.is_empty() {
            arena.whole("apply");
            arena.after = state(&arena.world);
            arena.whole("undo");
            arena.assert_is(&arena.before, "undone");
        }
        for _ in 0..4 {
            arena.kill_an_apply_and_an_undo(&mut dice);
        }
        arena.kill_savepoints(&mut dice);
        arena.kill_a_discard(&mut dice);
        // Runs that are over only make the store longer.
        fs::remove_dir_all(arena.world.runs()).unwrap();
    }
    println!("kills, and those before the end: {:?}", arena.kills);
    assert!(arena.kills.values().map(|(_, cut)| cut).sum::<u64>() > rounds / 4, "{:?}", arena.kills);
}
