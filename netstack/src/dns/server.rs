//! The name server: decides about names, asks the host's servers, remembers where names lead.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use slab::Slab;

use super::host::HostNames;
use super::upstream::{Exchange, Progress};
use super::wire::{Alias, Query, Rcode, Reply, Unusable, kind, kind_name};
use crate::config::LinkConfig;
use crate::engine::{Core, Held};
use crate::event::NetEvent;
use crate::policy::{HOST_ALIAS, Reason, is_alias};
use crate::{DefaultVerdict, Name, Rule, Upstream, Verdict};

/// How long one server may take.
const PATIENCE: Duration = Duration::from_millis(2500);
/// How often the whole list of servers is gone through.
const ROUNDS: usize = 2;
/// How long our own answers hold.
const OWN_TTL: u32 = 60;
/// How long entries of the host's list of hosts lead the sandbox there: longer than any run.
const HOSTS_TTL: Duration = Duration::from_secs(24 * 3600);

/// Where an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyTo {
    /// To a port of the sandbox, from the address that it asked.
    Datagram { service: SocketAddr, port: u16 },
    /// Down a connection: its place in the table and its serial number.
    Connection { index: usize, serial: u64 },
}

/// Everything the name server knows.
pub(crate) struct NameServer {
    host: HostNames,
    pending: Slab<Pending>,
    ready: Vec<usize>,
    timers: BTreeSet<(Instant, usize)>,
    /// Answers for connections, which belong to another table.
    pub(crate) replies: Vec<(usize, u64, Vec<u8>)>,
}

struct Pending {
    to: ReplyTo,
    query: Query,
    name: Name,
    exchange: Option<Exchange>,
    /// Counts servers, over all rounds.
    attempt: usize,
    /// The best of the answers that say nothing.
    last: Rcode,
    timer: Instant,
}

impl NameServer {
    pub(crate) fn new(upstream: Upstream) -> Self {
        Self {
            host: HostNames::new(upstream),
            pending: Slab::new(),
            ready: Vec::new(),
            timers: BTreeSet::new(),
            replies: Vec::new(),
        }
    }

    /// Reads the host's files. Addresses of its list of hosts that an allow rule names are bound to those names: the
    /// sandbox may have that list too, and then never asks.
    pub(crate) fn refresh(&mut self, core: &mut Core) {
        if !self.host.refresh(core.now) {
            return;
        }
        let named: Vec<Name> = core.judge.policy.allow.iter().filter_map(|rule| rule.host().cloned()).collect();
        for name in named {
            for &address in self.host.entries.get(&name).map_or(&[][..], Vec::as_slice) {
                core.judge.bindings.bind(&name, address, HOSTS_TTL, core.now);
            }
        }
    }

    /// A query of the sandbox.
    pub(crate) fn query(&mut self, core: &mut Core, message: &[u8], to: ReplyTo) {
        self.refresh(core);
        let query = match Query::parse(message) {
            Ok(query) => query,
            Err(Unusable::Silent) => return,
            Err(Unusable::Answer(answer)) => return self.send(core, to, answer),
        };
        match self.decide(core, &query) {
            Ok(name) => self.resolve(core, query, name, to),
            Err((mut reason, rcode)) => {
                if let Some(rule) = question(core, &query, reason.as_ref()) {
                    match core.hold(rule, Held::Query { message: message.to_vec(), to }) {
                        Ok(()) => return,
                        Err(denied) => reason = Some(denied),
                    }
                }
                if let Some(decided_by) = reason {
                    let (name, kind) = (query.shown_name(), kind_name(query.kind));
                    core.report(NetEvent::NameDenied { name, query: kind, decided_by, count: 1 });
                }
                self.answer(core, to, &query, query.empty_answer(rcode));
            }
        }
    }

    /// The name, if the query may be answered; else what to report and to say.
    fn decide(&self, core: &Core, query: &Query) -> Result<Name, (Option<Reason>, Rcode)> {
        let deny_all = core.judge.policy.default == DefaultVerdict::DenyAll;
        let reason = if deny_all { Reason::DenyAll } else { Reason::BadName };
        let name = query.name().map_err(|_| (Some(reason), Rcode::REFUSED))?;
        if is_localhost(&name) {
            return Ok(name);
        }
        if name.as_str() == HOST_ALIAS {
            // Where somebody is asked, it is about a port.
            let open = core.judge.policy.opens_host() || core.judge.policy.ask;
            return if open { Ok(name) } else { Err((Some(Reason::NotListed), Rcode::REFUSED)) };
        }
        let Verdict { allowed, reason } = core.judge.policy.judge_name(&name);
        if !allowed {
            return Err((Some(reason), Rcode::REFUSED));
        }
        match query.kind {
            // Whole zones, everything at once, arbitrary bytes: of no use to a program that connects somewhere.
            kind::ANY | kind::AXFR | kind::IXFR | kind::NULL | kind::OPT => {
                Err((Some(Reason::BadQuery), Rcode::NOT_IMPLEMENTED))
            }
            // These carry addresses and keys that would have to be judged; without them programs ask for addresses.
            kind::SVCB | kind::HTTPS => Err((None, Rcode::OK)),
            _ => Ok(name),
        }
    }

