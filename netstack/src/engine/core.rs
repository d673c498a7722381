//! What all kinds of flows work with.

use std::io;
use std::time::Instant;

use mio::event::Source;
use mio::{Interest, Registry, Token};

use super::asking::{Asking, Held, Standing};
use super::guest::GuestSide;
use super::judge::Judge;
use crate::event::{NetEvent, Reporter};
use crate::limit::Limiter;
use crate::policy::Reason;
use crate::{Capacity, Rule};

/// Everything but the flows themselves.
pub(crate) struct Core {
    pub(crate) guest: GuestSide,
    pub(crate) judge: Judge,
    pub(crate) asking: Asking,
    pub(crate) limiter: Limiter,
    pub(crate) reporter: Reporter,
    pub(crate) capacity: Capacity,
    pub(crate) registry: Registry,
    /// The time of this turn.
    pub(crate) now: Instant,
}

impl Core {
    pub(crate) fn report(&mut self, event: NetEvent) {
        self.reporter.report(event, self.now);
    }

    /// Keeps something until somebody has said whether this rule is to hold.
    ///
    /// # Errors
    /// It is denied, for this reason.
    pub(crate) fn hold(&mut self, rule: Rule, held: Held) -> Result<(), Reason> {
        match self.asking.hold(&rule, held, self.now) {
            Standing::Waits { new: true } => self.report(NetEvent::Asked { rule }),
            Standing::Waits { new: false } => {}
            Standing::Denied(reason) => return Err(reason),
        }
        Ok(())
    }

    /// Watches a socket for both directions, edge-triggered.
    pub(crate) fn watch(&self, source: &mut impl Source, kind: Kind, index: usize) -> io::Result<()> {
        self.registry.register(source, kind.token(index), Interest::READABLE | Interest::WRITABLE)
    }

    /// Forgets a socket. It is closed right after, so a failure has no effect.
    pub(crate) fn forget(&self, source: &mut impl Source) {
        let _ = self.registry.deregister(source);
    }
}

/// Which table a descriptor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Somebody wants the engine's attention.
    Waker,
    /// The TAP device.
    Tap,
    /// A TCP connection of the host.
    Tcp,
    /// A UDP or ping socket of the host.
    Datagram,
    /// A query to a name server.
    Query,
    /// A published port.
    Listener,
}

const KINDS: [Kind; 6] = [Kind::Waker, Kind::Tap, Kind::Tcp, Kind::Datagram, Kind::Query, Kind::Listener];

impl Kind {
    /// The token of an entry. An event for an entry that is gone, or whose place was taken over, only makes somebody try
    /// to read or write in vain.
    pub(crate) fn token(self, index: usize) -> Token {
        Token(index * KINDS.len() + self as usize)
    }

    /// What a token stands for.
    pub(crate) fn of(token: Token) -> (Kind, usize) {
        (KINDS[token.0 % KINDS.len()], token.0 / KINDS.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back() {
        for kind in KINDS {
            for index in [0, 1, 4095] {
                assert_eq!(Kind::of(kind.token(index)), (kind, index));
            }
        }
    }
}
