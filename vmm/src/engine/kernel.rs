//! The guest kernel in the form that the engine maps: one page-aligned buffer with the loaded image, the initramfs
//! and an entry stub.
//!
//! The engine takes a kernel from a C callback and, on x86-64, no initramfs with it. So the initramfs is put behind
//! the kernel in the same buffer, and the entry point is a stub of 32 bytes behind that, which writes address and
//! length of the initramfs into the boot parameters (`rsi` points there, by the 64-bit boot protocol) and jumps to the
//! kernel. From there on all is as if a boot loader had loaded it.

use std::ffi::c_char;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Longest kernel or initramfs file accepted, in bytes.
const MOST_FILE: u64 = 512 << 20;
/// Most program headers that are looked at.
const MOST_SEGMENTS: u16 = 64;
/// Guest-physical addresses that the image must stay in: above the BIOS area, below what the engine's first page
/// tables map.
const LOWEST: u64 = 1 << 20;
const HIGHEST: u64 = 1 << 30;
const PAGE: u64 = 4096;
/// The engine wants the image's length in these units.
const UNIT: u64 = 64 << 10;

/// Where the engine's devices begin, in MiB.
const DEVICES_MIB: u32 = 3328;

/// Offsets of the fields in the boot parameters.
const RAMDISK_IMAGE: u32 = 0x218;
const RAMDISK_SIZE: u32 = 0x21c;
/// Length of the stub in bytes.
const STUB: usize = 32;

const ELF_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const EXECUTABLE: u16 = 2;
const X86_64: u16 = 62;
const LOADED: u32 = 1;

/// Why a kernel can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A file can't be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The file is no kernel that can be loaded.
    #[error("{}: {what}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The guest's memory is too small for it.
    #[error("the guest kernel ends at {need_mib} MiB, the guest has {have_mib} MiB of memory")]
    Memory {
        /// MiB that the kernel needs.
        need_mib: u64,
        /// MiB that there are.
        have_mib: u64,
    },
    /// A second kernel in one process.
    #[error("this process has a guest kernel already")]
    Taken,
}

/// A loaded kernel.
#[derive(Debug)]
pub struct Kernel {
    buffer: Buffer,
    guest_address: u64,
    entry: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    offset: u64,
    address: u64,
    in_file: u64,
    in_memory: u64,
}

impl Kernel {
    /// Loads an uncompressed x86-64 ELF kernel and an initramfs.
    ///
    /// # Errors
    /// Files that can't be read or are not what they should be.
    pub fn load(kernel: &Path, initramfs: &Path) -> Result<Self, KernelError> {
        let format = |what| KernelError::Format { path: kernel.to_owned(), what };
        let (file, length) = open(kernel)?;
        let header = read_exact(&file, kernel, 0, ELF_HEADER)?;
        let (entry, table) = parse_header(&header).map_err(format)?;
        let count = usize::from(table.count);
        let headers = read_exact(&file, kernel, table.offset, count * PROGRAM_HEADER)?;
        let segments = parse_segments(&headers, length).map_err(format)?;
        let (base, end) = span(&segments).map_err(format)?;
        if !segments.iter().any(|s| (s.address..s.address + s.in_file).contains(&entry)) {
            return Err(format("its entry point lies outside of what is loaded"));
        }

        let (ramdisk, ramdisk_length) = open(initramfs)?;
        let ramdisk_at = end.next_multiple_of(PAGE);
        let stub_at = (ramdisk_at + ramdisk_length).next_multiple_of(PAGE);
        let total = (stub_at + STUB as u64 - base).next_multiple_of(UNIT);
        if base + total > HIGHEST {
            return Err(format("with its initramfs it is too large"));
        }
        let mut buffer =
            Buffer::new(total as usize).map_err(|source| KernelError::Io { path: kernel.to_owned(), source })?;
        for segment in &segments {
            let place = buffer.range(segment.address - base, segment.in_file);
            read_into(&file, kernel, segment.offset, place)?;
        }
        read_into(&ramdisk, initramfs, 0, buffer.range(ramdisk_at - base, ramdisk_length))?;
        let code = stub(ramdisk_at as u32, ramdisk_length as u32, entry);
        buffer.range(stub_at - base, STUB as u64).copy_from_slice(&code);
        Ok(Self { buffer, guest_address: base, entry: stub_at })
    }

