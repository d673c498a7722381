//! Messages by hand, and hostile ones.

use super::*;
use proptest::prelude::*;

/// A name in wire form.
pub(crate) fn wire_name(text: &str) -> Vec<u8> {
    let mut wire = Vec::new();
    for label in text.split('.').filter(|l| !l.is_empty()) {
        wire.push(label.len() as u8);
        wire.extend_from_slice(label.as_bytes());
    }
    wire.push(0);
    wire
}

fn query_bytes(name: &[u8], kind: u16, tail: &[u8]) -> Vec<u8> {
    let additional = u8::from(!tail.is_empty());
    let mut message = vec![0x12, 0x34, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, additional];
    message.extend_from_slice(name);
    message.extend_from_slice(&kind.to_be_bytes());
    message.extend_from_slice(&[0, 1]);
    message.extend_from_slice(tail);
    message
}

fn query(name: &str, kind: u16) -> Query {
    Query::parse(&query_bytes(&wire_name(name), kind, &[])).unwrap()
}

const OPT: [u8; 11] = [0, 0, 41, 0x10, 0, 0, 0, 0, 0, 0, 0];

/// An upstream answer to `query` with these records.
fn answer(query: &Query, id: u16, records: &[(Vec<u8>, u16, u32, Vec<u8>)]) -> Vec<u8> {
    let mut message = query.for_upstream(id, false);
    message[2] = 0x81;
    message[3] = 0x80;
    message[7] = records.len() as u8;
    for (owner, kind, ttl, data) in records {
        message.extend_from_slice(owner);
        message.extend_from_slice(&kind.to_be_bytes());
        message.extend_from_slice(&[0, 1]);
        message.extend_from_slice(&ttl.to_be_bytes());
        message.extend_from_slice(&(data.len() as u16).to_be_bytes());
        message.extend_from_slice(data);
    }
    message
}

fn rcode(answer: &[u8]) -> u8 {
    answer[3] & 15
}

#[test]
fn a_plain_query() {
    let query = query("WWW.Example.com", kind::A);
    assert_eq!(query.name().unwrap().as_str(), "www.example.com");
    assert_eq!(query.shown_name(), "WWW.Example.com");
    assert_eq!(query.datagram_size(1400), 512);
    let with_opt = Query::parse(&query_bytes(&wire_name("a.b"), 28, &OPT)).unwrap();
    assert_eq!(with_opt.datagram_size(1400), 1400);
    assert_eq!(with_opt.datagram_size(9000), 4096);
}

#[test]
fn only_the_question_goes_upstream() {
    let mut bytes = query_bytes(&wire_name("a.example"), kind::A, &OPT);
    // Flags and an EDNS option with a message in it.
    bytes[3] = 0x30;
    let end = bytes.len();
    bytes[end - 1] = 8;
    bytes.extend_from_slice(&[0, 99, 0, 4, 1, 2, 3, 4]);
    let query = Query::parse(&bytes).unwrap();
    let upstream = query.for_upstream(7, true);
    assert_eq!(upstream[..4], [0, 7, 1, 0]);
    assert!(!upstream.windows(4).any(|w| w == [1, 2, 3, 4]));
    assert_eq!(Query::parse(&upstream).unwrap().name(), query.name());
}

#[test]
fn names_that_are_none() {
    for (labels, shown) in [
        (&b"\x0cevil\0allowed\x03com\0"[..], "evil\\000allowed.com"),
        (b"\x09a.allowed\x03com\0", "a\\046allowed.com"),
        (b"\x03127\x010\x010\x011\0", "127.0.0.1"),
        (b"\x0a0x7f000001\0", "0x7f000001"),
        (b"\x04a b!\0", "a\\032b!"),
        (b"\0", "."),
        (b"\x03\xc3\xbcx\0", "\\195\\188x"),
    ] {
        let query = Query::parse(&query_bytes(labels, kind::A, &[])).unwrap();
        assert!(query.name().is_err(), "{shown}");
        assert_eq!(query.shown_name(), shown);
    }
}

#[test]
fn malformed_queries_get_an_error_and_no_more() {
    let good = query_bytes(&wire_name("a.example"), kind::A, &OPT);
    for cut in 0..12 {
        assert_eq!(Query::parse(&good[..cut]), Err(Unusable::Silent));
    }
    let code = |bytes: &[u8]| match Query::parse(bytes) {
        Err(Unusable::Answer(answer)) => Some((answer[1], rcode(&answer), answer.len())),
        _ => None,
    };
    for cut in 12..good.len() {
        assert_eq!(code(&good[..cut]), Some((0x34, 1, 12)), "cut at {cut}");
    }
    assert_eq!(code(&[&good[..], &[0]].concat()), Some((0x34, 1, 12)), "bytes behind");
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    assert_eq!(Query::parse(&changed(2, 0x81)), Err(Unusable::Silent), "an answer is never answered");
    assert_eq!(code(&changed(2, 0x28)), Some((0x34, 4, 12)), "an update");
    for (at, value) in [(5, 0), (5, 2), (7, 1), (9, 1), (11, 2), (12, 0xc0), (12, 64)] {
        assert_eq!(code(&changed(at, value)), Some((0x34, 1, 12)), "byte {at}");
    }
    let question_end = 12 + wire_name("a.example").len() + 4;
    assert_eq!(code(&changed(question_end - 1, 3)), Some((0x34, 1, 12)), "class CHAOS");
    let long = query_bytes(&wire_name("a.example"), kind::A, &vec![0; MAX_QUERY]);
    assert_eq!(code(&long), Some((0x34, 1, 12)));
}

