//! The line between the worker and the process that it launched: whole messages, descriptors with them, and the end
//! of the other side noticed.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pvisor_spec::CommandEnd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::trial::{Trial, Tried};
use crate::restrict::Restriction;

/// What the worker serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Served {
    /// The stage of the project.
    Project,
    /// A copy of the home directory that is thrown away.
    Home,
    /// The command's network.
    Network,
}

/// Longest message, in bytes. The messages are a few bytes each.
const MAX_MESSAGE: usize = 512;

/// What the launched process says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// Something that the worker serves is mounted, or is up; its device comes with the message.
    Offered(Served),
    /// Everything is set up; the command can start.
    Ready {
        /// Whether `/proc` shows the command's processes only; else the error of the mount.
        own_proc: Result<(), i32>,
    },
    /// Something was tried as the command would.
    Tried {
        /// What.
        trial: Trial,
        /// What came of it.
        tried: Tried,
    },
    /// A step of the setup failed.
    Failed(Failed),
    /// Sent by the process that becomes the command: its credentials say which one it is.
    Born,
    /// The command runs.
    Started,
    /// The command stopped by this signal.
    Stopped(i32),
    /// Every process of the command is stopped, as ordered.
    Held,
    /// The command ended.
    Ended(CommandEnd),
}

/// What failed before the command ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failed {
    pub(crate) step: Step,
    pub(crate) errno: i32,
}

/// Steps of the setup, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Step {
    Descriptors,
    UserMap,
    MountPrivacy,
    FuseDevice,
    StageMount,
    Network(NetworkStep),
    /// An operation of the sandbox, by its number; `None`: its root.
    Sandbox(Option<u16>),
    Trial,
    WorkingDirectory,
    Process,
    Identity,
    Restriction(Restriction),
}

/// Steps of the network's setup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NetworkStep {
    Loopback,
    Device,
    Addresses,
    Resolver,
}

/// What the worker asks of the launched process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// The user namespace has its ids.
    Mapped,
    /// What was offered last is served.
    Serving,
    /// Start the command.
    Start {
        /// Give it the terminal first.
        foreground: bool,
    },
    /// Send the command's process group this signal.
    Signal(i32),
    /// Let a stopped command go on.
    Continue {
        /// Give it the terminal first.
        foreground: bool,
    },
    /// Stop every process of the command, and say so.
    Hold,
    /// Let those go on that [`Order::Hold`] stopped.
    Release,
    /// Stop every process of the namespace. The descriptor that comes with it is closed when that is asked of all.
    Stop,
    /// Kill everything and end.
    Kill,
}

/// One end.
pub(crate) struct Channel(OwnedFd);

/// A message with what came along.
pub(crate) struct Received<T> {
    pub(crate) message: T,
    pub(crate) fd: Option<OwnedFd>,
    /// Process id of the sender, as this process counts.
    pub(crate) sender: Option<u32>,
}

impl Channel {
    /// Both ends; the first learns who sends.
    pub(crate) fn pair() -> Result<(Self, Self), Errno> {
        let (near, far) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::sockopt::set_socket_passcred(&near, true)?;
        Ok((Self(near), Self(far)))
    }

    /// Sends a message, with a descriptor.
    pub(crate) fn send(&self, message: &impl Serialize, fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let mut bytes = [0; MAX_MESSAGE];
        let bytes = postcard::to_slice(message, &mut bytes).map_err(|_| Errno::MSGSIZE)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut extra = SendAncillaryBuffer::new(&mut space);
        let fds = fd.map(|fd| [fd]);
        if let Some(fds) = &fds
            && !extra.push(SendAncillaryMessage::ScmRights(fds))
        {
            return Err(Errno::NOBUFS);
        }
        loop {
            match rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut extra, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for a message; `None`: the other side is gone.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> Result<Option<Received<T>>, Errno> {
        let mut bytes = [0; MAX_MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
        let mut extra = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            match rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut extra, RecvFlags::CMSG_CLOEXEC)
            {
                // Said once, and before the messages that came: the other side left without reading its own.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                other => break other?,
            }
        };
        if got.bytes == 0 {
            return Ok(None);
        }
        if got.flags.contains(ReturnFlags::TRUNC) {
            return Err(Errno::MSGSIZE);
        }
        let (mut fd, mut sender) = (None, None);
        for item in extra.drain() {
            match item {
                RecvAncillaryMessage::ScmRights(fds) => fd = fds.last(),
                RecvAncillaryMessage::ScmCredentials(who) => {
                    sender = u32::try_from(who.pid.as_raw_nonzero().get()).ok();
                }
                _ => {}
            }
        }
        let message = postcard::from_bytes(&bytes[..got.bytes]).map_err(|_| Errno::BADMSG)?;
        Ok(Some(Received { message, fd, sender }))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Channel {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn messages_stay_apart_and_carry_descriptors_and_the_sender() {
        let (near, far) = Channel::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        far.send(&Report::Offered(Served::Project), Some(writer.as_fd())).unwrap();
        drop(writer);
        far.send(&Report::Ended(CommandEnd::Exited(3)), None).unwrap();
        let first = near.receive::<Report>().unwrap().unwrap();
        assert_eq!((first.message, first.sender), (Report::Offered(Served::Project), Some(std::process::id())));
        let second = near.receive::<Report>().unwrap().unwrap();
        assert_eq!(second.message, Report::Ended(CommandEnd::Exited(3)));
        assert!(second.fd.is_none());
        drop(first);
        assert_eq!(reader.read(&mut [0; 1]).unwrap(), 0, "the descriptor was the pipe's only writer");
        drop(far);
        assert!(near.receive::<Report>().unwrap().is_none());
        assert!(near.send(&Order::Kill, None).is_err());
    }

    /// The command ends while an order to it is on its way: the end must be heard.
    #[test]
    fn what_was_said_is_heard_although_the_other_side_left_without_listening() {
        let (near, far) = Channel::pair().unwrap();
        far.send(&Report::Ended(CommandEnd::Signaled(15)), None).unwrap();
        near.send(&Order::Continue { foreground: false }, None).unwrap();
        drop(far);
        let heard = near.receive::<Report>().unwrap().map(|r| r.message);
        assert_eq!(heard, Some(Report::Ended(CommandEnd::Signaled(15))));
        assert!(near.receive::<Report>().unwrap().is_none());
    }

    #[test]
    fn noise_is_no_message() {
        let (near, far) = Channel::pair().unwrap();
        rustix::net::send(&far, &[0xff; 9], SendFlags::empty()).unwrap();
        assert_eq!(near.receive::<Report>().err(), Some(Errno::BADMSG));
        rustix::net::send(&far, &[0; MAX_MESSAGE + 1], SendFlags::empty()).unwrap();
        assert_eq!(near.receive::<Report>().err(), Some(Errno::MSGSIZE));
    }
}
