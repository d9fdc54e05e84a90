//! Load on a server: a fixed number of requests at the same time, or a fixed rate.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

const TICK: Duration = Duration::from_millis(1);

/// Runs `total` requests, `at_once` at a time; returns the time.
pub async fn run_closed<F>(total: usize, at_once: usize, request: impl Fn(usize) -> F) -> Duration
where
    F: Future<Output = ()> + Send + 'static,
{
    let begun = Instant::now();
    stream::iter((0..total).map(request))
        .map(tokio::spawn)
        .buffer_unordered(at_once)
        .for_each(async |done| done.expect("a request of the bench"))
        .await;
    begun.elapsed()
}

/// Starts requests at a rate per second, whatever the state of earlier ones; returns the sorted latencies. A latency
/// runs from the scheduled time of its request: a request that was sent late counts as late.
pub async fn run_open<F>(rate: f64, time: Duration, request: impl Fn(usize) -> F) -> Vec<Duration>
where
    F: Future<Output = ()> + Send + 'static,
{
    let total = (rate * time.as_secs_f64()) as usize;
    let (begun, mut sent) = (Instant::now(), 0);
    let (mut running, mut latencies) = (JoinSet::new(), Vec::with_capacity(total));
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while sent < total {
        ticks.tick().await;
        // The first request is due at once.
        let due = ((begun.elapsed().as_secs_f64() * rate) as usize + 1).min(total);
        for index in sent..due {
            let (scheduled, work) = (begun + Duration::from_secs_f64(index as f64 / rate), request(index));
            running.spawn(async move {
                work.await;
                scheduled.elapsed()
            });
        }
        sent = due;
        while let Some(done) = running.try_join_next() {
            latencies.push(done.expect("a request of the bench"));
        }
    }
    latencies.extend(running.join_all().await);
    latencies.sort_unstable();
    latencies
}

/// Returns the value below which this share of the sorted values lies, in milliseconds.
pub fn percentile_ms(sorted: &[Duration], share: f64) -> f64 {
    let index = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(index).map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
}

/// Returns the median of measured figures.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}
