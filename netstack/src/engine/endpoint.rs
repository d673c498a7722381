//! The sandbox-facing half of a TCP connection: one socket of the state machine with its buffers.

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer};

/// Bytes of one buffer of a connection while there is plenty of room, and at the least.
const LARGE: usize = 512 << 10;
const SMALL: usize = 16 << 10;
/// The room is shared out so that this many more connections could get buffers of the same size.
const SHARE: usize = 32;
/// Unused sockets kept, since fresh buffers have to be cleared first.
const SPARE: usize = 32;

/// A socket in a set of its own, so that a packet costs the same whether there is one connection or thousands.
pub(crate) struct Endpoint {
    pub(crate) set: SocketSet<'static>,
    handle: SocketHandle,
    size: usize,
}

impl Endpoint {
    fn new(size: usize) -> Self {
        let buffer = || SocketBuffer::new(vec![0; size]);
        let mut socket = Socket::new(buffer(), buffer());
        // The host's end has already decided what goes in one packet, and acknowledgements cost next to nothing here.
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        let mut set = SocketSet::new(Vec::with_capacity(1));
        let handle = set.add(socket);
        Self { set, handle, size }
    }

    pub(crate) fn socket(&mut self) -> &mut Socket<'static> {
        self.set.get_mut(self.handle)
    }
}

/// Hands endpoints out within a budget of memory.
pub(crate) struct EndpointPool {
    budget: usize,
    used: usize,
    spare: Vec<Endpoint>,
}

impl EndpointPool {
    /// `budget`: bytes of all buffers.
    pub(crate) fn new(budget: usize) -> Self {
        Self { budget, used: 0, spare: Vec::new() }
    }

    fn size(&self) -> usize {
        let share = self.budget.saturating_sub(self.used) / (2 * SHARE);
        // Powers of two, so that spare ones fit again.
        let size = share.checked_ilog2().map_or(0, |log| 1 << log);
        size.clamp(SMALL, LARGE)
    }

    /// An endpoint that is closed and has empty buffers.
    pub(crate) fn take(&mut self) -> Endpoint {
        let size = self.size();
        self.used += 2 * size;
        match self.spare.iter().position(|endpoint| endpoint.size == size) {
            Some(at) => self.spare.swap_remove(at),
            None => Endpoint::new(size),
        }
    }

    /// Takes an endpoint back.
    pub(crate) fn put(&mut self, mut endpoint: Endpoint) {
        self.used = self.used.saturating_sub(2 * endpoint.size);
        endpoint.socket().abort();
        endpoint.socket().set_timeout(None);
        if self.spare.len() >= SPARE {
            self.spare.remove(0);
        }
        self.spare.push(endpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_shrink_as_connections_grow_in_number() {
        let mut pool = EndpointPool::new(64 << 20);
        let all: Vec<Endpoint> = (0..1000).map(|_| pool.take()).collect();
        assert_eq!(all[0].size, LARGE);
        assert!(all.is_sorted_by(|a, b| a.size >= b.size));
        let total: usize = all.iter().map(|e| 2 * e.size).sum();
        assert!(total <= (64 << 20) + 1000 * 2 * SMALL, "{total}");
        for endpoint in all {
            pool.put(endpoint);
        }
        assert_eq!((pool.used, pool.spare.len()), (0, SPARE));
        assert_eq!(pool.take().size, LARGE);
    }
}
