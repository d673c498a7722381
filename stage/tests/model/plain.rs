//! The plain directory.

use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use pvisor_stage::Errno;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Timestamps, Uid, XattrFlags, chownat, fchmod, linkat,
    mkdirat, mknodat, openat, renameat_with, symlinkat, unlinkat, utimensat,
};
use rustix::time::Timespec;

use crate::operation::{Names, Operation};
use crate::tree::Seen;

pub struct Plain {
    root: PathBuf,
    held: RefCell<Vec<File>>,
}

/// Makes the tree that every test starts from.
pub fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("a/b/e")).unwrap();
    for (name, content) in
        [("f", &b"file"[..]), ("a/f", b"inner\n"), ("a/b/deep", b"deep content"), ("a/h1", b"linked")]
    {
        fs::write(dir.join(name), content).unwrap();
    }
    fs::create_dir(dir.join("e")).unwrap();
    fs::hard_link(dir.join("a/h1"), dir.join("h2")).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.join("l")).unwrap();
    mknodat(CWD, dir.join("pipe"), FileType::Fifo, Mode::from(0o644), 0).unwrap();
    let sparse = File::create(dir.join("sparse")).unwrap();
    sparse.set_len(1 << 20).unwrap();
    sparse.write_all_at(b"data in the middle", 500_000).unwrap();
    rustix::fs::setxattr(dir.join("a/f"), "user.one", b"first", XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(dir.join("a/b"), "user.two", b"of a directory", XattrFlags::empty()).unwrap();
    fs::set_permissions(dir.join("a/f"), fs::Permissions::from_mode(0o640)).unwrap();
    for (n, path) in ["f", "a/f", "a/b/deep", "a/h1", "sparse", "pipe", "l"].into_iter().enumerate() {
        set_mtime(CWD.as_fd(), dir.join(path).as_os_str().as_encoded_bytes(), 5000 + n as i64).unwrap();
    }
}

fn set_mtime(dir: rustix::fd::BorrowedFd<'_>, name: &[u8], seconds: i64) -> Result<(), Errno> {
    let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let times = Timestamps { last_access: omit, last_modification: Timespec { tv_sec: seconds, tv_nsec: 77 } };
    utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)
}

