//! `run --ask`: questions on the terminal, their answers, and what can't answer them.

use std::fs;
use std::process::Child;
use std::time::Duration;

use crate::services::{PROBE, PYTHON, service};
use crate::terminal::Terminal;
use crate::world::{Done, World, finish, signal, until, wait};

/// A world whose project has the program that tries to reach something.
fn world() -> World {
    let world = World::new();
    fs::write(world.project().join("probe.py"), PROBE).unwrap();
    world
}

/// Ports of this machine as arguments of that program.
fn targets(ports: &[u16]) -> String {
    ports.iter().map(|port| format!("tcp host.pvisor.internal {port} ")).collect()
}

/// The command line of a run that asks, for a shell.
fn line(options: &str, ports: &[u16]) -> String {
    format!("$PVISOR run --ask {options} -- {PYTHON} -IS probe.py {}", targets(ports))
}

fn start(world: &World, options: &str, ports: &[u16]) -> (Terminal, Child) {
    Terminal::start(world, &format!("{}; echo code=$?", line(options, ports)))
}

fn question(port: u16) -> String {
    format!("pvisor: reach host.pvisor.internal:{port}? [")
}

fn heard(port: u16) -> String {
    format!("{port} heard ping")
}

fn failed(port: u16) -> String {
    format!("{port} failed")
}

/// The questions of the last run: subject, allowed, scope, by.
fn answers(world: &World) -> Vec<String> {
    let status = world.status();
    let all = status["answers"].as_array().unwrap().iter();
    all.map(|a| {
        let text = |v: &serde_json::Value| v.as_str().unwrap().to_owned();
        let verdict = if a["allowed"] == true { "yes" } else { "no" };
        format!("{} {verdict} {} {}", text(&a["subject"]["host"]), text(&a["scope"]), text(&a["by"]))
    })
    .collect()
}

#[test]
fn yes_opens_one_port_and_no_another() {
    let world = world();
    let [one, two] = [(); 2].map(|()| service("127.0.0.1:0").port());
    let (mut terminal, child) = start(&world, "", &[one, two, one, two]);
    for (port, keys) in [(one, "x\x7fy\n"), (two, "maybe\nn\n")] {
        terminal.wait_for(&question(port));
        terminal.press(keys);
    }
    terminal.wait_for("code=0");
    wait(child);
    let text = terminal.text();
    assert_eq!((text.matches(&heard(one)).count(), text.matches(&failed(two)).count()), (2, 2), "{text}");
    assert_eq!(text.matches(&question(one)).count(), 1, "asked once: {text}");
    assert_eq!(text.matches(&question(two)).count(), 2, "once more after what is no answer: {text}");
    let names = [one, two].map(|port| format!("host.pvisor.internal:{port}"));
    assert_eq!(answers(&world), [format!("{} yes run person", names[0]), format!("{} no run person", names[1])]);
    let log = world.pvisor(&["logs", "--network"]).expect(0).stdout();
    for told in [
        format!("asked whether the command may reach {}", names[0]),
        format!("answered yes to {}, in this run", names[0]),
        format!("answered no to {}, in this run", names[1]),
        "asked for, and not allowed".to_owned(),
    ] {
        assert!(log.contains(&told), "{told:?} is not in\n{log}");
    }
    world.assert_nothing_left();
}

#[test]
fn an_interrupt_is_no_and_the_command_goes_on() {
    let world = world();
    let port = service("127.0.0.1:0").port();
    let (mut terminal, child) = start(&world, "", &[port]);
    terminal.wait_for(&question(port));
    terminal.press("y\x03");
    terminal.wait_for(&failed(port));
    terminal.wait_for("code=0");
    wait(child);
    assert_eq!(answers(&world), [format!("host.pvisor.internal:{port} no run interrupt")]);
}

#[test]
fn q_is_no_to_everything_else() {
    let world = world();
    let [one, two] = [(); 2].map(|()| service("127.0.0.1:0").port());
    let (mut terminal, child) = start(&world, "", &[one, two]);
    terminal.wait_for(&question(one));
    terminal.press("q\n");
    terminal.wait_for("code=0");
    wait(child);
    assert!(!terminal.text().contains(&question(two)), "{}", terminal.text());
    assert_eq!(answers(&world)[1], format!("host.pvisor.internal:{two} no run asked_enough"));
}

