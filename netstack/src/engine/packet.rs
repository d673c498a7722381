//! IP packets of the sandbox, as far as they are looked at before anything else is done with them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use smoltcp::wire::{IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet};

/// Bytes of an IPv6 fragment header.
const FRAGMENT_HEADER: usize = 8;
pub(crate) const V4_HEADER: usize = 20;
pub(crate) const V6_HEADER: usize = 40;
pub(crate) const UDP_HEADER: usize = 8;

/// A whole packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: IpProtocol,
    pub(crate) payload: &'a [u8],
    /// Header and payload, nothing behind.
    pub(crate) whole: &'a [u8],
}

/// What identifies the packet that a fragment is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FragmentKey {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: IpProtocol,
    pub(crate) ident: u32,
}

/// Part of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragment<'a> {
    pub(crate) key: FragmentKey,
    /// Where its data goes in the payload, in bytes.
    pub(crate) offset: usize,
    /// Whether more follow.
    pub(crate) more: bool,
    pub(crate) data: &'a [u8],
}

/// What the payload of a frame is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Parsed<'a> {
    Whole(Packet<'a>),
    Part(Fragment<'a>),
}

/// Reads the payload of an IPv4 frame. Checksums of transports are not verified anywhere: the link is memory.
pub(crate) fn parse_v4(bytes: &[u8]) -> Option<Parsed<'_>> {
    let packet = Ipv4Packet::new_checked(bytes).ok()?;
    if packet.version() != 4 || usize::from(packet.header_len()) < V4_HEADER || !packet.verify_checksum() {
        return None;
    }
    let header = usize::from(packet.header_len());
    let total = usize::from(packet.total_len());
    let whole = bytes.get(..total)?;
    let payload = whole.get(header..)?;
    let source = IpAddr::V4(packet.src_addr());
    let destination = IpAddr::V4(packet.dst_addr());
    let protocol = packet.next_header();
    if packet.more_frags() || packet.frag_offset() != 0 {
        let key = FragmentKey { source, destination, protocol, ident: u32::from(packet.ident()) };
        let (offset, more) = (usize::from(packet.frag_offset()), packet.more_frags());
        return Some(Parsed::Part(Fragment { key, offset, more, data: payload }));
    }
    Some(Parsed::Whole(Packet { source, destination, protocol, payload, whole }))
}

/// Reads the payload of an IPv6 frame. Of the extension headers only the fragment header is known: no sandbox needs the
/// others, and each has been used to slip past a filter.
pub(crate) fn parse_v6(bytes: &[u8]) -> Option<Parsed<'_>> {
    let packet = Ipv6Packet::new_checked(bytes).ok()?;
    if packet.version() != 6 {
        return None;
    }
    let whole = bytes.get(..V6_HEADER + usize::from(packet.payload_len()))?;
    let payload = whole.get(V6_HEADER..)?;
    let (source, destination) = (IpAddr::V6(packet.src_addr()), IpAddr::V6(packet.dst_addr()));
    match packet.next_header() {
        IpProtocol::Ipv6Frag => {
            let (header, data) = payload.split_at_checked(FRAGMENT_HEADER)?;
            let field = u16::from_be_bytes([header[2], header[3]]);
            let ident = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
            let protocol = IpProtocol::from(header[0]);
            if is_extension(protocol) {
                return None;
            }
            let key = FragmentKey { source, destination, protocol, ident };
            let fragment = Fragment { key, offset: usize::from(field & !7), more: field & 1 != 0, data };
            Some(Parsed::Part(fragment))
        }
        protocol if is_extension(protocol) => None,
        protocol => Some(Parsed::Whole(Packet { source, destination, protocol, payload, whole })),
    }
}

fn is_extension(protocol: IpProtocol) -> bool {
    matches!(
        protocol,
        IpProtocol::HopByHop
            | IpProtocol::Ipv6Route
            | IpProtocol::Ipv6Frag
            | IpProtocol::Ipv6Opts
            | IpProtocol::Ipv6NoNxt
    )
}

/// A UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Datagram<'a> {
    pub(crate) source: u16,
    pub(crate) destination: u16,
    pub(crate) data: &'a [u8],
}

/// Reads the payload of a UDP packet.
pub(crate) fn parse_udp(payload: &[u8]) -> Option<Datagram<'_>> {
    let header = payload.get(..UDP_HEADER)?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let (source, destination) =
        (u16::from_be_bytes([header[0], header[1]]), u16::from_be_bytes([header[2], header[3]]));
    if source == 0 || destination == 0 {
        return None;
    }
    Some(Datagram { source, destination, data: payload.get(UDP_HEADER..length)? })
}

/// What of a TCP segment decides where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) source: u16,
    pub(crate) destination: u16,
    /// The first segment of a connection: SYN and neither ACK nor RST nor FIN.
    pub(crate) opens: bool,
    pub(crate) reset: bool,
    pub(crate) sequence: u32,
}

