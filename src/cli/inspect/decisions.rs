//! `utxo-store inspect decisions`: what the sequencer decided, in the order in which it was written.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use clap::Args;
use serde::Serialize;

use super::super::{
    CommandResult, ConfigArgs, Failure,
    command::{each, only},
    opening,
};
use crate::{
    broker::Message,
    clock::Clock,
    event::{Decision, DecisionBody, Event, to_json},
};

const AFTER_HELP: &str = "\
Of several records for one step of one chain offset the first one counts; the others are repeats, which nobody applies.
Decisions that were begun more than an hour ago and are not closed are listed at the end: the chain stands there.

Example: utxo-store inspect decisions --config deploy/utxo-store.toml --from 1200 --limit 20";

/// How long a decision may stay open without being reported, ms.
const OPEN_TOO_LONG_MS: u64 = 3_600_000;

/// Arguments of `inspect decisions`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct DecisionsArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Show decisions on this chain offset and later ones
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    from: u64,
    /// Show so many records at most
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Whether a record is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::cli) enum Standing {
    /// It is the first for its step.
    Counts,
    /// An earlier one has decided the step: it is ignored.
    Repeat,
    /// An earlier step is missing: nobody could have written that.
    Gap,
    /// It is no decision.
    Unreadable,
}

/// A record as it is shown.
#[derive(Debug, PartialEq, Serialize)]
struct Shown {
    /// Its own offset in the decisions topic.
    offset: u64,
    timestamp_ms: i64,
    standing: Standing,
    chain_offset: Option<u64>,
    step: Option<u32>,
    /// The decision, or what is wrong with the record.
    body: serde_json::Value,
}

/// A chain offset whose decision is not closed.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Open {
    chain_offset: u64,
    /// Steps that count so far.
    steps: u32,
    /// Since its first step.
    age_ms: u64,
}

/// Everything that is printed.
#[derive(Debug, PartialEq, Serialize)]
struct Listing {
    decisions: Vec<Shown>,
    /// Records that `--limit` left out.
    left_out: u64,
    open: Vec<Open>,
}

/// What has been seen so far of each chain offset.
#[derive(Debug, Default)]
pub(in crate::cli) struct Steps(BTreeMap<u64, Seen>);

/// What has been seen of one chain offset.
#[derive(Debug)]
struct Seen {
    steps: u32,
    closed: bool,
    since_ms: i64,
}

/// Reads the topic in its order. Pure.
#[derive(Debug)]
struct Reading {
    from: u64,
    limit: usize,
    seen: Steps,
    shown: Vec<Shown>,
    left_out: u64,
}

impl DecisionsArgs {
    pub(super) async fn run(&self, out: &mut impl Write) -> CommandResult {
        let config = self.config.load()?;
        let broker = opening::broker(&config).await?;
        let topic = config.kafka.topics.decisions.as_str();
        if broker.partitions(topic).await?.is_none() {
            return Err(Failure::new(format!("topic {topic} does not exist")));
        }
        let mut reading = Reading::new(self.from, self.limit);
        // From the beginning, whatever is to be shown: a repeat is known only by what came before it.
        each(broker.as_ref(), &only(topic), |message| reading.take(message)).await?;
        let listing = reading.finish(Clock::System.now_ms());
        if self.json {
            serde_json::to_writer(&mut *out, &listing)?;
            writeln!(out)?;
        } else {
            write_lines(&listing, out)?;
        }
        Ok(())
    }
}

impl Steps {
    /// How the next record in the log stands.
    pub(in crate::cli) fn standing(&mut self, decision: &Decision, timestamp_ms: i64) -> Standing {
        let first = Seen { steps: 0, closed: false, since_ms: timestamp_ms };
        let seen = self.0.entry(decision.chain_offset).or_insert(first);
        if decision.step < seen.steps {
            Standing::Repeat
        } else if decision.step > seen.steps {
            Standing::Gap
        } else {
            seen.steps += 1;
            seen.closed = decision.body == DecisionBody::Closed;
            Standing::Counts
        }
    }
}

impl Reading {
    fn new(from: u64, limit: usize) -> Self {
        Reading { from, limit, seen: Steps::default(), shown: Vec::new(), left_out: 0 }
    }

    fn take(&mut self, message: &Message) {
        match Event::decode(&message.payload) {
            Ok(Event::Decision(decision)) => {
                let standing = self.seen.standing(&decision, message.timestamp_ms);
                if decision.chain_offset >= self.from {
                    self.show(message, Some(decision), standing);
                }
            }
            _ => self.show(message, None, Standing::Unreadable),
        }
    }

