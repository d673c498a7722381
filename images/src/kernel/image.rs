//! A kernel's ELF file, laid out as the VM engine takes it: one block of memory, its guest address and the entry point.
//!
//! The file may come from anywhere, so every number in it is checked before it is used.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use object::LittleEndian;
use object::elf::{ET_EXEC, FileHeader64, PF_X, PT_LOAD, ProgramHeader64};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

/// Largest kernel file that is read, in bytes. Built with all debug information a kernel of ours would have 300 MiB.
const MAX_FILE: u64 = 512 << 20;
/// Largest block that a kernel may take in guest memory, in bytes.
const MAX_SPAN: u64 = 256 << 20;
/// The block lies below this guest address: the engine's devices begin at 3.25 GiB.
const MAX_ADDRESS: u64 = 0xd000_0000;
/// The block lies at or above this guest address: boot parameters, command line and page tables are below.
const MIN_ADDRESS: u64 = 0x10_0000;
/// The engine wants the block's address and size in multiples of this, in bytes: the largest page size of any host.
const ALIGNMENT: usize = 64 << 10;
/// More program headers than any kernel has.
const MAX_HEADERS: usize = 64;

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = object::elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = object::elf::EM_AARCH64;

/// Why a file can't be booted. Lower-case fragments; the file is named by those variants that touch it.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The file can't be read.
    #[error("can't read the guest kernel {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is larger than any kernel.
    #[error("{size} bytes are too many for a guest kernel (limit {MAX_FILE})")]
    TooLarge {
        /// Size of the file in bytes.
        size: u64,
    },
    /// The file is no 64-bit ELF executable for this machine, or its headers are damaged.
    #[error("not a bootable kernel: {0}")]
    Malformed(&'static str),
}

/// Where a kernel goes in guest memory. Restoring a checkpoint needs this without the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelLayout {
    /// Guest physical address of the block: a multiple of 64 KiB.
    pub guest_addr: u64,
    /// Guest physical address of the first instruction; inside the block.
    pub entry: u64,
    /// Size of the block in bytes: a multiple of 64 KiB.
    pub size: usize,
}

/// A kernel as it lies in guest memory before the first instruction.
pub struct KernelImage {
    layout: KernelLayout,
    block: AlignedBlock,
}

impl KernelImage {
    /// Reads and lays out the ELF file at `path`.
    ///
    /// # Errors
    /// The file can't be read, is too large, or is no kernel for this kind of machine.
    pub fn load(path: &Path) -> Result<Self, ImageError> {
        Self::parse(&read(path)?)
    }

    /// Lays out the bytes of an ELF file.
    ///
    /// # Errors
    /// The bytes are no kernel for this kind of machine.
    pub fn parse(elf: &[u8]) -> Result<Self, ImageError> {
        let (layout, segments) = plan(elf)?;
        let mut block = AlignedBlock::zeroed(layout.size);
        for segment in segments {
            let start = usize::try_from(segment.address - layout.guest_addr).map_err(|_| OUT_OF_RANGE)?;
            let target = start.checked_add(segment.content.len()).and_then(|end| block.bytes_mut().get_mut(start..end));
            target.ok_or(OUT_OF_RANGE)?.copy_from_slice(segment.content);
        }
        Ok(Self { layout, block })
    }

    /// Where the block goes.
    pub fn layout(&self) -> KernelLayout {
        self.layout
    }

    /// The block; it starts at a host address that is a multiple of 64 KiB and does not move while `self` lives.
    pub fn bytes(&self) -> &[u8] {
        self.block.bytes()
    }

    /// The block, writable: an engine that maps it into the guest lets the guest write it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.block.bytes_mut()
    }
}

impl std::fmt::Debug for KernelImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelImage").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl KernelLayout {
    /// Where the kernel at `path` goes.
    ///
    /// # Errors
    /// As [`KernelImage::load`].
    pub fn read(path: &Path) -> Result<Self, ImageError> {
        Ok(plan(&read(path)?)?.0)
    }
}

const OUT_OF_RANGE: ImageError = ImageError::Malformed("a segment lies outside of the image");

struct Segment<'a> {
    /// Guest physical address.
    address: u64,
    content: &'a [u8],
}

fn read(path: &Path) -> Result<Vec<u8>, ImageError> {
    let failed = |source| ImageError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(ImageError::Malformed("not a regular file"));
    }
    if meta.len() > MAX_FILE {
        return Err(ImageError::TooLarge { size: meta.len() });
    }
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0));
    file.take(MAX_FILE).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Checks the headers and finds the segments that have content, lowest address first.
