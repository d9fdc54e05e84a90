//! What an instance has to be allowed.

use std::collections::BTreeSet;

use crate::{broker::kafka::Right, event::Topic};

/// What an instance does with a topic.
fn needed(topic: Topic) -> &'static [Right] {
    match topic {
        Topic::ValidatedTxs | Topic::BlockMined | Topic::Reorgs => &[Right::Read],
        Topic::Chain | Topic::Decisions => &[Right::Read, Right::Write],
        Topic::Outcomes | Topic::DeadLetters => &[Right::Write],
    }
}

fn word(right: Right) -> &'static str {
    match right {
        Right::Read => "Read",
        Right::Write => "Write",
        Right::DescribeConfigs => "DescribeConfigs",
    }
}

/// What is missing of what an instance does with a topic, with what to do about it.
pub fn missing_on_topic(topic: Topic, name: &str, has: &BTreeSet<Right>) -> Vec<String> {
    missing(needed(topic), &format!("--topic {name}"), &format!("topic {name}"), has)
}

/// The same of a group: it is joined, and its offsets are committed.
pub fn missing_on_group(group: &str, has: &BTreeSet<Right>) -> Vec<String> {
    missing(&[Right::Read], &format!("--group {group}"), &format!("group {group}"), has)
}

fn missing(needed: &[Right], option: &str, what: &str, has: &BTreeSet<Right>) -> Vec<String> {
    let missing = needed.iter().filter(|right| !has.contains(right)).map(|right| word(*right));
    let told = |right| {
        format!(
            "{right} on {what} is not allowed: kafka-acls --add --allow-principal User:… --operation {right} {option}"
        )
    };
    missing.map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_allowed_is_named_with_the_command_that_allows_it() {
        let has = BTreeSet::from([Right::Read]);
        assert_eq!(missing_on_topic(Topic::ValidatedTxs, "txs", &has), [""; 0]);
        let told = missing_on_topic(Topic::Chain, "my.chain", &has);
        assert_eq!(told.len(), 1);
        assert!(
            told[0].starts_with("Write on topic my.chain is not allowed: ") && told[0].contains("--topic my.chain")
        );
        assert_eq!(missing_on_topic(Topic::Decisions, "d", &BTreeSet::new()).len(), 2);
        assert_eq!(missing_on_topic(Topic::Outcomes, "o", &BTreeSet::from([Right::Write])), [""; 0]);
        let told = missing_on_group("g", &BTreeSet::from([Right::Write]));
        assert!(told[0].contains("Read on group g") && told[0].ends_with("--operation Read --group g"), "{told:?}");
        assert_eq!(missing_on_group("g", &has), [""; 0]);
    }
}
