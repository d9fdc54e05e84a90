//! Tests of offset resets: planned ranges, refusals, committed offsets.

use super::*;
use crate::{
    broker::{
        NewTopic, OutgoingMessage,
        memory::{MemoryBroker, MemorySettings},
    },
    clock::Clock,
    group::commit_metadata::{Halt, committed_by_instance},
};

const OFFSET_RESET: OffsetReset<'static> = OffsetReset { topic: "txs", group: "g" };

/// Creates three partitions of ten messages, 10 ms apart, of which the group has committed eight, five and none.
async fn log() -> MemoryBroker {
    let broker = MemoryBroker::new(MemorySettings::new(Clock::simulated(1_000)));
    let topics = ["txs", "chain"].map(|name| NewTopic { name: name.into(), partitions: 3, config: vec![] });
    broker.create_topics(&topics).await.unwrap();
    let producer = broker.producer().await.unwrap();
    for (partition, at) in (0..3).flat_map(|partition| (0..10).map(move |at| (partition, at))) {
        let timestamp_ms = Some(1_000 + at * 10);
        let (topic, partition) = ("txs".into(), Some(partition));
        let message = OutgoingMessage { topic, partition, timestamp_ms, ..OutgoingMessage::default() };
        producer.produce(message).await.unwrap();
    }
    let committed = [(0, 8), (1, 5)].map(|(partition, offset)| (OFFSET_RESET.at(partition), by_operator(offset)));
    broker.set_committed("g", &committed).await.unwrap();
    broker
}

fn by_operator(offset: u64) -> CommittedOffset {
    CommittedOffset { offset, metadata: String::new() }
}

fn offsets(offsets: &[(i32, u64)]) -> RereadBound {
    RereadBound::Offsets(offsets.iter().copied().collect())
}

async fn ranges(broker: &MemoryBroker, from: &RereadBound, until: &RereadBound) -> Result<Vec<[u64; 4]>, String> {
    let ranges = OFFSET_RESET.plan_ranges(broker, from, until, &ConsumedOffsets::default()).await;
    let numbers = |range: RereadRange| [range.partition as u64, range.from, range.until, range.committed];
    ranges.map(|ranges| ranges.into_iter().map(numbers).collect()).map_err(|error| error.to_string())
}

#[tokio::test]
async fn partitions_begin_at_a_time_or_at_a_named_offset() {
    let broker = log().await;
    let committed = &RereadBound::Committed;
    assert_eq!(ranges(&broker, &RereadBound::Time(1_020), committed).await, Ok(vec![[0, 2, 8, 8], [1, 2, 5, 5]]));
    assert_eq!(ranges(&broker, &RereadBound::Time(0), &RereadBound::End).await, Ok(vec![[0, 0, 10, 8], [1, 0, 10, 5]]));
    // The second partition is at that time already, and no offset is raised.
    assert_eq!(ranges(&broker, &RereadBound::Time(1_050), committed).await, Ok(vec![[0, 5, 8, 8]]));
    assert_eq!(ranges(&broker, &RereadBound::Time(9_000), committed).await, Ok(vec![]));
    assert_eq!(ranges(&broker, &RereadBound::Time(1_020), &RereadBound::Time(1_031)).await.unwrap()[0], [0, 2, 4, 8]);
    assert_eq!(ranges(&broker, &offsets(&[(1, 3)]), committed).await, Ok(vec![[1, 3, 5, 5]]));
    assert_eq!(ranges(&broker, &offsets(&[(0, 3), (1, 0)]), &offsets(&[(1, 1)])).await.unwrap()[1], [1, 0, 1, 5]);
}

