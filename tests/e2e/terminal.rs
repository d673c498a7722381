//! Runs on a terminal: keys, job control, reports.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::world::{PATIENCE, World, until, wait};

/// A terminal and what was shown on it.
pub struct Terminal {
    keys: File,
    shown: std::sync::Arc<std::sync::Mutex<Vec<u8>>>,
}

impl Terminal {
    /// A shell script in a session of its own, with a new terminal as its three standard streams.
    pub fn start(world: &World, script: &str) -> (Self, Child) {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = || -> Stdio { File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap().into() };
        let child = Command::new("setsid")
            .args(["--ctty", "--wait", "bash", "-c", script])
            .current_dir(world.project())
            .env("PVISOR_RUN_HOME", world.runs())
            .env("PVISOR", env!("CARGO_BIN_EXE_pvisor"))
            .stdin(slave())
            .stdout(slave())
            .stderr(slave())
            .spawn()
            .unwrap();
        (Self::on(master), child)
    }

    fn on(master: OwnedFd) -> Self {
        let shown = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut screen = File::from(master.try_clone().unwrap());
        let sink = std::sync::Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut block = [0; 4096];
            while let Ok(n @ 1..) = screen.read(&mut block) {
                sink.lock().unwrap().extend_from_slice(&block[..n]);
            }
        });
        Self { keys: File::from(master), shown }
    }

    /// Types.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// All that was shown.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Waits until something was shown.
    pub fn wait_for(&self, mark: &str) {
        let deadline = std::time::Instant::now() + PATIENCE;
        while !self.text().contains(mark) {
            assert!(std::time::Instant::now() < deadline, "{mark:?} never shows:\n{}", self.text());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

#[test]
fn control_c_ends_the_command_and_the_stage_is_sealed() {
    let world = World::new();
    let script = "$PVISOR run --executor host --stage ../stage -- sh -c 'echo x > new; echo ready; exec sleep 1000'; echo code=$?";
    let (mut terminal, child) = Terminal::start(&world, script);
    terminal.wait_for("ready");
    terminal.press("\x03");
    wait(child);
    until("the run is over", || world.status()["state"] == "ended");
    assert_eq!(world.status()["stage"]["state"], "sealed", "{}", terminal.text());
    // As without us, the script that it was run from does not go on.
    assert!(!terminal.text().contains("code="), "{}", terminal.text());
    assert_eq!(world.status()["exit_code"], 130, "{}", terminal.text());
    world.assert_nothing_left();
}

#[test]
fn a_script_goes_on_after_a_command_that_dealt_with_the_interrupt() {
    let world = World::new();
    let script =
        "$PVISOR run --executor host -- bash -c 'trap \"exit 5\" INT; echo ready; sleep 1000 & wait'; echo code=$?";
    let (mut terminal, child) = Terminal::start(&world, script);
    terminal.wait_for("ready");
    terminal.press("\x03");
    terminal.wait_for("code=5");
    wait(child);
}

#[test]
fn the_command_reads_the_terminal_and_owns_its_foreground() {
    let world = World::new();
    let script = "$PVISOR run --executor host -- bash -c 'echo ready; read line; echo got-$line; ps -o tpgid=,pgid= -p $$'; echo code=$?";
    let (mut terminal, child) = Terminal::start(&world, script);
    terminal.wait_for("ready");
    terminal.press("hello\n");
    terminal.wait_for("got-hello");
    terminal.wait_for("code=0");
    wait(child);
}

#[test]
fn control_z_stops_the_job_and_fg_lets_it_go_on() {
    let world = World::new();
    let script = "set -m; $PVISOR run --executor host -- bash -c 'echo ready; read line; echo got-$line; exit 4'; echo stopped=$?; fg; echo code=$?";
    let (mut terminal, child) = Terminal::start(&world, script);
    terminal.wait_for("ready");
    terminal.press("\x1a");
    terminal.wait_for("stopped=");
    terminal.press("hello\n");
    terminal.wait_for("got-hello");
    terminal.wait_for("code=4");
    wait(child);
    world.assert_nothing_left();
}

#[test]
fn a_run_in_the_background_leaves_the_terminal_alone() {
    let world = World::new();
    let script = "set -m; $PVISOR run --executor host -- sh -c 'echo from-behind' & read line; echo shell-got-$line; wait; echo code=$?";
    let (mut terminal, child) = Terminal::start(&world, script);
    terminal.wait_for("from-behind");
    terminal.press("keys\n");
    terminal.wait_for("shell-got-keys");
    terminal.wait_for("code=0");
    wait(child);
}

#[test]
fn what_a_command_wrote_does_not_drive_the_terminal() {
    let world = World::new();
    world.staged(r#"printf 'a\033]0;title\007b\n' > escape; touch "$(printf 'name\033[2J')""#).expect(0);
    let (terminal, child) =
        Terminal::start(&world, "$PVISOR review; $PVISOR review --diff; $PVISOR status --review; echo done=$?");
    terminal.wait_for("done=0");
    wait(child);
    let text = terminal.text();
    assert!(text.contains("escape") && !text.contains('\x1b') && !text.contains('\x07'), "{text:?}");
}
