//! `utxo-store replay --from-…`: reads validated transactions again into the live store.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        CliResult, Failure, FencedError,
        opening::{self, LogObjects, Monitoring},
        serving::{self, HttpOptions},
        signals, wiring,
    },
    offset_reset,
    progress::ReplayProgress,
};
use crate::cli::output;
use crate::{
    blob::Intent,
    broker::{Broker, BrokerErrorKind},
    config::Config,
    embed::consume,
    ingest::pipeline::PipelineReport,
    instance::{
        InstanceParts,
        offset_reset::{OffsetReset, RereadBound, RereadRange},
    },
    status::{Health, health::Condition},
    store::{StateStore, meta::StoreMeta, topics::LogIdentity},
};

/// Interval between two reads of the committed offsets.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Result of the replay; the JSON object of `--json`.
#[derive(Debug, Serialize)]
struct ReplaySummary {
    messages: u64,
    partitions: Vec<RereadRange>,
    /// Number of published contests. The sequencer passes over most contests of transactions that lost before.
    contests: u64,
    /// Number of dead letters that were written again.
    dead_letters: u64,
    seconds: f64,
}

/// Sets the group back, and works as one instance of the group until the group has committed `until`.
pub(super) async fn run(
    config: &Config,
    from: &RereadBound,
    until: &RereadBound,
    json: bool,
    http: &HttpOptions,
) -> CliResult {
    let shutdown = CancellationToken::new();
    signals::cancel_on_signals(shutdown.clone())?;
    let monitoring = Monitoring::new(config);
    let replayed = Box::pin(replay(config, from, until, &monitoring, shutdown.clone()));
    print(&serving::serve(http, &monitoring, shutdown, replayed).await?, json, &mut output::stdout())
}

async fn replay(
    config: &Config,
    from: &RereadBound,
    until: &RereadBound,
    monitoring: &Monitoring,
    shutdown: CancellationToken,
) -> Result<ReplaySummary, Failure> {
    let broker = opening::open_watched_broker(config, monitoring.health.liveness())?;
    let reset = offset_reset(config);
    if let Some(reason) = reset.describe_members(broker.as_ref()).await?.into_iter().next() {
        return Err(Failure::new(reason));
    }
    let started = Instant::now();
    let blobs = opening::open_blobs(config, Intent::Write, &monitoring.metrics).await?;
    let objects = LogObjects::open(config, &monitoring.metrics).await?;
    let done = opening::with_store(config, &config.store.url, &monitoring.metrics, async |store: &StateStore| {
        let store = objects.attach_to(store.clone().with_blobs(blobs));
        let log = LogIdentity::read(broker.as_ref(), &wiring::instance_settings(config).state_topics()).await?;
        let consumed = reset.consumed_offsets(broker.as_ref()).await?;
        let meta = StoreMeta::of(&store).verify_made_from(&log, &consumed).await?;
        let ranges = reset.plan_ranges(broker.as_ref(), from, until, &meta.replay_floor).await?;
        if ranges.is_empty() {
            return Ok::<_, Failure>((ranges, PipelineReport::default()));
        }
        reset.reset_offsets(broker.as_ref(), &ranges).await?;
        tracing::info!(?ranges, "replay: committed offsets set back");
        let parts = opening::build_parts(broker.clone(), store, monitoring)?;
        let report = Box::pin(run_until_read(config, parts, &reset, &ranges, shutdown)).await?;
        Ok((ranges, report))
    });
    let (partitions, PipelineReport { contests, dead_letters, .. }) = Box::pin(done).await?;
    let messages = partitions.iter().map(|range| range.until - range.from).sum();
    Ok(ReplaySummary { messages, partitions, contests, dead_letters, seconds: started.elapsed().as_secs_f64() })
}

/// Runs an instance until the group has committed the ranges.
async fn run_until_read(
    config: &Config,
    parts: InstanceParts,
    reset: &OffsetReset<'_>,
    ranges: &[RereadRange],
    shutdown: CancellationToken,
) -> Result<PipelineReport, Failure> {
    let (broker, health, stop) = (parts.broker.clone(), parts.health.clone(), shutdown.child_token());
    let consuming = consume(config, parts, stop.clone());
    tokio::pin!(consuming);
    let outcome = tokio::select! {
        ended = &mut consuming => {
            return Err(incomplete(ended.err().map_or_else(|| Failure::new("stopped before the end"), Failure::from)));
        }
        outcome = wait_until_read(broker.as_ref(), &health, reset, ranges) => outcome,
    };
    stop.cancel();
    let report = consuming.await?;
    outcome.map_err(|reason| incomplete(Failure::new(reason)))?;
    Ok(report)
}

/// Adds to the reason of an early end how to continue. A fenced process keeps its exit code.
fn incomplete(reason: Failure) -> Failure {
    let message = reason.message();
    let message = format!("{message}; `run` continues at the committed offsets, and this command would begin again");
    if reason.is_fenced() { FencedError(message).into() } else { Failure::new(message) }
}

/// Waits until the group has committed the ranges.
///
/// # Errors
/// A partition has halted, or the brokers answer with an error that no retry mends.
async fn wait_until_read(
    broker: &dyn Broker,
    health: &Health,
    reset: &OffsetReset<'_>,
    ranges: &[RereadRange],
) -> Result<(), String> {
    let total = ranges.iter().map(|range| range.until - range.from).sum();
    let mut bar = ReplayProgress::start(total, "messages");
    loop {
        match reset.count_left(broker, ranges).await {
            Ok(0) => return Ok(()),
            Ok(left) => bar.update(total - left),
            Err(error) if error.kind == BrokerErrorKind::Retryable => {}
            Err(error) => return Err(error.to_string()),
        }
        if let Some(reason) = health.ready().reasons.remove(Condition::PartitionsRunning.name()) {
            return Err(reason);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn print(summary: &ReplaySummary, json: bool, out: &mut impl Write) -> CliResult {
    if json {
        return Ok(output::write_json(summary, out)?);
    }
    let ReplaySummary { messages, partitions, contests, dead_letters, seconds } = summary;
    if partitions.is_empty() {
        return Ok(writeln!(out, "Nothing to read again: the group has these committed offsets already.")?);
    }
    for RereadRange { partition, from, until, .. } in partitions {
        writeln!(out, "partition {partition}: {from} to {until}")?;
    }
    writeln!(
        out,
        "{messages} messages read again in {seconds:.1} s; {contests} contests, {dead_letters} dead letters"
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fenced_replay_ends_with_the_exit_code_of_a_fenced_run() {
        let fenced = incomplete(FencedError("another process".to_owned()).into());
        assert!(fenced.to_string().starts_with("error: another process; `run` continues"), "{fenced}");
        assert_eq!(fenced.exit_code(), 5);
        assert_eq!(incomplete(Failure::new("stopped before the end")).exit_code(), 1);
    }
}
