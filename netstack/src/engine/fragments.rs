//! Puts fragmented packets of the sandbox together.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::packet::{Fragment, FragmentKey, header_len, write_header};

/// Packets in the making at once; the oldest one makes room.
const MAX_PACKETS: usize = 32;
/// Longest payload of a packet.
const MAX_PAYLOAD: usize = 65_515;
/// Pieces of one packet: enough for the smallest MTU.
const MAX_PIECES: usize = 128;
/// How long pieces wait for the others.
const PATIENCE: Duration = Duration::from_secs(15);

struct Parts {
    since: Instant,
    /// Start and data of each piece, sorted, without overlap.
    pieces: Vec<(usize, Vec<u8>)>,
    /// Known once the last piece is here.
    total: Option<usize>,
}

/// Packets in the making.
#[derive(Default)]
pub(crate) struct Fragments {
    table: HashMap<FragmentKey, Parts>,
}

impl Fragments {
    /// Adds a piece; gives the whole packet, with a plain header, once it is complete. Pieces that overlap or contradict
    /// each other throw the packet away, as RFC 5722 wants it.
    pub(crate) fn add(&mut self, fragment: &Fragment<'_>, now: Instant) -> Option<Vec<u8>> {
        self.table.retain(|_, parts| parts.since + PATIENCE > now);
        let end = fragment.offset + fragment.data.len();
        let misfit = fragment.more && !fragment.data.len().is_multiple_of(8);
        if fragment.data.is_empty() || misfit || end > MAX_PAYLOAD {
            self.table.remove(&fragment.key);
            return None;
        }
        if !self.table.contains_key(&fragment.key) && self.table.len() >= MAX_PACKETS {
            let oldest = self.table.iter().min_by_key(|(_, parts)| parts.since).map(|(key, _)| *key)?;
            self.table.remove(&oldest);
        }
        let parts =
            self.table.entry(fragment.key).or_insert_with(|| Parts { since: now, pieces: Vec::new(), total: None });
        if parts.insert(fragment, end).is_none() {
            self.table.remove(&fragment.key);
            return None;
        }
        if !parts.is_complete() {
            return None;
        }
        let parts = self.table.remove(&fragment.key)?;
        parts.into_packet(&fragment.key)
    }
}

impl Parts {
    fn insert(&mut self, fragment: &Fragment<'_>, end: usize) -> Option<()> {
        let at = self.pieces.partition_point(|(start, _)| *start < fragment.offset);
        if let Some((start, data)) = self.pieces.get(at)
            && *start == fragment.offset
            && data == fragment.data
        {
            return Some(()); // the same piece again
        }
        let before = at.checked_sub(1).and_then(|i| self.pieces.get(i)).map_or(0, |(start, data)| start + data.len());
        let after = self.pieces.get(at).map_or(usize::MAX, |(start, _)| *start);
        let last = self.pieces.last().map_or(0, |(start, data)| start + data.len());
        let beyond = self.total.is_some_and(|total| end > total || !fragment.more);
        let short = !fragment.more && end < last;
        if before > fragment.offset || end > after || beyond || short || self.pieces.len() >= MAX_PIECES {
            return None;
        }
        if !fragment.more {
            self.total = Some(end);
        }
        self.pieces.insert(at, (fragment.offset, fragment.data.to_vec()));
        Some(())
    }

    fn is_complete(&self) -> bool {
        self.total == Some(self.pieces.iter().map(|(_, data)| data.len()).sum())
    }

    fn into_packet(self, key: &FragmentKey) -> Option<Vec<u8>> {
        let header = header_len(key.source);
        let total = self.total?;
        let mut packet = vec![0; header];
        packet.reserve_exact(total);
        for (_, data) in &self.pieces {
            packet.extend_from_slice(data);
        }
        write_header(&mut packet, key.source, key.destination, key.protocol, total)?;
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::packet::{Parsed, parse_v4};
    use proptest::prelude::*;
    use smoltcp::wire::IpProtocol;

    fn key(ident: u32) -> FragmentKey {
        let (source, destination) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        FragmentKey { source, destination, protocol: IpProtocol::Udp, ident }
    }

    fn part(ident: u32, offset: usize, more: bool, data: &[u8]) -> Fragment<'_> {
        Fragment { key: key(ident), offset, more, data }
    }

    #[test]
    fn pieces_in_any_order_make_the_packet() {
        let data: Vec<u8> = (0..100).collect();
        let pieces = [(0, true, &data[..48]), (48, true, &data[48..96]), (96, false, &data[96..])];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut fragments = Fragments::default();
            let now = Instant::now();
            let mut done = None;
            for i in order {
                assert!(done.is_none());
                let (offset, more, data) = pieces[i];
                done = fragments.add(&part(1, offset, more, data), now);
            }
            let packet = done.unwrap();
            let Some(Parsed::Whole(packet)) = parse_v4(&packet) else { panic!("not whole") };
            assert_eq!(packet.payload, data);
            assert!(fragments.table.is_empty());
        }
    }

    #[test]
    fn overlaps_and_contradictions_throw_the_packet_away() {
        let data = [0; 64];
        for bad in [
            part(1, 8, true, &data[..16]),
            part(1, 40, true, &data[..16]),
            part(1, 24, false, &data[..8]),
            part(1, 32, true, &data[..15]),
            part(1, 65_512, false, &data[..8]),
            part(1, 32, false, &[]),
        ] {
            let (mut fragments, now) = (Fragments::default(), Instant::now());
            assert!(fragments.add(&part(1, 0, true, &data[..16]), now).is_none());
            assert!(fragments.add(&part(1, 48, true, &data[..16]), now).is_none());
            assert!(fragments.add(&bad, now).is_none());
            assert!(fragments.table.is_empty(), "{bad:?}");
        }
    }

    #[test]
    fn a_repeated_piece_does_no_harm() {
        let (mut fragments, now) = (Fragments::default(), Instant::now());
        assert!(fragments.add(&part(1, 0, true, &[1; 8]), now).is_none());
        assert!(fragments.add(&part(1, 0, true, &[1; 8]), now).is_none());
        assert!(fragments.add(&part(1, 8, false, &[2]), now).is_some());
    }

    #[test]
    fn memory_is_bounded_by_number_and_time() {
        let (mut fragments, now) = (Fragments::default(), Instant::now());
        for ident in 0..1000 {
            fragments.add(&part(ident, 0, true, &[0; 8]), now);
        }
        assert_eq!(fragments.table.len(), MAX_PACKETS);
        for i in 0..1000 {
            fragments.add(&part(7, i * 16, true, &[0; 8]), now);
        }
        assert!(fragments.table.values().all(|p| p.pieces.len() <= MAX_PIECES));
        fragments.add(&part(9999, 0, true, &[0; 8]), now + PATIENCE);
        assert_eq!(fragments.table.len(), 1);
    }

    proptest! {
        #[test]
        fn hostile_pieces_never_panic(
            all in proptest::collection::vec((0u32..3, 0usize..9000, any::<bool>(), 0usize..2000), 0..200)
        ) {
            let (mut fragments, now) = (Fragments::default(), Instant::now());
            let data = [0; 2000];
            for (ident, offset, more, length) in all {
                if let Some(packet) = fragments.add(&part(ident, offset * 8, more, &data[..length]), now) {
                    prop_assert!(matches!(parse_v4(&packet), Some(Parsed::Whole(_))));
                }
            }
        }
    }
}
