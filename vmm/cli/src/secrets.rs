//! Where credentials are kept: paths that the root of a guest does not show.

use std::path::{Path, PathBuf};

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
/// `home` is the caller's; the other homes of the machine are always included. `private` are directories of our own.
pub(crate) fn hidden_globs(home: Option<&Path>, private: &[PathBuf]) -> Vec<String> {
    let mut homes = vec!["/root".to_owned(), "/home/*".to_owned()];
    // A home in one of the usual places is covered already.
    let elsewhere =
        home.filter(|h| h.is_absolute() && *h != Path::new("/root") && h.parent() != Some(Path::new("/home")));
    homes.extend(elsewhere.and_then(literal));
    let mut globs: Vec<String> = ON_MACHINE.iter().map(|s| (*s).to_owned()).collect();
    for home in &homes {
        globs.extend(IN_HOMES.iter().map(|path| format!("{home}/{path}")));
    }
    globs.extend(private.iter().filter_map(|p| literal(p)));
    globs
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
        for glob in hidden_globs(Some(Path::new(home)), private) {
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
    fn a_name_that_looks_like_a_pattern_is_taken_literally() {
        let hidden = set("/odd[1]*", &[PathBuf::from("/state{a,b}/runs/")]);
        assert!(hidden.is_match("/odd[1]*/.ssh") && !hidden.is_match("/odd1x/.ssh"));
        assert!(hidden.is_match("/state{a,b}/runs") && !hidden.is_match("/statea/runs"));
    }
}