    /// Memory to ask the engine for where the guest is to have `memory_mib` MiB.
    ///
    /// The engine puts up to 3,328 MiB above the kernel in one piece, even where they would reach into the addresses of
    /// the devices; then it is a little less.
    ///
    /// # Errors
    /// Too little memory; the engine would abort.
    pub fn fit_memory(&self, memory_mib: u32) -> Result<u32, KernelError> {
        let end = (self.guest_address + self.buffer.length as u64).div_ceil(1 << 20);
        if end > memory_mib.into() {
            return Err(KernelError::Memory { need_mib: end, have_mib: memory_mib.into() });
        }
        // The image lies in the first GiB, so both fit.
        let most = DEVICES_MIB - u32::try_from(end).unwrap_or(DEVICES_MIB).min(DEVICES_MIB);
        Ok(if memory_mib > DEVICES_MIB { memory_mib } else { memory_mib.min(most) })
    }

    /// Makes it the kernel that the engine of this process finds.
    ///
    /// # Errors
    /// There is one already.
    pub fn install(self) -> Result<(), KernelError> {
        INSTALLED.set(self).map_err(|_| KernelError::Taken)
    }
}

/// Gives the memory of the installed kernel back. Only once the engine has copied it (private-memory boot).
pub(super) fn release_installed() {
    if let Some(kernel) = INSTALLED.get() {
        kernel.buffer.discard();
    }
}

static INSTALLED: OnceLock<Kernel> = OnceLock::new();

/// The engine's way to its kernel; a null result is an error there.
///
/// # Safety
/// The three pointers must be valid for writes; the engine passes the addresses of its locals.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn krunfw_get_kernel(
    _path: *const c_char,
    guest_address: *mut u64,
    entry: *mut u64,
    size: *mut usize,
) -> *mut c_char {
    let Some(kernel) = INSTALLED.get() else {
        return std::ptr::null_mut();
    };
    // SAFETY: by this function's contract.
    unsafe {
        guest_address.write(kernel.guest_address);
        entry.write(kernel.entry);
        size.write(kernel.buffer.length);
    }
    kernel.buffer.start.cast()
}

fn open(path: &Path) -> Result<(File, u64), KernelError> {
    let io = |source| KernelError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    let format = |what| KernelError::Format { path: path.to_owned(), what };
    if !metadata.is_file() {
        return Err(format("no regular file"));
    }
    match metadata.len() {
        0 => Err(format("empty")),
        length if length > MOST_FILE => Err(format("longer than 512 MiB")),
        length => Ok((file, length)),
    }
}

fn read_exact(file: &File, path: &Path, offset: u64, length: usize) -> Result<Vec<u8>, KernelError> {
    let mut bytes = vec![0; length];
    read_into(file, path, offset, &mut bytes)?;
    Ok(bytes)
}

fn read_into(file: &File, path: &Path, offset: u64, place: &mut [u8]) -> Result<(), KernelError> {
    file.read_exact_at(place, offset).map_err(|source| match source.kind() {
        io::ErrorKind::UnexpectedEof => KernelError::Format { path: path.to_owned(), what: "cut off" },
        _ => KernelError::Io { path: path.to_owned(), source },
    })
}

struct Table {
    offset: u64,
    count: u16,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn parse_header(header: &[u8]) -> Result<(u64, Table), &'static str> {
    if !header.starts_with(b"\x7fELF\x02\x01\x01") {
        return Err("no 64-bit little-endian ELF file");
    }
    if u16_at(header, 16) != EXECUTABLE || u16_at(header, 18) != X86_64 {
        return Err("no x86-64 kernel");
    }
    let (size, count) = (u16_at(header, 54), u16_at(header, 56));
    if usize::from(size) != PROGRAM_HEADER || count == 0 || count > MOST_SEGMENTS {
        return Err("its program headers are malformed");
    }
    Ok((u64_at(header, 24), Table { offset: u64_at(header, 32), count }))
}

