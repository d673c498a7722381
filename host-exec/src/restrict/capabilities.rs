//! Capabilities of the command: none, and no way to get any.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// Highest number that a capability can have.
const MOST: u32 = 63;

/// Empties the bounding set, so that no program that is executed adds a capability, one of user 0 included. Needs
/// CAP_SETPCAP; without it there is none to add that `no_new_privs` does not keep away.
pub(super) fn empty_bounding_set() -> Result<(), Errno> {
    for number in 0..=MOST {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match capability_is_in_bounding_set(capability) {
            Ok(false) => {}
            Ok(true) => match remove_capability_from_bounding_set(capability) {
                Ok(()) => {}
                // Of somebody who has none himself.
                Err(Errno::PERM) => return Ok(()),
                Err(error) => return Err(error),
            },
            // Past the last one that this kernel has.
            Err(Errno::INVAL) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Gives up every capability of this thread.
pub(super) fn drop_all() -> Result<(), Errno> {
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}
