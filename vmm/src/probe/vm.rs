//! A guest of two mebibytes in 64-bit kernel mode, without devices or interrupts.

use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

use super::{Measurement, ProbeError, SLOWEST, code};

/// Guest memory in bytes: one large page.
const MEMORY: usize = 2 << 20;
/// Guest-physical places in it.
const PML4: usize = 0x1000;
const PDPT: usize = 0x2000;
const DIRECTORY: usize = 0x3000;
const CODE: usize = 0x10000;
const STACK_TOP: usize = 0x20000;
/// Where KVM on Intel keeps its task state: outside the memory.
const TASK_STATE: usize = 0xfffb_d000;

/// Rounds of the first run, short enough for an interpreter.
const FIRST_ROUNDS: u64 = 64;
/// Rounds of the longest run.
const MOST_ROUNDS: u64 = 1_000_000;
/// Rounds of a run in this process, at least: enough for the clock.
const LEAST_NATIVE: u64 = 10_000;
/// How long one of the later runs should take.
const RUN_TIME: Duration = Duration::from_millis(10);
/// Where even the shortest run takes longer than this, no longer one is made.
const SLOW_RUN: Duration = Duration::from_millis(100);
/// The best of so many runs counts.
const RUNS: u32 = 3;
/// Where the guest looks too slow, but not hopelessly so, the machine may be busy: it is tried so often again.
const SECOND_LOOKS: u32 = 5;
/// How many times too slow is hopeless.
const HOPELESS: f64 = 20.0;

/// Measures on a thread of its own, and stops that thread where it takes longer than `limit`.
pub fn measure(limit: Duration) -> Result<Measurement, ProbeError> {
    let (send, receive) = mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = thread::Builder::new()
        .name("kvm probe".to_owned())
        .spawn(move || {
            let _ = send.send(Guest::new(stopped).and_then(|mut guest| guest.measure()));
        })
        .map_err(|source| ProbeError::Setup { what: "start a thread", source })?;
    if let Ok(result) = receive.recv_timeout(limit) {
        return result;
    }
    stop.store(true, Ordering::Release);
    let kick = Kick::install();
    for _ in 0..50 {
        kick.send(&thread);
        match receive.recv_timeout(Duration::from_millis(2)) {
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Ok(_) | Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    Err(ProbeError::NoAnswer(limit))
}

/// A signal with a handler that does nothing: it ends a call into KVM.
struct Kick {
    signal: libc::c_int,
    before: libc::sigaction,
}

extern "C" fn ignore(_: libc::c_int) {}

impl Kick {
    fn install() -> Self {
        let signal = libc::SIGRTMIN() + 6;
        // SAFETY: both structures are plain data for which all zeros is valid, and live through the call; the handler
        // does nothing, so it is async-signal-safe.
        let before = unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as libc::sighandler_t;
            libc::sigaction(signal, &action, &mut before);
            before
        };
        Self { signal, before }
    }

    fn send(&self, thread: &thread::JoinHandle<()>) {
        if !thread.is_finished() {
            // SAFETY: the handle is neither joined nor detached yet, so the thread id is valid even if it has ended.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), self.signal) };
        }
    }
}

impl Drop for Kick {
    fn drop(&mut self) {
        // SAFETY: `before` is what the kernel gave for this signal.
        unsafe { libc::sigaction(self.signal, &self.before, std::ptr::null_mut()) };
    }
}

/// Anonymous memory of this process that the guest sees at address 0.
struct Memory(*mut u8);

impl Memory {
    fn new() -> Result<Self, ProbeError> {
        // SAFETY: a new anonymous mapping touches no memory that anything else uses.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                MEMORY,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(ProbeError::Setup { what: "map guest memory", source: io::Error::last_os_error() });
        }
        Ok(Self(at.cast()))
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= MEMORY);
        // SAFETY: the range lies in the mapping (checked above), no reference to it exists, and no vCPU runs while
        // this thread is here.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.add(at), bytes.len()) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this length; the VM that used it is gone (field order of `Guest`).
        unsafe { libc::munmap(self.0.cast(), MEMORY) };
    }
}

/// The test guest. Fields in order of destruction.
struct Guest {
    cpu: VcpuFd,
    _vm: VmFd,
    memory: Memory,
    stop: Arc<AtomicBool>,
}

fn setup<T>(what: &'static str, result: Result<T, kvm_ioctls::Error>) -> Result<T, ProbeError> {
    result.map_err(|e| ProbeError::Setup { what, source: io::Error::from_raw_os_error(e.errno()) })
}

