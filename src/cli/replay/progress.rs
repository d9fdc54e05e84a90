//! Progress of a replay: a bar on a terminal, otherwise a log line every 30 s.

use std::{convert::Infallible, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

/// Interval between two updates of the bar.
const BAR_INTERVAL: Duration = Duration::from_millis(200);

/// Interval between two log lines.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

/// Progress bar with rate and remaining time on standard error, or log lines if that is not a terminal. Dropping the
/// value removes the bar.
pub(super) struct ReplayProgress {
    bar: ProgressBar,
    lines: ProgressLines,
}

impl ReplayProgress {
    /// Starts at 0 of `total`; `unit` is what is counted, such as `events`.
    pub(super) fn start(total: u64, unit: &'static str) -> Self {
        let bar = ProgressBar::new(total).with_message(unit);
        if let Ok(style) =
            ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} {msg}, {per_sec}, {eta} left")
        {
            bar.set_style(style);
        }
        ReplayProgress { bar, lines: ProgressLines { total, unit, first: None, due: Instant::now() + LINE_INTERVAL } }
    }

    /// Updates the bar with the count that `done` returns, for as long as the future is polled.
    pub(super) async fn follow(mut self, done: impl Fn() -> u64) -> Infallible {
        loop {
            tokio::time::sleep(BAR_INTERVAL).await;
            self.update(done());
        }
    }

    /// Sets the count of the bar, and logs a line if a line is due.
    pub(super) fn update(&mut self, count: u64) {
        self.bar.set_position(count);
        if self.bar.is_hidden()
            && let Some(line) = self.lines.next(count, Instant::now())
        {
            tracing::info!("{line}");
        }
    }
}

impl Drop for ReplayProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Makes the lines for the log.
struct ProgressLines {
    total: u64,
    unit: &'static str,
    /// Count and time of the first update, for the rate: a resumed replay does not begin at 0.
    first: Option<(u64, Instant)>,
    due: Instant,
}

impl ProgressLines {
    /// Returns the line if a line is due, such as `600 of 1000 events, 20 per second, 20 s left`.
    fn next(&mut self, done: u64, now: Instant) -> Option<String> {
        let (before, since) = *self.first.get_or_insert((done, now));
        if now < self.due {
            return None;
        }
        self.due = now + LINE_INTERVAL;
        let ProgressLines { total, unit, .. } = self;
        let rate = done.saturating_sub(before) as f64 / (now - since).as_secs_f64();
        let left = match total.saturating_sub(done) as f64 / rate {
            seconds if seconds.is_finite() => format!("{seconds:.0} s left"),
            _ => "no progress".to_owned(),
        };
        Some(format!("{done} of {total} {unit}, {rate:.0} per second, {left}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_a_line_with_rate_and_remaining_time_every_30_s() {
        let began = Instant::now();
        let mut lines = ProgressLines { total: 1_000, unit: "events", first: None, due: began + LINE_INTERVAL };
        let mut at = |seconds, done| lines.next(done, began + Duration::from_secs(seconds));
        assert_eq!([at(0, 100), at(29, 390)], [None, None]);
        assert_eq!(at(30, 400).unwrap(), "400 of 1000 events, 10 per second, 60 s left");
        assert_eq!(at(31, 410), None);
        assert_eq!(at(60, 700).unwrap(), "700 of 1000 events, 10 per second, 30 s left");
        let mut idle =
            ProgressLines { total: 5, unit: "messages", first: Some((2, began)), due: began + LINE_INTERVAL };
        assert_eq!(idle.next(2, began + LINE_INTERVAL).unwrap(), "2 of 5 messages, 0 per second, no progress");
    }
}