/// The loaded segments, each checked to lie in the file and in the accepted addresses, in order and disjoint.
fn parse_segments(headers: &[u8], file_length: u64) -> Result<Vec<Segment>, &'static str> {
    let mut segments = Vec::new();
    for header in headers.chunks_exact(PROGRAM_HEADER).filter(|h| u32_at(h, 0) == LOADED) {
        let segment = Segment {
            offset: u64_at(header, 8),
            address: u64_at(header, 24),
            in_file: u64_at(header, 32),
            in_memory: u64_at(header, 40),
        };
        if segment.in_memory == 0 {
            continue;
        }
        if segment.in_file > segment.in_memory {
            return Err("a segment is longer in the file than in memory");
        }
        if segment.offset.checked_add(segment.in_file).is_none_or(|end| end > file_length) {
            return Err("cut off");
        }
        if segment.address < LOWEST || segment.address.checked_add(segment.in_memory).is_none_or(|e| e > HIGHEST) {
            return Err("a segment lies outside of the first GiB");
        }
        segments.push(segment);
    }
    segments.sort_by_key(|s| s.address);
    if segments.windows(2).any(|pair| pair[0].address + pair[0].in_memory > pair[1].address) {
        return Err("its segments overlap");
    }
    Ok(segments)
}

fn span(segments: &[Segment]) -> Result<(u64, u64), &'static str> {
    let (Some(first), Some(last)) = (segments.first(), segments.last()) else {
        return Err("nothing in it is loaded");
    };
    if !first.address.is_multiple_of(PAGE) {
        return Err("it does not start on a page");
    }
    Ok((first.address, last.address + last.in_memory))
}

/// `mov dword [rsi+0x218], at; mov dword [rsi+0x21c], length; mov rax, entry; jmp rax`.
fn stub(at: u32, length: u32, entry: u64) -> [u8; STUB] {
    let mut code = [0; STUB];
    for (place, field, value) in [(0, RAMDISK_IMAGE, at), (10, RAMDISK_SIZE, length)] {
        code[place..place + 2].copy_from_slice(&[0xc7, 0x86]);
        code[place + 2..place + 6].copy_from_slice(&field.to_le_bytes());
        code[place + 6..place + 10].copy_from_slice(&value.to_le_bytes());
    }
    code[20..22].copy_from_slice(&[0x48, 0xb8]);
    code[22..30].copy_from_slice(&entry.to_le_bytes());
    code[30..32].copy_from_slice(&[0xff, 0xe0]);
    code
}

/// Zeroed, page-aligned, writable memory that is never given back: a guest may be mapped onto it.
#[derive(Debug)]
struct Buffer {
    start: *mut u8,
    length: usize,
}

