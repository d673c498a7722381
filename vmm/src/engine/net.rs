//! The slot of the guest's network card.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};

use msb_krun::backends::net::{NetBackend, ReadError, WriteError};
use pvisor_netstack::{Link, SendError};
use rustix::event::{EventfdFlags, eventfd};

/// Bytes of the header that virtio-net puts before each frame.
const HEADER: usize = 12;
/// Longest wait for room on the link. The network takes frames as fast as it can and waits for nothing, so this only
/// passes where it broke; the frame is lost then, as on any wire.
const FULL: Duration = Duration::from_millis(200);

/// What is at the other end of the guest's network card.
#[derive(Debug)]
pub enum Network {
    /// Nothing: every frame is dropped and none ever comes. The card is there all the same, because the set of
    /// devices of a machine can't change between its checkpoint and its restore.
    Sealed,
    /// A network of ours.
    Stack(Link),
}

impl Network {
    pub(super) fn backend(self) -> io::Result<Box<dyn NetBackend + Send>> {
        Ok(Box::new(match self {
            Self::Sealed => Card::Sealed(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
            Self::Stack(link) => Card::Stack(link),
        }))
    }
}

enum Card {
    /// With a descriptor that is never readable.
    Sealed(OwnedFd),
    Stack(Link),
}

impl NetBackend for Card {
    fn read_frame(&mut self, buf: &mut [u8]) -> Result<usize, ReadError> {
        let Self::Stack(link) = self else { return Err(ReadError::NothingRead) };
        let Some((header, frame)) = buf.split_at_mut_checked(HEADER) else { return Err(ReadError::NothingRead) };
        header.fill(0);
        link.recv(frame).map(|length| HEADER + length).ok_or(ReadError::NothingRead)
    }

    fn write_frame(&mut self, header_length: usize, buf: &mut [u8]) -> Result<(), WriteError> {
        let Self::Stack(link) = self else { return Ok(()) };
        // Shorter than its header: the guest's driver is broken, and there is nothing to send.
        let Some(frame) = buf.get(header_length..) else { return Ok(()) };
        let until = Instant::now() + FULL;
        // The engine can't be told to call again once there is room without it asking all the time.
        while link.send(frame) == Err(SendError::Full) && Instant::now() < until {
            thread::sleep(Duration::from_micros(20));
        }
        Ok(())
    }

    fn has_unfinished_write(&self) -> bool {
        false
    }

    fn try_finish_write(&mut self, _header_length: usize, _buf: &[u8]) -> Result<(), WriteError> {
        Ok(())
    }

    fn supports_quiesce(&self) -> bool {
        true
    }

    fn raw_socket_fd(&self) -> RawFd {
        match self {
            Self::Sealed(idle) => idle.as_raw_fd(),
            Self::Stack(link) => link.as_fd().as_raw_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pvisor_netstack::{LinkConfig, NetStack, StackConfig};

    use super::*;

    /// Who has `target`, as the guest asks.
    fn question(link: &LinkConfig) -> Vec<u8> {
        let head = [0, 1, 8, 0, 6, 4, 0, 1];
        let (mac, ip) = (link.guest_mac, link.guest_v4.octets());
        [&[0; HEADER][..], &[0xff; 6], &mac[..], &[8, 6], &head, &mac, &ip, &[0; 6], &link.gateway_v4.octets()].concat()
    }

    #[test]
    fn frames_go_to_the_network_and_come_back_behind_a_header() {
        let config = StackConfig::default();
        let mut frame = question(&config.link);
        let gateway = config.link.gateway_mac;
        let (link, _handle) = NetStack::start(config, Arc::new(|_| {})).unwrap();
        let mut backend = Network::Stack(link).backend().unwrap();
        backend.write_frame(HEADER, &mut frame).unwrap();
        backend.write_frame(HEADER, &mut [0; 4]).unwrap();
        let mut buf = [0xaa; 2048];
        let length = loop {
            match backend.read_frame(&mut buf) {
                Ok(length) => break length,
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        };
        assert_eq!(
            (length, &buf[..HEADER], &buf[HEADER + 6..HEADER + 12]),
            (HEADER + 42, &[0; HEADER][..], &gateway[..])
        );
    }

    #[test]
    fn a_network_that_ended_takes_frames_and_gives_none() {
        let (link, handle) = NetStack::start(StackConfig::default(), Arc::new(|_| {})).unwrap();
        let mut backend = Network::Stack(link).backend().unwrap();
        handle.stop();
        for _ in 0..10_000 {
            backend.write_frame(HEADER, &mut [0; 1526]).unwrap();
        }
        assert!(backend.read_frame(&mut [0; 2048]).is_err());
    }
}
