//! Waits of the chain: readiness reports a wait that takes long, for as long as it lasts.

use std::{
    fmt::Display,
    pin::{Pin, pin},
    time::Duration,
};

use tokio::time::Instant;

use crate::{sequencer::SequencerParts, status::Condition, tx::Txid};

/// The first and the longest pause between two checks of a wait.
pub const POLL_PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// Time that an event of a window waits for an answer at most.
const SPECULATION_LIMIT: Duration = Duration::from_secs(1);

/// The longest pause between two heartbeats of a wait.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// A wait of the sequencer. The state page shows the wait while it lasts. A wait that is longer than
/// `sequencer.block_wait_ms` makes the chain count as halted, with the name of the missing thing, until the wait is
/// over or dropped.
pub struct ReportedWait<'a> {
    parts: &'a SequencerParts,
    condition: Condition,
    about: String,
    since_ms: u64,
    pause: Duration,
    longest: Duration,
    is_reported: bool,
    /// Number of the wait on the state page.
    number: u64,
}

impl<'a> ReportedWait<'a> {
    /// Begins a wait; `about` names the waiting part.
    pub fn new(parts: &'a SequencerParts, about: impl Into<String>) -> Self {
        Self::with_condition(parts, about, Condition::ChainRunning)
    }

    fn with_condition(parts: &'a SequencerParts, about: impl Into<String>, condition: Condition) -> Self {
        let (pause, longest) = POLL_PAUSE;
        let since_ms = parts.clock.steady_ms();
        let number = parts.health.status_registry().start_wait();
        parts.beat();
        ReportedWait { parts, condition, about: about.into(), since_ms, pause, longest, is_reported: false, number }
    }

    /// Sets another first and longest pause.
    pub fn with_pauses(mut self, (pause, longest): (Duration, Duration)) -> Self {
        (self.pause, self.longest) = (pause, longest);
        self
    }

    /// Returns the name of the waiting part.
    pub fn about(&self) -> &str {
        &self.about
    }

    /// Reports that `missing` is waited for, and pauses before the next check.
    ///
    /// An event of a window is handled alone instead.
    pub async fn pause_for(&mut self, missing: &str) {
        if let Some(speculation) = &self.parts.speculation {
            speculation.refuse::<()>().await;
        }
        self.publish(missing);
        if self.parts.clock.steady_ms().saturating_sub(self.since_ms) >= self.limit().as_millis() as u64 {
            self.report_long_wait(missing);
        }
        self.run_short(tokio::time::sleep(self.pause)).await;
        if let Some(cache) = &self.parts.record_cache {
            cache.clear();
        }
        self.pause = (self.pause * 2).min(self.longest);
    }

    /// Awaits work that ends by itself and sends heartbeats meanwhile. The wait is not reported.
    pub async fn run_short<T>(&self, work: impl Future<Output = T>) -> T {
        run_with_heartbeat(self.parts, pin!(work)).await
    }

    /// Awaits work that retries by itself, for as long as it takes. A long wait is reported; a blob store that does not
    /// answer is named.
    pub async fn run<T>(mut self, work: impl Future<Output = T>) -> T {
        // Futures here are large: this one is pinned once, and the wrapper around it is small.
        let work = pin!(work);
        if let Some(speculation) = &self.parts.speculation {
            // A wait is reported where the event is handled alone.
            return match tokio::time::timeout(SPECULATION_LIMIT, work).await {
                Ok(done) => done,
                Err(_) => speculation.refuse().await,
            };
        }
        let mut work = pin!(run_with_heartbeat(self.parts, work));
        self.publish("an answer");
        if let Ok(done) = tokio::time::timeout(self.limit(), work.as_mut()).await {
            return done;
        }
        let mut blob_status = self.parts.store.blob_status.subscribe();
        loop {
            let blob_store = blob_status.borrow_and_update().as_ref().map(|why| format!("the blob store ({why})"));
            let missing = blob_store.as_deref().unwrap_or("an answer");
            self.publish(missing);
            self.report_long_wait(missing);
            tokio::select! {
                biased;
                done = &mut work => return done,
                Ok(()) = blob_status.changed() => {}
            }
        }
    }

