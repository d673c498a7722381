//! Directories of the host that a guest sees empty: what the kernel makes up, and what belongs to one boot.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Directories that the guest has of its own.
pub(super) const GUESTS_OWN: [&str; 5] = ["/proc", "/sys", "/dev", "/run", "/tmp"];

/// Filesystems without files of anyone: views of the kernel, and mount points that do something when looked at.
const PSEUDO: [&str; 26] = [
    "autofs",
    "bdev",
    "binder",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "functionfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nfsd",
    "nsfs",
    "proc",
    "pstore",
    "resctrl",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// Where such filesystems are mounted now.
///
/// # Errors
/// `/proc/self/mountinfo` can't be read.
pub(super) fn pseudo_mounts() -> io::Result<Vec<PathBuf>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?))
}

fn parse(mountinfo: &[u8]) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = mountinfo
        .split(|b| *b == b'\n')
        .filter_map(|line| {
            let mut words = line.split(|b| *b == b' ');
            let place = words.nth(4)?;
            // Optional fields end with a dash; the type follows.
            let kind = words.skip_while(|word| *word != b"-").nth(1)?;
            PSEUDO.iter().any(|pseudo| pseudo.as_bytes() == kind).then(|| unescape(place))
        })
        .filter(|place| place.is_absolute() && place != Path::new("/"))
        .collect();
    found.sort();
    found.dedup();
    found
}

/// The kernel writes space, tab, newline and backslash as `\` and three octal digits.
fn unescape(word: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, tail)) = rest.split_first() {
        let code = (first == b'\\').then(|| tail.first_chunk::<3>()).flatten().and_then(octal);
        match code {
            Some(byte) => {
                path.push(byte);
                rest = &tail[3..];
            }
            None => {
                path.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsStr::from_bytes(&path))
}

fn octal(digits: &[u8; 3]) -> Option<u8> {
    let value = digits.iter().try_fold(0u32, |value, digit| Some(value * 8 + char::from(*digit).to_digit(8)?))?;
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pseudo_filesystems_count_and_their_places_are_unescaped() {
        let text = b"22 1 0:21 / /proc rw,relatime shared:5 - proc proc rw\n\
            1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
            30 1 0:30 / /srv/a\\040b\\134c rw shared:1 master:2 - tracefs none rw\n\
            31 1 8:2 / /home rw - ext4 /dev/sda2 rw\n\
            32 1 0:9 / / rw - proc proc rw\n\
            33 1 0:21 / /proc rw - proc proc rw\n\
            short line\n\
            34 1 0:4 / /odd\\09 rw - sysfs sysfs rw";
        let expected = ["/odd\\09", "/proc", "/srv/a b\\c"].map(PathBuf::from);
        assert_eq!(parse(text), expected);
        assert!(parse(b"").is_empty());
    }

    #[test]
    fn this_machine_has_a_proc() {
        assert!(pseudo_mounts().unwrap().contains(&PathBuf::from("/proc")));
    }
}
