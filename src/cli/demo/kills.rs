//! Runs the store as a process, kills the process at random points, and starts it again until every event is consumed.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::{
    child::{ChildInstance, Scrape},
    directory::DemoDirectory,
    progress::{DemoGroups, DemoProgress},
    timeline::Timeline,
};
use crate::{
    cli::{Failure, stats::group_digits},
    rng::SplitMix64,
};

const TICK: Duration = Duration::from_millis(10);
/// Ticks between two reads of committed offsets: a request to the broker costs more than a scrape of the process.
const TICKS_PER_PROGRESS: u32 = 5;
/// Time for which the chain may be halted: a longer halt needs an operator.
const HALT_TIMEOUT: Duration = Duration::from_secs(15);
/// Time without progress after which the demo fails: no wait of the demo takes as long.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Result of a run with kills.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KillReport {
    /// Number of kills that were sent.
    pub kills: u32,
    /// Number of kills before every event was consumed.
    pub kills_midway: u32,
    /// Number of events at the begin.
    pub events: u64,
    /// Lower bound of the events read again after kills: reads after the last scrape of a process are unknown.
    pub replayed_events: u64,
    /// Most parked transactions in a scrape.
    pub parked_max: u64,
    /// Time that the last process took to stop.
    pub stopping: Duration,
}

/// Number of events from which a kill can come in time: fewer may be consumed before the first kill.
const LEAST_EVENTS: u64 = 1_000;

impl KillReport {
    /// Returns true if every kill came too late, although the demo had enough events.
    pub fn proves_nothing(&self) -> bool {
        self.kills > 0 && self.kills_midway == 0 && self.events >= LEAST_EVENTS
    }
}

/// Runs until every event is consumed, with `kills` kills meanwhile. Processes are numbered from `first_process` on.
///
/// # Errors
/// A process ends by itself, does not stop gracefully, or makes no progress.
pub async fn run_with_kills(
    directory: &DemoDirectory,
    first_process: u32,
    groups: &DemoGroups,
    kills: u32,
    mut rng: SplitMix64,
    timeline: &Timeline,
) -> Result<KillReport, Failure> {
    let total = groups.read_progress().await?.total;
    let mut kill_report = KillReport { events: total, ..KillReport::default() };
    let bar = timeline.phase("consumed", total);
    for number in 0..kills {
        let start = groups.read_progress().await?;
        let target = kill_point(number, kills, total, &mut rng).max(start.committed + 1);
        let mut watch = WatchedInstance::start(directory, first_process + number, start, &bar)?;
        timeline.note(describe_start(first_process + number, watch.instance.process_id(), start));
        let done = watch.wait_until(groups, target).await?;
        let reached = watch.completed;
        watch.instance.kill().await?;
        let after = groups.read_progress().await?;
        let read_again = (start.committed + watch.read).saturating_sub(after.committed);
        timeline.note(format!(
            "instance {} killed (SIGKILL) at {:.0} %: {} of {} events completed, {} committed, {} to be read again",
            first_process + number + 1,
            reached as f64 / total.max(1) as f64 * 100.0,
            group_digits(reached.into()),
            group_digits(after.total.into()),
            group_digits(after.committed.into()),
            group_digits(read_again.into()),
        ));
        kill_report.kills += 1;
        kill_report.kills_midway += u32::from(!done);
        kill_report.parked_max = kill_report.parked_max.max(watch.parked_max);
        kill_report.replayed_events += read_again;
    }
    let start = groups.read_progress().await?;
    let mut watch = WatchedInstance::start(directory, first_process + kills, start, &bar)?;
    timeline.note(describe_start(first_process + kills, watch.instance.process_id(), start));
    watch.wait_until(groups, u64::MAX).await?;
    kill_report.parked_max = kill_report.parked_max.max(watch.parked_max);
    bar.finish_and_clear();
    timeline.note(format!("all {} events consumed and committed", group_digits(watch.completed.into())));
    let stopping = Instant::now();
    watch.instance.stop().await?;
    kill_report.stopping = stopping.elapsed();
    timeline.note(format!("instance {} stopped (SIGTERM)", first_process + kills + 1));
    Ok(kill_report)
}

/// Describes a started process, whose number counts from 0.
fn describe_start(number: u32, process_id: u32, start: DemoProgress) -> String {
    let from = match start.committed {
        0 => "from offset 0".to_owned(),
        committed => {
            let (committed, total) = (group_digits(committed.into()), group_digits(start.total.into()));
            format!("from the committed offsets, {committed} of {total} events")
        }
    };
    format!("instance {} started (process {process_id}) {from}", number + 1)
}

