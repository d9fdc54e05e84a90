//! [`Spinner`]: progress of a command whose end is not known.

use indicatif::{ProgressBar, ProgressStyle};

/// Shows the number of transactions on standard error, if that is a terminal. Dropping the value removes the line.
pub(super) struct Spinner(ProgressBar);

impl Spinner {
    /// Shows a line of the form `template`, with `message` in the place of `{msg}`.
    pub(super) fn start(template: &str, message: &'static str) -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(message);
        Spinner(bar)
    }

    /// Shows a progress line that names the activity.
    pub(super) fn of_activity(activity: &'static str) -> Self {
        Self::start("{spinner} {msg}: {human_pos} transactions, {per_sec}", activity)
    }

    /// Sets the number of transactions that were read so far.
    pub(super) fn update(&self, transactions: u64) {
        self.0.set_position(transactions);
    }

    /// Sets the message beside the spinner.
    pub(super) fn set_message(&self, message: String) {
        self.0.set_message(message);
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
