//! The client against guests that lie, hang or talk nonsense.

use std::io::{Read, Write};

use pvisor_proto::{
    Decoder, End, Hello, MINOR, NO_ID, Refused, StartFailed, ToGuest, ToHost, WINDOW, Welcome, encode, guest_proof,
};
use pvisor_spec::{CommandEnd, WorkerFailure};

use super::*;
use crate::agent::StartOptions;

/// A guest that follows a script, one step for each message of the host.
fn scripted(
    mut script: impl FnMut(u64, ToGuest) -> Vec<(u64, ToHost)> + Send + 'static,
) -> Result<AgentClient, AgentError> {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    thread::spawn(move || {
        let (mut decoder, mut buffer) = (Decoder::new(), vec![0; 65536]);
        while let Ok(length @ 1..) = theirs.read(&mut buffer) {
            decoder.feed(&buffer[..length]);
            while let Some((id, message)) = decoder.next::<ToGuest>().unwrap() {
                let mut frames = Vec::new();
                for (id, reply) in script(id, message) {
                    encode(id, &reply, &mut frames).unwrap();
                }
                if theirs.write_all(&frames).is_err() {
                    return;
                }
            }
        }
    });
    AgentClient::connect(ours.try_clone().unwrap(), ours, &attachment())
}

fn welcome(hello: &Hello) -> ToHost {
    let proof = guest_proof(&key(), &hello.challenge);
    ToHost::Welcome(Welcome { minor: MINOR, proof, kernel: "6.12.0 \x1b[31m".into(), running: None })
}

/// A guest that says these bytes and closes.
fn saying(bytes: &[u8]) -> AgentError {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let bytes = bytes.to_vec();
    thread::spawn(move || {
        let _ = theirs.write_all(&bytes);
        let _ = theirs.shutdown(std::net::Shutdown::Write);
        let _ = theirs.read_to_end(&mut Vec::new());
    });
    AgentClient::connect(ours.try_clone().unwrap(), ours, &attachment()).err().unwrap()
}

#[test]
fn a_silent_guest_runs_out_of_time() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let short = Attachment { handshake_timeout: Duration::from_millis(30), ..attachment() };
    let error = AgentClient::connect(ours.try_clone().unwrap(), ours, &short).err().unwrap();
    assert!(matches!(error, AgentError::HandshakeTimeout(_)), "{error}");
    assert_eq!(error.kind(), "handshake");
}

#[test]
fn nonsense_before_the_welcome_is_an_error() {
    assert!(matches!(saying(b""), AgentError::Lost(_)));
    assert!(matches!(saying(b"login: "), AgentError::Frame(_)));
    assert!(matches!(saying(b"PVA\x07"), AgentError::Version { found: 7 }));
    assert!(matches!(saying(b"PVA\x01\xff\xff\xff\xff0123456789ab"), AgentError::Frame(_)));
    let refused = scripted(|_, _| vec![(NO_ID, ToHost::Refused(Refused::Key))]).err().unwrap();
    assert!(matches!(refused, AgentError::Refused(Refused::Key)), "{refused}");
    let gave_up = scripted(|_, _| vec![(NO_ID, ToHost::Error("bad \x1b[2J".into()))]).err().unwrap();
    assert_eq!(WorkerFailure::from(gave_up).message, "the agent gave up: bad \u{fffd}[2J");
    let other = scripted(|id, _| vec![(id, ToHost::Pong)]).err().unwrap();
    assert!(matches!(other, AgentError::Unexpected { .. }), "{other}");
}

#[test]
fn who_does_not_know_the_key_is_an_impostor() {
    let error = scripted(|id, message| match message {
        ToGuest::Hello(hello) => {
            let proof = guest_proof(&Key::new([0; 32]), &hello.challenge);
            vec![(id, ToHost::Welcome(Welcome { minor: MINOR, proof, kernel: String::new(), running: None }))]
        }
        _ => vec![],
    });
    assert!(matches!(error.err().unwrap(), AgentError::Impostor));
}

