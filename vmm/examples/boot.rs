//! Boots a kernel and an initramfs without filesystems; bytes of the agent port go to and from standard streams.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

use std::io::{Read, Write};
use std::path::Path;

use pvisor_vmm::engine::{Kernel, Machine, Network, Topology, port};

fn main() {
    let mut args = std::env::args().skip(1);
    let kernel = args.next().expect("kernel");
    let initramfs = args.next().expect("initramfs");
    Kernel::load(Path::new(&kernel), Path::new(&initramfs)).unwrap().install().unwrap();
    let (agent, mut reader, mut writer, _closer) = port().unwrap();
    let machine = Machine::build(Topology {
        cpus: 2,
        memory_mib: 256,
        command_line: args.next().unwrap_or_default(),
        console: std::env::var_os("CONSOLE").unwrap_or("/dev/null".into()).into(),
        agent,
        filesystems: Vec::new(),
        network: Network::Sealed,
        on_exit: Box::new(|code| println!("on_exit {code}")),
    })
    .unwrap();
    std::thread::spawn(move || {
        let mut buf = [0; 4096];
        while let Ok(n @ 1..) = reader.read(&mut buf) {
            std::io::stdout().write_all(&buf[..n]).unwrap();
        }
    });
    std::thread::spawn(move || {
        let mut buf = [0; 4096];
        while let Ok(n @ 1..) = std::io::stdin().read(&mut buf) {
            writer.write_all(&buf[..n]).unwrap();
        }
    });
    println!("{}", machine.run());
}