/// Reads the header of a TCP segment.
pub(crate) fn parse_tcp(payload: &[u8]) -> Option<Segment> {
    let header = payload.get(..20)?;
    let offset = usize::from(header[12] >> 4) * 4;
    let flags = header[13];
    let (source, destination) =
        (u16::from_be_bytes([header[0], header[1]]), u16::from_be_bytes([header[2], header[3]]));
    if offset < 20 || offset > payload.len() || source == 0 || destination == 0 {
        return None;
    }
    const FIN_SYN_RST_ACK: u8 = 0x17;
    const SYN: u8 = 0x02;
    const RST: u8 = 0x04;
    Some(Segment {
        source,
        destination,
        opens: flags & FIN_SYN_RST_ACK == SYN,
        reset: flags & RST != 0,
        sequence: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
    })
}

/// Bytes of the IP header that goes with an address.
pub(crate) fn header_len(address: IpAddr) -> usize {
    if address.is_ipv4() { V4_HEADER } else { V6_HEADER }
}

/// Writes an IP header for a payload of `length` bytes into the front of `buffer`. Both addresses are of one family.
pub(crate) fn write_header(
    buffer: &mut [u8],
    source: IpAddr,
    destination: IpAddr,
    protocol: IpProtocol,
    length: usize,
) -> Option<()> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut packet = Ipv4Packet::new_unchecked(buffer.get_mut(..V4_HEADER)?);
            packet.set_version(4);
            packet.set_header_len(20);
            packet.set_dscp(0);
            packet.set_ecn(0);
            packet.set_total_len(u16::try_from(V4_HEADER + length).ok()?);
            packet.set_ident(0);
            packet.clear_flags();
            packet.set_more_frags(false);
            packet.set_dont_frag(true);
            packet.set_frag_offset(0);
            packet.set_hop_limit(64);
            packet.set_next_header(protocol);
            packet.set_src_addr(source);
            packet.set_dst_addr(destination);
            packet.fill_checksum();
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut packet = Ipv6Packet::new_unchecked(buffer.get_mut(..V6_HEADER)?);
            packet.set_version(6);
            packet.set_traffic_class(0);
            packet.set_flow_label(0);
            packet.set_payload_len(u16::try_from(length).ok()?);
            packet.set_next_header(protocol);
            packet.set_hop_limit(64);
            packet.set_src_addr(source);
            packet.set_dst_addr(destination);
        }
        _ => return None,
    }
    Some(())
}

/// One piece of a packet that is longer than the link's MTU: its header and which bytes of the payload follow.
pub(crate) struct Piece {
    pub(crate) header: Vec<u8>,
    pub(crate) range: Range<usize>,
}

/// Cuts a payload into as many packets as the MTU needs. One piece has a plain header.
pub(crate) fn pieces(
    source: IpAddr,
    destination: IpAddr,
    protocol: IpProtocol,
    length: usize,
    mtu: usize,
    ident: u32,
) -> Vec<Piece> {
    let plain = header_len(source);
    if plain + length <= mtu {
        let mut header = vec![0; plain];
        return match write_header(&mut header, source, destination, protocol, length) {
            Some(()) => vec![Piece { header, range: 0..length }],
            None => Vec::new(),
        };
    }
    let extra = if source.is_ipv4() { 0 } else { FRAGMENT_HEADER };
    let step = (mtu - plain - extra) & !7;
    let mut all = Vec::with_capacity(length.div_ceil(step));
    for start in (0..length).step_by(step) {
        let end = (start + step).min(length);
        let mut header = vec![0; plain + extra];
        let shown = if extra == 0 { protocol } else { IpProtocol::Ipv6Frag };
        if write_header(&mut header, source, destination, shown, end - start + extra).is_none() {
            return Vec::new();
        }
        let Ok(offset) = u16::try_from(start) else { return Vec::new() };
        if extra == 0 {
            let mut packet = Ipv4Packet::new_unchecked(&mut header[..]);
            packet.set_ident((ident & 0xffff) as u16);
            packet.set_dont_frag(false);
            packet.set_more_frags(end < length);
            packet.set_frag_offset(offset);
            packet.fill_checksum();
        } else {
            header[plain] = u8::from(protocol);
            header[plain + 2..plain + 4].copy_from_slice(&(offset | u16::from(end < length)).to_be_bytes());
            header[plain + 4..].copy_from_slice(&ident.to_be_bytes());
        }
        all.push(Piece { header, range: start..end });
    }
    all
}