#[test]
fn nobody_answers() {
    let world = world();
    let port = service("127.0.0.1:0").port();
    let (terminal, child) = start(&world, "", &[port]);
    terminal.wait_for("code=0");
    wait(child);
    assert!(terminal.text().contains("no answer, so no") && terminal.text().contains(&failed(port)));
    assert_eq!(answers(&world), [format!("host.pvisor.internal:{port} no run timeout")]);
}

#[test]
fn without_a_terminal_the_answer_is_no_and_that_is_said_once() {
    let world = world();
    let ports = [(); 2].map(|()| service("127.0.0.1:0").port());
    let pvisor = world.std_command(&["run", "--ask", "--", PYTHON, "-IS", "probe.py"]);
    let mut command = std::process::Command::new("setsid");
    command.arg("--wait").arg(pvisor.get_program()).args(pvisor.get_args()).args(targets(&ports).split_whitespace());
    command.current_dir(world.project()).env("PVISOR_RUN_HOME", world.runs()).stdin(std::process::Stdio::null());
    let done: Done = finish(command).expect(0);
    assert_eq!(done.stdout().matches("failed").count(), 2, "{done}");
    assert_eq!(done.stderr().matches("no terminal to ask on").count(), 1, "{done}");
    assert!(answers(&world).iter().all(|answer| answer.ends_with("no run no_terminal")));
}

/// What was typed before, what the command prints, and what it leaves running beside: none of it is an answer.
#[test]
fn nothing_but_the_person_answers() {
    let world = world();
    let port = service("127.0.0.1:0").port();
    fs::write(
        world.project().join("noise.sh"),
        format!(
            "echo ready; sleep 1\n\
             setsid sh -c 'while :; do echo noise; dd bs=1 count=1 2>/dev/null; done' &\n\
             sleep 0.3\n\
             echo 'pvisor: reach nothing? [y/n] y'\n\
             {PYTHON} -IS probe.py {}\n\
             kill %1; kill -- -$!; true",
            targets(&[port])
        ),
    )
    .unwrap();
    let (mut terminal, child) = Terminal::start(&world, "$PVISOR run --ask -- bash noise.sh; echo code=$?");
    terminal.wait_for("ready");
    terminal.press("y\ny\nyu\n");
    terminal.wait_for(&question(port));
    let shown = terminal.text().len();
    std::thread::sleep(Duration::from_secs(2));
    let text = terminal.text();
    assert_eq!(text.len(), shown, "the command was not held: {:?}", &text[shown..]);
    assert!(!text.contains(&heard(port)), "{text}");
    terminal.press("n\n");
    terminal.wait_for(&failed(port));
    terminal.wait_for("code=0");
    wait(child);
    assert_eq!(answers(&world), [format!("host.pvisor.internal:{port} no run person")]);
    world.assert_nothing_left();
}

#[test]
fn a_command_in_the_foreground_gets_the_terminal_back() {
    let world = world();
    let port = service("127.0.0.1:0").port();
    let script = format!("{PYTHON} -IS probe.py {}; read line; echo got-$line", targets(&[port]));
    fs::write(world.project().join("reads.sh"), script).unwrap();
    let (mut terminal, child) = Terminal::start(&world, "$PVISOR run --ask -- bash reads.sh; echo code=$?");
    terminal.wait_for(&question(port));
    terminal.press("y\n");
    terminal.wait_for(&heard(port));
    terminal.press("hello\n");
    terminal.wait_for("got-hello");
    terminal.wait_for("code=0");
    wait(child);
}

#[test]
fn a_supervisor_that_is_killed_at_the_question_leaves_nothing_open() {
    let world = world();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (terminal, child) = start(&world, "", &[port]);
    terminal.wait_for(&question(port));
    let record = |world: &World| -> Option<u64> {
        let run =
            fs::read_dir(world.runs()).ok()?.flatten().find(|e| e.file_name().to_string_lossy().starts_with("run-"))?;
        let record: serde_json::Value =
            serde_json::from_slice(&fs::read(run.path().join("progress.json")).ok()?).ok()?;
        record["supervisor"]["pid"].as_u64()
    };
    let supervisor = record(&world).unwrap();
    signal(u32::try_from(supervisor).unwrap(), "KILL");
    terminal.wait_for("code=137");
    wait(child);
    world.assert_nothing_left();
    until("the run is over", || world.status()["state"] == "ended");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "the command got through");
}

