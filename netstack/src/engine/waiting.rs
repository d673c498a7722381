//! The order in which flows that share something scarce get their turns.

use std::collections::{HashSet, VecDeque};

/// Flows, by their places in a table, that wait for room on the link or for the run's limit.
///
/// Whoever got nothing in its last turn goes before everybody else in the next, and whoever got something after them.
/// An order that does not ask for that, such as that of the table, lets the first flow take all there is each time.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    all: HashSet<usize>,
    empty_handed: Vec<usize>,
    served: Vec<usize>,
}

impl Waiting {
    /// Adds a flow, unless it waits already; `served`: it got something in this turn.
    pub(crate) fn add(&mut self, index: usize, served: bool) {
        if !self.all.insert(index) {
            return;
        }
        if served { self.served.push(index) } else { self.empty_handed.push(index) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Puts all of them into the order of the next turns.
    pub(crate) fn resume(&mut self, ready: &mut VecDeque<usize>) {
        if self.is_empty() {
            return;
        }
        let mut seen = std::mem::take(&mut self.all);
        seen.clear();
        let all = self.empty_handed.drain(..).chain(ready.drain(..)).chain(self.served.drain(..));
        let order = all.filter(|index| seen.insert(*index)).collect();
        *ready = order;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_got_nothing_goes_first_and_nobody_goes_twice() {
        let mut waiting = Waiting::default();
        waiting.add(7, true);
        waiting.add(3, false);
        waiting.add(1, false);
        waiting.add(3, true);
        let mut ready = VecDeque::from([7, 9, 1]);
        waiting.resume(&mut ready);
        assert_eq!(ready, [3, 1, 7, 9]);
        assert!(waiting.is_empty());
    }

    #[test]
    fn every_flow_gets_its_share_of_what_one_could_take_alone() {
        let mut waiting = Waiting::default();
        let mut got = [0u32; 8];
        let mut ready: VecDeque<usize> = (0..got.len()).collect();
        for _ in 0..80 {
            waiting.resume(&mut ready);
            let mut there = 1;
            for index in std::mem::take(&mut ready) {
                got[index] += there;
                waiting.add(index, there > 0);
                there = 0;
            }
        }
        assert_eq!(got, [10; 8]);
    }
}
