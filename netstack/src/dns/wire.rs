//! The format of name queries and answers (RFC 1035, RFC 6891), read as if every byte were meant to harm.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Name, NameError};

/// Bytes of a message's header.
const HEADER: usize = 12;
/// Longest query that is taken, in bytes.
pub(crate) const MAX_QUERY: usize = 4096;
/// Records of an answer that are looked at.
const MAX_RECORDS: usize = 512;
/// Compression pointers followed for one name.
const MAX_JUMPS: usize = 32;
/// Longest name in its wire form, in bytes.
const MAX_WIRE_NAME: usize = 255;
/// Bytes that we let a name server put in one datagram: what passes everywhere without fragments.
pub(crate) const UPSTREAM_SIZE: u16 = 1232;

const FLAG_ANSWER: u16 = 0x8000;
const OPCODE: u16 = 0x7800;
const FLAG_TRUNCATED: u16 = 0x0200;
const FLAG_RECURSE: u16 = 0x0100;
const FLAG_CAN_RECURSE: u16 = 0x0080;
const CLASS_IN: u16 = 1;

/// Kinds of query that are treated specially.
pub(crate) mod kind {
    pub(crate) const A: u16 = 1;
    pub(crate) const CNAME: u16 = 5;
    pub(crate) const NULL: u16 = 10;
    pub(crate) const AAAA: u16 = 28;
    pub(crate) const OPT: u16 = 41;
    pub(crate) const SVCB: u16 = 64;
    pub(crate) const HTTPS: u16 = 65;
    pub(crate) const IXFR: u16 = 251;
    pub(crate) const AXFR: u16 = 252;
    pub(crate) const ANY: u16 = 255;
}

/// Response codes that we give or look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rcode(pub(crate) u8);

impl Rcode {
    pub(crate) const OK: Self = Self(0);
    pub(crate) const FORMAT: Self = Self(1);
    pub(crate) const SERVER: Self = Self(2);
    pub(crate) const NO_NAME: Self = Self(3);
    pub(crate) const NOT_IMPLEMENTED: Self = Self(4);
    pub(crate) const REFUSED: Self = Self(5);
}

/// What a kind of query is called.
pub(crate) fn kind_name(kind: u16) -> String {
    const NAMES: [(u16, &str); 16] = [
        (1, "A"),
        (2, "NS"),
        (5, "CNAME"),
        (6, "SOA"),
        (10, "NULL"),
        (12, "PTR"),
        (15, "MX"),
        (16, "TXT"),
        (28, "AAAA"),
        (33, "SRV"),
        (35, "NAPTR"),
        (64, "SVCB"),
        (65, "HTTPS"),
        (252, "AXFR"),
        (255, "ANY"),
        (257, "CAA"),
    ];
    NAMES.iter().find(|(k, _)| *k == kind).map_or_else(|| format!("TYPE{kind}"), |(_, name)| (*name).to_owned())
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from(u16_at(bytes, at)?) << 16 | u32::from(u16_at(bytes, at + 2)?))
}

/// A query as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    id: u16,
    recurse: bool,
    /// Name, kind and class, byte for byte: clients compare them, some even the case of the letters.
    question: Vec<u8>,
    /// Bytes of a datagram that the client can take, if it uses EDNS.
    edns: Option<u16>,
    pub(crate) kind: u16,
}

/// Why a message is not answered like a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// Not even the header of a query: no answer.
    Silent,
    /// An answer that says what is wrong.
    Answer(Vec<u8>),
}