impl Guest {
    fn new(stop: Arc<AtomicBool>) -> Result<Self, ProbeError> {
        let kvm = Kvm::new().map_err(|e| ProbeError::Open(io::Error::from_raw_os_error(e.errno())))?;
        match kvm.get_api_version() {
            12 => {}
            other => return Err(ProbeError::Version(other)),
        }
        let vm = setup("create a VM", kvm.create_vm())?;
        setup("set the task state address", vm.set_tss_address(TASK_STATE))?;
        let memory = Memory::new()?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: MEMORY as u64,
            userspace_addr: memory.0 as u64,
        };
        // SAFETY: the region is the mapping above, which outlives the VM (field order).
        setup("give the VM memory", unsafe { vm.set_user_memory_region(region) })?;
        let cpu = setup("create a vCPU", vm.create_vcpu(0))?;
        let cpuid = setup("read the CPU features", kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES))?;
        setup("set the CPU features", cpu.set_cpuid2(&cpuid))?;
        let guest = Self { cpu, _vm: vm, memory, stop };
        guest.enter_long_mode()?;
        Ok(guest)
    }

    fn enter_long_mode(&self) -> Result<(), ProbeError> {
        const PRESENT_WRITABLE: u64 = 3;
        const LARGE: u64 = 1 << 7;
        self.memory.write(PML4, &(PDPT as u64 | PRESENT_WRITABLE).to_le_bytes());
        self.memory.write(PDPT, &(DIRECTORY as u64 | PRESENT_WRITABLE).to_le_bytes());
        self.memory.write(DIRECTORY, &(LARGE | PRESENT_WRITABLE).to_le_bytes());
        let mut sregs = setup("read the registers", self.cpu.get_sregs())?;
        let flat = kvm_segment { limit: 0xffff_ffff, present: 1, s: 1, g: 1, ..Default::default() };
        sregs.cs = kvm_segment { selector: 8, type_: 11, l: 1, ..flat };
        let data = kvm_segment { selector: 16, type_: 3, db: 1, ..flat };
        (sregs.ds, sregs.es, sregs.ss, sregs.fs, sregs.gs) = (data, data, data, data, data);
        sregs.cr3 = PML4 as u64;
        sregs.cr4 = 1 << 5; // PAE
        sregs.cr0 = 1 << 31 | 1 << 16 | 1 << 5 | 1 << 4 | 1; // PG, WP, NE, ET, PE
        sregs.efer = 1 << 10 | 1 << 8; // LMA, LME
        setup("set the registers", self.cpu.set_sregs(&sregs))
    }

    fn measure(&mut self) -> Result<Measurement, ProbeError> {
        self.memory.write(CODE, code::LOOP);
        // A first run holds the faults of first touches, and on a busy machine any one may be held up, so the better of
        // two says how long the others should be.
        let first = self.run(FIRST_ROUNDS)?.min(self.run(FIRST_ROUNDS)?);
        let mut rounds = FIRST_ROUNDS;
        let mut speeds = Measurement { guest: rate(rounds, first), native: 0.0, unexecuted: Vec::new() };
        if first < SLOW_RUN {
            rounds = ((RUN_TIME.as_secs_f64() * speeds.guest) as u64).clamp(FIRST_ROUNDS, MOST_ROUNDS);
            self.look(rounds, &mut speeds)?;
            for _ in 0..SECOND_LOOKS {
                if !(SLOWEST..SLOWEST * HOPELESS).contains(&speeds.slowdown()) {
                    break;
                }
                self.look(rounds, &mut speeds)?;
            }
        } else {
            speeds.native = native_rate(rounds);
        }
        speeds.unexecuted = self.find_unexecuted()?;
        Ok(speeds)
    }

    /// Runs both loops in turn and keeps the best of each.
    fn look(&mut self, rounds: u64, speeds: &mut Measurement) -> Result<(), ProbeError> {
        for _ in 0..RUNS {
            speeds.guest = speeds.guest.max(rate(rounds, self.run(rounds)?));
            speeds.native = speeds.native.max(native_rate(rounds));
        }
        Ok(())
    }

    fn find_unexecuted(&mut self) -> Result<Vec<&'static str>, ProbeError> {
        let tests = [
            ("popcnt", is_x86_feature_detected!("popcnt"), code::POPCNT),
            ("cmpxchg16b", is_x86_feature_detected!("cmpxchg16b"), code::CMPXCHG16B),
        ];
        let mut unexecuted = Vec::new();
        for (name, there, code) in tests {
            if there {
                self.memory.write(CODE, code);
                match self.run(1) {
                    Ok(_) => {}
                    Err(ProbeError::Stopped(_)) => unexecuted.push(name),
                    Err(other) => return Err(other),
                }
            }
        }
        Ok(unexecuted)
    }

    /// Runs the code from its start to `hlt`.
    fn run(&mut self, rounds: u64) -> Result<Duration, ProbeError> {
        let regs = kvm_regs { rip: CODE as u64, rsp: STACK_TOP as u64, rcx: rounds, rflags: 2, ..Default::default() };
        setup("set the registers", self.cpu.set_regs(&regs))?;
        let begin = Instant::now();
        loop {
            if self.stop.load(Ordering::Acquire) {
                return Err(ProbeError::NoAnswer(begin.elapsed()));
            }
            match self.cpu.run() {
                Ok(VcpuExit::Hlt) => return Ok(begin.elapsed()),
                Ok(VcpuExit::Intr) => {}
                Ok(VcpuExit::InternalError) => return Err(ProbeError::Stopped("KVM can't emulate it".to_owned())),
                Ok(VcpuExit::Shutdown) => return Err(ProbeError::Stopped("it faulted".to_owned())),
                Ok(other) => return Err(ProbeError::Stopped(format!("{other:?}"))),
                Err(e) if [libc::EINTR, libc::EAGAIN].contains(&e.errno()) => {}
                Err(e) => {
                    let source = io::Error::from_raw_os_error(e.errno());
                    return Err(ProbeError::Setup { what: "run the test guest", source });
                }
            }
        }
    }
}

/// Rounds per second.
fn rate(rounds: u64, time: Duration) -> f64 {
    rounds as f64 / time.as_secs_f64().max(1e-9)
}

/// Rounds per second in this process.
fn native_rate(rounds: u64) -> f64 {
    let rounds = rounds.max(LEAST_NATIVE);
    let begin = Instant::now();
    code::run_native(rounds);
    rate(rounds, begin.elapsed())
}
