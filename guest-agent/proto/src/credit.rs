//! Flow control by credits: who sends may not have more on its way than the receiver has granted.

/// The other side broke the rules of flow control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreditError {
    /// More bytes came than were granted.
    #[error("{bytes} bytes sent against a credit of {credit}")]
    Overrun {
        /// Bytes that came.
        bytes: u64,
        /// Bytes that were allowed.
        credit: u64,
    },
    /// More was granted than the window holds.
    #[error("credit of {0} bytes is more than the window")]
    Excess(u64),
}

/// The sender's view: bytes it may still send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    left: u32,
    size: u32,
}

impl Grant {
    /// A full window of `size` bytes.
    pub fn full(size: u32) -> Self {
        Self { left: size, size }
    }

    /// A window of `size` bytes of which `left` may be sent now.
    pub fn partial(left: u32, size: u32) -> Self {
        Self { left: left.min(size), size }
    }

    /// Bytes that may be sent now.
    pub fn available(&self) -> usize {
        self.left as usize
    }

    /// Takes up to `wanted` bytes of credit and returns how many.
    pub fn take(&mut self, wanted: usize) -> usize {
        let taken = u32::try_from(wanted).unwrap_or(u32::MAX).min(self.left);
        self.left -= taken;
        taken as usize
    }

    /// Credit that came from the receiver.
    ///
    /// # Errors
    /// More than fits the window, which no honest receiver grants.
    pub fn add(&mut self, bytes: u32) -> Result<(), CreditError> {
        match self.left.checked_add(bytes) {
            Some(left) if left <= self.size => {
                self.left = left;
                Ok(())
            }
            _ => Err(CreditError::Excess(u64::from(self.left) + u64::from(bytes))),
        }
    }
}

/// The receiver's view: bytes that may still come.
///
/// What was consumed is granted again in batches of a quarter of the window, so that credit messages stay few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    open: u32,
    consumed: u32,
    size: u32,
}

impl Window {
    /// A window of `size` bytes that is open.
    pub fn full(size: u32) -> Self {
        Self { open: size, consumed: 0, size }
    }

    /// Bytes that the sender may still send.
    pub fn open(&self) -> u32 {
        self.open
    }

    /// Bytes that came and are not consumed yet.
    pub fn held(&self) -> u32 {
        self.size - self.open - self.consumed
    }

    /// Counts bytes that came.
    ///
    /// # Errors
    /// More came than was granted.
    pub fn receive(&mut self, bytes: usize) -> Result<(), CreditError> {
        match u32::try_from(bytes).ok().and_then(|b| self.open.checked_sub(b)) {
            Some(open) => {
                self.open = open;
                Ok(())
            }
            None => Err(CreditError::Overrun { bytes: bytes as u64, credit: u64::from(self.open) }),
        }
    }

    /// Counts bytes that were passed on; the credit to send back, where it is worth a message. Bytes beyond what was
    /// received count for nothing.
    pub fn consume(&mut self, bytes: usize) -> Option<u32> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.held());
        self.consumed += bytes;
        if self.consumed == 0 || self.consumed < self.size / 4 {
            return None;
        }
        let credit = self.consumed;
        self.consumed = 0;
        self.open += credit;
        Some(credit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_overrun_and_an_excess_are_refused() {
        let mut window = Window::full(10);
        assert_eq!(window.receive(11), Err(CreditError::Overrun { bytes: 11, credit: 10 }));
        assert_eq!(window.receive(10), Ok(()));
        assert!(window.receive(1).is_err());
        let mut grant = Grant::full(10);
        assert_eq!(grant.add(1), Err(CreditError::Excess(11)));
        assert_eq!(grant.take(100), 10);
        assert_eq!(grant.take(1), 0);
        assert_eq!(grant.add(u32::MAX), Err(CreditError::Excess(u64::from(u32::MAX))));
        assert_eq!(grant.add(10), Ok(()));
    }

    proptest! {
        /// Any schedule of sends, deliveries and consumption keeps what is on its way below the window and never
        /// stalls for good.
        #[test]
        fn both_views_agree(size in 1u32..64, steps in proptest::collection::vec((0u8..2, 1usize..40), 0..200)) {
            let (mut grant, mut window) = (Grant::full(size), Window::full(size));
            let mut buffered = 0usize;
            for (step, n) in steps {
                if step == 0 {
                    let sent = grant.take(n);
                    prop_assert_eq!(window.receive(sent), Ok(()));
                    buffered += sent;
                } else {
                    let n = n.min(buffered);
                    buffered -= n;
                    if let Some(credit) = window.consume(n) {
                        prop_assert_eq!(grant.add(credit), Ok(()));
                    }
                }
                prop_assert_eq!(window.held() as usize, buffered);
                prop_assert_eq!(window.open() as usize, grant.available());
                prop_assert!(buffered <= size as usize);
            }
            if let Some(credit) = window.consume(buffered) {
                prop_assert_eq!(grant.add(credit), Ok(()));
            }
            prop_assert!(grant.available() > 0, "all consumed, yet nothing may be sent");
        }
    }
}