impl Query {
    /// Reads a message of the sandbox.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Unusable> {
        let header = message.get(..HEADER).ok_or(Unusable::Silent)?;
        let (id, flags) = (u16_at(header, 0).unwrap_or(0), u16_at(header, 2).unwrap_or(FLAG_ANSWER));
        if flags & FLAG_ANSWER != 0 {
            return Err(Unusable::Silent);
        }
        let fault = |rcode: Rcode| {
            let mut answer = vec![0; HEADER];
            answer[..2].copy_from_slice(&id.to_be_bytes());
            answer[2..4]
                .copy_from_slice(&(FLAG_ANSWER | flags & (OPCODE | FLAG_RECURSE) | u16::from(rcode.0)).to_be_bytes());
            Unusable::Answer(answer)
        };
        if flags & OPCODE != 0 {
            return Err(fault(Rcode::NOT_IMPLEMENTED));
        }
        if message.len() > MAX_QUERY {
            return Err(fault(Rcode::FORMAT));
        }
        Self::parse_body(message, id, flags & FLAG_RECURSE != 0).ok_or_else(|| fault(Rcode::FORMAT))
    }

    fn parse_body(message: &[u8], id: u16, recurse: bool) -> Option<Self> {
        let counts = [u16_at(message, 4)?, u16_at(message, 6)?, u16_at(message, 8)?, u16_at(message, 10)?];
        if counts[..3] != [1, 0, 0] || counts[3] > 1 {
            return None;
        }
        let (_, end) = read_name(message, HEADER, false)?;
        let kind = u16_at(message, end)?;
        if u16_at(message, end + 2)? != CLASS_IN {
            return None;
        }
        let question = message.get(HEADER..end + 4)?.to_vec();
        let (edns, end) = if counts[3] == 1 {
            let (size, end) = read_opt(message, end + 4)?;
            (Some(size), end)
        } else {
            (None, end + 4)
        };
        (end == message.len()).then_some(Self { id, recurse, question, edns, kind })
    }

    /// The name that is asked for, in its canonical spelling.
    pub(crate) fn name(&self) -> Result<Name, NameError> {
        let mut text = Vec::with_capacity(self.question.len());
        for label in labels(&self.question) {
            if label.contains(&b'.') {
                return Err(NameError::Character);
            }
            text.extend_from_slice(label);
            text.push(b'.');
        }
        Name::from_ascii(&text)
    }

    /// The name for people and logs, whatever is in it.
    pub(crate) fn shown_name(&self) -> String {
        let mut shown = String::new();
        for (i, label) in labels(&self.question).enumerate() {
            if i > 0 {
                shown.push('.');
            }
            for &byte in label {
                match byte {
                    b'!'..=b'~' if byte != b'.' && byte != b'\\' => shown.push(char::from(byte)),
                    _ => drop(write!(shown, "\\{byte:03}")),
                }
            }
        }
        if shown.is_empty() { ".".to_owned() } else { shown }
    }

    /// Whether this is the same query from the same program, sent again.
    pub(crate) fn repeats(&self, other: &Query) -> bool {
        self.id == other.id && self.question == other.question
    }

    /// The message for a name server. Nothing of the sandbox's but the question goes out: no options, no odd flags.
    pub(crate) fn for_upstream(&self, id: u16, edns: bool) -> Vec<u8> {
        let mut message = Vec::with_capacity(HEADER + self.question.len() + 11);
        message.extend_from_slice(&id.to_be_bytes());
        message.extend_from_slice(&FLAG_RECURSE.to_be_bytes());
        message.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, u8::from(edns)]);
        message.extend_from_slice(&self.question);
        if edns {
            push_opt(&mut message, UPSTREAM_SIZE);
        }
        message
    }

    /// Bytes of a datagram that the client takes.
    pub(crate) fn datagram_size(&self, most: usize) -> usize {
        usize::from(self.edns.unwrap_or(512)).clamp(512, most.max(512))
    }

    /// An answer without records.
    pub(crate) fn empty_answer(&self, rcode: Rcode) -> Vec<u8> {
        self.begin(rcode, 0, false, self.edns.is_some()).finish(self.edns)
    }

    /// An answer with addresses behind a chain of aliases.
    pub(crate) fn address_answer(&self, aliases: &[Alias], addresses: &[(IpAddr, u32)]) -> Vec<u8> {
        let count = u16::try_from(aliases.len() + addresses.len()).unwrap_or(u16::MAX);
        let mut answer = self.begin(Rcode::OK, count, false, self.edns.is_some());
        // The question's name stands right behind the header.
        let mut owner = vec![0xc0, HEADER as u8];
        for alias in aliases {
            answer.record(&owner, kind::CNAME, alias.ttl, &alias.target);
            owner.clone_from(&alias.target);
        }
        for (address, ttl) in addresses {
            match address {
                IpAddr::V4(a) => answer.record(&owner, kind::A, *ttl, &a.octets()),
                IpAddr::V6(a) => answer.record(&owner, kind::AAAA, *ttl, &a.octets()),
            }
        }
        answer.finish(self.edns)
    }

    /// An upstream message with the client's own id.
    pub(crate) fn relabel(&self, mut message: Vec<u8>) -> Vec<u8> {
        if let Some(id) = message.get_mut(..2) {
            id.copy_from_slice(&self.id.to_be_bytes());
        }
        message
    }

    /// The answer, or, where it is longer than a datagram may be, one that asks to come again by TCP.
    pub(crate) fn fit(&self, answer: Vec<u8>, size: usize) -> Vec<u8> {
        if answer.len() <= size {
            answer
        } else {
            self.begin(Rcode::OK, 0, true, self.edns.is_some()).finish(self.edns)
        }
    }

    fn begin(&self, rcode: Rcode, answers: u16, truncated: bool, edns: bool) -> Answer {
        let mut flags = FLAG_ANSWER | FLAG_CAN_RECURSE | u16::from(rcode.0);
        flags |= if self.recurse { FLAG_RECURSE } else { 0 };
        flags |= if truncated { FLAG_TRUNCATED } else { 0 };
        let mut message = Vec::with_capacity(512);
        message.extend_from_slice(&self.id.to_be_bytes());
        message.extend_from_slice(&flags.to_be_bytes());
        message.extend_from_slice(&[0, 1]);
        message.extend_from_slice(&answers.to_be_bytes());
        message.extend_from_slice(&[0, 0, 0, u8::from(edns)]);
        message.extend_from_slice(&self.question);
        Answer(message)
    }
}