#[test]
fn replies_to_requests_of_another_process_are_ignored() {
    let client = scripted(|id, message| {
        let noise = [
            (id ^ 1, ToHost::Pong),
            (id.wrapping_add(7), ToHost::Exited(End::Exited(9))),
            (NO_ID, ToHost::Stdout(vec![0; 30_000].into())),
            (id.wrapping_mul(3), ToHost::StdinCredit(u32::MAX)),
        ];
        let reply = match message {
            ToGuest::Hello(hello) => welcome(&hello),
            ToGuest::Ping => ToHost::Pong,
            _ => ToHost::Done,
        };
        noise.into_iter().chain([(id, reply)]).collect()
    })
    .unwrap();
    assert_eq!(client.kernel(), "6.12.0[31m");
    client.ping(PATIENCE).unwrap();
    client.sync().unwrap();
}

#[test]
fn a_reply_of_the_wrong_kind_and_none_at_all_are_errors() {
    let client = scripted(|id, message| match message {
        ToGuest::Hello(hello) => vec![(id, welcome(&hello))],
        ToGuest::Sync => vec![(id, ToHost::Started)],
        ToGuest::Start(_) => vec![(id, ToHost::Pong)],
        _ => vec![],
    })
    .unwrap();
    assert!(matches!(client.sync(), Err(AgentError::Unexpected { request: "a sync" })));
    let started = client.start(&sh("true"), &StartOptions::default(), pipes().0);
    assert!(matches!(started.err().unwrap(), AgentError::Unexpected { .. }));
    let error = client.ping(Duration::from_millis(20)).unwrap_err();
    assert!(matches!(error, AgentError::Timeout { .. }), "{error}");
}

/// Starts a command in a guest that answers the start with `after`, and waits for it.
fn run_against(after: impl Fn(u64) -> Vec<(u64, ToHost)> + Send + 'static) -> Result<CommandEnd, AgentError> {
    let client = scripted(move |id, message| match message {
        ToGuest::Hello(hello) => vec![(id, welcome(&hello))],
        ToGuest::Start(_) => after(id),
        _ => vec![],
    })
    .unwrap();
    let (stdio, ends) = pipes();
    let running = client.start(&sh("true"), &StartOptions::default(), stdio)?;
    let readers = (read_all(ends.stdout), read_all(ends.stderr));
    let end = running.wait()?.end;
    readers.0.join().unwrap();
    readers.1.join().unwrap();
    Ok(end)
}

#[test]
fn output_beyond_the_credit_is_refused() {
    let flood = |id| {
        let chunk = || (id, ToHost::Stderr(vec![b'x'; 32 * 1024].into()));
        // No credit is given back: nothing of it is read before all of it has come.
        std::iter::once((id, ToHost::Started)).chain((0..WINDOW / 32 / 1024 + 100).map(|_| chunk())).collect()
    };
    let client = scripted(move |id, message| match message {
        ToGuest::Hello(hello) => vec![(id, welcome(&hello))],
        ToGuest::Start(_) => flood(id),
        _ => vec![],
    })
    .unwrap();
    let (stdio, ends) = pipes();
    let running = client.start(&sh("true"), &StartOptions::default(), stdio).unwrap();
    assert!(client.shutdown(PATIENCE), "the flood was accepted");
    drop(ends);
    let error = running.wait().unwrap_err();
    assert!(matches!(error, AgentError::Credit(_)), "{error}");
    assert_eq!(error.kind(), "guest_protocol");
}

#[test]
fn input_credit_beyond_the_window_is_refused() {
    let error = run_against(|id| vec![(id, ToHost::Started), (id, ToHost::StdinCredit(1))]).unwrap_err();
    assert!(matches!(error, AgentError::Credit(_)), "{error}");
}

#[test]
fn what_comes_after_the_end_means_nothing() {
    let end = run_against(|id| {
        vec![
            (id, ToHost::Started),
            (id, ToHost::Stdout("x".into())),
            (id, ToHost::Exited(End::Exited(3))),
            (id, ToHost::Exited(End::Exited(4))),
        ]
    });
    assert_eq!(end.unwrap(), CommandEnd::Exited(3));
}

#[test]
fn a_refused_start_says_why() {
    let failed = |failed: StartFailed| run_against(move |id| vec![(id, ToHost::StartFailed(failed.clone()))]);
    assert!(matches!(failed(StartFailed::NotFound).unwrap_err(), AgentError::NotFound));
    let error = failed(StartFailed::NotExecutable(libc::EACCES)).unwrap_err();
    assert!(error.to_string().contains("Permission denied"), "{error}");
}
