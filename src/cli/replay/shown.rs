//! How far a replay is.

use std::{convert::Infallible, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};

/// How often the bar moves.
const TICK: Duration = Duration::from_millis(200);

/// A bar with the rate and the time that is left, on standard error; nothing where that is no terminal. It goes with this.
pub(super) struct Bar(ProgressBar);

impl Bar {
    /// Of so many of `what`.
    pub(super) fn start(total: u64, what: &'static str) -> Self {
        let bar = ProgressBar::new(total).with_message(what);
        if let Ok(style) =
            ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} {msg}, {per_sec}, {eta} left")
        {
            bar.set_style(style);
        }
        Bar(bar)
    }

    /// Moves the bar to where `done` says.
    pub(super) async fn follow(self, done: impl Fn() -> u64) -> Infallible {
        loop {
            tokio::time::sleep(TICK).await;
            self.done(done());
        }
    }

    /// So many are done.
    pub(super) fn done(&self, count: u64) {
        self.0.set_position(count);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
