//! Which groups are set back, where to, and which are not.

use super::*;
use crate::{
    broker::{
        NewTopic, Produce,
        memory::{MemoryBroker, MemorySettings},
    },
    clock::Clock,
    group::partition::{Halt, consumed_of},
};

const READING: Reading<'static> = Reading { topic: "txs", group: "g" };

/// Three partitions of ten messages, ten milliseconds apart, of which the group has committed eight, five and none.
async fn log() -> MemoryBroker {
    let broker = MemoryBroker::new(MemorySettings::new(Clock::simulated(1_000)));
    let topics = ["txs", "chain"].map(|name| NewTopic { name: name.into(), partitions: 3, config: vec![] });
    broker.create_topics(&topics).await.unwrap();
    let producer = broker.producer().await.unwrap();
    for (partition, at) in (0..3).flat_map(|partition| (0..10).map(move |at| (partition, at))) {
        let timestamp_ms = Some(1_000 + at * 10);
        let message = Produce { topic: "txs".into(), partition: Some(partition), timestamp_ms, ..Produce::default() };
        producer.produce(message).await.unwrap();
    }
    let committed = [(0, 8), (1, 5)].map(|(partition, offset)| (READING.at(partition), by_operator(offset)));
    broker.set_committed("g", &committed).await.unwrap();
    broker
}

fn by_operator(offset: u64) -> Committed {
    Committed { offset, metadata: String::new() }
}

fn offsets(offsets: &[(i32, u64)]) -> Position {
    Position::Offsets(offsets.iter().copied().collect())
}

async fn ranges(broker: &MemoryBroker, from: &Position, until: &Position) -> Result<Vec<[u64; 4]>, String> {
    let ranges = READING.ranges(broker, from, until, &Consumed::default()).await;
    let told = |Range { partition, from, until, committed }: Range| [partition as u64, from, until, committed];
    ranges.map(|ranges| ranges.into_iter().map(told).collect()).map_err(|error| error.to_string())
}

#[tokio::test]
async fn partitions_begin_at_a_time_or_where_it_is_said() {
    let broker = log().await;
    let committed = &Position::Committed;
    assert_eq!(ranges(&broker, &Position::Time(1_020), committed).await, Ok(vec![[0, 2, 8, 8], [1, 2, 5, 5]]));
    assert_eq!(ranges(&broker, &Position::Time(0), &Position::End).await, Ok(vec![[0, 0, 10, 8], [1, 0, 10, 5]]));
    // The second stands at that time already, and nothing is raised.
    assert_eq!(ranges(&broker, &Position::Time(1_050), committed).await, Ok(vec![[0, 5, 8, 8]]));
    assert_eq!(ranges(&broker, &Position::Time(9_000), committed).await, Ok(vec![]));
    assert_eq!(ranges(&broker, &Position::Time(1_020), &Position::Time(1_031)).await.unwrap()[0], [0, 2, 4, 8]);
    assert_eq!(ranges(&broker, &offsets(&[(1, 3)]), committed).await, Ok(vec![[1, 3, 5, 5]]));
    assert_eq!(ranges(&broker, &offsets(&[(0, 3), (1, 0)]), &offsets(&[(1, 1)])).await.unwrap()[1], [1, 0, 1, 5]);
}

#[tokio::test]
async fn what_is_not_to_be_had_is_refused_naming_both_places() {
    let broker = log().await;
    broker.truncate(&READING.at(0), 3).unwrap();
    let until = Position::Committed;
    for (from, until, words) in [
        (offsets(&[(0, 9)]), &until, ["partition 0", "committed 8", "between that and 9"]),
        (offsets(&[(2, 0)]), &until, ["partition 2", "committed nothing", "nothing to read"]),
        (offsets(&[(0, 2)]), &until, ["partition 0", "offset 2", "holds 3 to 10"]),
        (offsets(&[(7, 2)]), &until, ["txs", "no partition", "7"]),
        (Position::Time(1_020), &until, ["partition 0", "offset 3", "gone"]),
        (Position::Time(1_030), &until, ["partition 0", "offset 3", "gone"]),
        (offsets(&[(0, 5)]), &offsets(&[(0, 4)]), ["partition 0", "offset 4", "(5)"]),
        (offsets(&[(0, 5)]), &offsets(&[(0, 11)]), ["partition 0", "offset 11", "3 to 10"]),
    ] {
        let refused = ranges(&broker, &from, until).await.unwrap_err();
        assert!(words.iter().all(|word| refused.contains(word)), "{words:?}: {refused}");
    }
    assert!(ranges(&broker, &Position::Time(1_031), &until).await.is_ok());
    let every = ranges(&broker, &offsets(&[(0, 9), (1, 6), (8, 0)]), &until).await.unwrap_err();
    assert_eq!(every.split("; ").count(), 3, "{every}");
    let floor = Consumed { chain: 0, validated: [(1, 4)].into() };
    let below = READING.ranges(&broker, &offsets(&[(1, 3)]), &until, &floor).await.unwrap_err().to_string();
    assert!(below.contains("offset 3") && below.contains("from 4 on"), "{below}");
    READING.ranges(&broker, &offsets(&[(1, 4)]), &until, &floor).await.unwrap();
}

#[tokio::test]
async fn a_group_is_set_back_as_a_whole_and_only_where_it_was_found() {
    let broker = log().await;
    let ranges = READING.ranges(&broker, &Position::Time(1_020), &Position::End, &Consumed::default()).await.unwrap();
    let committed = async || {
        let all = broker.committed("g", &[0, 1, 2].map(|number| READING.at(number))).await.unwrap();
        all.into_iter().map(|one| one.map(|one| one.offset)).collect::<Vec<_>>()
    };
    // It has moved since.
    broker.set_committed("g", &[(READING.at(1), by_operator(6))]).await.unwrap();
    let moved = READING.set_back(&broker, &ranges).await.unwrap_err().to_string();
    assert!(moved.contains("partition 1") && moved.contains("committed 5") && moved.contains('6'), "{moved}");
    assert_eq!(committed().await, [Some(8), Some(6), None]);
    broker.set_committed("g", &[(READING.at(1), by_operator(5))]).await.unwrap();

    let member = broker.subscribe("g", &["txs".to_owned()]).await.unwrap();
    assert!(
        READING.members(&broker).await.unwrap()[0]
            .contains("1 of the instances of this store run (members of the consumer group g)")
    );
    assert!(matches!(READING.set_back(&broker, &ranges).await, Err(SetBackError::Broker(_))));
    assert_eq!(committed().await, [Some(8), Some(5), None]);
    drop(member);
    let member = broker.subscribe("g.chain", &["chain".to_owned()]).await.unwrap();
    assert!(READING.members(&broker).await.unwrap()[0].contains("consumer group g.chain)"));
    drop(member);

    READING.set_back(&broker, &ranges).await.unwrap();
    assert_eq!(committed().await, [Some(2), Some(2), None]);
    assert_eq!(READING.left(&broker, &ranges).await.unwrap(), 16);
    let said = broker.committed("g", &[READING.at(0)]).await.unwrap().remove(0).unwrap();
    assert_eq!((consumed_of(&said), Halt::of(&said)), (Some(2), None), "the store must have consumed as much");
    broker.set_committed("g", &[(READING.at(0), by_operator(9))]).await.unwrap();
    assert_eq!(READING.left(&broker, &ranges).await.unwrap(), 9);
}
