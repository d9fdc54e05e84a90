//! The demo on the screen: one line for each event of the demo, and one bar for each phase. Both go to standard error.

use std::time::Instant;

use indicatif::{MultiProgress, ProgressBar};

use crate::cli::generate::progress_bar;

/// Prints lines stamped with the seconds since the demo began, above the bar of the current phase.
#[derive(Clone)]
pub struct Timeline {
    began: Instant,
    bars: MultiProgress,
}

impl Timeline {
    /// A timeline that begins now.
    pub fn new() -> Self {
        Timeline { began: Instant::now(), bars: MultiProgress::new() }
    }

    /// Prints one line.
    pub fn note(&self, text: impl AsRef<str>) {
        let line = format!("{:>7.1} s  {}", self.began.elapsed().as_secs_f64(), text.as_ref());
        self.bars.suspend(|| eprintln!("{line}"));
    }

    /// A bar for a phase of `length` events. Only a terminal shows the bar.
    pub fn phase(&self, name: &'static str, length: u64) -> ProgressBar {
        self.bars.add(progress_bar(name, length))
    }
}