    fn show(&mut self, message: &Message, decision: Option<Decision>, standing: Standing) {
        if self.shown.len() >= self.limit {
            self.left_out += 1;
            return;
        }
        self.shown.push(Shown {
            offset: message.offset,
            timestamp_ms: message.timestamp_ms,
            standing,
            chain_offset: decision.as_ref().map(|decision| decision.chain_offset),
            step: decision.as_ref().map(|decision| decision.step),
            body: decision.map_or_else(|| "no decision".into(), body_of),
        });
    }

    fn finish(self, now_ms: u64) -> Listing {
        let age_ms = |seen: &Seen| now_ms.saturating_sub(u64::try_from(seen.since_ms).unwrap_or(0));
        let open = self.seen.0.iter().filter(|(_, seen)| !seen.closed && age_ms(seen) > OPEN_TOO_LONG_MS);
        let open = open.map(|(&chain_offset, seen)| Open { chain_offset, steps: seen.steps, age_ms: age_ms(seen) });
        Listing { open: open.collect(), decisions: self.shown, left_out: self.left_out }
    }
}

/// The body as the JSON form of events has it.
fn body_of(decision: Decision) -> serde_json::Value {
    let json = to_json(&Event::Decision(decision));
    match serde_json::from_str(&json) {
        Ok(serde_json::Value::Object(mut object)) => object.remove("body").unwrap_or_default(),
        _ => serde_json::Value::String(json),
    }
}

fn write_lines(listing: &Listing, out: &mut impl Write) -> io::Result<()> {
    for shown in &listing.decisions {
        let identity = match (shown.chain_offset, shown.step) {
            (Some(offset), Some(step)) => format!("chain offset {offset} step {step}"),
            _ => "-".to_owned(),
        };
        let standing = match shown.standing {
            Standing::Counts => "",
            Standing::Repeat => " (repeat: ignored)",
            Standing::Gap => " (an earlier step is missing)",
            Standing::Unreadable => " (unreadable)",
        };
        writeln!(out, "{:>8}  {identity}{standing}: {}", shown.offset, shown.body)?;
    }
    if listing.left_out > 0 {
        writeln!(out, "{} more records: raise --limit, or --from", listing.left_out)?;
    }
    for Open { chain_offset, steps, age_ms } in &listing.open {
        writeln!(out, "open for {} s: chain offset {chain_offset}, after {steps} steps", age_ms / 1_000)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tx::Txid;

    fn message(offset: u64, timestamp_ms: i64, chain_offset: u64, step: u32, body: DecisionBody) -> Message {
        let payload = Event::Decision(Decision { chain_offset, step, body }).encode().into();
        Message { offset, timestamp_ms, key: Default::default(), payload, headers: vec![] }
    }

    fn passed_over(tag: u8) -> DecisionBody {
        DecisionBody::PassedOver { txid: Txid([tag; 32]) }
    }

    fn read(from: u64, limit: usize, now_ms: u64, messages: &[Message]) -> Listing {
        let mut reading = Reading::new(from, limit);
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
        let standings: Vec<_> = listing.decisions.iter().map(|shown| shown.standing).collect();
        assert_eq!(standings, [Standing::Counts, Standing::Repeat, Standing::Counts, Standing::Counts, Standing::Gap]);
        assert!(listing.decisions[0].body["passed-over"]["txid"].is_string(), "{:?}", listing.decisions[0]);
        assert_eq!(listing.decisions[2].body, "closed");
        assert!(listing.open.is_empty(), "none is older than an hour");
    }

    #[test]
    fn what_is_not_closed_after_an_hour_is_reported_whatever_is_shown() {
        let listing = read(100, 1, 1_003 + OPEN_TOO_LONG_MS + 1, &log());
        assert!(listing.decisions.is_empty());
        assert_eq!(listing.open, [Open { chain_offset: 5, steps: 1, age_ms: OPEN_TOO_LONG_MS + 1 }]);
    }

    #[test]
    fn a_repeat_is_known_although_its_first_is_not_shown() {
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
    fn what_is_no_decision_is_shown_as_such() {
        let mut broken = log().swap_remove(0);
        broken.payload = bytes::Bytes::from_static(b"junk");
        assert_eq!(read(0, 9, 2_000, &[broken]).decisions[0].standing, Standing::Unreadable);
    }
}
