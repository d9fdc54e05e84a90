//! Limits of a topic on the timestamps of its messages. Pure.
//!
//! A broker refuses a message beyond such a limit for good. The store stamps its messages with the time of production.
//! Events of other producers can have any time, for example a history that is produced again.

use std::collections::BTreeMap;

use crate::event::Topic;

const BEFORE: &str = "message.timestamp.before.max.ms";
const AFTER: &str = "message.timestamp.after.max.ms";
/// The only limit before Kafka 3.6; removed in Kafka 4.
const DIFFERENCE: &str = "message.timestamp.difference.max.ms";
const TYPE: &str = "message.timestamp.type";
const NO_LIMIT: &str = "9223372036854775807";

/// Least sufficient limit, ms: retries and clock differences can put this time between a message and its broker.
const SUFFICIENT_MS: u64 = 600_000;

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

/// Describes the limits that would refuse messages that the store produces, each with the remedy.
pub fn find_narrow_limits(topic: Topic, config: &BTreeMap<String, String>) -> Vec<String> {
    let effect = "a delayed message, or a message of a wrong clock, would be refused";
    let limits: &[_] = if is_produced_by_store(topic) { &[BEFORE, AFTER, DIFFERENCE] } else { &[] };
    describe_limits(config, limits, effect, |ms| ms < SUFFICIENT_MS)
}

/// Describes the limits that would refuse older events in a topic of other producers, each with the remedy.
pub fn find_age_limits(topic: Topic, config: &BTreeMap<String, String>) -> Vec<String> {
    let effect = "an event with an older timestamp cannot be produced";
    let limits: &[_] = if is_produced_by_store(topic) { &[] } else { &[BEFORE, DIFFERENCE] };
    describe_limits(config, limits, effect, |ms| ms < i64::MAX as u64)
}

/// Describes the danger of a limited retention where the producers set the timestamps.
pub fn find_producer_times(topic: Topic, config: &BTreeMap<String, String>) -> Option<String> {
    let is_by_producers = !is_produced_by_store(topic) && config.get(TYPE).is_some_and(|kind| kind == "CreateTime");
    is_by_producers.then(|| {
        format!(
            "deletes by the timestamps of its producers: an event with an old timestamp is deleted at once, set \
             {TYPE}=LogAppendTime"
        )
    })
}

fn describe_limits(
    config: &BTreeMap<String, String>,
    properties: &[&str],
    effect: &str,
    is_too_narrow: impl Fn(u64) -> bool,
) -> Vec<String> {
    // No limit applies where the brokers set the timestamps.
    if config.get(TYPE).is_some_and(|kind| kind == "LogAppendTime") {
        return Vec::new();
    }
    let describe = |property: &&str| {
        let value = config.get(*property)?;
        let is_narrow = value.parse().is_ok_and(&is_too_narrow);
        is_narrow.then(|| format!("has {property}={value}: {effect}, set {property}={NO_LIMIT}"))
    };
    properties.iter().filter_map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn narrow(property: &str, value: u64) -> String {
        format!(
            "has {property}={value}: a delayed message, or a message of a wrong clock, would be refused, set \
             {property}=9223372036854775807"
        )
    }

    fn with(config: &[(&str, &str)]) -> BTreeMap<String, String> {
        config.iter().map(|(property, value)| ((*property).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_narrow_limit_is_found_in_topics_of_the_store() {
        let config = with(&[(BEFORE, "1000"), (AFTER, "599999"), (TYPE, "CreateTime")]);
        for topic in [Topic::Chain, Topic::Decisions, Topic::Outcomes, Topic::DeadLetters] {
            assert_eq!(find_narrow_limits(topic, &config), [narrow(BEFORE, 1_000), narrow(AFTER, 599_999)]);
        }
        assert_eq!(find_narrow_limits(Topic::BlockMined, &config), [""; 0]);
        assert_eq!(find_narrow_limits(Topic::Chain, &with(&[(DIFFERENCE, "5")])), [narrow(DIFFERENCE, 5)]);
        // The defaults of Kafka 4.
        assert_eq!(find_narrow_limits(Topic::Chain, &with(&[(BEFORE, NO_LIMIT), (AFTER, "3600000")])), [""; 0]);
        assert_eq!(find_narrow_limits(Topic::Chain, &with(&[(BEFORE, "1"), (TYPE, "LogAppendTime")])), [""; 0]);
    }

    #[test]
    fn a_limit_that_refuses_a_history_is_found_in_topics_of_producers() {
        let an_hour = with(&[(BEFORE, "3600000"), (AFTER, "3600000")]);
        let older = format!(
            "has {BEFORE}=3600000: an event with an older timestamp cannot be produced, set \
             {BEFORE}=9223372036854775807"
        );
        for topic in [Topic::ValidatedTxs, Topic::BlockMined, Topic::Reorgs] {
            assert_eq!(find_age_limits(topic, &an_hour), [older.as_str()]);
        }
        assert_eq!(find_age_limits(Topic::Chain, &an_hour), [""; 0]);
        assert_eq!(find_age_limits(Topic::Reorgs, &with(&[(BEFORE, NO_LIMIT), (AFTER, "3600000")])), [""; 0]);
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
