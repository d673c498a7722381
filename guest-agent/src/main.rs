//! Entry point of the guest's process 1.
//!
//! There is no Rust `main`: the runtime before it opens `/dev/null` for missing standard descriptors and aborts where
//! that is not there, and in an initramfs it may not be.
#![no_main]
#![allow(unsafe_code)]

/// Called by the C library.
// SAFETY: the C start code calls `main` once; no other symbol of the program has that name.
#[unsafe(no_mangle)]
extern "C" fn main() -> i32 {
    pvisor_guest_agent::init()
}
