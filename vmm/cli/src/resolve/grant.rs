//! What a profile adds to one run.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use globset::GlobBuilder;
use pvisor_host_exec::is_denied;
use pvisor_spec::{ExecutorKind, FilesystemMode, HostMount, LeftOut, NetworkMode, ProfileGrant, RunSpec};

use super::Ambient;
use crate::profile::Profile;

/// What a grant depends on besides the profile.
pub(super) struct Ground<'a> {
    pub(super) ambient: &'a Ambient,
    /// The caller's home directory, without symbolic links.
    pub(super) home: Option<&'a Path>,
    pub(super) project: &'a Path,
    pub(super) filesystem: FilesystemMode,
    /// Globs against absolute paths that the person denied.
    pub(super) denied: &'a [String],
    /// What the person mounts.
    pub(super) mounts: &'a [HostMount],
    /// Directories of ours: where runs are kept, and the stage.
    pub(super) private: &'a [PathBuf],
    /// Destinations that the person denied.
    pub(super) denied_hosts: &'a [String],
}

/// The grant of a profile, all its hosts as if the network opened them: [`hosts`] says which it does.
pub(super) fn grant(profile: &Profile, ground: &Ground<'_>) -> ProfileGrant {
    let mut grant = ProfileGrant {
        name: profile.name.clone(),
        digest: profile.digest.clone(),
        mounts: Vec::new(),
        variables: profile.variables.iter().filter(|name| ground.ambient.var(name).is_some()).cloned().collect(),
        hosts: Vec::new(),
        left_out: Vec::new(),
    };
    match ground.filesystem {
        FilesystemMode::Sandbox => mounts(profile, ground, &mut grant),
        FilesystemMode::Host => {
            let reason = "the command has the home directory as it is: --safe or --filesystem sandbox confine it";
            grant.left_out.push(LeftOut::new("state", reason));
        }
    }
    for host in &profile.hosts {
        match is_denied(host, ground.denied_hosts) {
            true => grant.left_out.push(LeftOut::new(host, "--overlaynet-deny names it")),
            false => grant.hosts.push(host.clone()),
        }
    }
    grant
}

/// What is around comes first, so that what is in it can be mounted there.
fn mounts(profile: &Profile, ground: &Ground<'_>, grant: &mut ProfileGrant) {
    let written = profile.write.iter().map(|path| (path, true));
    let mut paths: Vec<(&String, bool)> = written.chain(profile.read.iter().map(|path| (path, false))).collect();
    paths.sort();
    for (path, writable) in paths {
        match mount(path, writable, ground, &grant.mounts) {
            Ok(mount) => grant.mounts.push(mount),
            Err(reason) => grant.left_out.push(LeftOut::new(path, reason)),
        }
    }
}

/// A path of a profile as a mount, or why it is none. `before`: the mounts so far.
fn mount(path: &str, writable: bool, ground: &Ground<'_>, before: &[HostMount]) -> Result<HostMount, String> {
    let home = ground.home.ok_or("there is no home directory")?;
    let target = home.join(path.trim_start_matches("~/"));
    let source = match target.canonicalize() {
        Ok(source) => source,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err("it is not there".to_owned()),
        Err(e) => return Err(format!("it can't be looked at: {e}")),
    };
    let meta = source.metadata().map_err(|e| format!("it can't be looked at: {e}"))?;
    if !meta.is_dir() && !meta.is_file() {
        return Err("it is neither a directory nor a file".to_owned());
    }
    if !source.starts_with(home) || source == home {
        return Err("it is a link that leads out of the home directory".to_owned());
    }
    // What an earlier run could write may have become a link to anything.
    let around = before.iter().rfind(|mount| mount.writable && target.starts_with(mount.target.as_path()));
    if around.is_some_and(|mount| !source.starts_with(mount.source.as_path())) {
        return Err("it is a link that leads out of what the command can write".to_owned());
    }
    if ground.project.starts_with(&source) {
        return Err("the project is in it".to_owned());
    }
    if [&source, &target].iter().any(|path| path.starts_with(ground.project)) {
        return Err("it is in the project, where changes are staged".to_owned());
    }
    if ground.private.iter().any(|own| own.starts_with(&source) || source.starts_with(own)) {
        return Err("the records of runs are in it".to_owned());
    }
    if [&source, &target].iter().any(|path| denies(ground.denied, path)) {
        return Err("a rule denies it".to_owned());
    }
    if ground.mounts.iter().any(|mount| target.starts_with(mount.target.as_path())) {
        return Err("a --mount says what is there".to_owned());
    }
    Ok(HostMount { source: source.into(), target: target.into(), writable })
}

