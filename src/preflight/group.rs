//! Checks the committed offsets of a group against the offsets that its topics hold.

use crate::{
    broker::{CommittedOffset, committed::GroupPosition},
    group::commit_metadata::{Halt, never_read_reason, offset_out_of_range},
};

/// Describes why no instance of the group could resume at the committed offset, with the choices of the operator;
/// `None`: no problem.
pub fn position_problem(group: &str, position: &GroupPosition) -> Option<String> {
    let &GroupPosition { ref at, low, high, ref committed } = position;
    let Some(next) = committed.as_ref().map(|committed| committed.offset) else {
        return (low > 0).then(|| format!("{at}: {}", never_read_reason(group, low)));
    };
    let why = offset_out_of_range(next, low, high)?;
    let remedy = if next < low {
        format!(
            "restore the topic, or skip the deleted messages: `kafka-consumer-groups --group {group} --topic {}:{} \
             --reset-offsets --to-offset {low} --execute`",
            at.topic, at.partition
        )
    } else {
        "restore the topic; a recreated topic needs a new group and an empty store".to_owned()
    };
    Some(format!("{at}: {why}; {remedy}"))
}

/// Describes a next offset in a topic of blocks or reorgs that the topic no longer holds; `None`: the topic does, or
/// has lost its end. The chain continues at the first offset, and a deleted event that the chain needs is a missing
/// sequence number.
pub fn feed_position_warning(position: &GroupPosition) -> Option<String> {
    let next = position.committed.as_ref().map(|committed| committed.offset).filter(|next| *next < position.low)?;
    let why = offset_out_of_range(next, position.low, position.high)?;
    let remedy = "the chain continues at the first one, and waits for each missing sequence number: have the producer \
                  produce these blocks and reorgs again";
    Some(format!("{}: {why}; {remedy}", position.at))
}

/// Describes why the chain could not resume at its offset in the chain log, in a topic of blocks or in the decisions;
/// `None`: no problem. The chain can skip no offset: the metadata of its commit has its state, and Kafka's tools commit
/// none.
pub fn chain_position_problem(group: &str, position: &GroupPosition) -> Option<String> {
    let Some(next) = position.committed.as_ref().map(|committed| committed.offset) else {
        let before_blocks = "where the store has handled a block, no offset can be set for the chain: \
                             docs/operating/exits/lost-offsets.md; before the first block: ";
        return position_problem(group, position).map(|problem| format!("{before_blocks}{problem}"));
    };
    let why = offset_out_of_range(next, position.low, position.high)?;
    let remedy = "restore the topic, or begin a new log with the outputs of the store (`utxo-set export`); do not set \
                  an offset by hand: such a commit has no state of the chain";
    Some(format!("{}: {why}; {remedy}", position.at))
}

/// Describes the halted partitions of the validated transactions. A start retries each at its offset.
pub fn describe_halts(commits: &[(i32, CommittedOffset)]) -> Vec<String> {
    let halted = |(number, committed): &(i32, CommittedOffset)| Some((*number, Halt::from_commit(committed)?.why));
    let describe = |(number, why)| format!("partition {number} is halted ({why}); a start tries again");
    commits.iter().filter_map(halted).map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::TopicPartition;

    #[test]
    fn an_offset_outside_the_topic_is_named_with_its_range_and_remedies() {
        let problem = |next: Option<u64>, (low, high)| {
            let at = TopicPartition { topic: "txs".into(), partition: 2 };
            let committed = next.map(|offset| CommittedOffset { offset, metadata: String::new() });
            position_problem("g", &GroupPosition { at, low, high, committed }).unwrap_or_default()
        };
        for fits in [(Some(3), (3, 9)), (Some(9), (3, 9)), (Some(0), (0, 0)), (None, (0, 9))] {
            assert_eq!(problem(fits.0, fits.1), "");
        }
        let overtaken = problem(Some(2), (3, 9));
        assert!(overtaken.starts_with("txs/2: offset 2 is next, but the topic holds 3 to 9; "), "{overtaken}");
        assert!(overtaken.contains("--group g --topic txs:2 --reset-offsets --to-offset 3 --execute"), "{overtaken}");
        let ahead = problem(Some(10), (3, 9));
        assert!(ahead.contains("offset 10 is next") && ahead.contains("needs a new group"), "{ahead}");
        let unread = problem(None, (3, 9));
        assert!(unread.contains("no longer holds offsets 0 to 3") && unread.contains("--group g"), "{unread}");
    }

    #[test]
    fn the_chain_can_skip_no_offset() {
        let problem = |next: Option<u64>, (low, high)| {
            let at = TopicPartition { topic: "chain".into(), partition: 0 };
            let committed = next.map(|offset| CommittedOffset { offset, metadata: String::new() });
            chain_position_problem("g.chain", &GroupPosition { at, low, high, committed }).unwrap_or_default()
        };
        assert_eq!(problem(Some(3), (3, 9)), "");
        let lost = problem(Some(2), (4, 5));
        assert!(lost.starts_with("chain/0: offset 2 is next, but the topic holds 4 to 5; "), "{lost}");
        assert!(!lost.contains("--reset-offsets") && lost.contains("utxo-set export"), "{lost}");
        let uncommitted = problem(None, (3, 9));
        let (first, last) = ("where the store has handled a block", "--group g.chain --reset-offsets");
        assert!(uncommitted.starts_with(first) && uncommitted.contains(last), "{uncommitted}");
    }

    #[test]
    fn a_feed_passes_over_deleted_offsets_and_not_over_a_lost_end() {
        let warning = |offset: u64| {
            let at = TopicPartition { topic: "block-mined".into(), partition: 0 };
            let committed = Some(CommittedOffset { offset, metadata: String::new() });
            feed_position_warning(&GroupPosition { at, low: 4, high: 5, committed })
        };
        let deleted = warning(2).unwrap();
        assert!(deleted.starts_with("block-mined/0: offset 2 is next, but the topic holds 4 to 5; "), "{deleted}");
        assert!(deleted.contains("missing sequence number"), "{deleted}");
        assert_eq!([4, 5, 9].map(warning), [None, None, None]);
    }

    #[test]
    fn committed_halts_are_described() {
        let committed = |metadata: &str| CommittedOffset { offset: 3, metadata: metadata.into() };
        let halted = committed(r#"{"read":9,"pos":5,"halt":{"why":"x","since":4}}"#);
        let described = describe_halts(&[(0, committed(r#"{"read":9,"pos":5}"#)), (1, halted), (2, committed(""))]);
        assert_eq!(described, ["partition 1 is halted (x); a start tries again"]);
    }
}