/// A message in the making.
struct Answer(Vec<u8>);

impl Answer {
    fn record(&mut self, owner: &[u8], kind: u16, ttl: u32, data: &[u8]) {
        self.0.extend_from_slice(owner);
        self.0.extend_from_slice(&kind.to_be_bytes());
        self.0.extend_from_slice(&CLASS_IN.to_be_bytes());
        self.0.extend_from_slice(&ttl.to_be_bytes());
        self.0.extend_from_slice(&u16::try_from(data.len()).unwrap_or(0).to_be_bytes());
        self.0.extend_from_slice(data);
    }

    fn finish(mut self, edns: Option<u16>) -> Vec<u8> {
        if edns.is_some() {
            push_opt(&mut self.0, 4096);
        }
        self.0
    }
}

fn push_opt(message: &mut Vec<u8>, size: u16) {
    message.push(0);
    message.extend_from_slice(&kind::OPT.to_be_bytes());
    message.extend_from_slice(&size.to_be_bytes());
    message.extend_from_slice(&[0; 6]);
}

/// The OPT record at `at`: the size it tells and where it ends.
fn read_opt(message: &[u8], at: usize) -> Option<(u16, usize)> {
    if *message.get(at)? != 0 || u16_at(message, at + 1)? != kind::OPT {
        return None;
    }
    let size = u16_at(message, at + 3)?;
    let end = at + 11 + usize::from(u16_at(message, at + 9)?);
    (end <= message.len()).then_some((size, end))
}

/// The labels of an uncompressed name at the front of `wire`.
fn labels(wire: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = wire;
    std::iter::from_fn(move || {
        let (&length, after) = rest.split_first()?;
        let (label, after) = after.split_at_checked(usize::from(length)).filter(|(label, _)| !label.is_empty())?;
        rest = after;
        Some(label)
    })
}

/// Reads a name: its uncompressed wire form in lower case, and where it ends in the message. Pointers may only lead
/// backwards.
fn read_name(message: &[u8], at: usize, compressed: bool) -> Option<(Vec<u8>, usize)> {
    let (mut name, mut at, mut end, mut jumps) = (Vec::new(), at, None, 0);
    loop {
        let length = *message.get(at)?;
        match length {
            0 => {
                name.push(0);
                return Some((name, end.unwrap_or(at + 1)));
            }
            1..=63 => {
                let label = message.get(at + 1..at + 1 + usize::from(length))?;
                name.push(length);
                name.extend(label.iter().map(u8::to_ascii_lowercase));
                at += 1 + usize::from(length);
                if name.len() >= MAX_WIRE_NAME {
                    return None;
                }
            }
            0xc0.. if compressed => {
                let target = usize::from(u16_at(message, at)? & 0x3fff);
                jumps += 1;
                if target >= at || jumps > MAX_JUMPS {
                    return None;
                }
                end = end.or(Some(at + 2));
                at = target;
            }
            _ => return None,
        }
    }
}

