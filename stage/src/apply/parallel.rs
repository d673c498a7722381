//! The same work on many things, on all processors.

use std::num::NonZero;

/// Things that one thread is worth.
const SHARE: usize = 64;
/// More threads only wait for the same disk.
const THREADS: usize = 8;

/// Results in the order of the things.
pub(super) fn map<T: Sync, R: Send>(things: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(THREADS);
    let share = things.len().div_ceil(threads).max(SHARE);
    if things.len() <= share {
        return things.iter().map(work).collect();
    }
    let work = &work;
    std::thread::scope(|scope| {
        let start = |part: &'_ [T]| -> Vec<R> { part.iter().map(work).collect() };
        let workers: Vec<_> = things.chunks(share).map(|part| (part, scope.spawn(move || start(part)))).collect();
        // What a worker could not finish is done here.
        workers.into_iter().flat_map(|(part, worker)| worker.join().unwrap_or_else(|_| start(part))).collect()
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_keep_the_order() {
        for count in [0, 1, 63, 64, 65, 1000] {
            let things: Vec<usize> = (0..count).collect();
            assert_eq!(super::map(&things, |n| n * 2), things.iter().map(|n| n * 2).collect::<Vec<_>>());
        }
    }
}
