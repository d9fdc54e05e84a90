//! `utxo-store replay --dry-run`: what would be read, how much of it, for how long.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use serde::Serialize;

use super::{
    super::{
        CommandResult, Failure, inspect,
        opening::{self, Watched},
        wiring,
    },
    again, reading,
};
use crate::cli::output;
use crate::{
    blob::Intent,
    broker::{Broker, BrokerError, Message, TopicPartition},
    config::Config,
    engine,
    instance::{
        checks::store_topics,
        set_back::{Position, Range, Reading, SetBackError},
    },
    record::Consumed,
    store::{Store, topics::find_topics},
};

/// Messages looked at in each of two places of a partition.
const SAMPLE: u64 = 500;
const WAIT: Duration = Duration::from_millis(500);

/// What would be read of one partition.
#[derive(Debug, PartialEq, Serialize)]
struct Part {
    topic: String,
    partition: i32,
    from: u64,
    until: u64,
    /// At the most: offsets may be without a message.
    messages: u64,
    /// Keys, values and headers; of samples, where not all were looked at.
    bytes: u64,
}

/// What would be done.
#[derive(Debug, Serialize)]
struct Plan {
    dry_run: bool,
    parts: Vec<Part>,
    messages: u64,
    bytes: u64,
    /// Everything was looked at.
    bytes_are_exact: bool,
    /// Messages a second.
    rate: u64,
    /// It was measured: how fast samples were read, and nothing done with them.
    rate_is_of_reading: bool,
    seconds: f64,
    /// Why it would be refused.
    refused: Vec<String>,
    /// What could not be looked at.
    unknown: Vec<String>,
}

/// What reading again would be.
pub(super) async fn again(
    config: &Config,
    from: &Position,
    until: &Position,
    rate: Option<u64>,
    json: bool,
) -> CommandResult {
    let broker = opening::broker(config).await?;
    let reading = reading(config);
    let mut refused = reading.members(broker.as_ref()).await?;
    let mut unknown = Vec::new();
    let floor = match floor(config, broker.as_ref(), &reading).await {
        Ok(floor) => floor,
        Err(failure) => {
            unknown.push(format!("whether it was pruned: {}", failure.told()));
            Consumed::default()
        }
    };
    let ranges = match reading.ranges(broker.as_ref(), from, until, &floor).await {
        Ok(ranges) => ranges,
        Err(SetBackError::Refused(why)) => {
            refused.extend(why);
            Vec::new()
        }
        Err(error) => return Err(error.into()),
    };
    let topic = |range: &Range| (reading.topic.to_owned(), range.partition, range.from, range.until);
    let plan = plan(broker.as_ref(), ranges.iter().map(topic).collect(), rate).await?;
    print(&Plan { refused, unknown, ..plan }, json, &mut output::stdout())
}

/// Opens the store as whoever only reads does: an instance may have it to itself.
async fn floor(config: &Config, broker: &dyn Broker, reading: &Reading<'_>) -> Result<Consumed, Failure> {
    let watched = Watched::new(config);
    let consumed = reading.consumed(broker).await?;
    let engine = engine::open_existing(&config.store.url.to_string(), &wiring::engine(config)).await?;
    let blobs = opening::blobs(config, Intent::Read, &watched.metrics).await?;
    let store = Store::new(engine, wiring::store(config)).with_blobs(blobs);
    let topics = find_topics(broker, &store_topics(&wiring::instance(config))).await;
    let floor = match topics {
        Ok(topics) => again::floor(&store, &topics, &consumed).await.map_err(Failure::from),
        Err(error) => Err(error.into()),
    };
    store.engine.close().await?;
    floor
}