fn plan(elf: &[u8]) -> Result<(KernelLayout, Vec<Segment<'_>>), ImageError> {
    let header =
        FileHeader64::<LittleEndian>::parse(elf).map_err(|_| ImageError::Malformed("no 64-bit ELF file header"))?;
    let endian = header.endian().map_err(|_| ImageError::Malformed("not little-endian"))?;
    if header.e_machine.get(endian) != MACHINE {
        return Err(ImageError::Malformed("built for another kind of processor"));
    }
    if header.e_type.get(endian) != ET_EXEC {
        return Err(ImageError::Malformed("not linked for a fixed address"));
    }
    let headers = header
        .program_headers(endian, elf)
        .map_err(|_| ImageError::Malformed("the program headers lie outside of the file"))?;
    if headers.len() > MAX_HEADERS {
        return Err(ImageError::Malformed("too many program headers"));
    }
    let mut segments = Vec::new();
    let entry = header.e_entry.get(endian);
    let mut entry_is_code = false;
    for program in headers.iter().filter(|h| h.p_type.get(endian) == PT_LOAD && h.p_filesz.get(endian) > 0) {
        let segment = segment(program, endian, elf)?;
        let inside = entry >= segment.address && entry - segment.address < segment.content.len() as u64;
        entry_is_code |= inside && program.p_flags.get(endian) & PF_X != 0;
        segments.push(segment);
    }
    if !entry_is_code {
        return Err(ImageError::Malformed("the entry point is in no executable segment"));
    }
    segments.sort_by_key(|s| s.address);
    Ok((layout(&segments, entry)?, segments))
}

fn segment<'a>(
    program: &ProgramHeader64<LittleEndian>,
    endian: LittleEndian,
    elf: &'a [u8],
) -> Result<Segment<'a>, ImageError> {
    let content = program
        .data(endian, elf)
        .map_err(|()| ImageError::Malformed("the content of a segment lies outside of the file"))?;
    if program.p_memsz.get(endian) < program.p_filesz.get(endian) {
        return Err(ImageError::Malformed("a segment is larger in the file than in memory"));
    }
    let address = program.p_paddr.get(endian);
    let end = address.checked_add(program.p_memsz.get(endian));
    match end {
        Some(end) if address >= MIN_ADDRESS && end <= MAX_ADDRESS => Ok(Segment { address, content }),
        _ => Err(ImageError::Malformed("a segment lies outside of the guest's memory for kernels")),
    }
}