    fn resolve(&mut self, core: &mut Core, query: Query, name: Name, to: ReplyTo) {
        if let Some(own) = own_addresses(&core.guest.link, &name) {
            let fitting: Vec<_> = own.into_iter().filter(|a| asks_for(&query, *a)).map(|a| (a, OWN_TTL)).collect();
            return self.answer(core, to, &query, query.address_answer(&[], &fitting));
        }
        let in_hosts = self.host.entries.get(&name).filter(|_| matches!(query.kind, kind::A | kind::AAAA));
        if let Some(addresses) = in_hosts {
            let found = addresses.iter().filter(|a| asks_for(&query, **a)).map(|a| (*a, OWN_TTL)).collect();
            let reply = Reply { rcode: Rcode::OK, truncated: false, aliases: Vec::new(), addresses: found };
            return self.admit(core, to, &query, &name, reply);
        }
        let datagram = matches!(to, ReplyTo::Datagram { .. });
        if datagram && self.pending.iter().any(|(_, p)| p.to == to && p.query.repeats(&query)) {
            return; // sent again while we wait
        }
        if self.pending.len() >= core.capacity.queries {
            let (name, kind) = (query.shown_name(), kind_name(query.kind));
            core.report(NetEvent::NameDenied { name, query: kind, decided_by: Reason::Capacity, count: 1 });
            return self.answer(core, to, &query, query.empty_answer(Rcode::SERVER));
        }
        let pending = Pending { to, query, name, exchange: None, attempt: 0, last: Rcode::SERVER, timer: core.now };
        let slot = self.pending.insert(pending);
        self.ask(core, slot);
    }

    /// Puts the question to the next server that takes it, or gives up.
    fn ask(&mut self, core: &mut Core, slot: usize) {
        let servers = self.host.servers.len();
        loop {
            let Some(pending) = self.pending.get_mut(slot) else { return };
            self.timers.remove(&(pending.timer, slot));
            if let Some(exchange) = pending.exchange.take() {
                exchange.close(core);
            }
            let attempt = pending.attempt;
            pending.attempt += 1;
            let Some(&server) = self.host.servers.get(attempt % servers.max(1)).filter(|_| attempt < servers * ROUNDS)
            else {
                let answer = pending.query.empty_answer(pending.last);
                return self.finish(core, slot, answer);
            };
            // Servers that know no EDNS get a second chance without.
            match Exchange::datagram(core, server, &pending.query, attempt < servers, slot) {
                Ok(exchange) => return self.wait_for(core, slot, exchange),
                Err(error) => tracing::debug!(%server, %error, "can't ask a name server"),
            }
        }
    }

    fn wait_for(&mut self, core: &Core, slot: usize, exchange: Exchange) {
        let Some(pending) = self.pending.get_mut(slot) else { return };
        self.timers.remove(&(pending.timer, slot));
        pending.exchange = Some(exchange);
        pending.timer = core.now + PATIENCE;
        self.timers.insert((pending.timer, slot));
    }

    /// A socket of a question became ready.
    pub(crate) fn on_event(&mut self, slot: usize) {
        self.ready.push(slot);
    }

    /// Goes on with every question that can.
    pub(crate) fn run(&mut self, core: &mut Core) {
        for slot in std::mem::take(&mut self.ready) {
            self.advance(core, slot);
        }
        while let Some(&(at, slot)) = self.timers.first()
            && at <= core.now
        {
            self.ask(core, slot);
        }
    }

    fn advance(&mut self, core: &mut Core, slot: usize) {
        let Some(pending) = self.pending.get_mut(slot) else { return };
        let Some(exchange) = &mut pending.exchange else { return };
        match exchange.advance(&pending.query) {
            Progress::Waits => {}
            Progress::Failed => self.ask(core, slot),
            Progress::Answer(_, reply) if reply.truncated => {
                let server = exchange.server();
                match Exchange::connection(core, server, &pending.query, slot) {
                    Ok(next) => {
                        if let Some(old) = pending.exchange.take() {
                            old.close(core);
                        }
                        self.wait_for(core, slot, next);
                    }
                    Err(_) => self.ask(core, slot),
                }
            }
            Progress::Answer(message, reply) => match reply.rcode {
                Rcode::OK | Rcode::NO_NAME => self.settle(core, slot, message, reply),
                other => {
                    pending.last = other;
                    self.ask(core, slot);
                }
            },
        }
    }