/// Chooses a random point in the share of the events that belongs to this kill, so that kills are spread over all
/// events.
fn kill_point(number: u32, kills: u32, total: u64, rng: &mut SplitMix64) -> u64 {
    let share = total / u64::from(kills.max(1));
    u64::from(number) * share + share / 10 + rng.below(share * 8 / 10)
}

/// A running process with the last observed counts.
struct WatchedInstance<'a> {
    instance: ChildInstance,
    bar: &'a ProgressBar,
    start: DemoProgress,
    completed: u64,
    read: u64,
    parked_max: u64,
    moved_at: Instant,
    halted_since: Option<Instant>,
}

impl<'a> WatchedInstance<'a> {
    fn start(
        directory: &DemoDirectory,
        number: u32,
        start: DemoProgress,
        bar: &'a ProgressBar,
    ) -> Result<Self, Failure> {
        Ok(WatchedInstance {
            instance: ChildInstance::start(directory, &format!("run-{number}"), &[])?,
            bar,
            start,
            completed: start.committed,
            read: 0,
            parked_max: 0,
            moved_at: Instant::now(),
            halted_since: None,
        })
    }

    /// Waits until `target` events are completed (returns false), or every event is committed (returns true).
    async fn wait_until(&mut self, groups: &DemoGroups, target: u64) -> Result<bool, Failure> {
        for tick in 1.. {
            self.instance.check_running()?;
            if let Some(scrape) = self.instance.scrape().await {
                self.record(&scrape);
            }
            if tick % TICKS_PER_PROGRESS == 0 {
                let progress = groups.read_progress().await?;
                self.advance(progress.committed);
                self.bar.set_length(progress.total);
                if progress.is_done() {
                    return Ok(true);
                }
            }
            if self.completed >= target {
                return Ok(false);
            }
            self.check_progress().await?;
            tokio::time::sleep(TICK).await;
        }
        unreachable!("the ticks do not end")
    }

    fn record(&mut self, scrape: &Scrape) {
        self.read = self.read.max(scrape.sum("utxo_events_total"));
        self.parked_max = self.parked_max.max(scrape.sum("utxo_parked_transactions"));
        // A new process may report lower watermarks than its predecessor: `advance` takes the maximum. The sum includes
        // the watermark of the chain.
        self.advance(scrape.sum("utxo_watermark_offset"));
        match scrape.sum("utxo_chain_halted") {
            0 => self.halted_since = None,
            _ => self.halted_since = self.halted_since.or(Some(Instant::now())),
        }
    }

    fn advance(&mut self, completed: u64) {
        if completed > self.completed {
            self.completed = completed;
            self.moved_at = Instant::now();
            self.bar.set_position(completed);
        }
    }

    async fn check_progress(&mut self) -> Result<(), Failure> {
        let halted = self.halted_since.is_some_and(|since| since.elapsed() > HALT_TIMEOUT);
        if !halted && self.moved_at.elapsed() < STALL_TIMEOUT {
            return Ok(());
        }
        let why = self.instance.readiness_reasons().await;
        let (completed, from) = (self.completed, self.start.committed);
        Err(Failure::new(format!("the store makes no progress beyond {completed} events (begin: {from}): {why}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_kills_prove_nothing_unless_there_were_few_events() {
        let proves_nothing = |kills, kills_midway, events| {
            KillReport { kills, kills_midway, events, ..KillReport::default() }.proves_nothing()
        };
        assert!(proves_nothing(10, 0, 1_000));
        assert!(!proves_nothing(10, 1, 1_000));
        assert!(!proves_nothing(10, 0, 999));
        assert!(!proves_nothing(0, 0, 1_000), "no kill was requested");
    }

    #[test]
    fn kills_are_spread_over_all_events_and_come_before_the_end() {
        for kills in [1, 2, 10, 100] {
            let mut rng = SplitMix64::new(7);
            let points: Vec<u64> = (0..kills).map(|number| kill_point(number, kills, 10_000, &mut rng)).collect();
            assert!(points.is_sorted() && points[0] > 0 && points.iter().all(|point| *point < 10_000), "{points:?}");
            let mut same = SplitMix64::new(7);
            assert!(
                points.iter().zip(0..).all(|(point, number)| kill_point(number, kills, 10_000, &mut same) == *point)
            );
        }
        assert_eq!(kill_point(0, 1, 0, &mut SplitMix64::new(1)), 0);
    }
}
