//! The demo on the screen: one line for each event of the demo, and one bar for each phase. Both go to standard error.

use std::{
    io::{self, Write},
    time::Instant,
};

use indicatif::{MultiProgress, ProgressBar};

use crate::cli::generate::progress_bar;

/// Prints lines stamped with the seconds since the demo began, above the bar of the current phase.
pub struct Timeline {
    began: Instant,
    bars: MultiProgress,
    is_silent: bool,
}

impl Timeline {
    /// A timeline that begins now.
    pub fn new() -> Self {
        Timeline { began: Instant::now(), bars: MultiProgress::new(), is_silent: false }
    }

    /// A timeline that prints no line and shows no bar: the stories print their own text.
    pub fn silent() -> Self {
        Timeline { is_silent: true, ..Timeline::new() }
    }

    /// Prints one line with the seconds since the begin.
    pub fn note(&self, text: impl AsRef<str>) {
        if self.is_silent {
            return;
        }
        let seconds = self.began.elapsed().as_secs_f64();
        // A closed standard error does not end the demo.
        self.bars.suspend(|| drop(writeln!(io::stderr(), "{seconds:>7.1} s  {}", text.as_ref())));
    }

    /// A bar for a phase of `length` events. Only a terminal shows the bar.
    pub fn phase(&self, name: &'static str, length: u64) -> ProgressBar {
        if self.is_silent { ProgressBar::hidden() } else { self.bars.add(progress_bar(name, length)) }
    }
}
