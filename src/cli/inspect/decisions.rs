//! `utxo-store inspect decisions`: prints the decisions of the sequencer in the order of the log.

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;

use super::super::{CliResult, ConfigArgs, Failure, opening, output};
use crate::{
    broker::Message,
    client::{
        partitions::{read_partition, single_partition},
        steps::{DecisionStatus, StepTracker},
    },
    clock::Clock,
    event::{Decision, Event, to_json},
};

const AFTER_HELP: &str = "\
The first record for a step of a chain offset counts; later records are repeats and are not
applied. Decisions that began more than an hour ago and are not closed are listed at the end: the
chain waits there.

Example: utxo-store inspect decisions --config deploy/utxo-store.toml --from 1200 --limit 20";

/// Time after which an open decision is reported, ms.
const OPEN_LIMIT_MS: u64 = 3_600_000;

/// Arguments of the command `inspect decisions`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct DecisionsArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// First chain offset whose decisions are printed
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    from: u64,
    /// Most records to print
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A record as `inspect decisions` prints it.
#[derive(Debug, PartialEq, Serialize)]
struct DecisionView {
    /// Offset of the record in the decisions topic.
    offset: u64,
    timestamp_ms: i64,
    #[serde(rename = "standing")]
    status: DecisionStatus,
    chain_offset: Option<u64>,
    step: Option<u32>,
    /// The decision as JSON, or the problem of the record.
    body: serde_json::Value,
}

/// A chain offset whose decision is not closed.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct OpenDecision {
    chain_offset: u64,
    /// Number of steps that count so far.
    steps: u32,
    /// Time since the first step, ms.
    age_ms: u64,
}

/// Output of `inspect decisions`.
#[derive(Debug, PartialEq, Serialize)]
struct DecisionListing {
    decisions: Vec<DecisionView>,
    /// Number of records that `--limit` left out.
    left_out: u64,
    open: Vec<OpenDecision>,
}

/// Collects the records of the topic in their order. Pure.
#[derive(Debug)]
struct DecisionReader {
    from: u64,
    limit: usize,
    seen: StepTracker,
    shown: Vec<DecisionView>,
    left_out: u64,
}

impl DecisionsArgs {
    pub(super) async fn run(&self, out: &mut impl Write) -> CliResult {
        let config = self.config.load()?;
        let broker = opening::open_broker(&config).await?;
        let topic = config.kafka.topics.decisions.as_str();
        if broker.partitions(topic).await?.is_none() {
            return Err(Failure::new(format!("topic {topic} does not exist")));
        }
        let mut reading = DecisionReader::new(self.from, self.limit);
        // The topic is read from its beginning whatever is printed: only earlier records show that a record is a
        // repeat.
        read_partition(broker.as_ref(), &single_partition(topic), |message| reading.take(message)).await?;
        let listing = reading.finish(Clock::System.now_ms());
        match self.json {
            true => output::write_json(&listing, out)?,
            false => write_lines(&listing, out)?,
        }
        Ok(())
    }
}

impl DecisionReader {
    fn new(from: u64, limit: usize) -> Self {
        DecisionReader { from, limit, seen: StepTracker::default(), shown: Vec::new(), left_out: 0 }
    }

    fn take(&mut self, message: &Message) {
        let Ok(event) = Event::decode(&message.payload) else {
            return self.show(message, None, DecisionStatus::Unreadable);
        };
        let void = event.position().filter(|position| *position != message.offset);
        let Some(decisions) = event.into_decisions(void.unwrap_or(message.offset)) else {
            return self.show(message, None, DecisionStatus::Unreadable);
        };
        for decision in decisions {
            let status = match void {
                Some(_) => DecisionStatus::Void,
                None => self.seen.classify(&decision, message.timestamp_ms),
            };
            if decision.chain_offset >= self.from {
                self.show(message, Some(decision), status);
            }
        }
    }

    fn show(&mut self, message: &Message, decision: Option<Decision>, status: DecisionStatus) {
        if self.shown.len() >= self.limit {
            self.left_out += 1;
            return;
        }
        self.shown.push(DecisionView {
            offset: message.offset,
            timestamp_ms: message.timestamp_ms,
            status,
            chain_offset: decision.as_ref().map(|decision| decision.chain_offset),
            step: decision.as_ref().map(|decision| decision.step),
            body: decision.map_or_else(|| "no decision".into(), body_to_json),
        });
    }

    fn finish(self, now_ms: u64) -> DecisionListing {
        let age_ms = |since_ms: i64| now_ms.saturating_sub(u64::try_from(since_ms).unwrap_or(0));
        let open = self.seen.open().map(|(chain_offset, steps, since_ms)| OpenDecision {
            chain_offset,
            steps,
            age_ms: age_ms(since_ms),
        });
        let open = open.filter(|open| open.age_ms > OPEN_LIMIT_MS).collect();
        DecisionListing { open, decisions: self.shown, left_out: self.left_out }
    }
}

