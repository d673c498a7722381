//! Extended attributes of lower and target files: only `user.*` is staged.

use std::collections::BTreeMap;

use rustix::fd::AsFd;
use rustix::fs::{fgetxattr, flistxattr};

use crate::Errno;

/// Attributes by name.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Largest value the kernel takes, in bytes.
pub(crate) const MAX_XATTR_VALUE: usize = 64 * 1024;
/// Most bytes of names and values that one node may carry.
pub(crate) const MAX_XATTR_TOTAL: usize = 4 * 1024 * 1024;

/// Whether a stage keeps, compares and applies the attribute.
pub(crate) fn is_kept_xattr(name: &[u8]) -> bool {
    name.len() > 5 && name.len() <= 255 && name.starts_with(b"user.") && !name.contains(&0)
}

/// Reads the kept attributes of an open file or directory (not `O_PATH`).
pub(crate) fn read_xattrs(fd: impl AsFd) -> Result<Xattrs, Errno> {
    let mut names = vec![0; MAX_XATTR_VALUE];
    let length = match flistxattr(&fd, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(Xattrs::new()),
        Err(e) => return Err(e),
    };
    let mut out = Xattrs::new();
    let mut total = 0;
    let mut value = Vec::new();
    for name in names[..length].split(|b| *b == 0).filter(|n| is_kept_xattr(n)) {
        value.resize(MAX_XATTR_VALUE, 0);
        let length = match fgetxattr(&fd, name, &mut value[..]) {
            Ok(length) => length,
            // Removed since it was listed.
            Err(Errno::NODATA) => continue,
            Err(e) => return Err(e),
        };
        total += name.len() + length;
        if total > MAX_XATTR_TOTAL {
            return Err(Errno::TOOBIG);
        }
        out.insert(name.to_vec(), value[..length].to_vec());
    }
    Ok(out)
}