/// Writes a UDP header in front of `data`, with its checksum.
pub(crate) fn udp(source: (IpAddr, u16), destination: (IpAddr, u16), data: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(UDP_HEADER + data.len()).ok()?;
    let mut all = Vec::with_capacity(usize::from(length));
    all.extend_from_slice(&source.1.to_be_bytes());
    all.extend_from_slice(&destination.1.to_be_bytes());
    all.extend_from_slice(&length.to_be_bytes());
    all.extend_from_slice(&[0, 0]);
    all.extend_from_slice(data);
    let mut packet = smoltcp::wire::UdpPacket::new_unchecked(&mut all[..]);
    packet.fill_checksum(&IpAddress::from(source.0), &IpAddress::from(destination.0));
    Some(all)
}

/// The checksum of ICMP: over the message for IPv4, also over the addresses for IPv6.
pub(crate) fn icmp_checksum(source: IpAddr, destination: IpAddr, message: &[u8]) -> u16 {
    let mut sum = 0u32;
    let mut add = |bytes: &[u8]| {
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&b| u32::from(b));
        }
    };
    if let (IpAddr::V6(source), IpAddr::V6(destination)) = (source, destination) {
        add(&source.octets());
        add(&destination.octets());
        add(&u32::try_from(message.len()).unwrap_or(0).to_be_bytes());
        add(&[0, 0, 0, u8::from(IpProtocol::Icmpv6)]);
    }
    add(message);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Whether smoltcp takes the address for a single host.
pub(crate) fn is_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => !(a.is_unspecified() || a.is_multicast() || a == Ipv4Addr::BROADCAST),
        IpAddr::V6(a) => !(a == Ipv6Addr::UNSPECIFIED || a.is_multicast()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const V4: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2))];
    const V6: [IpAddr; 2] = [
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)),
    ];

    fn parse(bytes: &[u8]) -> Option<Parsed<'_>> {
        if bytes.first()? >> 4 == 4 { parse_v4(bytes) } else { parse_v6(bytes) }
    }

    #[test]
    fn a_datagram_comes_back() {
        for [a, b] in [V4, V6] {
            let body = udp((a, 7), (b, 9), b"hello").unwrap();
            let piece = &pieces(a, b, IpProtocol::Udp, body.len(), 1500, 1)[0];
            let bytes = [&piece.header[..], &body].concat();
            let Some(Parsed::Whole(packet)) = parse(&bytes) else { panic!("not whole") };
            assert_eq!((packet.source, packet.destination, packet.protocol), (a, b, IpProtocol::Udp));
            let datagram = parse_udp(packet.payload).unwrap();
            assert_eq!(datagram, Datagram { source: 7, destination: 9, data: b"hello" });
            // Bytes behind the packet, as Ethernet pads, do not become part of it.
            let padded = [&bytes[..], &[9; 20]].concat();
            let Some(Parsed::Whole(packet)) = parse(&padded) else { panic!("not whole") };
            assert_eq!(packet.whole, bytes);
        }
    }

    #[test]
    fn pieces_fit_the_mtu_and_cover_everything_once() {
        for [a, b] in [V4, V6] {
            for length in [1, 1460, 1480, 1481, 9000, 65_515 - 8] {
                let mut next = 0;
                let all = pieces(a, b, IpProtocol::Udp, length, 1500, 77);
                for piece in &all {
                    assert!(piece.header.len() + piece.range.len() <= 1500);
                    assert_eq!(piece.range.start, next);
                    next = piece.range.end;
                    let bytes = [&piece.header[..], &vec![0; piece.range.len()]].concat();
                    match parse(&bytes) {
                        Some(Parsed::Whole(_)) => assert_eq!(all.len(), 1),
                        Some(Parsed::Part(part)) => {
                            assert_eq!((part.offset, part.more), (piece.range.start, piece.range.end < length));
                            assert_eq!((part.key.ident, part.key.protocol), (77, IpProtocol::Udp));
                        }
                        None => panic!("unreadable piece"),
                    }
                }
                assert_eq!(next, length);
            }
        }
    }

    #[test]
    fn extension_headers_are_refused() {
        let mut bytes = vec![0; 80];
        for protocol in [IpProtocol::HopByHop, IpProtocol::Ipv6Route, IpProtocol::Ipv6Opts, IpProtocol::Ipv6NoNxt] {
            write_header(&mut bytes, V6[0], V6[1], protocol, 40).unwrap();
            assert!(parse_v6(&bytes).is_none(), "{protocol}");
            write_header(&mut bytes, V6[0], V6[1], IpProtocol::Ipv6Frag, 40).unwrap();
            bytes[40] = u8::from(protocol);
            assert!(parse_v6(&bytes).is_none(), "{protocol} in a fragment");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120), version in 4u8..=6) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = version << 4 | *first & 15;
            }
            for parsed in [parse_v4(&bytes), parse_v6(&bytes)].into_iter().flatten() {
                let payload = match parsed {
                    Parsed::Whole(p) => p.payload,
                    Parsed::Part(p) => p.data,
                };
                let _ = (parse_udp(payload), parse_tcp(payload));
            }
        }
    }
}