// SAFETY: the memory belongs to this value alone; it is written through `&mut` before it is shared, and afterwards
// only the engine touches it.
unsafe impl Send for Buffer {}
// SAFETY: as above; `&Buffer` gives out nothing but its address and length, and `discard` is one system call.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn new(length: usize) -> io::Result<Self> {
        // SAFETY: a new anonymous mapping touches no memory that anything else uses.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), length })
    }

    /// The part at this offset; empty where it would not lie inside.
    fn range(&mut self, offset: u64, length: u64) -> &mut [u8] {
        let end = offset.checked_add(length).filter(|end| *end <= self.length as u64);
        if end.is_none() {
            return &mut [];
        }
        // SAFETY: inside the mapping (checked), which is readable, writable, initialised by the kernel, lives as long
        // as the process and is borrowed through `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(offset as usize), length as usize) }
    }

    fn discard(&self) {
        // SAFETY: the range is this mapping; its pages read as zeros afterwards, and nobody reads them any more.
        unsafe { libc::madvise(self.start.cast(), self.length, libc::MADV_DONTNEED) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(entry: u64, segments: &[(u64, &[u8], u64)]) -> Vec<u8> {
        let mut file = vec![0u8; ELF_HEADER + segments.len() * PROGRAM_HEADER];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        file[16..18].copy_from_slice(&2u16.to_le_bytes());
        file[18..20].copy_from_slice(&62u16.to_le_bytes());
        file[24..32].copy_from_slice(&entry.to_le_bytes());
        file[32..40].copy_from_slice(&64u64.to_le_bytes());
        file[54..56].copy_from_slice(&56u16.to_le_bytes());
        file[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
        for (i, (address, bytes, in_memory)) in segments.iter().enumerate() {
            let offset = file.len() as u64;
            let header = &mut file[ELF_HEADER + i * PROGRAM_HEADER..][..PROGRAM_HEADER];
            header[0..4].copy_from_slice(&1u32.to_le_bytes());
            header[8..16].copy_from_slice(&offset.to_le_bytes());
            header[24..32].copy_from_slice(&address.to_le_bytes());
            header[32..40].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
            header[40..48].copy_from_slice(&in_memory.to_le_bytes());
            file.extend_from_slice(bytes);
        }
        file
    }

    fn load(kernel: &[u8], initramfs: &[u8]) -> Result<Kernel, KernelError> {
        let dir = tempfile::tempdir().unwrap();
        let (k, i) = (dir.path().join("vmlinux"), dir.path().join("initramfs"));
        std::fs::write(&k, kernel).unwrap();
        std::fs::write(&i, initramfs).unwrap();
        Kernel::load(&k, &i)
    }

    #[test]
    fn segments_initramfs_and_stub_lie_where_the_guest_expects_them() {
        let file = elf(0x100_0004, &[(0x100_0000, b"text....", 8), (0x100_1000, b"data", 0x2000)]);
        let mut kernel = load(&file, b"archive").unwrap();
        assert_eq!(kernel.guest_address, 0x100_0000);
        assert_eq!(kernel.buffer.length, 0x10000);
        assert_eq!(kernel.buffer.range(0, 8), b"text....");
        assert_eq!(kernel.buffer.range(0x1000, 6), b"data\0\0");
        assert_eq!(kernel.buffer.range(0x3000, 8), b"archive\0");
        assert_eq!(kernel.entry, 0x100_4000);
        let code = kernel.buffer.range(0x4000, STUB as u64).to_vec();
        assert_eq!(code[..10], [0xc7, 0x86, 0x18, 0x02, 0, 0, 0x00, 0x30, 0x00, 0x01]);
        assert_eq!(code[10..20], [0xc7, 0x86, 0x1c, 0x02, 0, 0, 7, 0, 0, 0]);
        assert_eq!(code[20..30], [0x48, 0xb8, 4, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!(code[30..32], [0xff, 0xe0]);
        assert_eq!(kernel.fit_memory(17).unwrap(), 17);
        assert!(matches!(kernel.fit_memory(16), Err(KernelError::Memory { need_mib: 17, have_mib: 16 })));
        assert_eq!([3311, 3312, 3328, 3329].map(|mib| kernel.fit_memory(mib).unwrap()), [3311, 3311, 3311, 3329]);
        kernel.buffer.discard();
        assert_eq!(kernel.buffer.range(0, 8), [0; 8]);
    }

    #[test]
    fn hostile_files_are_refused() {
        let good = elf(0x100_0000, &[(0x100_0000, b"text", 4)]);
        assert!(load(&good, b"x").is_ok());
        assert!(load(&good, b"").is_err());
        assert!(load(b"", b"x").is_err());
        assert!(load(b"MZ", b"x").is_err());
        for cut in [10, ELF_HEADER, ELF_HEADER + 10, good.len() - 1] {
            assert!(load(&good[..cut], b"x").is_err(), "cut at {cut}");
        }
        for (entry, segments) in [
            (0x100_0004, vec![(0x100_0000, &b"text"[..], 4)]),
            (0x100_0000, vec![(0x100_0000, &b"text"[..], 3)]),
            (0x100_0000, vec![(0x100_0000, &b"text"[..], u64::MAX)]),
            (0x1000, vec![(0x1000, &b"text"[..], 4)]),
            (0x100_0000, vec![(0x100_0000, &b"text"[..], 4), (0x100_0002, &b"x"[..], 1)]),
            (0x100_0008, vec![(0x100_0008, &b"text"[..], 4)]),
            (0x3fff_f000, vec![(0x3fff_f000, &b"text"[..], 4096)]),
            (0, vec![]),
        ] {
            assert!(load(&elf(entry, &segments), b"x").is_err(), "{entry:x} {segments:?}");
        }
    }
}