/// What a rebuild would read.
pub(super) async fn rebuild(config: &Config, rate: Option<u64>, json: bool) -> CommandResult {
    let broker = opening::broker(config).await?;
    let decisions = config.kafka.topics.decisions.as_str();
    let (mut wanted, mut refused) = (Vec::new(), Vec::new());
    let missing = |topic: &str| Failure::new(format!("topic `{topic}` does not exist"));
    let mut add = |topic: &str, partition: i32, low: u64, end: u64| {
        if low > 0 && end > 0 {
            refused.push(format!("{topic} partition {partition} no longer holds offsets 0 to {low}"));
        }
        wanted.push((topic.to_owned(), partition, low, end.max(low)));
    };
    for group in inspect::offsets::groups(broker.as_ref(), config).await? {
        for place in &group.partitions {
            add(&group.topic, place.partition, place.low, place.committed.unwrap_or(0));
        }
    }
    let at = TopicPartition { topic: decisions.into(), partition: 0 };
    broker.partitions(decisions).await?.ok_or_else(|| missing(decisions))?;
    let (low, end) = broker.watermarks(&at).await?;
    add(decisions, 0, low, end);
    let plan = plan(broker.as_ref(), wanted, rate).await?;
    print(&Plan { refused, ..plan }, json, &mut output::stdout())
}

/// Looks at samples of what is wanted: (topic, partition, from, until).
async fn plan(
    broker: &dyn Broker,
    wanted: Vec<(String, i32, u64, u64)>,
    rate: Option<u64>,
) -> Result<Plan, BrokerError> {
    let (mut parts, mut looked_at, mut took, mut exact) = (Vec::new(), 0, Duration::ZERO, true);
    for (topic, partition, from, until) in wanted {
        let at = TopicPartition { topic: topic.as_str().into(), partition };
        let sample = Sample::of(broker, &at, from, until).await?;
        let messages = until - from;
        looked_at += sample.messages;
        took += sample.took;
        exact &= sample.offsets >= messages;
        parts.push(Part { topic, partition, from, until, messages, bytes: sample.bytes_of(messages) });
    }
    let (messages, bytes) = (parts.iter().map(|part| part.messages).sum(), parts.iter().map(|part| part.bytes).sum());
    let read = looked_at as f64 / took.as_secs_f64().max(1e-9);
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

/// What was looked at of one partition.
#[derive(Debug, Default)]
struct Sample {
    messages: u64,
    /// Offsets that they stand for.
    offsets: u64,
    bytes: u64,
    /// Waiting for them; not for the first of a place, which a new reader takes its time for.
    took: Duration,
}

impl Sample {
    /// The beginning, and behind the middle.
    async fn of(broker: &dyn Broker, at: &TopicPartition, from: u64, until: u64) -> Result<Self, BrokerError> {
        let mut sample = Sample::default();
        let second = (from + (until - from) / 2).max(from + SAMPLE);
        for (start, end) in [(from, until.min(from + SAMPLE)), (second, until.min(second + SAMPLE))] {
            if start < end {
                sample.look(broker, at, start, end).await?;
            }
        }
        Ok(sample)
    }

    async fn look(
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
            // It does not come any more: what is there stands for it.
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

fn print(plan: &Plan, json: bool, out: &mut impl Write) -> CommandResult {
    if json {
        serde_json::to_writer(&mut *out, plan)?;
        writeln!(out)?;
    } else {
        for Part { topic, partition, from, until, messages, bytes } in &plan.parts {
            writeln!(out, "{topic} partition {partition}: {from} to {until}, {messages} messages, {bytes} bytes")?;
        }
        let about = if plan.bytes_are_exact { "" } else { "about " };
        writeln!(out, "{} messages, {about}{} bytes", plan.messages, plan.bytes)?;
        let how =
            if plan.rate_is_of_reading { "as fast as samples were read; a store takes longer" } else { "as given" };
        writeln!(out, "{:.1} s at {} messages/s ({how})", plan.seconds, plan.rate)?;
        for what in &plan.unknown {
            writeln!(out, "not known: {what}")?;
        }
    }
    match &plan.refused[..] {
        [] => Ok(()),
        refused => Err(Failure::new(format!("it would be refused: {}", refused.join("; ")))),
    }
}
