//! Which names led the sandbox to which addresses.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Name;
use crate::policy::canonical;

/// Pairs of name and address kept at once; the one that ends soonest makes room.
const MAX_PAIRS: usize = 16_384;
/// Names kept for one address.
const MAX_NAMES: usize = 32;
/// How long a binding lasts at least and at most, whatever the answer's time to live.
const SHORTEST: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Programs go on using an address after its time: a binding lasts this much longer.
const GRACE: Duration = Duration::from_secs(600);

/// A name that led the sandbox to an address: what a fork of a sandbox has to know of its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// The name.
    pub name: Name,
    /// The address.
    pub address: IpAddr,
    /// Seconds until it ends.
    pub seconds: u64,
}

struct Bound {
    name: Name,
    until: Instant,
}

/// Names by address.
#[derive(Default)]
pub(crate) struct Bindings {
    by_address: HashMap<IpAddr, Vec<Bound>>,
    by_time: BTreeSet<(Instant, IpAddr, Name)>,
}

impl Bindings {
    /// All that hold now.
    pub(crate) fn export(&self, now: Instant) -> Vec<Binding> {
        let left = |until: &Instant| until.saturating_duration_since(now).as_secs();
        let all = self.by_time.iter().filter(|(until, ..)| left(until) > 0);
        all.map(|(until, address, name)| Binding { name: name.clone(), address: *address, seconds: left(until) })
            .collect()
    }

    /// Takes over bindings from elsewhere, for no longer than an answer could have made them last.
    pub(crate) fn import(&mut self, all: &[Binding], now: Instant) {
        for binding in all {
            let left = Duration::from_secs(binding.seconds).saturating_sub(GRACE);
            self.bind(&binding.name, binding.address, left, now);
        }
    }

    /// Remembers that an answer for `name` with this time to live contained `address`.
    pub(crate) fn bind(&mut self, name: &Name, address: IpAddr, ttl: Duration, now: Instant) {
        let address = canonical(address);
        let until = now + ttl.clamp(SHORTEST, LONGEST) + GRACE;
        let names = self.by_address.entry(address).or_default();
        if let Some(bound) = names.iter_mut().find(|bound| bound.name == *name) {
            if bound.until < until {
                self.by_time.remove(&(bound.until, address, name.clone()));
                bound.until = until;
                self.by_time.insert((until, address, name.clone()));
            }
        } else {
            if names.len() >= MAX_NAMES
                && let Some(at) = (0..names.len()).min_by_key(|&i| names[i].until)
            {
                let old = names.swap_remove(at);
                self.by_time.remove(&(old.until, address, old.name));
            }
            names.push(Bound { name: name.clone(), until });
            self.by_time.insert((until, address, name.clone()));
        }
        self.expire(now);
        while self.by_time.len() > MAX_PAIRS && self.drop_first() {}
    }

    fn expire(&mut self, now: Instant) {
        while self.by_time.first().is_some_and(|(until, ..)| *until <= now) && self.drop_first() {}
    }

    fn drop_first(&mut self) -> bool {
        let Some((_, address, name)) = self.by_time.pop_first() else { return false };
        if let Some(names) = self.by_address.get_mut(&address) {
            names.retain(|bound| bound.name != name);
            if names.is_empty() {
                self.by_address.remove(&address);
            }
        }
        true
    }

    /// The names that lead to this address now.
    pub(crate) fn names(&self, address: IpAddr, now: Instant) -> Vec<Name> {
        let bound = self.by_address.get(&canonical(address)).map_or(&[][..], Vec::as_slice);
        bound.iter().filter(|bound| bound.until > now).map(|bound| bound.name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn name(i: usize) -> Name {
        format!("n{i}.example").parse().unwrap()
    }

    #[test]
    fn a_binding_lasts_its_time_and_the_grace() {
        let (mut bindings, start) = (Bindings::default(), Instant::now());
        let address = IpAddr::from([192, 0, 2, 1]);
        bindings.bind(&name(1), address, Duration::ZERO, start);
        bindings.bind(&name(2), address, Duration::from_secs(3600), start);
        assert_eq!(bindings.names(address, start), [name(1), name(2)]);
        let mapped = IpAddr::V6(Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped());
        assert_eq!(bindings.names(mapped, start).len(), 2);
        let later = start + SHORTEST + GRACE;
        assert_eq!(bindings.names(address, later), [name(2)]);
        bindings.bind(&name(3), address, Duration::MAX, later);
        assert_eq!(bindings.by_time.len(), 2, "what has ended is forgotten");
        assert_eq!(bindings.names(address, later + LONGEST + GRACE), []);
    }

    #[test]
    fn a_shorter_time_does_not_shorten_a_binding() {
        let (mut bindings, start) = (Bindings::default(), Instant::now());
        let address = IpAddr::from([192, 0, 2, 1]);
        bindings.bind(&name(1), address, Duration::from_secs(7200), start);
        bindings.bind(&name(1), address, Duration::from_secs(1), start);
        assert_eq!(bindings.names(address, start + Duration::from_secs(7000)), [name(1)]);
        assert_eq!(bindings.by_time.len(), 1);
    }

    #[test]
    fn bindings_pass_to_another_table() {
        let (mut bindings, start) = (Bindings::default(), Instant::now());
        let address = IpAddr::from([192, 0, 2, 1]);
        bindings.bind(&name(1), address, Duration::from_secs(3600), start);
        let later = start + Duration::from_secs(600);
        let exported = bindings.export(later);
        assert_eq!(exported, [Binding { name: name(1), address, seconds: 3600 }]);
        let mut other = Bindings::default();
        other.import(&exported, later);
        assert_eq!(other.export(later), exported);
        let json = serde_json::to_string(&exported).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Binding>>(&json).unwrap(), exported);
        other.import(&[Binding { name: name(2), address, seconds: u64::MAX }], later);
        assert!(other.export(later).iter().all(|b| b.seconds <= (LONGEST + GRACE).as_secs()));
        assert!(bindings.export(start + LONGEST).is_empty());
    }

    #[test]
    fn the_table_is_bounded() {
        let (mut bindings, now) = (Bindings::default(), Instant::now());
        for i in 0..MAX_PAIRS + 500 {
            bindings.bind(&name(i), Ipv4Addr::from_bits(i as u32).into(), Duration::from_secs(i as u64), now);
        }
        assert_eq!(bindings.by_time.len(), MAX_PAIRS);
        assert_eq!(bindings.by_address.values().map(Vec::len).sum::<usize>(), MAX_PAIRS);
        let one = IpAddr::from([192, 0, 2, 1]);
        for i in 0..1000 {
            bindings.bind(&name(i), one, Duration::from_secs(i as u64), now);
        }
        assert_eq!(bindings.names(one, now).len(), MAX_NAMES);
        assert!(bindings.names(one, now).contains(&name(999)));
    }
}
