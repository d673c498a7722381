//! Where credentials are kept: paths that the root of a guest does not show.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use pvisor_spec::matches_name;

/// Below each home directory.
const IN_HOMES: &[&str] = &[
    // Keys and their agents.
    ".ssh",
    ".gnupg",
    ".pki",
    ".password-store",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".config/age",
    ".config/sops",
    ".vault-token",
    // Clouds and clusters.
    ".aws",
    ".azure",
    ".config/gcloud",
    ".config/doctl",
    ".config/hcloud",
    ".config/heroku",
    ".oci",
    ".kube",
    ".terraform.d/credentials.tfrc.json",
    ".terraformrc",
    ".docker/config.json",
    ".config/containers/auth.json",
    // Services that a password or a token is typed for.
    ".netrc",
    ".authinfo*",
    ".git-credentials",
    ".config/git/credentials",
    ".config/gh/hosts.yml",
    ".config/glab-cli",
    ".config/hub",
    ".npmrc",
    ".yarnrc.yml",
    ".pypirc",
    ".config/pip/pip.conf",
    ".gem/credentials",
    ".cargo/credentials*",
    ".m2/settings.xml",
    ".m2/settings-security.xml",
    ".gradle/gradle.properties",
    ".composer/auth.json",
    ".nuget/NuGet/NuGet.Config",
    ".config/rclone",
    ".s3cfg",
    ".boto",
    ".pgpass",
    ".my.cnf",
    ".mylogin.cnf",
    ".config/Bitwarden*",
    ".config/1Password",
    ".config/op",
    // Browsers and mail.
    ".mozilla",
    ".thunderbird",
    ".config/google-chrome*",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge*",
    ".config/vivaldi*",
    ".config/opera*",
    ".config/Signal",
    ".var/app",
    "snap/firefox",
    "snap/chromium",
    // What was typed.
    ".*_history",
    ".history",
    ".lesshst",
    ".local/share/fish/fish_history",
    ".config/fish/fish_history",
    ".local/share/nushell/history*",
    ".zsh_sessions",
];

/// On the machine.
const ON_MACHINE: &[&str] = &[
    "/etc/shadow*",
    "/etc/gshadow*",
    "/etc/sudoers*",
    "/etc/security/opasswd",
    "/etc/ssh/*_key",
    "/etc/ssl/private",
    "/etc/pki/tls/private",
    "/etc/krb5.keytab",
    "/etc/wireguard",
    "/etc/openvpn",
    "/etc/NetworkManager/system-connections",
    "/etc/letsencrypt",
    "/etc/kubernetes",
    "/etc/rancher",
    "/etc/netplan",
    "/etc/docker/key.json",
    "/etc/machine-id",
    "/var/lib/dbus/machine-id",
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/lib/sss",
    "/var/lib/bluetooth",
    "/var/backups/*shadow*",
    "/var/spool/cron",
    "/var/spool/mail",
    "/var/mail",
];

/// Globs against absolute paths of the host. A path that matches looks absent, and with it all that is below it.
///
/// `homes` are the caller's; the other homes of the machine are always included. Where a credential's place is a
/// symbolic link, what it leads to is hidden too. `private` are directories of our own.
pub(crate) fn hidden_globs<'a>(homes: impl Iterator<Item = &'a PathBuf>, private: &[PathBuf]) -> Vec<String> {
    let mut of_homes = vec!["/root".to_owned(), "/home/*".to_owned()];
    let mut links: Vec<PathBuf> = ON_MACHINE.iter().flat_map(|place| led_to(Path::new("/"), place)).collect();
    links.extend(IN_HOMES.iter().flat_map(|place| led_to(Path::new("/root"), place)));
    for home in homes.filter(|h| h.is_absolute()) {
        links.extend(IN_HOMES.iter().flat_map(|place| led_to(home, place)));
        of_homes.extend(literal(home));
    }
    let mut globs: Vec<String> = ON_MACHINE.iter().map(|s| (*s).to_owned()).collect();
    for home in &of_homes {
        globs.extend(IN_HOMES.iter().map(|path| format!("{home}/{path}")));
    }
    globs.extend(links.iter().chain(private).filter_map(|p| literal(p)));
    globs.sort_unstable();
    globs.dedup();
    globs
}

