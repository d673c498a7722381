//! What the host knows about names: its name servers and its own list of hosts.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use crate::engine::DNS_PORT;
use crate::{Name, Upstream};

/// How often the files are looked at, at most.
const LOOK: Duration = Duration::from_secs(2);
/// Longest file that is read, in bytes.
const MAX_FILE: u64 = 4 << 20;
/// Servers that are used, as resolvers of C libraries do.
const MAX_SERVERS: usize = 3;

/// The host's view of names.
pub(crate) struct HostNames {
    fixed: bool,
    resolv: Watched,
    hosts: Watched,
    looked: Option<Instant>,
    pub(crate) servers: Vec<SocketAddr>,
    /// Addresses of the names of `/etc/hosts`.
    pub(crate) entries: HashMap<Name, Vec<IpAddr>>,
}

struct Watched {
    path: PathBuf,
    stamp: Option<(SystemTime, u64)>,
}

impl Watched {
    fn new(path: &str) -> Self {
        Self { path: Path::new(path).to_owned(), stamp: None }
    }

    /// The text, if it is another one than the last time. A file that is gone counts as unchanged: editors replace files.
    fn changed(&mut self) -> Option<String> {
        let meta = fs::metadata(&self.path).ok()?;
        let stamp = Some((meta.modified().unwrap_or(SystemTime::UNIX_EPOCH), meta.len()));
        if stamp == self.stamp || meta.len() > MAX_FILE {
            return None;
        }
        self.stamp = stamp;
        let bytes = fs::read(&self.path).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl HostNames {
    pub(crate) fn new(upstream: Upstream) -> Self {
        let (fixed, servers) = match upstream {
            Upstream::Host => (false, Vec::new()),
            Upstream::Servers(servers) => (true, servers),
        };
        Self {
            fixed,
            resolv: Watched::new("/etc/resolv.conf"),
            hosts: Watched::new("/etc/hosts"),
            looked: None,
            servers,
            entries: HashMap::new(),
        }
    }

    /// Reads the files again if they changed; gives whether the list of hosts did.
    pub(crate) fn refresh(&mut self, now: Instant) -> bool {
        if self.fixed || self.looked.is_some_and(|at| at + LOOK > now) {
            return false;
        }
        self.looked = Some(now);
        if let Some(text) = self.resolv.changed() {
            self.servers = parse_resolv(&text);
        }
        if self.servers.is_empty() {
            // What the C library does.
            self.servers.push(SocketAddr::new([127, 0, 0, 1].into(), DNS_PORT));
        }
        match self.hosts.changed() {
            Some(text) => {
                self.entries = parse_hosts(&text);
                true
            }
            None => false,
        }
    }
}

fn parse_resolv(text: &str) -> Vec<SocketAddr> {
    let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("nameserver"));
    let words = lines.filter(|rest| rest.starts_with([' ', '\t'])).filter_map(|rest| rest.split_whitespace().next());
    words.filter_map(parse_server).take(MAX_SERVERS).collect()
}

fn parse_server(word: &str) -> Option<SocketAddr> {
    if let Some((address, zone)) = word.split_once('%') {
        let address: Ipv6Addr = address.parse().ok()?;
        let scope = zone.parse().ok().or_else(|| nix::net::if_::if_nametoindex(zone).ok())?;
        return Some(SocketAddrV6::new(address, DNS_PORT, 0, scope).into());
    }
    let address: IpAddr = word.parse().ok()?;
    Some(SocketAddr::new(address, DNS_PORT))
}

fn parse_hosts(text: &str) -> HashMap<Name, Vec<IpAddr>> {
    let mut entries: HashMap<Name, Vec<IpAddr>> = HashMap::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(Ok(address)) = words.next().map(str::parse) else { continue };
        for name in words.filter_map(|word| Name::from_ascii(word.as_bytes()).ok()) {
            let addresses = entries.entry(name).or_default();
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_of_the_host() {
        let text = "# comment\nsearch corp\nnameserver 10.0.0.53\n nameserver\tfd00::53 # two\nnameserverx 1.1.1.1\n\
                    nameserver not-an-address\nnameserver fe80::1%1\nnameserver 9.9.9.9\n";
        let servers = parse_resolv(text);
        assert_eq!(servers[..2], ["10.0.0.53:53".parse().unwrap(), "[fd00::53]:53".parse().unwrap()]);
        assert!(matches!(servers[2], SocketAddr::V6(a) if a.scope_id() == 1));
        assert_eq!(servers.len(), MAX_SERVERS);
    }

    #[test]
    fn hosts_of_the_host() {
        let entries =
            parse_hosts("127.0.0.1 localhost\n10.0.0.5 Build.corp build # b\nfd00::5 build\n#10.0.0.6 x\nbad y\n");
        let build: Vec<IpAddr> = vec!["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
        assert_eq!(entries[&"build".parse().unwrap()], build);
        assert_eq!(entries[&"build.corp".parse().unwrap()], build[..1]);
        assert_eq!(entries.len(), 3);
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        let mut names = HostNames::new(Upstream::Host);
        names.resolv.path = path.clone();
        let start = Instant::now();
        names.refresh(start);
        assert_eq!(names.servers, ["127.0.0.1:53".parse().unwrap()]);
        fs::write(&path, "nameserver 10.0.0.1\n").unwrap();
        names.refresh(start + LOOK / 2);
        assert_eq!(names.servers, ["127.0.0.1:53".parse().unwrap()], "not looked at yet");
        names.refresh(start + LOOK);
        assert_eq!(names.servers, ["10.0.0.1:53".parse().unwrap()]);
        fs::remove_file(&path).unwrap();
        names.refresh(start + 2 * LOOK);
        assert_eq!(names.servers, ["10.0.0.1:53".parse().unwrap()]);
    }
}
