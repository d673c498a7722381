//! Prints what the KVM probe measures.
#![allow(clippy::print_stdout)]

fn main() {
    let begin = std::time::Instant::now();
    println!("{:?}", pvisor_vmm::probe::measure());
    println!("{:?}", pvisor_vmm::probe::admit(false));
    println!("{:#?}", pvisor_vmm::probe::capabilities());
    println!("{:?}", begin.elapsed());
}
