//! Extended attributes.

use pvisor_stage::NodeId;
use rustix::io::Errno;

use crate::filesystem::StageFs;

/// Longest name, in bytes.
const MAX_NAME: usize = 255;
/// Longest value and longest list of names, in bytes.
const MAX_VALUE: usize = 64 << 10;

impl StageFs {
    /// Value of an attribute.
    ///
    /// # Errors
    /// ENODATA: not there; EOPNOTSUPP: a kind of attribute that is not kept.
    pub fn get_xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let stage = self.enter()?;
        check_name(name)?;
        stage.get_xattr(node, name)
    }

    /// Sets an attribute. `flags`: 1 to make a new one only, 2 to replace one only.
    ///
    /// # Errors
    /// As `setxattr`; EOPNOTSUPP: a kind of attribute that is not kept.
    pub fn set_xattr(&self, node: NodeId, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> {
        let stage = self.enter()?;
        check_name(name)?;
        if value.len() > MAX_VALUE {
            return Err(Errno::TOOBIG);
        }
        let flags = pvisor_stage::XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        stage.set_xattr(node, name, value, flags)
    }

    /// Names of all attributes, each ended by a zero byte.
    ///
    /// # Errors
    /// E2BIG: more than fit; or what the lower answers.
    pub fn list_xattr(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        let stage = self.enter()?;
        let mut list = Vec::new();
        for name in stage.list_xattr(node)?.iter().filter(|name| check_name(name).is_ok()) {
            list.extend_from_slice(name);
            list.push(0);
        }
        if list.len() > MAX_VALUE { Err(Errno::TOOBIG) } else { Ok(list) }
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// ENODATA: not there; EOPNOTSUPP: a kind of attribute that is not kept.
    pub fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<(), Errno> {
        let stage = self.enter()?;
        check_name(name)?;
        stage.remove_xattr(node, name)
    }
}

/// # Errors
/// ERANGE: no such name can be; EOPNOTSUPP: access control lists, which the kernel would have to judge by.
fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.is_empty() || name.len() > MAX_NAME || name.contains(&0) {
        return Err(Errno::RANGE);
    }
    if name.starts_with(b"system.") { Err(Errno::OPNOTSUPP) } else { Ok(()) }
}
