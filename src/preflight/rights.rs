//! Access rights that an instance needs on topics and groups.

use std::collections::BTreeSet;

use crate::{broker::kafka::Right, event::Topic};

/// Returns the rights that an instance needs on a topic.
fn required_rights(topic: Topic) -> &'static [Right] {
    match topic {
        Topic::ValidatedTxs | Topic::BlockMined | Topic::Reorgs => &[Right::Read],
        // The outcomes of other instances wake parked transactions.
        Topic::Chain | Topic::Decisions | Topic::Outcomes => &[Right::Read, Right::Write],
        Topic::DeadLetters => &[Right::Write],
    }
}

/// Describes the missing rights on a topic, each with the command that grants the right.
pub fn missing_topic_rights(topic: Topic, name: &str, has: &BTreeSet<Right>) -> Vec<String> {
    missing(required_rights(topic), "topic", name, has)
}

/// Describes the missing rights on a group: an instance joins the group and commits its offsets.
pub fn missing_group_rights(group: &str, has: &BTreeSet<Right>) -> Vec<String> {
    missing(&[Right::Read], "group", group, has)
}

fn missing(required: &[Right], kind: &str, name: &str, has: &BTreeSet<Right>) -> Vec<String> {
    let describe = |right: &Right| {
        format!(
            "{right} on {kind} {name} is not allowed: kafka-acls --add --allow-principal User:… --operation {right} \
             --{kind} {name}"
        )
    };
    required.iter().filter(|right| !has.contains(right)).map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_is_named_with_the_command_that_grants_it() {
        let has = BTreeSet::from([Right::Read]);
        assert_eq!(missing_topic_rights(Topic::ValidatedTxs, "txs", &has), [""; 0]);
        let missing = missing_topic_rights(Topic::Chain, "my.chain", &has);
        assert_eq!(missing.len(), 1);
        assert!(
            missing[0].starts_with("Write on topic my.chain is not allowed: ")
                && missing[0].contains("--topic my.chain")
        );
        assert_eq!(missing_topic_rights(Topic::Decisions, "d", &BTreeSet::new()).len(), 2);
        assert_eq!(missing_topic_rights(Topic::DeadLetters, "d", &BTreeSet::from([Right::Write])), [""; 0]);
        let missing = missing_group_rights("g", &BTreeSet::from([Right::Write]));
        assert!(
            missing[0].contains("Read on group g") && missing[0].ends_with("--operation Read --group g"),
            "{missing:?}"
        );
        assert_eq!(missing_group_rights("g", &has), [""; 0]);
    }
}
