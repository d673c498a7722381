use proptest::prelude::*;

use super::*;
use crate::*;

fn bytes(max: usize) -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(any::<u8>(), 0..max).prop_map(Bytes)
}

fn key() -> impl Strategy<Value = Key> {
    any::<[u8; 32]>().prop_map(Key::new)
}

fn size() -> impl Strategy<Value = WindowSize> {
    any::<(u16, u16)>().prop_map(|(rows, columns)| WindowSize { rows, columns })
}

fn output() -> impl Strategy<Value = Output> {
    prop_oneof![Just(Output::Stdout), Just(Output::Stderr)]
}

fn failure() -> impl Strategy<Value = Failure> {
    (any::<i32>(), ".{0,40}").prop_map(|(errno, what)| Failure { errno, what })
}

fn start() -> impl Strategy<Value = Start> {
    let limit = any::<(u8, u64, u64)>().prop_map(|(resource, soft, hard)| Rlimit { resource, soft, hard });
    (
        (proptest::collection::vec(bytes(40), 0..8), proptest::collection::vec(bytes(40), 0..8), bytes(80)),
        (any::<u32>(), any::<u32>(), proptest::collection::vec(any::<u32>(), 0..5), any::<u32>()),
        (proptest::collection::vec(limit, 0..4), proptest::option::of(size()), ".{0,70}"),
    )
        .prop_map(|((argv, env, cwd), (uid, gid, groups, umask), (rlimits, tty, hostname))| Start {
            argv,
            env,
            cwd,
            uid,
            gid,
            groups,
            umask,
            rlimits,
            tty,
            hostname,
        })
}

fn network() -> impl Strategy<Value = Network> {
    any::<(u16, ([u8; 4], u8), [u8; 4], ([u8; 16], u8), [u8; 16])>().prop_map(
        |(mtu, v4, gateway_v4, v6, gateway_v6)| Network {
            mtu,
            v4: (v4.0.into(), v4.1),
            gateway_v4: gateway_v4.into(),
            v6: (v6.0.into(), v6.1),
            gateway_v6: gateway_v6.into(),
        },
    )
}

fn to_guest() -> impl Strategy<Value = ToGuest> {
    let mount = (".{0,20}", bytes(60), any::<bool>()).prop_map(|(tag, path, read_only)| Mount { tag, path, read_only });
    prop_oneof![
        (any::<u16>(), any::<[u8; 32]>(), key(), key()).prop_map(|(minor, challenge, key, next_key)| {
            ToGuest::Hello(Hello { minor, challenge, proof: host_proof(&key, &challenge), next_key })
        }),
        proptest::collection::vec(mount, 0..5).prop_map(ToGuest::Mounts),
        start().prop_map(|s| ToGuest::Start(Box::new(s))),
        bytes(3000).prop_map(ToGuest::Stdin),
        Just(ToGuest::StdinClose),
        (output(), any::<u32>()).prop_map(|(stream, bytes)| ToGuest::Credit { stream, bytes }),
        output().prop_map(ToGuest::OutputClose),
        (any::<u64>(), size()).prop_map(|(command, size)| ToGuest::Resize { command, size }),
        any::<(u64, u8)>().prop_map(|(command, signal)| ToGuest::Signal { command, signal }),
        any::<(u64, u32)>().prop_map(|(seconds, nanos)| ToGuest::SetClock { seconds, nanos }),
        bytes(520).prop_map(ToGuest::Reseed),
        Just(ToGuest::Sync),
        Just(ToGuest::Ping),
        Just(ToGuest::Quiet),
        Just(ToGuest::Wake),
        Just(ToGuest::Shutdown),
        network().prop_map(|n| ToGuest::Network(Box::new(n))),
    ]
}

fn to_host() -> impl Strategy<Value = ToHost> {
    let running = any::<(u64, Option<u32>)>().prop_map(|(command, stdin)| Running { command, stdin });
    prop_oneof![
        (any::<u16>(), any::<[u8; 32]>(), key(), ".{0,30}", proptest::option::of(running)).prop_map(
            |(minor, challenge, key, kernel, running)| {
                ToHost::Welcome(Welcome { minor, proof: guest_proof(&key, &challenge), kernel, running })
            }
        ),
        prop_oneof![Just(Refused::Key), Just(Refused::Order)].prop_map(ToHost::Refused),
        Just(ToHost::Done),
        failure().prop_map(ToHost::Failed),
        Just(ToHost::Started),
        prop_oneof![
            Just(StartFailed::NotFound),
            any::<i32>().prop_map(StartFailed::NotExecutable),
            failure().prop_map(StartFailed::Other)
        ]
        .prop_map(ToHost::StartFailed),
        bytes(3000).prop_map(ToHost::Stdout),
        bytes(3000).prop_map(ToHost::Stderr),
        any::<u32>().prop_map(ToHost::StdinCredit),
        Just(ToHost::StdinClosed),
        prop_oneof![any::<u8>().prop_map(End::Exited), any::<u8>().prop_map(End::Signaled)].prop_map(ToHost::Exited),
        ".{0,100}".prop_map(ToHost::Error),
        Just(ToHost::Pong),
        Just(ToHost::Quieted),
    ]
}