/// One step of a chain of aliases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alias {
    /// Where it leads: a name in uncompressed wire form.
    pub(crate) target: Vec<u8>,
    pub(crate) ttl: u32,
}

impl Alias {
    /// The target as a host name, if it is one.
    pub(crate) fn name(&self) -> Option<Name> {
        let text: Vec<&[u8]> = labels(&self.target).collect();
        if text.iter().any(|label| label.contains(&b'.')) {
            return None;
        }
        Name::from_ascii(&text.join(&b'.')).ok()
    }
}

/// What an upstream message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) rcode: Rcode,
    /// Cut off: ask again by TCP.
    pub(crate) truncated: bool,
    /// From the question's name on, in order.
    pub(crate) aliases: Vec<Alias>,
    /// Of the last name in the chain, with their times to live in seconds.
    pub(crate) addresses: Vec<(IpAddr, u32)>,
}

/// Reads the answer of a name server to a query sent with `id`; `None` if it is malformed or answers something else.
pub(crate) fn read_reply(message: &[u8], query: &Query, id: u16) -> Option<Reply> {
    let flags = u16_at(message, 2)?;
    if u16_at(message, 0)? != id || flags & FLAG_ANSWER == 0 || flags & OPCODE != 0 || u16_at(message, 4)? != 1 {
        return None;
    }
    let (asked, end) = read_name(message, HEADER, false)?;
    let question = message.get(HEADER..end + 4)?;
    if !question.eq_ignore_ascii_case(&query.question) || question[end - HEADER..] != query.question[end - HEADER..] {
        return None;
    }
    let (rcode, truncated) = (Rcode((flags & 15) as u8), flags & FLAG_TRUNCATED != 0);
    let mut reply = Reply { rcode, truncated, aliases: Vec::new(), addresses: Vec::new() };
    if truncated || rcode != Rcode::OK {
        return Some(reply);
    }
    let records = read_records(message, end + 4, usize::from(u16_at(message, 6)?))?;
    let mut owner = &asked;
    while let Some(Record { data: Data::Alias(target), ttl, .. }) =
        records.iter().find(|r| r.owner == *owner && matches!(r.data, Data::Alias(_)))
    {
        if reply.aliases.len() >= 16 {
            return None;
        }
        reply.aliases.push(Alias { target: target.clone(), ttl: *ttl });
        owner = target;
    }
    for record in &records {
        if let Data::Address(address) = record.data
            && record.owner == *owner
            && address.is_ipv4() == (query.kind == kind::A)
        {
            reply.addresses.push((address, record.ttl));
        }
    }
    Some(reply)
}

struct Record {
    owner: Vec<u8>,
    ttl: u32,
    data: Data,
}

enum Data {
    Alias(Vec<u8>),
    Address(IpAddr),
}

fn read_records(message: &[u8], mut at: usize, count: usize) -> Option<Vec<Record>> {
    if count > MAX_RECORDS {
        return None;
    }
    let mut records = Vec::new();
    for _ in 0..count {
        let (owner, end) = read_name(message, at, true)?;
        let (kind, class, ttl) = (u16_at(message, end)?, u16_at(message, end + 2)?, u32_at(message, end + 4)?);
        let start = end + 10;
        at = start + usize::from(u16_at(message, end + 8)?);
        let data = message.get(start..at)?;
        // A time to live with its highest bit set means zero.
        let ttl = if ttl > i32::MAX as u32 { 0 } else { ttl };
        let data = match (class, kind) {
            (CLASS_IN, kind::A) => Data::Address(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?).into()),
            (CLASS_IN, kind::AAAA) => Data::Address(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?).into()),
            (CLASS_IN, kind::CNAME) => {
                let (target, end) = read_name(message, start, true)?;
                if end != at {
                    return None;
                }
                Data::Alias(target)
            }
            _ => continue,
        };
        records.push(Record { owner, ttl, data });
    }
    Some(records)
}

#[cfg(test)]
mod tests;