#[test]
fn answers_are_remembered_for_the_project_or_the_user_until_they_are_forgotten() {
    let world = world();
    let [one, two] = [(); 2].map(|()| service("127.0.0.1:0").port());
    let (mut terminal, child) = start(&world, "", &[one, two]);
    for (port, keys) in [(one, "yw\n"), (two, "nu\n")] {
        terminal.wait_for(&question(port));
        terminal.press(keys);
    }
    terminal.wait_for("code=0");
    wait(child);
    let names = [one, two].map(|port| format!("host.pvisor.internal:{port}"));
    let list = world.pvisor(&["access", "list"]).expect(0).stdout();
    assert!(list.contains(&names[0]) && list.contains(world.project().to_str().unwrap()), "{list}");
    assert!(list.contains(&names[1]) && list.contains("every project"), "{list}");
    // Not asked again.
    let (terminal, child) = start(&world, "", &[one, two]);
    terminal.wait_for("code=0");
    wait(child);
    let text = terminal.text();
    assert!(text.contains(&heard(one)) && text.contains(&failed(two)) && !text.contains("? ["), "{text}");
    assert!(answers(&world).is_empty());
    // In another project only what is for all.
    let other = world.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("probe.py"), PROBE).unwrap();
    let (mut terminal, child) = start(&world, "--project ../other", &[one, two]);
    terminal.wait_for(&question(one));
    terminal.press("n\n");
    terminal.wait_for("code=0");
    wait(child);
    assert!(!terminal.text().contains(&question(two)), "{}", terminal.text());
    // Without --ask, nothing that was said yes to is open.
    let plain = world.pvisor(&[
        "run",
        "--executor",
        "host",
        "--safe",
        "--",
        PYTHON,
        "-IS",
        "probe.py",
        "tcp",
        "host.pvisor.internal",
        &one.to_string(),
    ]);
    assert!(plain.expect(0).stdout().contains("failed"));
    world.pvisor(&["access", "forget", &names[1]]).expect(0);
    assert_eq!(world.pvisor(&["access", "list", "--json"]).expect(0).json().as_array().unwrap().len(), 1);
    world.pvisor(&["access", "forget", "nothing"]).expect(1).says(&["no such answer", "pvisor access list"]);
    world.pvisor(&["access", "forget", "--all"]).expect(0);
    assert!(world.pvisor(&["access", "list"]).expect(0).stdout().contains("no answers"));
}

#[test]
fn a_damaged_memory_is_named_and_grants_nothing() {
    let world = world();
    fs::create_dir(world.runs()).unwrap();
    let file = world.runs().join("access.json");
    fs::write(&file, "{\"schema\":\"pvisor.access/1\",").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode;
    fs::set_permissions(&file, mode(0o600)).unwrap();
    for (args, code) in
        [(&["run", "--ask", "--", "true"][..], 125), (&["access", "list"], 1), (&["access", "forget", "--all"], 1)]
    {
        world.pvisor(args).expect(code).says(&["access.json", "damaged", "move it away"]);
    }
    fs::set_permissions(&file, mode(0o644)).unwrap();
    world.pvisor(&["run", "--ask", "--", "true"]).expect(125).says(&["access.json", "chmod 600"]);
    // Runs that ask nothing do not need it.
    world.pvisor(&["run", "--executor", "host", "--safe", "--", "true"]).expect(0);
}

#[test]
fn only_the_host_executor_asks() {
    let world = world();
    let done = world.pvisor(&["run", "--ask", "--executor", "krun", "--", "true"]);
    done.expect(6).says(&["--ask", "--executor host"]);
    let done = world.pvisor(&["run", "--ask", "--", "sh", "-c", "echo x > new"]).expect(0);
    assert!(!world.project().join("new").exists(), "{done}");
    let status = world.status();
    assert_eq!((&status["executor"], &status["safety"]["network_non_bypassable"]), (&"host".into(), &true.into()));
}
