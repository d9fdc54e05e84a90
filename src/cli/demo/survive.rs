//! Running the store as a process, killing it at seeded points, and starting it again until everything is consumed.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::{
    child::{Instance, Scrape},
    directory::Directory,
    progress::{DemoProgress, Groups},
    timeline::Timeline,
};
use crate::{
    cli::{Failure, stats::group},
    seeded::Seeded,
};

const TICK: Duration = Duration::from_millis(10);
/// Asking the broker costs more than asking the process.
const TICKS_A_STANDING: u32 = 5;
/// A chain that stays halted for so long needs somebody.
const HALTED_PATIENCE: Duration = Duration::from_secs(15);
/// Nothing here waits for so long.
const STALL_PATIENCE: Duration = Duration::from_secs(120);

/// What came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Survival {
    /// Kills.
    pub kills: u32,
    /// Those among them that came before everything was consumed.
    pub kills_midway: u32,
    /// Events that there were to be consumed.
    pub events: u64,
    /// Events read again after a kill, at the least: what a process read after it was last asked is not known.
    pub replayed_events: u64,
    /// The most transactions that were seen waiting at once.
    pub parked_max: u64,
    /// How long the last process took to stop.
    pub stopping: Duration,
}

/// So few events may be consumed before anybody can kill.
const ENOUGH: u64 = 1_000;

impl Survival {
    /// Whether every kill came too late, though there was enough to be killed over.
    pub fn shows_nothing(&self) -> bool {
        self.kills > 0 && self.kills_midway == 0 && self.events >= ENOUGH
    }
}

/// Runs until everything is consumed, with `kills` kills on the way. Processes are numbered from `first_process` on.
///
/// # Errors
/// A process that ends by itself, does not stop in order, or goes no further.
pub async fn survive(
    directory: &Directory,
    first_process: u32,
    groups: &Groups,
    kills: u32,
    mut seeded: Seeded,
    timeline: &Timeline,
) -> Result<Survival, Failure> {
    let total = groups.standing().await?.total;
    let mut survival = Survival { events: total, ..Survival::default() };
    let bar = timeline.phase("consumed", total);
    for number in 0..kills {
        let start = groups.standing().await?;
        let target = kill_point(number, kills, total, &mut seeded).max(start.committed + 1);
        let mut watch = Watch::begin(directory, first_process + number, start, &bar)?;
        timeline.note(started(first_process + number, watch.instance.process_id(), start));
        let done = watch.until(groups, target).await?;
        let reached = watch.completed;
        watch.instance.kill().await?;
        let after = groups.standing().await?;
        let read_again = (start.committed + watch.read).saturating_sub(after.committed);
        timeline.note(format!(
            "instance {} killed (SIGKILL) at {:.0} %: {} of {} events completed, {} committed, {} to be read again",
            first_process + number + 1,
            reached as f64 / total.max(1) as f64 * 100.0,
            group(reached.into()),
            group(after.total.into()),
            group(after.committed.into()),
            group(read_again.into()),
        ));
        survival.kills += 1;
        survival.kills_midway += u32::from(!done);
        survival.parked_max = survival.parked_max.max(watch.parked_max);
        survival.replayed_events += read_again;
    }
    let start = groups.standing().await?;
    let mut watch = Watch::begin(directory, first_process + kills, start, &bar)?;
    timeline.note(started(first_process + kills, watch.instance.process_id(), start));
    watch.until(groups, u64::MAX).await?;
    survival.parked_max = survival.parked_max.max(watch.parked_max);
    bar.finish_and_clear();
    timeline.note(format!("all {} events consumed and committed", group(watch.completed.into())));
    let stopping = Instant::now();
    watch.instance.stop().await?;
    survival.stopping = stopping.elapsed();
    timeline.note(format!("instance {} stopped (SIGTERM)", first_process + kills + 1));
    Ok(survival)
}

