//! The filter of system calls: what no build needs is refused with an error that programs expect, never with a kill.

use std::collections::BTreeMap;

use pvisor_spec::Confinement;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

/// Refused as if the caller lacked the right.
const FORBIDDEN: &[libc::c_long] = &[
    // Programs in the kernel, and what watches it.
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
    libc::SYS_fanotify_init,
    libc::SYS_syslog,
    libc::SYS_lookup_dcookie,
    // Keys belong to the user, whatever namespace he is in.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    SYS_OPEN_TREE_ATTR,
    libc::SYS_setns,
    // Files by number, past the directories that lead to them.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    // The machine as a whole.
    libc::SYS_reboot,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_vhangup,
    libc::SYS_nfsservctl,
];

/// Those that one architecture has.
#[cfg(target_arch = "x86_64")]
const OF_ARCHITECTURE: &[libc::c_long] =
    &[libc::SYS_kexec_file_load, libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_uselib, libc::SYS__sysctl];
#[cfg(not(target_arch = "x86_64"))]
const OF_ARCHITECTURE: &[libc::c_long] = &[libc::SYS_kexec_file_load];

/// The same number on every architecture; newer than the library.
const SYS_OPEN_TREE_ATTR: libc::c_long = 467;

/// Refused as if the kernel did not have them: programs then do without.
const IO_URING: [libc::c_long; 3] = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// Requests that type into the terminal for whoever reads it next.
const TERMINAL_REQUESTS: [u64; 2] = [libc::TIOCSTI, libc::TIOCLINUX];

/// Address families past this one lead to hypervisors, to buses and into rarely used code of the kernel.
const LAST_FAMILY: u64 = libc::AF_PACKET as u64;

/// System calls of another ABI on the same processor have this bit set (x32).
#[cfg(target_arch = "x86_64")]
const OTHER_ABI: u32 = 0x4000_0000;

/// The programs to install, in order.
///
/// # Errors
/// The library can't compile them for this machine.
pub(super) fn programs(confinement: &Confinement) -> Result<Vec<BpfProgram>, BackendError> {
    let mut programs = vec![compile(forbidden(confinement)?, libc::EPERM)?];
    let absent = absent(confinement);
    if !absent.is_empty() {
        programs.push(compile(absent, libc::ENOSYS)?);
    }
    #[cfg(target_arch = "x86_64")]
    programs.push(other_abi());
    Ok(programs)
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn forbidden(confinement: &Confinement) -> Result<Rules, BackendError> {
    let always = FORBIDDEN.iter().chain(OF_ARCHITECTURE);
    let mut rules: Rules = always.map(|number| (*number, Vec::new())).collect();
    let requests = TERMINAL_REQUESTS
        .into_iter()
        // The kernel looks at the lower half of the argument only, and so must this.
        .map(|request| rule(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, request))
        .collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_ioctl, requests);
    let families = || rule(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Gt, LAST_FAMILY);
    rules.insert(libc::SYS_socket, vec![families()?]);
    rules.insert(libc::SYS_socketpair, vec![families()?]);
    if !confinement.allow_user_namespaces {
        let flag = libc::CLONE_NEWUSER as u64;
        let with_flag = || rule(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag);
        rules.insert(libc::SYS_clone, vec![with_flag()?]);
        rules.insert(libc::SYS_unshare, vec![with_flag()?]);
    }
    Ok(rules)
}

fn absent(confinement: &Confinement) -> Rules {
    let mut rules = Rules::new();
    if !confinement.allow_io_uring {
        rules.extend(IO_URING.map(|number| (number, Vec::new())));
    }
    if !confinement.allow_user_namespaces {
        // Its flags are in memory, where a filter can't look. C libraries then use the older call.
        rules.insert(libc::SYS_clone3, Vec::new());
    }
    rules
}

fn rule(argument: u8, length: SeccompCmpArgLen, how: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, length, how, value)?])
}

fn compile(rules: Rules, errno: i32) -> Result<BpfProgram, BackendError> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let action = SeccompAction::Errno(errno.cast_unsigned());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, architecture)?;
    let mut program = BpfProgram::try_from(filter)?;
    // The library kills whoever makes a system call of another architecture; a program that was built for one is
    // answered instead.
    for instruction in &mut program {
        if instruction.code == RETURN && instruction.k == libc::SECCOMP_RET_KILL_PROCESS {
            instruction.k = not_there();
        }
    }
    Ok(program)
}

/// The instruction that ends a filter with a constant.
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

fn not_there() -> u32 {
    libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned()
}

/// Refuses the system calls of the other ABI, which have other numbers than those above.
#[cfg(target_arch = "x86_64")]
fn other_abi() -> BpfProgram {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_NOT_LESS: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    let number = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    vec![
        sock_filter { code: LOAD, jt: 0, jf: 0, k: number },
        sock_filter { code: JUMP_IF_NOT_LESS, jt: 0, jf: 1, k: OTHER_ABI },
        sock_filter { code: RETURN, jt: 0, jf: 0, k: not_there() },
        sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_ever_killed() {
        for open in [false, true] {
            let confinement =
                Confinement { allow_io_uring: open, allow_user_namespaces: open, ..Confinement::default() };
            let programs = programs(&confinement).unwrap();
            let ends: Vec<u32> = programs.iter().flatten().filter(|i| i.code == RETURN).map(|i| i.k).collect();
            let allowed = [libc::SECCOMP_RET_ERRNO | 1, not_there(), libc::SECCOMP_RET_ALLOW];
            assert!(ends.iter().all(|end| allowed.contains(end)), "{ends:x?}");
            // Errors, absence where something is absent, and the other ABI.
            assert_eq!(programs.len(), 2 + usize::from(!open));
        }
    }
}
