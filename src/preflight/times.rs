//! Limits of a topic on the timestamps of its messages. Pure.
//!
//! A broker refuses a message beyond such a limit for good. The store stamps its messages with the time of production.
//! Events of other producers can have any time, for example a history that is produced again.

use std::{collections::BTreeMap, fmt};

use crate::event::Topic;

const BEFORE: &str = "message.timestamp.before.max.ms";
const AFTER: &str = "message.timestamp.after.max.ms";
/// The only limit before Kafka 3.6; removed in Kafka 4.
const DIFFERENCE: &str = "message.timestamp.difference.max.ms";
const TYPE: &str = "message.timestamp.type";
const NO_LIMIT: &str = "9223372036854775807";

/// Least sufficient limit, ms: retries and clock differences can put this time between a message and its broker.
const SUFFICIENT_MS: u64 = 600_000;

/// A limit on timestamps that is too narrow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeLimit {
    /// Property of the topic that sets the limit.
    pub property: &'static str,
    /// Value of the property, ms.
    pub value: String,
}

impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "has {}={}", self.property, self.value)
    }
}

impl TimeLimit {
    /// Describes the change of the property that removes the limit.
    pub fn remedy(&self) -> String {
        format!("set {}={NO_LIMIT}", self.property)
    }
}

/// Returns true for a topic that the store produces to.
fn is_produced_by_store(topic: Topic) -> bool {
    match topic {
        Topic::Chain | Topic::Decisions | Topic::Outcomes | Topic::DeadLetters => true,
        Topic::ValidatedTxs | Topic::BlockMined | Topic::Reorgs => false,
    }
}

/// Returns the properties of a new topic. In topics of other producers a timestamp far in the future stays refused: the
/// clock of its producer is wrong.
pub fn topic_config(topic: Topic) -> Vec<(String, String)> {
    let limits = if is_produced_by_store(topic) { &[BEFORE, AFTER][..] } else { &[BEFORE] };
    limits.iter().map(|property| ((*property).to_owned(), NO_LIMIT.to_owned())).collect()
}

/// Returns the limits that would refuse messages that the store produces.
pub fn find_narrow_limits(topic: Topic, config: &BTreeMap<String, String>) -> Vec<TimeLimit> {
    if !is_produced_by_store(topic) {
        return Vec::new();
    }
    limits(config, &[BEFORE, AFTER, DIFFERENCE], |ms| ms < SUFFICIENT_MS)
}

/// Returns the limits that would refuse older events in a topic of other producers.
pub fn find_age_limits(topic: Topic, config: &BTreeMap<String, String>) -> Vec<TimeLimit> {
    if is_produced_by_store(topic) {
        return Vec::new();
    }
    limits(config, &[BEFORE, DIFFERENCE], |ms| ms < i64::MAX as u64)
}

fn limits(
    config: &BTreeMap<String, String>,
    properties: &[&'static str],
    is_too_narrow: impl Fn(u64) -> bool,
) -> Vec<TimeLimit> {
    // No limit applies where the brokers set the timestamps.
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

    fn described(limits: &[TimeLimit]) -> String {
        limits.iter().map(TimeLimit::to_string).collect::<Vec<_>>().join("; ")
    }

    fn with(config: &[(&str, &str)]) -> BTreeMap<String, String> {
        config.iter().map(|(property, value)| ((*property).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_narrow_limit_is_found_in_topics_of_the_store() {
        let narrow = with(&[(BEFORE, "1000"), (AFTER, "599999"), (TYPE, "CreateTime")]);
        for topic in [Topic::Chain, Topic::Decisions, Topic::Outcomes, Topic::DeadLetters] {
            let limits = find_narrow_limits(topic, &narrow);
            assert_eq!(described(&limits), format!("has {BEFORE}=1000; has {AFTER}=599999"));
            assert!(limits[0].remedy().ends_with(&format!("{BEFORE}={NO_LIMIT}")));
        }
        assert_eq!(find_narrow_limits(Topic::BlockMined, &narrow), []);
        assert_eq!(
            described(&find_narrow_limits(Topic::Chain, &with(&[(DIFFERENCE, "5")]))),
            format!("has {DIFFERENCE}=5")
        );
        // The defaults of Kafka 4.
        assert_eq!(find_narrow_limits(Topic::Chain, &with(&[(BEFORE, NO_LIMIT), (AFTER, "3600000")])), []);
        assert_eq!(find_narrow_limits(Topic::Chain, &with(&[(BEFORE, "1"), (TYPE, "LogAppendTime")])), []);
    }

    #[test]
    fn a_limit_that_refuses_a_history_is_found_in_topics_of_producers() {
        let an_hour = with(&[(BEFORE, "3600000"), (AFTER, "3600000")]);
        for topic in [Topic::ValidatedTxs, Topic::BlockMined, Topic::Reorgs] {
            assert_eq!(described(&find_age_limits(topic, &an_hour)), format!("has {BEFORE}=3600000"));
        }
        assert_eq!(find_age_limits(Topic::Chain, &an_hour), []);
        assert_eq!(find_age_limits(Topic::Reorgs, &with(&[(BEFORE, NO_LIMIT), (AFTER, "3600000")])), []);
    }

    #[test]
    fn new_topics_have_no_narrow_limit() {
        for topic in Topic::all() {
            let config: BTreeMap<_, _> = topic_config(topic).into_iter().collect();
            assert!(
                find_narrow_limits(topic, &config).is_empty() && find_age_limits(topic, &config).is_empty(),
                "{topic:?}"
            );
        }
    }
}