/// The line of a started process, whose number counts from 0.
fn started(number: u32, process_id: u32, start: DemoProgress) -> String {
    let from = match start.committed {
        0 => "from offset 0".to_owned(),
        committed => {
            format!("from the committed offsets, {} of {} events", group(committed.into()), group(start.total.into()))
        }
    };
    format!("instance {} started (process {process_id}) {from}", number + 1)
}

/// Somewhere in the share of the events that belongs to this kill, so that many kills are spread over the whole.
fn kill_point(number: u32, kills: u32, total: u64, seeded: &mut Seeded) -> u64 {
    let share = total / u64::from(kills.max(1));
    u64::from(number) * share + share / 10 + seeded.below(share * 8 / 10)
}

/// One process under observation.
struct Watch<'a> {
    instance: Instance,
    bar: &'a ProgressBar,
    start: DemoProgress,
    completed: u64,
    read: u64,
    parked_max: u64,
    moved_at: Instant,
    halted_since: Option<Instant>,
}

impl<'a> Watch<'a> {
    fn begin(directory: &Directory, number: u32, start: DemoProgress, bar: &'a ProgressBar) -> Result<Self, Failure> {
        Ok(Watch {
            instance: Instance::start(directory, number)?,
            bar,
            start,
            completed: start.committed,
            read: 0,
            parked_max: 0,
            moved_at: Instant::now(),
            halted_since: None,
        })
    }

    /// Waits until `target` events are completed (`false`), or all there are, and committed (`true`).
    async fn until(&mut self, groups: &Groups, target: u64) -> Result<bool, Failure> {
        for tick in 1.. {
            self.instance.check_running()?;
            if let Some(scrape) = self.instance.scrape().await {
                self.note(&scrape);
            }
            if tick % TICKS_A_STANDING == 0 {
                let standing = groups.standing().await?;
                self.advance(standing.committed);
                self.bar.set_length(standing.total);
                if standing.is_done() {
                    return Ok(true);
                }
            }
            if self.completed >= target {
                return Ok(false);
            }
            self.check_moving().await?;
            tokio::time::sleep(TICK).await;
        }
        unreachable!("the ticks do not end")
    }

    fn note(&mut self, scrape: &Scrape) {
        self.read = self.read.max(scrape.sum("utxo_events_total"));
        self.parked_max = self.parked_max.max(scrape.sum("utxo_parked_transactions"));
        // A process that was just started has not heard of the old offsets yet.
        // The watermarks include that of the chain.
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

    async fn check_moving(&mut self) -> Result<(), Failure> {
        let halted = self.halted_since.is_some_and(|since| since.elapsed() > HALTED_PATIENCE);
        if !halted && self.moved_at.elapsed() < STALL_PATIENCE {
            return Ok(());
        }
        let why = self.instance.complaints().await;
        let (completed, from) = (self.completed, self.start.committed);
        Err(Failure::new(format!("the store goes no further than {completed} events (from {from}): {why}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_that_all_come_too_late_show_nothing_unless_there_was_little() {
        let shows_nothing = |kills, kills_midway, events| {
            Survival { kills, kills_midway, events, ..Survival::default() }.shows_nothing()
        };
        assert!(shows_nothing(10, 0, 1_000));
        assert!(!shows_nothing(10, 1, 1_000));
        assert!(!shows_nothing(10, 0, 999));
        assert!(!shows_nothing(0, 0, 1_000), "nobody asked for any");
    }

    #[test]
    fn kills_are_spread_over_the_whole_and_come_before_its_end() {
        for kills in [1, 2, 10, 100] {
            let mut seeded = Seeded::new(7);
            let points: Vec<u64> = (0..kills).map(|number| kill_point(number, kills, 10_000, &mut seeded)).collect();
            assert!(points.is_sorted() && points[0] > 0 && points.iter().all(|point| *point < 10_000), "{points:?}");
            let mut same = Seeded::new(7);
            assert!(
                points.iter().zip(0..).all(|(point, number)| kill_point(number, kills, 10_000, &mut same) == *point)
            );
        }
        assert_eq!(kill_point(0, 1, 0, &mut Seeded::new(1)), 0);
    }
}
