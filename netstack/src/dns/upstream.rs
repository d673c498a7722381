//! One question put to one name server.

use std::io::{self, Read, Write};
use std::net::SocketAddr;

use mio::net::{TcpStream, UdpSocket};

use super::wire::{Query, Reply, read_reply};
use crate::engine::{Core, Kind};

/// Longest message over TCP, in bytes.
const MAX_MESSAGE: usize = 65_535;

/// A question on its way. Each has a socket of its own, so that the system picks a fresh random port for each.
pub(crate) struct Exchange {
    transport: Transport,
    server: SocketAddr,
    id: u16,
    message: Vec<u8>,
}

enum Transport {
    Udp(UdpSocket),
    /// Both directions start with two bytes of length.
    Tcp {
        stream: TcpStream,
        sent: usize,
        received: Vec<u8>,
    },
}

/// What came of it so far.
pub(crate) enum Progress {
    /// Nothing yet.
    Waits,
    /// The answer as it came, and what it says.
    Answer(Vec<u8>, Reply),
    /// This server gives none.
    Failed,
}

impl Exchange {
    /// Sends a question by datagram.
    pub(crate) fn datagram(
        core: &Core,
        server: SocketAddr,
        query: &Query,
        edns: bool,
        slot: usize,
    ) -> io::Result<Self> {
        let (id, local) = (random_id()?, unspecified(server));
        let message = query.for_upstream(id, edns);
        let mut socket = UdpSocket::bind(local)?;
        socket.connect(server)?;
        core.watch(&mut socket, Kind::Query, slot)?;
        socket.send(&message)?;
        Ok(Self { transport: Transport::Udp(socket), server, id, message })
    }

    /// Puts the same question to the same server over a connection, where the answer has room.
    pub(crate) fn connection(core: &Core, server: SocketAddr, query: &Query, slot: usize) -> io::Result<Self> {
        let id = random_id()?;
        let body = query.for_upstream(id, true);
        let mut message = u16::try_from(body.len()).unwrap_or(0).to_be_bytes().to_vec();
        message.extend_from_slice(&body);
        let mut stream = TcpStream::connect(server)?;
        core.watch(&mut stream, Kind::Query, slot)?;
        Ok(Self { transport: Transport::Tcp { stream, sent: 0, received: Vec::new() }, server, id, message })
    }

    pub(crate) fn server(&self) -> SocketAddr {
        self.server
    }

    /// Goes on as far as possible.
    pub(crate) fn advance(&mut self, query: &Query) -> Progress {
        let result = match &mut self.transport {
            Transport::Udp(socket) => receive(socket, query, self.id),
            Transport::Tcp { stream, sent, received } => {
                converse(stream, &self.message, sent, received).map(|done| match done {
                    false => Progress::Waits,
                    true => {
                        let message = received.split_off(2);
                        match read_reply(&message, query, self.id) {
                            Some(reply) if !reply.truncated => Progress::Answer(message, reply),
                            _ => Progress::Failed,
                        }
                    }
                })
            }
        };
        result.unwrap_or_else(|error| {
            if error.kind() == io::ErrorKind::WouldBlock { Progress::Waits } else { Progress::Failed }
        })
    }

    /// Gives the socket up.
    pub(crate) fn close(mut self, core: &Core) {
        match &mut self.transport {
            Transport::Udp(socket) => core.forget(socket),
            Transport::Tcp { stream, .. } => core.forget(stream),
        }
    }
}

fn random_id() -> io::Result<u16> {
    Ok((getrandom::u32()? & 0xffff) as u16)
}

pub(crate) fn unspecified(like: SocketAddr) -> SocketAddr {
    if like.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { (std::net::Ipv6Addr::UNSPECIFIED, 0).into() }
}

/// Takes datagrams until one answers the question: what others send to the port in the hope to be taken for the server
/// is passed over.
fn receive(socket: &UdpSocket, query: &Query, id: u16) -> io::Result<Progress> {
    let mut message = vec![0; MAX_MESSAGE];
    for _ in 0..64 {
        let length = socket.recv(&mut message)?;
        if let Some(reply) = message.get(..length).and_then(|m| read_reply(m, query, id)) {
            message.truncate(length);
            return Ok(Progress::Answer(message, reply));
        }
    }
    Ok(Progress::Failed)
}

/// Writes the question, reads the answer; whether it is there whole.
fn converse(stream: &mut TcpStream, message: &[u8], sent: &mut usize, received: &mut Vec<u8>) -> io::Result<bool> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    while *sent < message.len() {
        match stream.write(&message[*sent..]) {
            Ok(n) => *sent += n,
            // Not connected yet.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    let mut chunk = [0; 4096];
    loop {
        if let [high, low, rest @ ..] = &received[..] {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            if rest.len() >= length {
                received.truncate(2 + length);
                return Ok(true);
            }
        }
        match stream.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => received.extend_from_slice(&chunk[..n]),
        }
    }
}
