//! The guest agent: a static program that travels inside of this one.

use crate::Digest;

/// The agent's ELF file, as the build script made it.
pub const AGENT: &[u8] = include_bytes!(env!("PVISOR_AGENT_FILE"));

/// BLAKE3 of [`AGENT`].
pub fn agent_digest() -> Digest {
    Digest::of(AGENT)
}

#[cfg(test)]
mod tests {
    use object::LittleEndian;
    use object::elf::{FileHeader64, PT_INTERP};
    use object::read::elf::{FileHeader as _, ProgramHeader as _};

    use super::*;

    #[test]
    fn it_is_static_and_small() {
        let header = FileHeader64::<LittleEndian>::parse(AGENT).unwrap();
        let programs = header.program_headers(LittleEndian, AGENT).unwrap();
        assert!(programs.iter().all(|p| p.p_type(LittleEndian) != PT_INTERP), "needs a dynamic loader");
        assert!(AGENT.len() < 2 << 20, "{} bytes", AGENT.len());
    }
}
