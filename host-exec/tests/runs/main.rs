//! Real runs: each test starts this program again as a worker, as root and as a user who is not root.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests")]

mod cases;
mod device;
mod harness;

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("worker") => harness::work(&args[2..]),
        _ => harness::test(&args[1..]),
    }
}
