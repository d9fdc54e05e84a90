//! How far a replay is: a bar on a terminal, else a line in the log every so often.

use std::{convert::Infallible, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

/// How often the bar moves.
const TICK: Duration = Duration::from_millis(200);

/// How often a line is written.
const LINE: Duration = Duration::from_secs(30);

/// A bar with the rate and the time that is left, on standard error; lines in the log where that is no terminal. It goes with this.
pub(super) struct Bar {
    bar: ProgressBar,
    lines: Lines,
}

impl Bar {
    /// Of so many of `what`.
    pub(super) fn start(total: u64, what: &'static str) -> Self {
        let bar = ProgressBar::new(total).with_message(what);
        if let Ok(style) =
            ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} {msg}, {per_sec}, {eta} left")
        {
            bar.set_style(style);
        }
        Bar { bar, lines: Lines { total, what, first: None, due: Instant::now() + LINE } }
    }

    /// Moves the bar to where `done` says.
    pub(super) async fn follow(mut self, done: impl Fn() -> u64) -> Infallible {
        loop {
            tokio::time::sleep(TICK).await;
            self.done(done());
        }
    }

    /// So many are done.
    pub(super) fn done(&mut self, count: u64) {
        self.bar.set_position(count);
        if self.bar.is_hidden()
            && let Some(line) = self.lines.next(count, Instant::now())
        {
            tracing::info!("{line}");
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The lines for a log.
struct Lines {
    total: u64,
    what: &'static str,
    /// How many were done when somebody looked first, and when that was: one that goes on has done some before.
    first: Option<(u64, Instant)>,
    due: Instant,
}

impl Lines {
    /// The line that is due, such as `600 of 1000 events, 20 a second, 20 s left`.
    fn next(&mut self, done: u64, now: Instant) -> Option<String> {
        let (before, since) = *self.first.get_or_insert((done, now));
        if now < self.due {
            return None;
        }
        self.due = now + LINE;
        let Lines { total, what, .. } = self;
        let rate = done.saturating_sub(before) as f64 / (now - since).as_secs_f64();
        let left = match total.saturating_sub(done) as f64 / rate {
            seconds if seconds.is_finite() => format!("{seconds:.0} s left"),
            _ => "nothing comes".to_owned(),
        };
        Some(format!("{done} of {total} {what}, {rate:.0} a second, {left}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_told_every_so_often_how_far_it_is_and_for_how_long_it_will_be() {
        let began = Instant::now();
        let mut lines = Lines { total: 1_000, what: "events", first: None, due: began + LINE };
        let mut at = |seconds, done| lines.next(done, began + Duration::from_secs(seconds));
        assert_eq!([at(0, 100), at(29, 390)], [None, None]);
        assert_eq!(at(30, 400).unwrap(), "400 of 1000 events, 10 a second, 60 s left");
        assert_eq!(at(31, 410), None);
        assert_eq!(at(60, 700).unwrap(), "700 of 1000 events, 10 a second, 30 s left");
        let mut stands = Lines { total: 5, what: "messages", first: Some((2, began)), due: began + LINE };
        assert_eq!(stands.next(2, began + LINE).unwrap(), "2 of 5 messages, 0 a second, nothing comes");
    }
}
