//! The counted loop, as guest machine code and for this process.

use std::arch::asm;

/// Guest: `rcx` rounds of a few ordinary instructions and one that only kernels may execute, then `hlt`. The stack
/// pointer must be valid.
pub const LOOP: &[u8] = &[
    0x0f, 0x20, 0xd0, // mov rax, cr2
    0x0f, 0x01, 0xf8, // swapgs
    0x0f, 0x01, 0xf8, // swapgs
    0x48, 0x01, 0xc8, // round: add rax, rcx
    0x48, 0x89, 0x44, 0x24, 0xf8, // mov [rsp-8], rax
    0x48, 0x8b, 0x54, 0x24, 0xf8, // mov rdx, [rsp-8]
    0x48, 0x6b, 0xd2, 0x03, // imul rdx, rdx, 3
    0x48, 0x31, 0xd0, // xor rax, rdx
    0xfa, // cli
    0x48, 0xff, 0xc9, // dec rcx
    0x75, 0xe6, // jnz round
    0xf4, // hlt
];

/// Guest: one `popcnt`, then `hlt`.
pub const POPCNT: &[u8] = &[0xf3, 0x48, 0x0f, 0xb8, 0xc1, 0xf4];

/// Guest: one `cmpxchg16b` on the stack, then `hlt`.
pub const CMPXCHG16B: &[u8] = &[0x48, 0x0f, 0xc7, 0x4c, 0x24, 0xf0, 0xf4];

/// The same rounds in this process, without the privileged instruction.
pub fn run_native(rounds: u64) {
    let mut slot = 0u64;
    if rounds == 0 {
        return;
    }
    // SAFETY: writes only the named registers, the flags and `slot`, which lives until the block ends; the loop ends
    // because the counter starts above zero and is decremented to it.
    unsafe {
        asm!(
            "2:",
            "add {a}, {n}",
            "mov [{p}], {a}",
            "mov {d}, [{p}]",
            "imul {d}, {d}, 3",
            "xor {a}, {d}",
            "dec {n}",
            "jnz 2b",
            a = inout(reg) 0u64 => _,
            d = out(reg) _,
            n = inout(reg) rounds => _,
            p = in(reg) &raw mut slot,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jump_of_the_guest_loop_leads_to_its_first_round() {
        let jump = LOOP.len() - 3;
        assert_eq!(LOOP[jump], 0x75);
        let target = jump as i64 + 2 + i64::from(LOOP[jump + 1] as i8);
        assert_eq!(target, 9);
        assert_eq!(LOOP[9..12], [0x48, 0x01, 0xc8]);
    }

    #[test]
    fn the_native_loop_ends() {
        run_native(0);
        run_native(1000);
    }
}
