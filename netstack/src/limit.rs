//! A token bucket.

use std::time::{Duration, Instant};

/// Lets `rate` units a second through in the long run, and up to `burst` at once.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    rate: u64,
    burst: u64,
    /// Units there at `at`; below zero after an overdraft.
    level: i128,
    at: Instant,
}

impl Bucket {
    /// A full bucket. `rate` is taken as at least 1.
    pub(crate) fn new(rate: u64, burst: u64, now: Instant) -> Self {
        let (rate, burst) = (rate.max(1), burst.max(1));
        Self { rate, burst, level: i128::from(burst), at: now }
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        let units = passed.as_nanos().saturating_mul(u128::from(self.rate)) / 1_000_000_000;
        if units == 0 {
            return;
        }
        let units = i128::try_from(units).unwrap_or(i128::MAX);
        let full = i128::from(self.burst);
        self.level = self.level.saturating_add(units).min(full);
        // Only whole units were added: the time of the rest stays for the next call.
        let nanos = units.saturating_mul(1_000_000_000) / i128::from(self.rate);
        self.at = match u64::try_from(nanos) {
            Ok(nanos) if self.level < full => self.at + Duration::from_nanos(nanos),
            _ => now,
        };
    }

    /// Units that may be spent now.
    pub(crate) fn available(&mut self, now: Instant) -> u64 {
        self.refill(now);
        u64::try_from(self.level.max(0)).unwrap_or(u64::MAX)
    }

    /// Takes units out. More than there are is an overdraft, which later refills pay back first.
    pub(crate) fn spend(&mut self, units: u64) {
        self.level -= i128::from(units);
    }

    /// When a useful amount is there again: a hundredth of a second's worth, so that waiting flows do not wake for
    /// single bytes.
    pub(crate) fn refilled_at(&self) -> Instant {
        let wanted = i128::from((self.rate / 100).clamp(1, self.burst));
        let missing = u128::try_from((wanted - self.level).max(0)).unwrap_or(0);
        let nanos = (missing * 1_000_000_000).div_ceil(u128::from(self.rate));
        self.at + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX / 4))
    }
}

/// The run's limit on payload bytes, each direction by itself.
#[derive(Debug)]
pub(crate) struct Limiter {
    up: Option<Bucket>,
    down: Option<Bucket>,
    open: bool,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Out of the sandbox.
    Up,
    /// Into it.
    Down,
}

impl Limiter {
    pub(crate) fn new(rate: Option<std::num::NonZeroU64>, now: Instant) -> Self {
        // A burst of a quarter of a second smooths transfers; never below one large datagram.
        let bucket = rate.map(|r| Bucket::new(r.get(), (r.get() / 4).max(65_536), now));
        Self { up: bucket.clone(), down: bucket, open: true }
    }

    fn bucket(&mut self, way: Way) -> Option<&mut Bucket> {
        match way {
            Way::Up => self.up.as_mut(),
            Way::Down => self.down.as_mut(),
        }
    }

    /// Begins a turn of all flows. While some wait, nobody gets anything before a useful amount is there for those:
    /// a flow that is busy would else take every few bytes at once, and those that wait would wait for ever.
    pub(crate) fn begin_turn(&mut self, some_wait: bool, now: Instant) {
        self.open = !some_wait || self.refilled_at().is_none_or(|at| at <= now);
    }

    /// Whether flows that wait get a turn now.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Bytes that a flow that can wait may move this way now.
    pub(crate) fn available(&mut self, way: Way, now: Instant) -> usize {
        if self.open { self.left(way, now) } else { 0 }
    }

    /// Bytes that are left, for what would be lost if it had to wait.
    pub(crate) fn left(&mut self, way: Way, now: Instant) -> usize {
        self.bucket(way).map_or(usize::MAX, |b| usize::try_from(b.available(now)).unwrap_or(usize::MAX))
    }

    /// Takes bytes that went.
    pub(crate) fn spend(&mut self, way: Way, bytes: usize) {
        if let Some(bucket) = self.bucket(way) {
            bucket.spend(bytes as u64);
        }
    }

    /// When flows that wait for the limit should be looked at again.
    pub(crate) fn refilled_at(&self) -> Option<Instant> {
        [&self.up, &self.down].into_iter().flatten().map(Bucket::refilled_at).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_rate_holds_over_time_and_a_burst_at_once() {
        let start = Instant::now();
        let mut bucket = Bucket::new(1000, 100, start);
        assert_eq!(bucket.available(start), 100);
        bucket.spend(100);
        assert_eq!(bucket.available(start), 0);
        assert_eq!(bucket.available(start + Duration::from_millis(10)), 10);
        bucket.spend(30);
        assert_eq!(bucket.available(start + Duration::from_millis(20)), 0, "an overdraft is paid back");
        assert_eq!(bucket.available(start + Duration::from_millis(31)), 1);
        assert_eq!(bucket.available(start + Duration::from_secs(100)), 100, "never more than a burst");
    }

    #[test]
    fn waiting_ends_when_there_is_something_to_spend() {
        let start = Instant::now();
        for rate in [1, 99, 1000, 1_000_000_007] {
            let mut bucket = Bucket::new(rate, 10, start);
            bucket.spend(15);
            let at = bucket.refilled_at();
            assert!(at > start && bucket.available(at) > 0, "rate {rate}");
        }
    }

    proptest! {
        #[test]
        fn no_schedule_of_calls_gets_more_than_rate_and_burst(
            rate in 1u64..1_000_000,
            burst in 1u64..10_000,
            steps in proptest::collection::vec((0u64..5_000_000, 0u64..20_000), 1..200),
        ) {
            let start = Instant::now();
            let mut bucket = Bucket::new(rate, burst, start);
            let (mut nanos, mut spent) = (0u64, 0u128);
            for (wait, wish) in steps {
                nanos += wait;
                let take = bucket.available(start + Duration::from_nanos(nanos)).min(wish);
                bucket.spend(take);
                spent += u128::from(take);
            }
            prop_assert!(spent <= u128::from(burst) + u128::from(rate) * u128::from(nanos) / 1_000_000_000 + 1);
        }
    }
}