#[tokio::test]
async fn impossible_ranges_are_refused_with_both_offsets() {
    let broker = log().await;
    broker.truncate(&OFFSET_RESET.at(0), 3).unwrap();
    let until = RereadBound::Committed;
    for (from, until, words) in [
        (offsets(&[(0, 9)]), &until, ["partition 0", "committed 8", "between that and 9"]),
        (offsets(&[(2, 0)]), &until, ["partition 2", "committed nothing", "nothing to read"]),
        (offsets(&[(0, 2)]), &until, ["partition 0", "offset 2", "holds 3 to 10"]),
        (offsets(&[(7, 2)]), &until, ["txs", "no partition", "7"]),
        (RereadBound::Time(1_020), &until, ["partition 0", "offset 3", "gone"]),
        (RereadBound::Time(1_030), &until, ["partition 0", "offset 3", "gone"]),
        (offsets(&[(0, 5)]), &offsets(&[(0, 4)]), ["partition 0", "offset 4", "(5)"]),
        (offsets(&[(0, 5)]), &offsets(&[(0, 11)]), ["partition 0", "offset 11", "3 to 10"]),
    ] {
        let refused = ranges(&broker, &from, until).await.unwrap_err();
        assert!(words.iter().all(|word| refused.contains(word)), "{words:?}: {refused}");
    }
    assert!(ranges(&broker, &RereadBound::Time(1_031), &until).await.is_ok());
    let every = ranges(&broker, &offsets(&[(0, 9), (1, 6), (8, 0)]), &until).await.unwrap_err();
    assert_eq!(every.split("; ").count(), 3, "{every}");
    let floor = ConsumedOffsets { validated: [(1, 4)].into(), ..ConsumedOffsets::default() };
    let below = OFFSET_RESET.plan_ranges(&broker, &offsets(&[(1, 3)]), &until, &floor).await.unwrap_err().to_string();
    assert!(below.contains("offset 3") && below.contains("from 4 on"), "{below}");
    OFFSET_RESET.plan_ranges(&broker, &offsets(&[(1, 4)]), &until, &floor).await.unwrap();
}

#[tokio::test]
async fn offsets_are_reset_together_and_only_if_the_group_has_not_moved() {
    let broker = log().await;
    let (from, floor) = (RereadBound::Time(1_020), ConsumedOffsets::default());
    let ranges = OFFSET_RESET.plan_ranges(&broker, &from, &RereadBound::End, &floor).await.unwrap();
    let committed = async || {
        let all = broker.committed("g", &[0, 1, 2].map(|number| OFFSET_RESET.at(number))).await.unwrap();
        all.into_iter().map(|one| one.map(|one| one.offset)).collect::<Vec<_>>()
    };
    // The group has committed since the plan.
    broker.set_committed("g", &[(OFFSET_RESET.at(1), by_operator(6))]).await.unwrap();
    let moved = OFFSET_RESET.reset_offsets(&broker, &ranges).await.unwrap_err().to_string();
    assert!(moved.contains("partition 1") && moved.contains("committed 5") && moved.contains('6'), "{moved}");
    assert_eq!(committed().await, [Some(8), Some(6), None]);
    broker.set_committed("g", &[(OFFSET_RESET.at(1), by_operator(5))]).await.unwrap();

    let member = broker.subscribe("g", &["txs".to_owned()]).await.unwrap();
    assert!(
        OFFSET_RESET.describe_members(&broker).await.unwrap()[0]
            .contains("1 of the instances of this store run (members of the consumer group g)")
    );
    assert!(matches!(OFFSET_RESET.reset_offsets(&broker, &ranges).await, Err(OffsetResetError::Broker(_))));
    assert_eq!(committed().await, [Some(8), Some(5), None]);
    drop(member);
    let member = broker.subscribe("g.chain", &["chain".to_owned()]).await.unwrap();
    assert!(OFFSET_RESET.describe_members(&broker).await.unwrap()[0].contains("consumer group g.chain)"));
    drop(member);

    OFFSET_RESET.reset_offsets(&broker, &ranges).await.unwrap();
    assert_eq!(committed().await, [Some(2), Some(2), None]);
    assert_eq!(OFFSET_RESET.count_left(&broker, &ranges).await.unwrap(), 16);
    let commit = broker.committed("g", &[OFFSET_RESET.at(0)]).await.unwrap().remove(0).unwrap();
    let parsed = (committed_by_instance(&commit), Halt::from_commit(&commit));
    assert_eq!(parsed, (Some(2), None), "the store must have consumed as much");
    broker.set_committed("g", &[(OFFSET_RESET.at(0), by_operator(9))]).await.unwrap();
    assert_eq!(OFFSET_RESET.count_left(&broker, &ranges).await.unwrap(), 9);
}
