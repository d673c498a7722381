//! Attempts to get out of a run on the host, for each preset, as root and as a plain user: judged by what changed or
//! leaked on the host. And the other way round: without the control that stops it, the attempt succeeds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod attempts;
mod controls;
#[path = "../../host-exec/tests/runs/device.rs"]
mod device;
mod host;
mod runs;

use std::process::ExitCode;

use attempts::{PRESETS, Preset};
use host::Host;

/// A user that no system has.
const SOMEBODY: u32 = 54_321;

fn main() -> ExitCode {
    let filters: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    if !rustix::process::geteuid().is_root() {
        println!("not run: the attempts are made by several users, which needs root");
        return ExitCode::SUCCESS;
    }
    device::open_fuse_to_all();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str()));
    let (mut passed, mut failed) = (0, 0);
    println!("{:<44}{}", "attempt", columns());
    let mut hosts = [Host::new(0), Host::new(SOMEBODY)];
    for attempt in attempts::ALL.iter().filter(|a| wanted(a.name)) {
        let mut line = format!("{:<44}", attempt.name);
        let mut told = Vec::new();
        for host in &mut hosts {
            for preset in PRESETS {
                let run = runs::attempt(host, preset, attempt);
                let damage = host.damage(&run.output);
                let closed = attempt.closed.contains(&preset);
                let broken = !run.ran || closed && !damage.is_empty();
                let word = match (run.ran, damage.is_empty(), closed) {
                    (false, ..) => "BROKEN",
                    (_, true, _) => "held",
                    (_, false, true) => "ESCAPED",
                    (_, false, false) => "open",
                };
                line += &format!("{word:<9}");
                if broken {
                    failed += 1;
                    told.push(format!("    uid {} {preset:?}: {damage:?}\n{}", host.uid(), run.output));
                } else {
                    passed += 1;
                }
            }
        }
        println!("{line}");
        told.iter().for_each(|text| println!("{text}"));
    }
    for host in &hosts {
        let strict = runs::strict(host);
        println!("--strict, uid {}: {}", host.uid(), if strict.ran { "starts" } else { "REFUSED" });
        if strict.ran {
            passed += 1;
        } else {
            failed += 1;
            println!("{}", strict.output);
        }
    }
    println!("\n{:<20}{:<46}without it", "control", "attempt");
    for removal in controls::ALL.iter().filter(|r| wanted(r.control) || wanted(r.attempt)) {
        let host = &mut hosts[usize::from(!removal.root)];
        let attempt = attempts::ALL.iter().find(|a| a.name == removal.attempt).expect("an attempt of that name");
        let run = runs::without(host, removal, attempt);
        let damage = host.damage(&run.output);
        let escaped = run.ran && !damage.is_empty();
        if escaped {
            passed += 1
        } else {
            failed += 1
        }
        let word = if escaped { damage[0] } else { "STILL HELD" };
        println!("{:<20}{:<46}{word}", removal.control, attempt.name);
        if !escaped {
            println!("{}", run.output);
        }
    }
    let outcome = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {outcome}. {passed} passed; {failed} failed; 0 ignored");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn columns() -> String {
    let of = |user: &str| PRESETS.map(|p| format!("{:<9}", format!("{user}{}", short(p)))).concat();
    of("0 ") + &of("u ")
}

fn short(preset: Preset) -> &'static str {
    match preset {
        Preset::Stage => "stage",
        Preset::Sandbox => "sandbox",
        Preset::Safe => "safe",
    }
}