    fn publish(&self, missing: &str) {
        self.parts.health.status_registry().publish_wait(self.number, &self.about, missing, self.since_ms);
    }

    fn limit(&self) -> Duration {
        self.parts.settings.block_wait
    }

    /// Sets the readiness condition at each call: another wait inside this one may have ended and cleared it.
    fn report_long_wait(&mut self, missing: &str) {
        let why = format!("{}: still waiting for {missing}", self.about);
        if !std::mem::replace(&mut self.is_reported, true) {
            tracing::error!("{why}");
        }
        self.set_condition(Some(why));
    }

    fn set_condition(&self, why: Option<String>) {
        if self.condition == Condition::ChainRunning {
            self.parts.metrics.chain_halted.set(i64::from(why.is_some()));
        }
        self.parts.health.set(self.condition, why);
    }
}

impl Drop for ReportedWait<'_> {
    fn drop(&mut self) {
        self.parts.health.status_registry().end_wait(self.number);
        if self.is_reported {
            self.set_condition(None);
        }
    }
}

/// A part of the sequencer whose waits for the log are reported, with the readiness condition of a long wait.
pub type WaitingPart = (&'static str, Condition);
/// The feed, which appends to the chain log.
pub const FEED: WaitingPart = ("the feed", Condition::ChainFed);
/// The log of decisions.
pub const DECISIONS: WaitingPart = ("the decisions", Condition::ChainRunning);

/// Awaits work that retries by itself, and reports the wait of this part where it takes long. Without `parts` there is
/// no report.
pub async fn report_wait<'a, T>(
    parts: impl Into<Option<&'a SequencerParts>>,
    (about, condition): WaitingPart,
    work: impl Future<Output = T>,
) -> T {
    match parts.into() {
        Some(parts) => ReportedWait::with_condition(parts, about, condition).run(work).await,
        None => work.await,
    }
}

async fn run_with_heartbeat<T>(parts: &SequencerParts, mut work: Pin<&mut impl Future<Output = T>>) -> T {
    let Some(monitor) = &parts.monitor else { return work.await };
    loop {
        parts.beat();
        let due = monitor.next_beat().min(Instant::now() + HEARTBEAT_INTERVAL);
        // Biased: work that has ended needs no timer.
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep_until(due) => {}
        }
    }
}

/// Greatest number of names in a message about a wait.
const MAX_NAMED: usize = 10;

/// Lists missing things: the first few, and the number of the others.
pub fn format_missing<T: Display>(missing: impl IntoIterator<Item = T>) -> String {
    let mut missing = missing.into_iter();
    let mut names: Vec<String> = missing.by_ref().take(MAX_NAMED).map(|name| name.to_string()).collect();
    match missing.count() {
        0 => {}
        more => names.push(format!("and {more} more")),
    }
    names.join(", ")
}

/// The reference's placeholder for the coinbase in the list of a block.
const COINBASE_PLACEHOLDER: Txid = Txid([0xff; 32]);

/// Lists the missing transactions of a block. No event has the reference's placeholder, so that a message explains it.
pub fn format_missing_listed(missing: &[Txid]) -> String {
    let names = format_missing(missing);
    match missing.contains(&COINBASE_PLACEHOLDER) {
        false => names,
        true => format!(
            "{names}; {COINBASE_PLACEHOLDER} is the reference's placeholder of the coinbase: a block's event must list \
             its transactions without the coinbase and without the placeholder"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_placeholder_of_the_coinbase_is_recognised() {
        let other = Txid([7; 32]);
        assert_eq!(format_missing_listed(&[other]), other.to_string());
        let message = format_missing_listed(&[other, COINBASE_PLACEHOLDER]);
        assert!(
            message.starts_with(&other.to_string()) && message.contains("placeholder of the coinbase"),
            "{message}"
        );
        // Also where the placeholder is beyond the listed names.
        let many: Vec<Txid> =
            (0..MAX_NAMED as u8 + 5).map(|byte| Txid([byte; 32])).chain([COINBASE_PLACEHOLDER]).collect();
        assert!(format_missing_listed(&many).contains("placeholder of the coinbase"));
    }
}
