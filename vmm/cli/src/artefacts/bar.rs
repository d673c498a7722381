//! Showing how far a build is.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pvisor_images::kernel::{Phase, Progress};

use crate::report::{plain, say};

/// Steps of the bar.
const STEPS: u64 = 1000;

/// A bar on standard error, where that is a terminal; else a line for each phase.
pub(super) struct Bar {
    bar: ProgressBar,
    phase: Option<Phase>,
}

impl Bar {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(Some(STEPS), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("pvisor: {prefix:24} [{bar:30}] {elapsed:>5} {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, phase: None }
    }

    pub(super) fn show(&mut self, progress: Progress<'_>) {
        if self.phase != Some(progress.phase) {
            self.phase = Some(progress.phase);
            if self.bar.is_hidden() {
                say(progress.phase.text());
            }
            self.bar.set_prefix(progress.phase.text());
        }
        if let Some(fraction) = progress.fraction {
            // Out of range only if a build misreports; then the bar shows its end.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
            self.bar.set_position((fraction.clamp(0.0, 1.0) * STEPS as f64) as u64);
        }
        self.bar.set_message(plain(progress.detail).replace('\n', " "));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        // Joins its thread: what comes next may count on there being one only.
        self.bar.disable_steady_tick();
        self.bar.finish_and_clear();
    }
}