/// Whether a pattern denies the path, or a directory around it.
fn denies(globs: &[String], path: &Path) -> bool {
    globs.iter().any(|glob| match GlobBuilder::new(glob).literal_separator(true).build() {
        Ok(glob) => {
            let matcher = glob.compile_matcher();
            path.ancestors().any(|path| matcher.is_match(path))
        }
        // What can't be judged is not granted.
        Err(_) => true,
    })
}

/// Says which hosts of the grant the network really opens.
pub(super) fn hosts(grant: &mut ProfileGrant, network: &NetworkMode) {
    let reason = match network {
        NetworkMode::Egress(_) => return,
        NetworkMode::DenyAll => "--overlaynet-deny-all denies it",
        NetworkMode::Host => "the command's network is not restricted to what is named",
    };
    let hosts = std::mem::take(&mut grant.hosts);
    grant.left_out.extend(hosts.into_iter().map(|host| LeftOut::new(host, reason)));
}

/// The grant on that executor: a guest has no mounts of the host's.
pub(super) fn on(kind: ExecutorKind, spec: &mut RunSpec) {
    let Some(grant) = spec.sources.profile.as_mut().filter(|_| kind != ExecutorKind::Host) else { return };
    let taken = std::mem::take(&mut grant.mounts);
    spec.confinement.mounts.retain(|mount| !taken.contains(mount));
    let reason = "a guest sees it without its secrets, and what it writes there is thrown away";
    let display = |mount: HostMount| mount.target.display().to_string();
    grant.left_out.extend(taken.into_iter().map(|mount| LeftOut::new(display(mount), reason)));
}

/// What the person is told of a grant, a line each.
pub(crate) fn told(grant: &ProfileGrant) -> Vec<String> {
    let paths = |writable: bool| {
        let of = grant.mounts.iter().filter(move |mount| mount.writable == writable);
        of.map(|mount| mount.target.display().to_string()).collect::<Vec<_>>().join(", ")
    };
    let mut parts = Vec::new();
    for (what, values) in [
        ("changes for good, neither staged nor reviewed: ", paths(true)),
        ("reads: ", paths(false)),
        ("is given: ", grant.variables.join(", ")),
        ("reaches: ", grant.hosts.join(", ")),
    ] {
        if !values.is_empty() {
            parts.push(format!("{what}{values}"));
        }
    }
    let name = &grant.name;
    let mut lines = vec![match parts.is_empty() {
        true => format!("profile {name} adds nothing here"),
        false => format!("profile {name}: the command {}", parts.join("; ")),
    }];
    if !grant.left_out.is_empty() {
        let left: Vec<String> = grant.left_out.iter().map(|left| format!("{}: {}", left.what, left.reason)).collect();
        lines.push(format!("profile {name}: not granted: {}", left.join("; ")));
    }
    lines
}

