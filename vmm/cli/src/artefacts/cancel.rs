//! Signals that end a long piece of work in good order.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};

/// Does the work; meanwhile a signal that asks this process to end sets `cancel` instead. Where signals can't be
/// watched they do what they do otherwise.
pub(super) fn cancelled_by_signals<T>(cancel: &AtomicBool, work: impl FnOnce() -> T) -> T {
    let set: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    let watched = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK);
    let (Ok(signals), Ok((done, working))) = (watched, pipe_with(PipeFlags::CLOEXEC)) else { return work() };
    if set.thread_block().is_err() {
        return work();
    }
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut fds = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN), PollFd::new(&done, PollFlags::IN)];
            let _ = rustix::io::retry_on_intr(|| poll(&mut fds, None));
            if fds[0].revents().contains(PollFlags::IN) {
                cancel.store(true, Ordering::SeqCst);
            }
        });
        let result = work();
        // Its end is what the other thread waits for.
        drop(working);
        result
    });
    // One that was taken up is not to end the process as well.
    while let Ok(Some(_)) = signals.read_signal() {}
    let _ = set.thread_unblock();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_ends_by_itself_is_not_cancelled() {
        let cancel = AtomicBool::new(false);
        assert_eq!(cancelled_by_signals(&cancel, || 7), 7);
        assert!(!cancel.load(Ordering::SeqCst));
    }
}
