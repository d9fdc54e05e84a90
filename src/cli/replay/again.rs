//! `utxo-store replay --from-…`: validated transactions once more, into the store that has them.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        CommandResult, Failure,
        opening::{self, Watched},
        run::consume,
        serving::{self, Place},
        signals, wiring,
    },
    reading,
    shown::Bar,
};
use crate::cli::output;
use crate::{
    blob::Intent,
    broker::{Broker, BrokerErrorKind},
    config::Config,
    ingest::pipeline::PipelineReport,
    instance::{
        self, InstanceParts,
        checks::store_topics,
        set_back::{Position, Range, Reading},
    },
    record::Consumed,
    status::{Health, health::Condition},
    store::{
        Store,
        meta::{MetaError, is_rebuilt},
        topics::{FoundTopic, find_topics, is_bound_to},
        whole::{GroupStore, WholeStore},
    },
};

/// How often the group is asked how far it is.
const LOOK: Duration = Duration::from_millis(500);

/// What it came to.
#[derive(Debug, Serialize)]
struct Replayed {
    messages: u64,
    partitions: Vec<Range>,
    /// Contests that were published: of what had lost before, most are passed over.
    contests: u64,
    /// Dead letters that were written again.
    dead_letters: u64,
    seconds: f64,
}

/// Sets the group back, and works as one of its instances until it has committed `until`.
pub(super) async fn run(
    config: &Config,
    from: &Position,
    until: &Position,
    json: bool,
    place: &Place,
) -> CommandResult {
    let shutdown = CancellationToken::new();
    signals::cancel_on_signals(shutdown.clone())?;
    let watched = Watched::new(config);
    let replayed = Box::pin(replay(config, from, until, &watched, shutdown.clone()));
    print(&serving::serve(place, &watched, shutdown, replayed).await?, json, &mut output::stdout())
}

async fn replay(
    config: &Config,
    from: &Position,
    until: &Position,
    watched: &Watched,
    shutdown: CancellationToken,
) -> Result<Replayed, Failure> {
    let broker = opening::watched_broker(config, watched.health.liveness())?;
    let reading = reading(config);
    if let Some(why) = reading.members(broker.as_ref()).await?.into_iter().next() {
        return Err(Failure::new(why));
    }
    let started = Instant::now();
    let blobs = opening::blobs(config, Intent::Write, &watched.metrics).await?;
    let objects = opening::objects(config, &watched.metrics).await?;
    let done = opening::with_store(config, &config.store.url, &watched.metrics, async |store: &Store| {
        let store = store.clone().with_blobs(blobs).with_objects(objects);
        let topics = store_topics(&wiring::instance(config));
        let topics = find_topics(broker.as_ref(), &topics).await?;
        let floor = floor(&store, &topics, &reading.consumed(broker.as_ref()).await?).await?;
        let ranges = reading.ranges(broker.as_ref(), from, until, &floor).await?;
        if ranges.is_empty() {
            return Ok((ranges, PipelineReport::default()));
        }
        reading.set_back(broker.as_ref(), &ranges).await?;
        tracing::info!(?ranges, "the group is set back");
        let parts = opening::parts(broker.clone(), store, watched)?;
        let report = work(config, parts, &reading, &ranges, shutdown).await?;
        Ok((ranges, report))
    });
    let (partitions, PipelineReport { contests, dead_letters, .. }) = done.await?;
    let messages = partitions.iter().map(|range| range.until - range.from).sum();
    Ok(Replayed { messages, partitions, contests, dead_letters, seconds: started.elapsed().as_secs_f64() })
}

/// From where on may be read into the store, which must be the group's and made from these topics.
pub(super) async fn floor(store: &Store, topics: &[FoundTopic], consumed: &Consumed) -> Result<Consumed, MetaError> {
    let meta = store.meta().await?.ok_or(MetaError::NamespaceLost)?;
    is_rebuilt(&meta)?;
    topics.iter().try_for_each(|topic| is_bound_to(&meta, topic))?;
    let expected = instance::expectations(store);
    GroupStore { store: store.clone(), expected }.holds(consumed).await?;
    Ok(meta.replay_floor)
}

/// An instance, until the group has read the ranges.
async fn work(
    config: &Config,
    parts: InstanceParts,
    reading: &Reading<'_>,
    ranges: &[Range],
    shutdown: CancellationToken,
) -> Result<PipelineReport, Failure> {
    let (broker, health, stop) = (parts.broker.clone(), parts.health.clone(), shutdown.child_token());
    let consuming = consume(config, parts, stop.clone());
    tokio::pin!(consuming);
    let left = |why: String| {
        Failure::new(format!(
            "{why}; the group stands where it has come to: `run` goes on there (and this command begins again)"
        ))
    };
    let watched = tokio::select! {
        ended = &mut consuming => {
            return match ended {
                Ok(_) => Err(left("stopped before the end".to_owned())),
                Err(failure) => Err(left(failure.told())),
            };
        }
        watched = until_read(broker.as_ref(), &health, reading, ranges) => watched,
    };
    stop.cancel();
    let report = consuming.await?;
    watched.map_err(left)?;
    Ok(report)
}

/// Waits until the group has committed what is read again.
///
/// # Errors
/// A partition has halted, or the log says that it will not answer.
async fn until_read(
    broker: &dyn Broker,
    health: &Health,
    reading: &Reading<'_>,
    ranges: &[Range],
) -> Result<(), String> {
    let total = ranges.iter().map(|range| range.until - range.from).sum();
    let mut bar = Bar::start(total, "messages");
    loop {
        match reading.left(broker, ranges).await {
            Ok(0) => return Ok(()),
            Ok(left) => bar.done(total - left),
            Err(error) if error.kind == BrokerErrorKind::Retryable => {}
            Err(error) => return Err(error.to_string()),
        }
        if let Some(why) = health.ready().reasons.remove(Condition::PartitionsRunning.name()) {
            return Err(why);
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn print(done: &Replayed, json: bool, out: &mut impl Write) -> CommandResult {
    if json {
        serde_json::to_writer(&mut *out, done)?;
        return Ok(writeln!(out)?);
    }
    let Replayed { messages, partitions, contests, dead_letters, seconds } = done;
    if partitions.is_empty() {
        return Ok(writeln!(out, "Nothing to read again: the group stands there already.")?);
    }
    for Range { partition, from, until, .. } in partitions {
        writeln!(out, "partition {partition}: {from} to {until}")?;
    }
    writeln!(
        out,
        "{messages} messages read again in {seconds:.1} s; {contests} contests, {dead_letters} dead letters"
    )?;
    Ok(())
}
