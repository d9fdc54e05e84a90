//! `utxo-store replay --dry-run`: prints offsets, messages, bytes and duration of a replay.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use serde::Serialize;

use super::{
    super::{
        CliResult, Failure, inspect,
        opening::{self, Monitoring},
        wiring,
    },
    offset_reset,
};
use crate::cli::output;
use crate::{
    blob::Intent,
    broker::{Broker, BrokerError, Message, TopicPartition},
    config::Config,
    engine,
    instance::offset_reset::{OffsetReset, OffsetResetError, RereadBound, RereadRange},
    record::{ConsumedOffsets, MetaRecord},
    store::{StateStore, meta::StoreMeta, topics::LogIdentity},
};

/// Number of messages in each of the two samples of a partition.
const SAMPLE: u64 = 500;
/// Wait of one read for new messages.
const WAIT: Duration = Duration::from_millis(500);

/// Messages that would be read of one partition.
#[derive(Debug, PartialEq, Serialize)]
struct PlannedPartition {
    topic: String,
    partition: i32,
    from: u64,
    until: u64,
    /// Upper bound: some offsets can have no message.
    messages: u64,
    /// Bytes of keys, payloads and headers, extrapolated from samples unless all messages were read.
    bytes: u64,
}

/// Plan of a replay; the JSON object of `--json`.
#[derive(Debug, Serialize)]
struct Plan {
    dry_run: bool,
    parts: Vec<PlannedPartition>,
    messages: u64,
    bytes: u64,
    /// The samples have all messages.
    bytes_are_exact: bool,
    /// Messages per second for the duration.
    rate: u64,
    /// The rate is the one at which the samples were read, without writes to a store.
    rate_is_of_reading: bool,
    seconds: f64,
    /// Reasons why the replay would be refused.
    refused: Vec<String>,
    /// Facts that could not be determined, with the reasons.
    unknown: Vec<String>,
}

/// Prints the plan of a replay with `--from-…`.
pub(super) async fn plan_reread(
    config: &Config,
    from: &RereadBound,
    until: &RereadBound,
    rate: Option<u64>,
    json: bool,
) -> CliResult {
    let broker = opening::open_broker(config).await?;
    let reset = offset_reset(config);
    let mut refused = reset.describe_members(broker.as_ref()).await?;
    let mut unknown = Vec::new();
    let floor = match open_and_read_floor(config, broker.as_ref(), &reset).await {
        Ok(floor) => floor,
        Err(failure) => {
            unknown.push(format!("replay floor of the store: {}", failure.message()));
            ConsumedOffsets::default()
        }
    };
    let ranges = match reset.plan_ranges(broker.as_ref(), from, until, &floor).await {
        Ok(ranges) => ranges,
        Err(OffsetResetError::Refused(why)) => {
            refused.extend(why);
            Vec::new()
        }
        Err(error) => return Err(error.into()),
    };
    let topic = |range: &RereadRange| (reset.topic.to_owned(), range.partition, range.from, range.until);
    let plan = plan(broker.as_ref(), ranges.iter().map(topic).collect(), rate).await?;
    print(&Plan { refused, unknown, ..plan }, json, &mut output::stdout())
}

/// Opens the store for reading and returns its replay floor. Opening fails if an instance has exclusive access.
async fn open_and_read_floor(
    config: &Config,
    broker: &dyn Broker,
    reset: &OffsetReset<'_>,
) -> Result<ConsumedOffsets, Failure> {
    let monitoring = Monitoring::new(config);
    let consumed = reset.consumed_offsets(broker).await?;
    let engine = engine::open_existing_url(config.store.url.clone(), &wiring::engine_options(config)).await?;
    let blobs = opening::open_blobs(config, Intent::Read, &monitoring.metrics).await?;
    let store = StateStore::new(engine, wiring::store_settings(config)).with_blobs(blobs);
    let verified = async {
        let log = LogIdentity::read(broker, &wiring::instance_settings(config).state_topics()).await?;
        Ok(StoreMeta::of(&store).verify_made_from(&log, &consumed).await?)
    };
    let verified: Result<MetaRecord, Failure> = verified.await;
    store.engine.close().await?;
    Ok(verified?.replay_floor)
}

/// Prints the plan of a rebuild.
pub(super) async fn plan_rebuild(config: &Config, rate: Option<u64>, json: bool) -> CliResult {
    let broker = opening::open_broker(config).await?;
    let decisions = config.kafka.topics.decisions.as_str();
    let (mut wanted, mut refused) = (Vec::new(), Vec::new());
    let missing = |topic: &str| Failure::new(format!("topic `{topic}` does not exist"));
    let mut add = |topic: &str, partition: i32, low: u64, end: u64| {
        if low > 0 && end > 0 {
            refused.push(format!("{topic} partition {partition} no longer holds offsets 0 to {low}"));
        }
        wanted.push((topic.to_owned(), partition, low, end.max(low)));
    };
    for group in inspect::offsets::read_group_offsets(broker.as_ref(), config).await? {
        for position in &group.partitions {
            add(&group.topic, position.partition, position.low, position.committed.unwrap_or(0));
        }
    }
    let at = TopicPartition { topic: decisions.into(), partition: 0 };
    broker.partitions(decisions).await?.ok_or_else(|| missing(decisions))?;
    let (low, end) = broker.watermarks(&at).await?;
    add(decisions, 0, low, end);
    let plan = plan(broker.as_ref(), wanted, rate).await?;
    print(&Plan { refused, ..plan }, json, &mut output::stdout())
}

