//! Where a group goes on, held against what its topics hold.

use crate::{
    broker::Committed,
    group::partition::{Halt, gone, never_read},
};

/// Where a group goes on in a partition.
#[derive(Debug, Clone, Copy)]
pub struct Stand<'a> {
    /// The group that commits it.
    pub group: &'a str,
    /// The topic's name.
    pub topic: &'a str,
    /// The partition's number.
    pub partition: i32,
    /// Next to read; `None`: nothing is committed.
    pub next: Option<u64>,
    /// What the partition holds: its first offset, and the one behind its last.
    pub holds: (u64, u64),
}

impl Stand<'_> {
    /// Why nobody could go on here, and what the operator may decide.
    pub fn problem(&self) -> Option<String> {
        let Stand { group, topic, partition, next, holds: (low, high) } = *self;
        let at = format!("{topic}/{partition}");
        let Some(next) = next else { return (low > 0).then(|| format!("{at}: {}", never_read(group, low))) };
        let why = gone(next, low, high)?;
        let remedy = if next < low {
            format!(
                "restore the topic, or go on without what is gone: `kafka-consumer-groups --group {group} --topic {topic}:{partition} \
                 --reset-offsets --to-offset {low} --execute`"
            )
        } else {
            "restore the topic; one that was made anew needs a new group and an empty store".to_owned()
        };
        Some(format!("{at}: {why}; {remedy}"))
    }
}

/// Which partitions of the validated transactions stand halted: a start has them tried again.
pub fn halts(commits: &[(i32, Committed)]) -> Vec<String> {
    let halted = |(number, committed): &(i32, Committed)| Some((*number, Halt::of(committed)?.why));
    let told = |(number, why)| format!("partition {number} is halted ({why}); a start tries again");
    commits.iter().filter_map(halted).map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_in_the_topic_is_named_with_both_ends_and_what_to_decide() {
        let problem =
            |next, holds| Stand { group: "g", topic: "txs", partition: 2, next, holds }.problem().unwrap_or_default();
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
    fn halts_that_are_committed_are_told() {
        let committed = |metadata: &str| Committed { offset: 3, metadata: metadata.into() };
        let halted = committed(r#"{"read":9,"pos":5,"halt":{"why":"x","since":4}}"#);
        let told = halts(&[(0, committed(r#"{"read":9,"pos":5}"#)), (1, halted), (2, committed(""))]);
        assert_eq!(told, ["partition 1 is halted (x); a start tries again"]);
    }
}