/// Where links at a place lead. The place may have `*` in its last component. What is above `home`, or it itself, is left
/// out: a link to that says nothing of what is a credential.
fn led_to(home: &Path, place: &str) -> Vec<PathBuf> {
    let place = home.join(place.trim_start_matches('/'));
    let (Some(parent), Some(name)) = (place.parent(), place.file_name().and_then(|n| n.to_str())) else {
        return Vec::new();
    };
    let found: Vec<PathBuf> = if name.contains('*') {
        let entries = parent.read_dir().into_iter().flatten().filter_map(Result::ok);
        entries.filter(|e| matches_name(name, e.file_name().as_bytes())).map(|e| e.path()).collect()
    } else {
        vec![place.clone()]
    };
    let led = found.into_iter().filter_map(|path| path.canonicalize().ok().filter(|real| *real != path));
    led.filter(|real| !home.starts_with(real) && !real.starts_with("/dev") && !real.starts_with("/proc")).collect()
}

/// A glob that matches this path alone; none where it is not UTF-8, which a glob can't say.
fn literal(path: &Path) -> Option<String> {
    let text = path.to_str()?.trim_end_matches('/');
    (!text.is_empty()).then(|| globset::escape(text))
}

#[cfg(test)]
mod tests {
    use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

    use super::*;

    fn set(home: &str, private: &[PathBuf]) -> GlobSet {
        let mut set = GlobSetBuilder::new();
        for glob in hidden_globs([PathBuf::from(home)].iter(), private) {
            set.add(GlobBuilder::new(&glob).literal_separator(true).build().unwrap());
        }
        set.build().unwrap()
    }

    #[test]
    fn credentials_of_every_home_are_hidden() {
        let hidden = set("/data/me", &[]);
        for home in ["/root", "/home/someone", "/data/me"] {
            for path in [".ssh", ".aws", ".bash_history", ".cargo/credentials.toml", ".config/google-chrome-beta"] {
                assert!(hidden.is_match(format!("{home}/{path}")), "{home}/{path}");
            }
        }
        for path in ["/etc/shadow", "/etc/shadow-", "/etc/ssh/ssh_host_ed25519_key", "/etc/sudoers.d"] {
            assert!(hidden.is_match(path), "{path}");
        }
    }

    #[test]
    fn tools_and_the_directories_above_stay() {
        let hidden = set("/data/me", &[]);
        for path in ["/", "/etc", "/data", "/data/me", "/root", "/home", "/home/someone", "/usr/bin", "/etc/ssh"] {
            assert!(!hidden.is_match(path), "{path}");
        }
        for path in ["/root/.cargo/bin", "/root/.gitconfig", "/data/me/.local/bin", "/etc/passwd", "/etc/ssl/certs"] {
            assert!(!hidden.is_match(path), "{path}");
        }
    }

    #[test]
    fn what_a_link_leads_to_is_hidden_too() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let home = top.join("home");
        std::fs::create_dir_all(home.join("dotfiles/ssh")).unwrap();
        std::fs::write(home.join("dotfiles/history"), "").unwrap();
        for (target, name) in
            [("dotfiles/ssh", ".ssh"), ("dotfiles/history", ".bash_history"), ("..", ".aws"), (".", ".azure")]
        {
            std::os::unix::fs::symlink(target, home.join(name)).unwrap();
        }
        let hidden = set(home.to_str().unwrap(), &[]);
        assert!(hidden.is_match(home.join("dotfiles/ssh")) && hidden.is_match(home.join("dotfiles/history")));
        assert!(!hidden.is_match(home.join("dotfiles")) && !hidden.is_match(&home) && !hidden.is_match(&top));
    }

    #[test]
    fn a_name_that_looks_like_a_pattern_is_taken_literally() {
        let hidden = set("/odd[1]*", &[PathBuf::from("/state{a,b}/runs/")]);
        assert!(hidden.is_match("/odd[1]*/.ssh") && !hidden.is_match("/odd1x/.ssh"));
        assert!(hidden.is_match("/state{a,b}/runs") && !hidden.is_match("/statea/runs"));
    }
}
