//! The same work on many items at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Most threads.
const MAX_CREW: usize = 16;

/// `work` on each item, by as many threads as there are processors; the results in the items' order.
pub(crate) fn each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    // Asking for the processors reads files: not where one thread is enough.
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    by_crew(if items.len() > 1 { processors() } else { 1 }, items, work)
}

/// [`each`] for what waits for the disk and computes nothing: syncs that are asked for at once are one commit of the file
/// system.
pub(crate) fn wait_for_each<T: Sync, R: Send>(items: &[T], wait: impl Fn(&T) -> R + Sync) -> Vec<R> {
    by_crew(MAX_CREW, items, wait)
}

fn by_crew<T: Sync, R: Send>(most: usize, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let crew = most.min(MAX_CREW).min(items.len());
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
    let toil = || {
        let mut own = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { break };
            own.push((at, work(item)));
        }
        done.lock().unwrap_or_else(PoisonError::into_inner).append(&mut own);
    };
    if crew <= 1 {
        toil();
    } else {
        std::thread::scope(|scope| {
            for _ in 1..crew {
                scope.spawn(toil);
            }
            toil();
        });
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::{each, wait_for_each};

    #[test]
    fn results_keep_the_order_of_the_items() {
        let items: Vec<u32> = (0..1000).collect();
        assert_eq!(each(&items, |n| n * 2), items.iter().map(|n| n * 2).collect::<Vec<_>>());
        assert_eq!(wait_for_each(&items, |n| n + 1), items.iter().map(|n| n + 1).collect::<Vec<_>>());
        assert!(each(&[] as &[u32], |n| *n).is_empty());
    }
}