impl Plain {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), held: RefCell::default() }
    }

    pub fn path(&self) -> &Path {
        &self.root
    }

    fn parent<'a>(&self, names: &'a Names) -> Result<(OwnedFd, &'a str), Errno> {
        let (last, above) = names.split_last().unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let mut dir = openat(CWD, &self.root, flags, Mode::empty())?;
        for name in above {
            dir = openat(&dir, name.as_str(), flags, Mode::empty())?;
        }
        Ok((dir, last))
    }

    /// Of the last name itself, as `lstat` sees it.
    fn kind(&self, names: &Names) -> Result<FileType, Errno> {
        let (dir, name) = self.parent(names)?;
        let stat = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(FileType::from_raw_mode(stat.st_mode))
    }

    fn open(&self, names: &Names, flags: OFlags) -> Result<File, Errno> {
        match self.kind(names)? {
            FileType::RegularFile => {}
            FileType::Directory => return Err(Errno::ISDIR),
            FileType::Symlink => return Err(Errno::LOOP),
            _ => return Err(Errno::NXIO),
        }
        let (dir, name) = self.parent(names)?;
        Ok(openat(&dir, name, flags | OFlags::NOFOLLOW, Mode::empty())?.into())
    }

    /// `/proc/self/fd/N/name`, for calls that take no directory.
    fn magic(dir: &OwnedFd, name: &str) -> PathBuf {
        use rustix::fd::AsRawFd;
        PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name)
    }

    /// What can be seen through a kept descriptor.
    fn held_read(&self, at: usize) -> Result<Seen, Errno> {
        let held = self.held.borrow();
        let file = held.get(at).ok_or(Errno::BADF)?;
        let meta = file.metadata().unwrap();
        let mut bytes = vec![0; usize::try_from(meta.len()).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        Ok(Seen { bytes, nlink: u32::try_from(meta.nlink()).unwrap(), size: meta.len() })
    }

    pub fn run(&self, operation: &Operation) -> Result<Option<Seen>, Errno> {
        use Operation::*;
        match operation {
            HeldRead(n) => self.held_read(*n).map(Some),
            other => self.change(other).map(|()| None),
        }
    }

    fn change(&self, operation: &Operation) -> Result<(), Errno> {
        use Operation::*;
        match operation {
            HeldRead(_) => Ok(()),
            Hold(p, write) => {
                let file = self.open(p, if *write { OFlags::RDWR } else { OFlags::RDONLY })?;
                self.held.borrow_mut().push(file);
                Ok(())
            }
            HeldWrite(n, offset, bytes) => {
                let held = self.held.borrow();
                rustix::io::pwrite(held.get(*n).ok_or(Errno::BADF)?, bytes, *offset).map(drop)
            }
            HeldTruncate(n, size) => {
                let held = self.held.borrow();
                match rustix::fs::ftruncate(held.get(*n).ok_or(Errno::BADF)?, *size) {
                    Err(Errno::INVAL) => Err(Errno::BADF),
                    other => other,
                }
            }
            Release(n) => {
                let mut held = self.held.borrow_mut();
                if *n < held.len() {
                    held.remove(*n);
                }
                Ok(())
            }
            Create(p, mode) => {
                let (dir, name) = self.parent(p)?;
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
                let file = openat(&dir, name, flags, Mode::from(0o600))?;
                fchmod(&file, Mode::from(*mode))
            }
            Write(p, offset, bytes) => {
                let file = self.open(p, OFlags::WRONLY)?;
                rustix::io::pwrite(&file, bytes, *offset).map(drop)
            }
            Append(p, bytes) => {
                let file = self.open(p, OFlags::WRONLY)?;
                rustix::io::pwrite(&file, bytes, file.metadata().unwrap().len()).map(drop)
            }
            Rewrite(p, bytes) => {
                let file = self.open(p, OFlags::WRONLY | OFlags::TRUNC)?;
                rustix::io::pwrite(&file, bytes, 0).map(drop)
            }
            Truncate(p, size) => match self.kind(p)? {
                FileType::RegularFile => rustix::fs::ftruncate(self.open(p, OFlags::WRONLY)?, *size),
                FileType::Directory => Err(Errno::ISDIR),
                _ => Err(Errno::INVAL),
            },
            Mkdir(p, mode) => {
                let (dir, name) = self.parent(p)?;
                mkdirat(&dir, name, Mode::from(0o700))?;
                let inherited = rustix::fs::statat(&dir, name, AtFlags::empty())?.st_mode & 0o2000;
                rustix::fs::chmodat(&dir, name, Mode::from(*mode | inherited), AtFlags::empty())
            }
            Rmdir(p) => self.parent(p).and_then(|(dir, name)| unlinkat(&dir, name, AtFlags::REMOVEDIR)),
            Unlink(p) => self.parent(p).and_then(|(dir, name)| unlinkat(&dir, name, AtFlags::empty())),
            RemoveAll(p) => {
                self.kind(p)?;
                let path = p.iter().fold(self.root.clone(), |dir, name| dir.join(name));
                match self.kind(p)? {
                    FileType::Directory => fs::remove_dir_all(path).unwrap(),
                    _ => fs::remove_file(path).unwrap(),
                }
                Ok(())
            }
            Rename(a, b, flags) => {
                let ((from, name), (to, new)) = (self.parent(a)?, self.parent(b)?);
                renameat_with(&from, name, &to, new, RenameFlags::from_bits_retain(*flags))
            }
            Symlink(p, target) => self.parent(p).and_then(|(dir, name)| symlinkat(target.as_str(), &dir, name)),
            Fifo(p) => {
                let (dir, name) = self.parent(p)?;
                mknodat(&dir, name, FileType::Fifo, Mode::from(0o644), 0)
            }
            Link(a, b) => {
                let ((from, name), (to, new)) = (self.parent(a)?, self.parent(b)?);
                linkat(&from, name, &to, new, AtFlags::empty())
            }
            Chmod(p, mode) => {
                if self.kind(p)? == FileType::Symlink {
                    return Err(Errno::OPNOTSUPP);
                }
                let (dir, name) = self.parent(p)?;
                rustix::fs::chmodat(&dir, name, Mode::from(*mode), AtFlags::empty())
            }
            Chown(p, uid, gid) => {
                let (dir, name) = self.parent(p)?;
                let before = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
                chownat(&dir, name, Some(Uid::from_raw(*uid)), Some(Gid::from_raw(*gid)), AtFlags::SYMLINK_NOFOLLOW)?;
                if FileType::from_raw_mode(before.st_mode) != FileType::Symlink {
                    // Which bits a chown drops is the caller's business, not the stage's.
                    let mode = Mode::from_raw_mode(before.st_mode & 0o7777);
                    rustix::fs::chmodat(&dir, name, mode, AtFlags::empty())?;
                }
                Ok(())
            }
            SetMtime(p, seconds) => {
                let (dir, name) = self.parent(p)?;
                set_mtime(dir.as_fd(), name.as_bytes(), *seconds)
            }
            SetXattr(p, attribute, value, flags) => {
                let (dir, name) = self.parent(p)?;
                let flags = XattrFlags::from_bits_retain(*flags);
                rustix::fs::lsetxattr(Self::magic(&dir, name), attribute.as_str(), value, flags)
            }
            RemoveXattr(p, attribute) => {
                let (dir, name) = self.parent(p)?;
                rustix::fs::lremovexattr(Self::magic(&dir, name), attribute.as_str())
            }
            Forget => Ok(()),
        }
    }
}