#[test]
fn answers_are_built_from_what_was_understood() {
    let query = query("Www.Example.com", kind::A);
    let (www, cdn) = (wire_name("www.example.com"), wire_name("cdn.example.net"));
    let upstream = answer(
        &query,
        9,
        &[
            (vec![0xc0, 12], kind::CNAME, 300, cdn.clone()),
            (wire_name("CDN.example.net"), kind::A, 60, vec![192, 0, 2, 1]),
            (cdn.clone(), kind::A, 50, vec![192, 0, 2, 2]),
            (www.clone(), kind::A, 60, vec![192, 0, 2, 66]),
            (wire_name("other.example"), kind::A, 60, vec![192, 0, 2, 99]),
            (cdn.clone(), kind::AAAA, 60, vec![0; 16]),
            (cdn.clone(), 16, 60, b"\x03txt".to_vec()),
        ],
    );
    let reply = read_reply(&upstream, &query, 9).unwrap();
    assert_eq!(reply.aliases, [Alias { target: cdn, ttl: 300 }]);
    assert_eq!(reply.aliases[0].name().unwrap().as_str(), "cdn.example.net");
    assert_eq!(reply.addresses, [([192, 0, 2, 1].into(), 60), ([192, 0, 2, 2].into(), 50)]);
    let mine = query.address_answer(&reply.aliases, &reply.addresses[..1]);
    assert_eq!(mine[..2], [0x12, 0x34]);
    assert!(mine.windows(11).any(|w| w == b"Www\x07Example"), "the client's own spelling");
    // It reads back as what it was built from.
    let again = read_reply(&mine, &query, 0x1234).unwrap();
    assert_eq!((again.aliases, again.addresses), (reply.aliases, reply.addresses[..1].to_vec()));
}

#[test]
fn answers_to_something_else_are_not_taken() {
    let query = query("a.example", kind::A);
    let good = answer(&query, 9, &[(vec![0xc0, 12], kind::A, 60, vec![192, 0, 2, 1])]);
    assert!(read_reply(&good, &query, 9).is_some());
    assert!(read_reply(&good, &query, 10).is_none(), "another id");
    for other in [super::tests::query("b.example", kind::A), super::tests::query("a.example", kind::AAAA)] {
        assert!(read_reply(&good, &other, 9).is_none());
    }
    assert!(read_reply(&query.for_upstream(9, true), &query, 9).is_none(), "a query");
    for cut in 0..good.len() {
        assert!(read_reply(&good[..cut], &query, 9).is_none(), "cut at {cut}");
    }
}

#[test]
fn loops_end() {
    let query = query("a.example", kind::A);
    let a = wire_name("a.example");
    let own = answer(&query, 9, &[(a.clone(), kind::CNAME, 60, a.clone())]);
    assert!(read_reply(&own, &query, 9).is_none(), "an alias of itself");
    let end = 12 + a.len() + 4;
    let forward = answer(&query, 9, &[(vec![0xc0, end as u8], kind::A, 60, vec![0; 4])]);
    assert!(read_reply(&forward, &query, 9).is_none(), "a pointer to itself");
    let back = answer(&query, 9, &[(vec![0xc0, (end + 2) as u8, 0xc0, end as u8], kind::A, 60, vec![0; 4])]);
    assert!(read_reply(&back, &query, 9).is_none(), "a pointer forwards");
}

#[test]
fn what_is_too_long_asks_for_tcp() {
    let query = query("a.example", kind::A);
    let addresses: Vec<_> = (0..100u8).map(|i| (IpAddr::from([192, 0, 2, i]), 60)).collect();
    let full = query.address_answer(&[], &addresses);
    assert_eq!(query.fit(full.clone(), full.len()), full);
    let cut = query.fit(full, 512);
    assert!(cut.len() <= 512 && cut[2] & 2 != 0);
    assert!(read_reply(&cut, &query, 0x1234).unwrap().truncated);
}

#[test]
fn refusals_carry_the_question() {
    let query = Query::parse(&query_bytes(&wire_name("a.example"), 16, &OPT)).unwrap();
    let refused = query.empty_answer(Rcode::REFUSED);
    assert_eq!((rcode(&refused), refused[11]), (5, 1));
    assert_eq!(read_reply(&refused, &query, 0x1234).unwrap().rcode, Rcode::REFUSED);
    assert_eq!(kind_name(16), "TXT");
    assert_eq!(kind_name(999), "TYPE999");
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Query::parse(&bytes);
        let query = query("a.example", kind::A);
        let _ = read_reply(&bytes, &query, 9);
    }

    #[test]
    fn no_damage_panics(at in 0usize..120, value in any::<u8>(), second in 0usize..120, other in any::<u8>()) {
        let query = query("a.example", kind::A);
        let mut upstream = answer(&query, 9, &[
            (vec![0xc0, 12], kind::CNAME, 300, vec![3, b'c', b'd', b'n', 0xc0, 14]),
            (vec![3, b'c', b'd', b'n', 0xc0, 14], kind::A, 60, vec![192, 0, 2, 1]),
        ]);
        prop_assert_eq!(read_reply(&upstream, &query, 9).unwrap().addresses.len(), 1);
        for (at, value) in [(at, value), (second, other)] {
            if let Some(byte) = upstream.get_mut(at) {
                *byte = value;
            }
        }
        if let Some(reply) = read_reply(&upstream, &query, 9) {
            let mine = query.address_answer(&reply.aliases, &reply.addresses);
            prop_assert!(read_reply(&mine, &query, 0x1234).is_some());
        }
    }
}
