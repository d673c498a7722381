//! What tests of a command's network share: services on this machine, and a program that tries to reach them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::thread;

/// Debian's own; the first one of the search path may be a script that takes many times as long.
pub const PYTHON: &str = "/usr/bin/python3";

/// For [`PYTHON`] with `-ISc`: tries each `KIND HOST PORT` of its arguments and says what came of it.
pub const PROBE: &str = include_str!("probe.py");

/// Answers whoever comes at a TCP port, and tells what it heard.
pub fn service(address: &str) -> SocketAddr {
    let listener = TcpListener::bind(address).unwrap();
    let place = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut heard = [0; 4];
            if stream.read_exact(&mut heard).is_ok() {
                let _ = stream.write_all(&[b"heard ", &heard[..]].concat());
            }
        }
    });
    place
}

/// Answers whoever comes at a UDP port of the loopback.
pub fn datagrams() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&[b"heard ", &buffer[..length]].concat(), from);
        }
    });
    port
}