/// Cuts `stream` into pieces, feeds them one by one and collects what comes out.
fn decode_in_pieces<M: Message>(stream: &[u8], cuts: &[usize]) -> Result<Vec<(u64, M)>, FrameError> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
    cuts.extend([0, stream.len()]);
    cuts.sort_unstable();
    let (mut decoder, mut messages) = (Decoder::new(), Vec::new());
    for pair in cuts.windows(2) {
        decoder.feed(&stream[pair[0]..pair[1]]);
        while let Some(message) = decoder.next()? {
            messages.push(message);
        }
    }
    assert!(decoder.is_empty());
    Ok(messages)
}

proptest! {
    #[test]
    fn requests_come_back_however_they_are_cut(
        messages in proptest::collection::vec((any::<u64>(), to_guest()), 0..6),
        cuts in proptest::collection::vec(any::<usize>(), 0..30),
    ) {
        let mut stream = Vec::new();
        for (id, message) in &messages {
            encode(*id, message, &mut stream).unwrap();
        }
        prop_assert_eq!(decode_in_pieces::<ToGuest>(&stream, &cuts), Ok(messages));
    }

    #[test]
    fn replies_come_back_however_they_are_cut(
        messages in proptest::collection::vec((any::<u64>(), to_host()), 0..6),
        cuts in proptest::collection::vec(any::<usize>(), 0..30),
    ) {
        let mut stream = Vec::new();
        for (id, message) in &messages {
            encode(*id, message, &mut stream).unwrap();
        }
        prop_assert_eq!(decode_in_pieces::<ToHost>(&stream, &cuts), Ok(messages));
    }

    #[test]
    fn any_bytes_are_an_error_or_wait_for_more(garbage in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut decoder = Decoder::new();
        decoder.feed(&garbage);
        if let Err(error) = decoder.next::<ToHost>() {
            prop_assert_eq!(decoder.next::<ToHost>(), Err(error));
        }
    }

    /// A body of any bytes, well framed: never a panic, never more memory than the cap times a small factor.
    #[test]
    fn any_body_is_refused_or_decoded(body in proptest::collection::vec(any::<u8>(), 0..300), kind in 0u8..24) {
        let mut body = body;
        if let Some(first) = body.first_mut() {
            *first = kind;
        }
        let frame = frame_of(&body);
        let mut decoder = Decoder::new();
        decoder.feed(&frame);
        let _ = decoder.next::<ToHost>();
        let mut decoder = Decoder::new();
        decoder.feed(&frame);
        let _ = decoder.next::<ToGuest>();
    }

    #[test]
    fn one_changed_bit_shows(id in any::<u64>(), message in to_host(), at in any::<usize>(), bit in 0u8..8) {
        let mut stream = Vec::new();
        encode(id, &message, &mut stream).unwrap();
        let at = at % stream.len();
        stream[at] ^= 1 << bit;
        let mut decoder = Decoder::new();
        decoder.feed(&stream);
        prop_assert!(!matches!(decoder.next::<ToHost>(), Ok(Some(_))));
    }
}

fn frame_of(body: &[u8]) -> Vec<u8> {
    let mut frame = [&b"PVA"[..], &[MAJOR], &(body.len() as u32).to_le_bytes(), &[0; 8]].concat();
    let sum = checksum(&frame, body);
    frame.extend_from_slice(&sum.to_le_bytes());
    frame.extend_from_slice(body);
    frame
}

#[test]
fn what_is_wrong_is_said_at_the_first_byte_that_shows_it() {
    let mut decoder = Decoder::new();
    decoder.feed(b"PVX");
    assert_eq!(decoder.next::<ToHost>(), Err(FrameError::Magic));

    let mut decoder = Decoder::new();
    decoder.feed(&[b'P', b'V', b'A', MAJOR + 1]);
    assert_eq!(decoder.next::<ToHost>(), Err(FrameError::Version { found: MAJOR + 1 }));

    let mut decoder = Decoder::new();
    let mut header = frame_of(&[]);
    header[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    decoder.feed(&header);
    let max = ToHost::MAX_BODY;
    assert_eq!(decoder.next::<ToHost>(), Err(FrameError::TooLong { length: u32::MAX, max }));
    assert_eq!(decoder.buffer.capacity(), 0);
}

#[test]
fn bytes_after_a_message_in_its_frame_are_refused() {
    let mut body = postcard::to_stdvec(&ToHost::Pong).unwrap();
    body.push(0);
    let mut decoder = Decoder::new();
    decoder.feed(&frame_of(&body));
    assert_eq!(decoder.next::<ToHost>(), Err(FrameError::Body));
}

#[test]
fn a_message_over_the_cap_is_not_sent() {
    let mut out = vec![1, 2, 3];
    let error = encode(1, &ToHost::Stdout(vec![0; ToHost::MAX_BODY].into()), &mut out).unwrap_err();
    assert_eq!(error, EncodeError { length: ToHost::MAX_BODY + 4, max: ToHost::MAX_BODY });
    assert_eq!(out, [1, 2, 3]);
    encode(1, &ToHost::Stdout(vec![0; CHUNK].into()), &mut out).unwrap();
}

/// Programs that read the format elsewhere rely on these very bytes.
#[test]
fn the_format_stays() {
    let mut out = Vec::new();
    encode(0x0102, &ToHost::Stdout("hi".into()), &mut out).unwrap();
    assert_eq!(out[..16], *b"PVA\x01\x04\x00\x00\x00\x02\x01\x00\x00\x00\x00\x00\x00");
    assert_eq!(out[HEADER..], *b"\x06\x02hi");
}
