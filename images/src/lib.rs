//! What a guest boots from: its kernel, and the agent in an initramfs. Everything is built from source on this machine,
//! kept in a cache by the hash of what it was built from, and verified when it is used.

pub mod kernel;