/// Reads samples of the wanted ranges (topic, partition, from, until) and makes the plan.
async fn plan(
    broker: &dyn Broker,
    wanted: Vec<(String, i32, u64, u64)>,
    rate: Option<u64>,
) -> Result<Plan, BrokerError> {
    let (mut parts, mut sampled, mut took, mut exact) = (Vec::new(), 0, Duration::ZERO, true);
    for (topic, partition, from, until) in wanted {
        let at = TopicPartition { topic: topic.as_str().into(), partition };
        let sample = Sample::of(broker, &at, from, until).await?;
        let messages = until - from;
        sampled += sample.messages;
        took += sample.took;
        exact &= sample.offsets >= messages;
        parts.push(PlannedPartition { topic, partition, from, until, messages, bytes: sample.bytes_of(messages) });
    }
    let (messages, bytes) = (parts.iter().map(|part| part.messages).sum(), parts.iter().map(|part| part.bytes).sum());
    let read = sampled as f64 / took.as_secs_f64().max(1e-9);
    let per_second = rate.unwrap_or(read as u64).max(1);
    Ok(Plan {
        dry_run: true,
        parts,
        messages,
        bytes,
        bytes_are_exact: exact,
        rate: per_second,
        rate_is_of_reading: rate.is_none(),
        seconds: messages as f64 / per_second as f64,
        refused: Vec::new(),
        unknown: Vec::new(),
    })
}

/// Messages that were read of one partition.
#[derive(Debug, Default)]
struct Sample {
    messages: u64,
    /// Number of offsets of the sampled ranges.
    offsets: u64,
    bytes: u64,
    /// Time of reading, without the opening of the readers.
    took: Duration,
}

impl Sample {
    /// Reads two samples: at the begin of the range, and after its middle.
    async fn of(broker: &dyn Broker, at: &TopicPartition, from: u64, until: u64) -> Result<Self, BrokerError> {
        let mut sample = Sample::default();
        let second = (from + (until - from) / 2).max(from + SAMPLE);
        for (start, end) in [(from, until.min(from + SAMPLE)), (second, until.min(second + SAMPLE))] {
            if start < end {
                sample.read(broker, at, start, end).await?;
            }
        }
        Ok(sample)
    }

    async fn read(
        &mut self,
        broker: &dyn Broker,
        at: &TopicPartition,
        start: u64,
        end: u64,
    ) -> Result<(), BrokerError> {
        let mut reader = broker.read(at, start).await?;
        let began = Instant::now();
        while reader.position() < end {
            let messages = reader.next(WAIT).await?;
            // No further message arrives in time: the messages so far are the sample.
            if messages.is_empty() && reader.position() < end {
                break;
            }
            let counted = messages.iter().filter(|message| message.offset < end);
            let (count, bytes) = counted.fold((0, 0), |(count, sum), message| (count + 1, sum + bytes_of(message)));
            self.messages += count;
            self.bytes += bytes;
        }
        self.took += began.elapsed();
        self.offsets += reader.position().min(end) - start;
        Ok(())
    }

    fn bytes_of(&self, messages: u64) -> u64 {
        let scaled = u128::from(self.bytes) * u128::from(messages) / u128::from(self.offsets.max(1));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

fn bytes_of(message: &Message) -> u64 {
    let headers: usize = message.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    (message.key.len() + message.payload.len() + headers) as u64
}

fn print(plan: &Plan, json: bool, out: &mut impl Write) -> CliResult {
    if json {
        output::write_json(plan, out)?;
    } else {
        for PlannedPartition { topic, partition, from, until, messages, bytes } in &plan.parts {
            writeln!(out, "{topic} partition {partition}: {from} to {until}, {messages} messages, {bytes} bytes")?;
        }
        let about = if plan.bytes_are_exact { "" } else { "about " };
        writeln!(out, "{} messages, {about}{} bytes", plan.messages, plan.bytes)?;
        let how =
            if plan.rate_is_of_reading { "as fast as samples were read; a store takes longer" } else { "as given" };
        writeln!(out, "{:.1} s at {} messages/s ({how})", plan.seconds, plan.rate)?;
        for fact in &plan.unknown {
            writeln!(out, "unknown: {fact}")?;
        }
    }
    match &plan.refused[..] {
        [] => Ok(()),
        refused => Err(Failure::new(format!("the replay would be refused: {}", refused.join("; ")))),
    }
}
