//! Limits on dead letters, beyond which a partition halts, and the publishing of a dead letter. Counting is pure.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use bytes::Bytes;

use crate::{
    broker::{BrokerError, BrokerErrorKind, Message, OutgoingMessage, Producer, produce_until_acknowledged},
    event::DeadLetter,
    tx::Txid,
};

/// Limits on the dead letters of one partition.
#[derive(Debug, Clone, Copy)]
pub struct DeadLetterLimits {
    /// Number of dead letters in a row that halts the partition.
    pub consecutive: u32,
    /// Share of dead letters among the events of a minute above which the partition halts, once there are at least
    /// `consecutive` of them. 0.05 is 5 %.
    pub ratio: f64,
}

/// Counts the dead letters of one partition.
#[derive(Debug, Default)]
pub struct DeadLetterGauge {
    in_a_row: u32,
    /// (second, events, dead letters), for the last minute.
    seconds: VecDeque<(u64, u64, u64)>,
    /// Second in which each root was counted last, for the last minute.
    roots: BTreeMap<Txid, u64>,
}

const WINDOW_SECONDS: u64 = 60;

impl DeadLetterGauge {
    /// Counts an event that turned out to be a dead letter after it was read, because of its own content or of a
    /// missing parent. `root` is the transaction at fault: all dead letters of one root count once, or a single missing
    /// parent with many children would halt a healthy partition. Returns the reason when the partition must halt.
    pub fn count_root(&mut self, limits: &DeadLetterLimits, root: Txid, now_ms: u64) -> Option<String> {
        let second = now_ms / 1_000;
        self.roots.retain(|_, counted| *counted + WINDOW_SECONDS > second);
        let is_known = self.roots.insert(root, second).is_some();
        // The event itself was counted when it was read.
        if is_known { None } else { self.record(limits, 0, true, now_ms) }
    }

    /// Counts an event that was read. Returns the reason when the partition must halt.
    pub fn count(&mut self, limits: &DeadLetterLimits, is_dead_letter: bool, now_ms: u64) -> Option<String> {
        self.record(limits, 1, is_dead_letter, now_ms)
    }

    fn record(&mut self, limits: &DeadLetterLimits, events: u64, is_dead_letter: bool, now_ms: u64) -> Option<String> {
        let second = now_ms / 1_000;
        while self.seconds.front().is_some_and(|(then, ..)| then + WINDOW_SECONDS <= second) {
            self.seconds.pop_front();
        }
        if self.seconds.back().is_none_or(|(last, ..)| *last != second) {
            self.seconds.push_back((second, 0, 0));
        }
        if let Some((_, all, dead)) = self.seconds.back_mut() {
            *all += events;
            *dead += u64::from(is_dead_letter);
        }
        if !is_dead_letter {
            self.in_a_row = 0;
            return None;
        }
        self.in_a_row += 1;
        if self.in_a_row >= limits.consecutive {
            return Some(format!("{} dead letters in a row", self.in_a_row));
        }
        let (events, dead) = self.seconds.iter().fold((0, 0), |sum, second| (sum.0 + second.1, sum.1 + second.2));
        // The events of some dead letters were read more than a minute ago.
        let events = events.max(dead);
        let share = dead as f64 / events as f64;
        (dead >= u64::from(limits.consecutive) && share > limits.ratio)
            .then(|| format!("{dead} of the {events} events of the last minute are dead letters"))
    }
}

/// Publishes a dead letter, with retries until the broker acknowledges, and with as much of the source message as the
/// topic accepts. The payload is left out first, then key and headers: the headers of the dead letter name the source
/// message. `pause` is the first and the longest pause between two tries.
///
/// # Errors
/// The broker answers with an error that no retry heals.
pub async fn publish_dead_letter(
    producer: &dyn Producer,
    topic: &str,
    source: Message,
    letter: &DeadLetter,
    pause: (Duration, Duration),
) -> Result<(), BrokerError> {
    let own = letter.to_headers();
    let whole = OutgoingMessage {
        topic: topic.to_owned(),
        partition: None,
        key: source.key,
        payload: source.payload,
        headers: [source.headers, own.clone()].concat(),
        timestamp_ms: None,
    };
    let without_payload = OutgoingMessage { payload: Bytes::new(), ..whole.clone() };
    let without_source = OutgoingMessage { key: Bytes::new(), headers: own, ..without_payload.clone() };
    for form in [whole, without_payload] {
        match produce_until_acknowledged(producer, &[form], pause).await {
            Err(error) if error.kind == BrokerErrorKind::TooLarge => {
                tracing::warn!(%error, "dead letters: source message too large; publishing a smaller part of it");
            }
            produced => return produced.map(drop),
        }
    }
    produce_until_acknowledged(producer, &[without_source], pause).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: DeadLetterLimits = DeadLetterLimits { consecutive: 3, ratio: 0.05 };

    #[test]
    fn consecutive_dead_letters_halt() {
        let mut gauge = DeadLetterGauge::default();
        assert_eq!(gauge.count(&LIMITS, true, 0), None);
        assert_eq!(gauge.count(&LIMITS, true, 0), None);
        assert_eq!(gauge.count(&LIMITS, false, 0), None);
        assert_eq!(gauge.count(&LIMITS, true, 100_000), None);
        assert_eq!(gauge.count(&LIMITS, true, 100_000), None);
        assert!(gauge.count(&LIMITS, true, 100_000).is_some());
    }

    #[test]
    fn dead_letter_share_of_the_last_minute_halts() {
        let every_tenth = |gauge: &mut DeadLetterGauge, from: u64| {
            (0..60).find_map(|step| gauge.count(&LIMITS, step % 10 == 9, from + step * 500))
        };
        let mut gauge = DeadLetterGauge::default();
        let why = every_tenth(&mut gauge, 0).unwrap();
        assert!(why.starts_with("3 of the 30"), "{why}");
        let mut calm = DeadLetterGauge::default();
        assert!(
            (0..20)
                .all(|minute| calm.count(&LIMITS, true, minute * 61_000).is_none() && !calm_reset(&mut calm, minute))
        );
    }

    #[test]
    fn dead_letters_of_one_root_count_once() {
        let mut gauge = DeadLetterGauge::default();
        let mut count = |root, now_ms| gauge.count_root(&LIMITS, Txid([root; 32]), now_ms);
        assert!((0..50).all(|_| count(1, 0).is_none()));
        assert_eq!(count(2, 0), None);
        assert!(count(3, 0).is_some());
        assert!(count(1, 61_000).is_some(), "the root counts again in the next minute");
    }

    #[test]
    fn dead_letter_found_later_counts_no_second_event() {
        let mut gauge = DeadLetterGauge::default();
        let halted = (1..=3).find_map(|root| {
            (0..19).for_each(|_| assert_eq!(gauge.count(&LIMITS, false, 0), None));
            gauge.count_root(&LIMITS, Txid([root; 32]), 0)
        });
        assert_eq!(halted.unwrap(), "3 of the 57 events of the last minute are dead letters");
        let mut late = DeadLetterGauge::default();
        assert_eq!((1..=2).find_map(|root| late.count_root(&LIMITS, Txid([root; 32]), 0)), None);
    }

    fn calm_reset(gauge: &mut DeadLetterGauge, minute: u64) -> bool {
        gauge.count(&LIMITS, false, minute * 61_000).is_some()
    }
}
