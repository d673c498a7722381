//! The `pvisor` program.

fn main() -> std::process::ExitCode {
    pvisor_cli::main()
}