/// The block that holds all of `segments`, which are sorted and whose ends do not overflow.
fn layout(segments: &[Segment<'_>], entry: u64) -> Result<KernelLayout, ImageError> {
    let first = segments.first().ok_or(ImageError::Malformed("no segments"))?;
    if segments.windows(2).any(|s| s[0].address + s[0].content.len() as u64 > s[1].address) {
        return Err(ImageError::Malformed("two segments overlap"));
    }
    let guest_addr = first.address;
    if !guest_addr.is_multiple_of(ALIGNMENT as u64) {
        return Err(ImageError::Malformed("the load address is not a multiple of 64 KiB"));
    }
    let end = segments.iter().map(|s| s.address + s.content.len() as u64).max().unwrap_or(guest_addr);
    let span = (end - guest_addr).next_multiple_of(ALIGNMENT as u64);
    if span > MAX_SPAN {
        return Err(ImageError::Malformed("the segments are too far apart"));
    }
    let size = usize::try_from(span).map_err(|_| OUT_OF_RANGE)?;
    Ok(KernelLayout { guest_addr, entry, size })
}

/// Zeroed memory at an aligned address, without unsafe code: a slightly larger vector, and the part of it to use.
struct AlignedBlock {
    memory: Vec<u8>,
    start: usize,
    size: usize,
}

impl AlignedBlock {
    fn zeroed(size: usize) -> Self {
        let memory = vec![0; size + ALIGNMENT];
        let address = memory.as_ptr().addr();
        Self { start: address.next_multiple_of(ALIGNMENT) - address, memory, size }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.size]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.size]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const HEADER: usize = 64;
    const PROGRAM: usize = 56;

    /// Code of 0x2345 bytes at 16 MiB, data of 100 bytes (and 5000 of zeros) 3 MiB higher.
    pub(in crate::kernel) fn kernel() -> Vec<u8> {
        let mut elf = vec![0u8; 0x1000];
        elf[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        put(&mut elf, 16, &ET_EXEC.to_le_bytes());
        put(&mut elf, 18, &MACHINE.to_le_bytes());
        put(&mut elf, 20, &1u32.to_le_bytes());
        put(&mut elf, 24, &0x100_0010u64.to_le_bytes());
        put(&mut elf, 32, &(HEADER as u64).to_le_bytes());
        put(&mut elf, 52, &(HEADER as u16).to_le_bytes());
        put(&mut elf, 54, &(PROGRAM as u16).to_le_bytes());
        put(&mut elf, 56, &2u16.to_le_bytes());
        program(&mut elf, 0, 5, 0x1000, 0x100_0000, 0x2345, 0x2345);
        program(&mut elf, 1, 6, 0x1000 + 0x2345, 0x130_0000, 100, 5100);
        elf.extend((0..0x2345 + 100).map(|i| (i % 251) as u8));
        elf
    }

    fn put(elf: &mut [u8], at: usize, bytes: &[u8]) {
        elf[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn program(elf: &mut [u8], index: usize, flags: u32, offset: u64, address: u64, in_file: u64, in_memory: u64) {
        let at = HEADER + index * PROGRAM;
        put(elf, at, &PT_LOAD.to_le_bytes());
        put(elf, at + 4, &flags.to_le_bytes());
        for (field, value) in [offset, 0xffff_ffff_8100_0000, address, in_file, in_memory].into_iter().enumerate() {
            put(elf, at + 8 + 8 * field, &value.to_le_bytes());
        }
    }

    #[test]
    fn segments_lie_at_their_physical_addresses() {
        let elf = kernel();
        let mut image = KernelImage::parse(&elf).unwrap();
        let size = (0x30_0000 + 100usize).next_multiple_of(ALIGNMENT);
        assert_eq!(image.layout(), KernelLayout { guest_addr: 0x100_0000, entry: 0x100_0010, size });
        assert_eq!(image.bytes().len(), size);
        assert_eq!(image.bytes().as_ptr().addr() % ALIGNMENT, 0);
        assert_eq!(image.bytes()[..0x2345], elf[0x1000..0x1000 + 0x2345]);
        assert_eq!(image.bytes()[0x30_0000..0x30_0000 + 100], elf[0x1000 + 0x2345..]);
        assert!(image.bytes()[0x2345..0x30_0000].iter().chain(&image.bytes()[0x30_0000 + 100..]).all(|b| *b == 0));
        image.bytes_mut()[0] = 1;
    }

    #[test]
    fn one_broken_field_is_one_refusal() {
        let broken: [(&str, usize, &[u8]); 17] = [
            ("magic", 0, b"x"),
            ("32 bits", 4, &[1]),
            ("big-endian", 5, &[2]),
            ("another machine", 18, &[3, 0]),
            ("relocatable", 16, &[3, 0]),
            ("entry outside", 24, &0x200_0000u64.to_le_bytes()),
            ("entry in data", 24, &0x130_0000u64.to_le_bytes()),
            ("headers outside of the file", 32, &u64::MAX.to_le_bytes()),
            ("odd size of headers", 54, &[57, 0]),
            ("more headers than the file has", 56, &[0xfe, 0xff]),
            ("no headers", 56, &[0, 0]),
            ("content outside of the file", HEADER + 8, &0x10_0000u64.to_le_bytes()),
            ("content overflows", HEADER + 8, &u64::MAX.to_le_bytes()),
            ("address overflows", HEADER + 24, &(u64::MAX - 2).to_le_bytes()),
            ("address below the kernel's memory", HEADER + 24, &0x1000u64.to_le_bytes()),
            ("larger in the file", HEADER + 40, &1u64.to_le_bytes()),
            ("memory overflows", HEADER + 40, &u64::MAX.to_le_bytes()),
        ];
        for (what, at, bytes) in broken {
            let mut elf = kernel();
            put(&mut elf, at, bytes);
            assert!(KernelImage::parse(&elf).is_err(), "{what}");
        }
        let second = HEADER + PROGRAM + 24;
        for (what, address) in
            [("overlap", 0x100_2000u64), ("too far apart", 0x100_0000 + MAX_SPAN), ("devices", MAX_ADDRESS - 50)]
        {
            let mut elf = kernel();
            put(&mut elf, second, &address.to_le_bytes());
            assert!(KernelImage::parse(&elf).is_err(), "{what}");
        }
        let mut elf = kernel();
        put(&mut elf, HEADER + 24, &0x100_1000u64.to_le_bytes());
        put(&mut elf, 24, &0x100_1010u64.to_le_bytes());
        assert!(KernelImage::parse(&elf).is_err(), "unaligned load address");
    }

    #[test]
    fn every_cut_is_refused() {
        let elf = kernel();
        for end in (0..HEADER + 2 * PROGRAM).chain([0x1000, elf.len() - 1]) {
            assert!(KernelImage::parse(&elf[..end]).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn a_directory_and_a_missing_file_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(KernelImage::load(dir.path()), Err(ImageError::Malformed(_))));
        assert!(matches!(KernelLayout::read(&dir.path().join("vmlinux")), Err(ImageError::Read { .. })));
    }
}
