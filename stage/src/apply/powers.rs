//! What this process may do to files, and what of a change that leaves.

use std::collections::BTreeSet;

use rustix::thread::CapabilitySet;

use super::print::Sight;
use crate::lower::is_kept_xattr;
use crate::{Fingerprint, Kind};

/// The caller's rights, as far as they decide which metadata can be given to a file.
#[derive(Clone, Debug)]
pub(crate) struct Powers {
    pub uid: u32,
    pub gid: u32,
    groups: BTreeSet<u32>,
    chown: bool,
    /// May change files of others.
    pub any_owner: bool,
    mknod: bool,
}

/// A change cut down to what can be done.
#[derive(Clone, Debug)]
pub(crate) struct Fitted {
    /// What the path will be.
    pub print: Fingerprint,
    /// What is left out, and why: lower-case fragments.
    pub left_out: Vec<String>,
}

impl Powers {
    /// Those of this process.
    pub fn current() -> Self {
        let has = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        let groups = rustix::process::getgroups().unwrap_or_default();
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(|g| g.as_raw()).collect(),
            chown: has.contains(CapabilitySet::CHOWN),
            any_owner: has.contains(CapabilitySet::FOWNER),
            mknod: has.contains(CapabilitySet::MKNOD),
        }
    }

    /// What can be made of `want` where `now` stands. `Err`: nothing at all, and why.
    pub fn fit(&self, want: &Fingerprint, now: Option<&Sight>) -> Result<Fitted, String> {
        match now {
            Some(now) if now.print.kind == want.kind => self.fit_existing(want, now),
            _ => self.fit_new(want),
        }
    }

    fn fit_new(&self, want: &Fingerprint) -> Result<Fitted, String> {
        if matches!(want.kind, Kind::CharDevice(_) | Kind::BlockDevice(_)) && !self.mknod {
            return Err("making device nodes needs root".to_owned());
        }
        let mut fitted = Fitted { print: want.clone(), left_out: Vec::new() };
        self.fit_owner(&mut fitted, self.uid, self.gid);
        fit_xattrs(&mut fitted, None);
        Ok(fitted)
    }

    fn fit_existing(&self, want: &Fingerprint, now: &Sight) -> Result<Fitted, String> {
        let (have, meta) = (&now.print.meta, &want.meta);
        if have.uid != self.uid && !self.any_owner && !now.print.same(want) {
            return Err(format!("it belongs to user {}", have.uid));
        }
        let mut fitted = Fitted { print: want.clone(), left_out: Vec::new() };
        if (have.uid, have.gid) != (meta.uid, meta.gid) {
            self.fit_owner(&mut fitted, have.uid, have.gid);
        }
        fit_xattrs(&mut fitted, Some(&now.print));
        Ok(fitted)
    }

    /// `uid` and `gid` are what the file has, or gets by itself.
    fn fit_owner(&self, fitted: &mut Fitted, uid: u32, gid: u32) {
        if self.chown {
            return;
        }
        let meta = &mut fitted.print.meta;
        if meta.uid != uid {
            fitted.left_out.push(format!("owner {} needs root", meta.uid));
            meta.uid = uid;
        }
        let member = uid == self.uid && (meta.gid == self.gid || self.groups.contains(&meta.gid));
        if meta.gid != gid && !member {
            fitted.left_out.push(format!("group {} needs root", meta.gid));
            meta.gid = gid;
        }
        // A program must not run as somebody else than it was meant to.
        let moved = !fitted.left_out.is_empty();
        if moved && meta.mode & 0o6000 != 0 && !matches!(fitted.print.kind, Kind::Directory) {
            fitted.left_out.push("set-id bits without their owner".to_owned());
            meta.mode &= !0o6000;
        }
    }
}

/// Attributes of namespaces that are not staged keep what they are.
fn fit_xattrs(fitted: &mut Fitted, now: Option<&Fingerprint>) {
    let xattrs = &mut fitted.print.meta.xattrs;
    let foreign: Vec<Vec<u8>> = xattrs.keys().filter(|name| !is_kept_xattr(name)).cloned().collect();
    for name in foreign {
        let value = xattrs.remove(&name);
        if now.and_then(|n| n.meta.xattrs.get(&name)) != value.as_ref() {
            fitted.left_out.push(format!("extended attribute {}", crate::review::quoted(&name)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Meta;

    fn user() -> Powers {
        Powers { uid: 1000, gid: 1000, groups: [4].into(), chown: false, any_owner: false, mknod: false }
    }

    fn print(kind: Kind, uid: u32, gid: u32) -> Fingerprint {
        Fingerprint { kind, meta: Meta { mode: 0o644, uid, gid, ..Meta::default() } }
    }

    #[test]
    fn a_user_gives_files_to_itself_and_its_groups_only() {
        let fitted = user().fit(&print(Kind::Fifo, 0, 4), None).unwrap();
        assert_eq!((fitted.print.meta.uid, fitted.print.meta.gid), (1000, 4));
        assert_eq!(fitted.left_out, ["owner 0 needs root"]);
        let fitted = user().fit(&print(Kind::Fifo, 1000, 0), None).unwrap();
        assert_eq!((fitted.print.meta.gid, fitted.left_out.len()), (1000, 1));
        assert!(user().fit(&print(Kind::CharDevice(259), 1000, 1000), None).is_err());
    }

    #[test]
    fn root_gives_everything_but_foreign_attributes() {
        let root = Powers { chown: true, any_owner: true, mknod: true, ..user() };
        let mut want = print(Kind::BlockDevice(1), 7, 8);
        want.meta.xattrs.insert(b"user.a".to_vec(), b"1".to_vec());
        want.meta.xattrs.insert(b"security.ima".to_vec(), b"2".to_vec());
        let fitted = root.fit(&want, None).unwrap();
        assert_eq!((fitted.print.meta.uid, fitted.print.meta.gid), (7, 8));
        assert_eq!(fitted.print.meta.xattrs.len(), 1);
        assert_eq!(fitted.left_out.len(), 1);
    }
}