    fn settle(&mut self, core: &mut Core, slot: usize, message: Vec<u8>, reply: Reply) {
        let Some(pending) = self.pending.get(slot) else { return };
        let (to, query, name) = (pending.to, pending.query.clone(), pending.name.clone());
        if reply.rcode != Rcode::OK {
            let answer = query.empty_answer(reply.rcode);
            self.finish(core, slot, answer);
        } else if matches!(query.kind, kind::A | kind::AAAA) {
            self.forget(core, slot);
            self.admit(core, to, &query, &name, reply);
        } else {
            let answer = query.relabel(message);
            self.finish(core, slot, answer);
        }
    }

    /// Gives the addresses that the name may lead to, and remembers them.
    fn admit(&mut self, core: &mut Core, to: ReplyTo, query: &Query, name: &Name, reply: Reply) {
        if let Some(denied) = denied_alias(core, &reply.aliases) {
            let (shown, kind) = (query.shown_name(), kind_name(query.kind));
            core.report(NetEvent::NameDenied { name: shown, query: kind, decided_by: denied, count: 1 });
            return self.answer(core, to, query, query.empty_answer(Rcode::REFUSED));
        }
        let chain = reply.aliases.iter().map(|alias| alias.ttl).min().unwrap_or(u32::MAX);
        let mut admitted = Vec::with_capacity(reply.addresses.len());
        for (address, ttl) in reply.addresses {
            if core.judge.admits_answer(name, address, core.now) {
                let ttl = Duration::from_secs(u64::from(ttl.min(chain)));
                core.judge.bindings.bind(name, address, ttl, core.now);
                admitted.push((address, u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX)));
            } else {
                core.report(NetEvent::AnswerDropped { name: name.clone(), address, count: 1 });
            }
        }
        self.answer(core, to, query, query.address_answer(&reply.aliases, &admitted));
    }

    fn finish(&mut self, core: &mut Core, slot: usize, answer: Vec<u8>) {
        if let Some(pending) = self.forget(core, slot) {
            self.answer(core, pending.to, &pending.query, answer);
        }
    }

    fn forget(&mut self, core: &Core, slot: usize) -> Option<Pending> {
        let mut pending = self.pending.try_remove(slot)?;
        self.timers.remove(&(pending.timer, slot));
        if let Some(exchange) = pending.exchange.take() {
            exchange.close(core);
        }
        Some(pending)
    }

    fn answer(&mut self, core: &mut Core, to: ReplyTo, query: &Query, answer: Vec<u8>) {
        // IP and UDP headers take part of the MTU.
        let most = usize::from(core.guest.link.mtu).saturating_sub(48);
        let answer = match to {
            ReplyTo::Datagram { .. } => query.fit(answer, query.datagram_size(most)),
            ReplyTo::Connection { .. } => answer,
        };
        self.send(core, to, answer);
    }

    fn send(&mut self, core: &mut Core, to: ReplyTo, answer: Vec<u8>) {
        match to {
            ReplyTo::Datagram { service, port } => core.guest.send_udp(service, port, &answer),
            ReplyTo::Connection { index, serial } => self.replies.push((index, serial, answer)),
        }
    }

    /// When the next question has waited for too long.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }
}

/// The rule that would let the name of a query be resolved, where somebody is to be asked about that.
fn question(core: &Core, query: &Query, reason: Option<&Reason>) -> Option<Rule> {
    let asks = matches!(query.kind, kind::A | kind::AAAA) && reason == Some(&Reason::NotListed);
    core.judge.name_question(&query.name().ok().filter(|_| asks)?)
}

/// `localhost` and everything below it, which RFC 6761 keeps on the machine that asks.
fn is_localhost(name: &Name) -> bool {
    name.as_str() == "localhost" || name.as_str().ends_with(".localhost")
}

/// Addresses of names that are ours to answer.
fn own_addresses(link: &LinkConfig, name: &Name) -> Option<[IpAddr; 2]> {
    if is_localhost(name) {
        // The sandbox's own loopback: the host's has another name inside.
        Some([IpAddr::from([127, 0, 0, 1]), IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)])
    } else if is_alias(name) {
        Some([link.gateway_v4.into(), link.gateway_v6.into()])
    } else {
        None
    }
}

fn asks_for(query: &Query, address: IpAddr) -> bool {
    query.kind == if address.is_ipv4() { kind::A } else { kind::AAAA }
}

/// A deny rule about any name on the way is about the whole way.
fn denied_alias(core: &Core, aliases: &[Alias]) -> Option<Reason> {
    aliases.iter().filter_map(Alias::name).find_map(|name| match core.judge.policy.judge_name(&name).reason {
        reason @ Reason::DenyRule(_) => Some(reason),
        _ => None,
    })
}
