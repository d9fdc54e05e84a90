//! Limits that a topic sets to the timestamps of its messages. Pure.
//!
//! A broker refuses a message beyond such a limit for good. Messages that the store produces bear the time of their
//! production; events of the topics that others produce to may be of any time (a history that is produced again, say).

use std::{collections::BTreeMap, fmt};

use crate::event::Topic;

const BEFORE: &str = "message.timestamp.before.max.ms";
const AFTER: &str = "message.timestamp.after.max.ms";
/// The only one before Kafka 3.6; gone with Kafka 4.
const DIFFERENCE: &str = "message.timestamp.difference.max.ms";
const TYPE: &str = "message.timestamp.type";
const NO_LIMIT: &str = "9223372036854775807";

/// So much may lie between the time of a message and that of the broker that takes it, ms: retries and clocks that
/// differ.
const ENOUGH_MS: u64 = 600_000;

/// A limit that is too narrow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeLimit {
    /// The property that sets it.
    pub property: &'static str,
    /// Value of the limit, ms.
    pub value: String,
}

impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "has {}={}", self.property, self.value)
    }
}

impl TimeLimit {
    /// The remedy.
    pub fn remedy(&self) -> String {
        format!("set {}={NO_LIMIT}", self.property)
    }
}

/// Whether the store produces to a topic.
fn is_ours(topic: Topic) -> bool {
    match topic {
        Topic::Chain | Topic::Decisions | Topic::Outcomes | Topic::DeadLetters => true,
        Topic::ValidatedTxs | Topic::BlockMined | Topic::Reorgs => false,
    }
}

/// Settings that a new topic is given. A timestamp far ahead of time stays refused in the topics of others: it would
/// come of a wrong clock.
pub fn config(topic: Topic) -> Vec<(String, String)> {
    let limits = if is_ours(topic) { &[BEFORE, AFTER][..] } else { &[BEFORE] };
    limits.iter().map(|property| ((*property).to_owned(), NO_LIMIT.to_owned())).collect()
}

/// Limits that would refuse what the store produces to a topic of its own.
pub fn too_narrow(topic: Topic, config: &BTreeMap<String, String>) -> Vec<TimeLimit> {
    if !is_ours(topic) {
        return Vec::new();
    }
    limits(config, &[BEFORE, AFTER, DIFFERENCE], |ms| ms < ENOUGH_MS)
}

/// Limits that would refuse events of an earlier time in a topic that others produce to.
pub fn refuses_old(topic: Topic, config: &BTreeMap<String, String>) -> Vec<TimeLimit> {
    if is_ours(topic) {
        return Vec::new();
    }
    limits(config, &[BEFORE, DIFFERENCE], |ms| ms < i64::MAX as u64)
}

fn limits(
    config: &BTreeMap<String, String>,
    properties: &[&'static str],
    is_too_narrow: impl Fn(u64) -> bool,
) -> Vec<TimeLimit> {
    // Where brokers write the time themselves, no limit applies.
    if config.get(TYPE).is_some_and(|kind| kind == "LogAppendTime") {
        return Vec::new();
    }
    let limit = |property: &&'static str| {
        let value = config.get(*property)?;
        value.parse().is_ok_and(&is_too_narrow).then(|| TimeLimit { property, value: value.clone() })
    };
    properties.iter().filter_map(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(limits: &[TimeLimit]) -> String {
        limits.iter().map(TimeLimit::to_string).collect::<Vec<_>>().join("; ")
    }

    fn with(config: &[(&str, &str)]) -> BTreeMap<String, String> {
        config.iter().map(|(property, value)| ((*property).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_limit_that_refuses_what_we_produce_is_told_for_our_topics() {
        let narrow = with(&[(BEFORE, "1000"), (AFTER, "599999"), (TYPE, "CreateTime")]);
        for topic in [Topic::Chain, Topic::Decisions, Topic::Outcomes, Topic::DeadLetters] {
            let limits = too_narrow(topic, &narrow);
            assert_eq!(told(&limits), format!("has {BEFORE}=1000; has {AFTER}=599999"));
            assert!(limits[0].remedy().ends_with(&format!("{BEFORE}={NO_LIMIT}")));
        }
        assert_eq!(too_narrow(Topic::BlockMined, &narrow), []);
        assert_eq!(told(&too_narrow(Topic::Chain, &with(&[(DIFFERENCE, "5")]))), format!("has {DIFFERENCE}=5"));
        // What Kafka 4 has by default.
        assert_eq!(too_narrow(Topic::Chain, &with(&[(BEFORE, NO_LIMIT), (AFTER, "3600000")])), []);
        assert_eq!(too_narrow(Topic::Chain, &with(&[(BEFORE, "1"), (TYPE, "LogAppendTime")])), []);
    }

    #[test]
    fn a_limit_that_refuses_a_history_is_told_for_the_topics_of_others() {
        let an_hour = with(&[(BEFORE, "3600000"), (AFTER, "3600000")]);
        for topic in [Topic::ValidatedTxs, Topic::BlockMined, Topic::Reorgs] {
            assert_eq!(told(&refuses_old(topic, &an_hour)), format!("has {BEFORE}=3600000"));
        }
        assert_eq!(refuses_old(Topic::Chain, &an_hour), []);
        assert_eq!(refuses_old(Topic::Reorgs, &with(&[(BEFORE, NO_LIMIT), (AFTER, "3600000")])), []);
    }

    #[test]
    fn new_topics_have_no_limit_that_would_be_told() {
        for topic in Topic::ALL {
            let config: BTreeMap<_, _> = config(topic).into_iter().collect();
            assert!(too_narrow(topic, &config).is_empty() && refuses_old(topic, &config).is_empty(), "{topic:?}");
        }
    }
}