/// A program for which there is a profile, where a preset was asked for without one.
pub(super) fn hint(program: &OsStr, preset: bool) -> Option<String> {
    if !preset {
        return None;
    }
    let name = crate::profile::for_program(program)?;
    Some(format!(
        "there is a profile for it: --profile {name} keeps its state and opens its services (pvisor profile show {name})"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codex() -> Profile {
        crate::profile::find("codex").unwrap()
    }

    /// Ground with a home that has what `made` names; a trailing slash makes a directory.
    fn granted(made: &[&str], change: impl FnOnce(&mut Ground<'_>, &Path)) -> ProfileGrant {
        let dir = tempfile::tempdir().unwrap();
        let mut ambient = Ambient::example(dir.path());
        ambient.env = vec![("OPENAI_API_KEY".into(), "secret".into())];
        let home = dir.path().canonicalize().unwrap().join("home");
        std::fs::create_dir(&home).unwrap();
        for path in made {
            match path.strip_suffix('/') {
                Some(path) => std::fs::create_dir_all(home.join(path)).unwrap(),
                None => std::fs::write(home.join(path), "").unwrap(),
            }
        }
        let project = home.join("project");
        let mut ground = Ground {
            ambient: &ambient,
            home: Some(&home),
            project: &project,
            filesystem: FilesystemMode::Sandbox,
            denied: &[],
            mounts: &[],
            private: &[],
            denied_hosts: &[],
        };
        change(&mut ground, &home);
        let mut grant = grant(&codex(), &ground);
        // Independent of where the test's directory is.
        for mount in &mut grant.mounts {
            mount.target = mount.target.as_path().strip_prefix(&home).unwrap().into();
        }
        grant
    }

    fn targets(grant: &ProfileGrant) -> Vec<(String, bool)> {
        grant.mounts.iter().map(|m| (m.target.display().to_string(), m.writable)).collect()
    }

    fn reason<'a>(grant: &'a ProfileGrant, what: &str) -> &'a str {
        let left = grant.left_out.iter().find(|left| left.what == what);
        &left.unwrap_or_else(|| panic!("{what} is granted: {grant:?}")).reason
    }

    #[test]
    fn what_is_there_is_granted_and_settings_are_not_written() {
        let grant = granted(&[".codex/rules/", ".codex/config.toml"], |_, _| {});
        let config = (".codex/config.toml".to_owned(), false);
        let rules = (".codex/rules".to_owned(), false);
        assert_eq!(targets(&grant), [(".codex".to_owned(), true), config, rules]);
        assert_eq!(grant.variables, ["OPENAI_API_KEY"]);
        assert_eq!(reason(&grant, "~/.agents"), "it is not there");
        assert!(told(&grant).concat().contains("OPENAI_API_KEY") && !told(&grant).concat().contains("secret"));
    }

    #[test]
    fn what_the_person_denies_is_not_granted() {
        let state = &[".codex/rules/"];
        for glob in ["/**/.codex", "/**/home", "/**/.c*"] {
            let denied = [glob.to_owned()];
            let grant = granted(state, |ground, _| ground.denied = Box::leak(Box::new(denied)));
            assert!(grant.mounts.is_empty(), "{glob}: {grant:?}");
            assert_eq!(reason(&grant, "~/.codex"), "a rule denies it", "{glob}");
        }
        let hosts = ["*.com".to_owned(), "auth.openai.com:443".to_owned()];
        let grant = granted(state, |ground, _| ground.denied_hosts = Box::leak(Box::new(hosts)));
        assert!(grant.hosts.is_empty(), "{grant:?}");
        assert_eq!(reason(&grant, "chatgpt.com:443"), "--overlaynet-deny names it");
        let grant = granted(state, |ground, home| {
            let own = HostMount { source: "/srv".into(), target: home.into(), writable: false };
            ground.mounts = Box::leak(Box::new([own]));
        });
        assert_eq!(reason(&grant, "~/.codex"), "a --mount says what is there");
    }

    #[test]
    fn no_link_makes_a_grant_larger() {
        let link = |target: &str, at: PathBuf| std::os::unix::fs::symlink(target, at).unwrap();
        let out = granted(&[], |_, home| link("/etc", home.join(".codex")));
        assert!(reason(&out, "~/.codex").contains("out of the home"), "{out:?}");
        let whole = granted(&[], |_, home| link(".", home.join(".codex")));
        assert!(reason(&whole, "~/.codex").contains("out of the home"), "{whole:?}");
        let made = &[".codex/", "letters/"];
        let left = granted(made, |_, home| link("../letters", home.join(".codex/skills")));
        assert!(reason(&left, "~/.codex/skills").contains("can write"), "{left:?}");
        let kept = granted(&["dotfiles/codex/"], |_, home| link("dotfiles/codex", home.join(".codex")));
        assert_eq!(targets(&kept), [(".codex".to_owned(), true)]);
    }

    #[test]
    fn the_project_and_our_records_stay_out_of_it() {
        let inside = granted(&[".codex/worktrees/"], |ground, home| {
            ground.project = Box::leak(Box::new(home.join(".codex/worktrees")));
        });
        assert_eq!(reason(&inside, "~/.codex"), "the project is in it");
        let around = granted(&[".codex/"], |ground, home| ground.project = Box::leak(Box::new(home.to_owned())));
        assert!(reason(&around, "~/.codex").contains("staged"), "{around:?}");
        let records = granted(&[".codex/"], |ground, home| {
            ground.private = Box::leak(Box::new([home.join(".codex/runs")]));
        });
        assert!(reason(&records, "~/.codex").contains("records"), "{records:?}");
        let open = granted(&[".codex/"], |ground, _| ground.filesystem = FilesystemMode::Host);
        assert!(open.mounts.is_empty() && reason(&open, "state").contains("--safe"), "{open:?}");
    }

    #[test]
    fn hosts_count_only_where_the_network_opens_them() {
        for (network, opened) in [
            (NetworkMode::Egress(pvisor_spec::EgressSpec::default()), true),
            (NetworkMode::DenyAll, false),
            (NetworkMode::Host, false),
        ] {
            let mut grant = granted(&[], |_, _| {});
            hosts(&mut grant, &network);
            assert_eq!(grant.hosts.is_empty(), !opened, "{network:?}");
        }
    }
}