/// Converts the body to the JSON form of events.
fn body_to_json(decision: Decision) -> serde_json::Value {
    let json = to_json(&Event::Decision(decision));
    match serde_json::from_str(&json) {
        Ok(serde_json::Value::Object(mut object)) => object.remove("body").unwrap_or_default(),
        _ => serde_json::Value::String(json),
    }
}

fn write_lines(listing: &DecisionListing, out: &mut impl Write) -> io::Result<()> {
    for shown in &listing.decisions {
        let identity = match (shown.chain_offset, shown.step) {
            (Some(offset), Some(step)) => format!("chain offset {offset} step {step}"),
            _ => "-".to_owned(),
        };
        let status = match shown.status {
            DecisionStatus::Counts => "",
            DecisionStatus::Repeat => " (repeat: ignored)",
            DecisionStatus::Gap => " (an earlier step is missing)",
            DecisionStatus::Void => " (void: another sequencer wrote before this group)",
            DecisionStatus::Unreadable => " (unreadable)",
        };
        writeln!(out, "{:>8}  {identity}{status}: {}", shown.offset, shown.body)?;
    }
    if listing.left_out > 0 {
        writeln!(out, "{} more records: raise --limit, or --from", listing.left_out)?;
    }
    for OpenDecision { chain_offset, steps, age_ms } in &listing.open {
        writeln!(out, "open for {} s: chain offset {chain_offset}, after {steps} steps", age_ms / 1_000)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{event::DecisionBody, tx::Txid};

    fn message(offset: u64, timestamp_ms: i64, chain_offset: u64, step: u32, body: DecisionBody) -> Message {
        let payload = Event::Decision(Decision { chain_offset, step, body }).encode().into();
        Message { offset, timestamp_ms, key: Default::default(), payload, headers: vec![] }
    }

    fn passed_over(tag: u8) -> DecisionBody {
        DecisionBody::PassedOver { txid: Txid([tag; 32]) }
    }

    fn read(from: u64, limit: usize, now_ms: u64, messages: &[Message]) -> DecisionListing {
        let mut reading = DecisionReader::new(from, limit);
        messages.iter().for_each(|message| reading.take(message));
        reading.finish(now_ms)
    }

    fn log() -> Vec<Message> {
        vec![
            message(0, 1_000, 3, 0, passed_over(1)),
            message(1, 1_001, 3, 0, passed_over(2)),
            message(2, 1_002, 3, 1, DecisionBody::Closed),
            message(3, 1_003, 5, 0, passed_over(3)),
            message(4, 1_004, 6, 1, DecisionBody::Closed),
        ]
    }

    #[test]
    fn the_first_record_for_a_step_counts_and_others_are_marked() {
        let listing = read(0, 100, 2_000, &log());
        let statuses: Vec<_> = listing.decisions.iter().map(|shown| shown.status).collect();
        use DecisionStatus::{Counts, Gap, Repeat};
        assert_eq!(statuses, [Counts, Repeat, Counts, Counts, Gap]);
        assert!(listing.decisions[0].body["passed-over"]["txid"].is_string(), "{:?}", listing.decisions[0]);
        assert_eq!(listing.decisions[2].body, "closed");
        assert!(listing.open.is_empty(), "none is older than an hour");
    }

    #[test]
    fn a_decision_open_for_an_hour_is_reported_whatever_is_printed() {
        let listing = read(100, 1, 1_003 + OPEN_LIMIT_MS + 1, &log());
        assert!(listing.decisions.is_empty());
        assert_eq!(listing.open, [OpenDecision { chain_offset: 5, steps: 1, age_ms: OPEN_LIMIT_MS + 1 }]);
    }

    #[test]
    fn a_repeat_is_recognized_although_the_first_record_is_not_printed() {
        let listing = read(3, 2, 2_000, &log());
        assert_eq!((listing.decisions.len(), listing.left_out), (2, 3));
        assert_eq!(read(5, 9, 2_000, &log()).decisions.len(), 2);
        let mut text = Vec::new();
        write_lines(&listing, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("chain offset 3 step 0 (repeat: ignored): "), "{text}");
        assert!(text.contains("3 more records"), "{text}");
    }

    #[test]
    fn a_record_that_is_no_decision_is_unreadable() {
        let mut broken = log().swap_remove(0);
        broken.payload = bytes::Bytes::from_static(b"junk");
        assert_eq!(read(0, 9, 2_000, &[broken]).decisions[0].status, DecisionStatus::Unreadable);
    }
}
