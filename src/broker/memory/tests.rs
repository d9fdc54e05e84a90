use super::*;
use crate::broker::ConsumerEvent;
use crate::broker::conformance;

fn broker(change: impl FnOnce(&mut MemorySettings)) -> MemoryBroker {
    let mut settings = MemorySettings::new(Clock::simulated(1_700_000_000_000));
    change(&mut settings);
    MemoryBroker::new(settings)
}

#[tokio::test(start_paused = true)]
async fn memory_conforms() {
    conformance::run(Arc::new(broker(|_| {})), "").await;
}

#[tokio::test(start_paused = true)]
async fn memory_conforms_with_a_session_timeout_and_round_robin() {
    let slow = broker(|settings| {
        settings.assignment = Assignment::RoundRobin;
        settings.session_timeout = Duration::from_secs(10);
        settings.batch_messages = 7;
    });
    conformance::run(Arc::new(slow), "").await;
}

fn at(partition: i32) -> TopicPartition {
    TopicPartition { topic: "topic".into(), partition }
}

async fn with_messages(partitions: i32, count: usize, change: impl FnOnce(&mut MemorySettings)) -> MemoryBroker {
    let broker = broker(change);
    let topic = NewTopic { name: "topic".into(), partitions, config: Vec::new() };
    broker.create_topics(&[topic]).await.unwrap();
    for partition in 0..partitions {
        produce(&broker, partition, count).await;
    }
    broker
}

async fn produce(broker: &MemoryBroker, partition: i32, count: usize) {
    let message = OutgoingMessage { topic: "topic".into(), partition: Some(partition), ..OutgoingMessage::default() };
    broker.producer().await.unwrap().produce_all(vec![message; count]).await.unwrap();
}

async fn join(broker: &MemoryBroker) -> Box<dyn Consumer> {
    broker.subscribe("group", &["topic".into()]).await.unwrap()
}

async fn assigned(consumer: &mut dyn Consumer) -> Vec<i32> {
    match consumer.poll().await.unwrap() {
        ConsumerEvent::Assigned(assigned) => assigned.iter().map(|a| a.partition.partition).collect(),
        other => panic!("{other:?}"),
    }
}

async fn revoked(consumer: &mut dyn Consumer) -> (Vec<i32>, bool) {
    match consumer.poll().await.unwrap() {
        ConsumerEvent::Revoked { partitions, lost } => (partitions.iter().map(|at| at.partition).collect(), lost),
        other => panic!("{other:?}"),
    }
}

fn committed(offset: u64) -> CommittedOffset {
    CommittedOffset { offset, metadata: String::new() }
}

#[tokio::test(start_paused = true)]
async fn a_member_that_misses_the_revocation_deadline_loses_everything() {
    let broker = with_messages(4, 0, |settings| settings.revocation_timeout = Duration::from_secs(5)).await;
    let mut slow = join(&broker).await;
    assert_eq!(assigned(slow.as_mut()).await, [0, 1, 2, 3]);
    let started = Instant::now();
    let mut fresh = join(&broker).await;
    assert_eq!(revoked(slow.as_mut()).await, (vec![2, 3], false));
    slow.commit(&[(at(2), committed(0))]).await.unwrap();
    // No other member polls: the new member's own poll notices the deadline.
    assert_eq!(assigned(fresh.as_mut()).await, [0, 1, 2, 3]);
    assert_eq!(started.elapsed(), Duration::from_secs(5));
    assert_eq!(slow.commit(&[(at(0), committed(0))]).await.unwrap_err().kind, BrokerErrorKind::NotAssigned);
    assert_eq!(slow.commit(&[(at(2), committed(0))]).await.unwrap_err().kind, BrokerErrorKind::NotAssigned);
    assert_eq!(revoked(slow.as_mut()).await, (vec![0, 1], true), "drained partitions are not named again");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_member_is_removed_after_its_session_timeout() {
    let broker = with_messages(2, 0, |settings| settings.session_timeout = Duration::from_secs(7)).await;
    let mut first = join(&broker).await;
    assert_eq!(assigned(first.as_mut()).await, [0, 1]);
    drop(first);
    let started = Instant::now();
    let mut second = join(&broker).await;
    let mut got = assigned(second.as_mut()).await;
    while got.len() < 2 {
        if let ConsumerEvent::Assigned(more) = second.poll().await.unwrap() {
            got.extend(more.iter().map(|a| a.partition.partition));
        }
    }
    assert_eq!(started.elapsed(), Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn a_lost_assignment_refuses_commits_until_the_member_has_rejoined() {
    let broker = with_messages(2, 3, |_| {}).await;
    let mut member = join(&broker).await;
    assert_eq!(assigned(member.as_mut()).await, [0, 1]);
    broker.lose_assignments("group");
    assert_eq!(member.commit(&[(at(0), committed(1))]).await.unwrap_err().kind, BrokerErrorKind::NotAssigned);
    assert_eq!(revoked(member.as_mut()).await, (vec![0, 1], true));
    assert_eq!(assigned(member.as_mut()).await, [0, 1]);
    member.commit(&[(at(0), committed(1))]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn retention_that_overtakes_a_reader_is_an_error() {
    let broker = with_messages(1, 10, |settings| settings.batch_messages = 2).await;
    let mut member = join(&broker).await;
    assigned(member.as_mut()).await;
    assert!(matches!(member.poll().await.unwrap(), ConsumerEvent::Messages(_)));
    broker.truncate(&at(0), 5).unwrap();
    let error = member.poll().await.unwrap_err();
    assert_eq!((error.kind, error.message.contains("5..10")), (BrokerErrorKind::OutOfRange, true), "{error}");
    member.seek(&at(0), 5).await.unwrap();
    assert!(matches!(member.poll().await.unwrap(), ConsumerEvent::Messages(batch) if batch.messages[0].offset == 5));
}

#[tokio::test(start_paused = true)]
async fn a_gap_is_read_over() {
    let broker = with_messages(1, 2, |_| {}).await;
    broker.leave_gap(&at(0), 5).unwrap();
    produce(&broker, 0, 1).await;
    broker.leave_gap(&at(0), 5).unwrap();
    let mut member = join(&broker).await;
    assigned(member.as_mut()).await;
    let ConsumerEvent::Messages(batch) = member.poll().await.unwrap() else { panic!("no messages") };
    assert_eq!(batch.messages.iter().map(|m| m.offset).collect::<Vec<_>>(), [0, 1, 7]);
    assert!(matches!(member.poll().await.unwrap(), ConsumerEvent::End(_)));
}

/// Events of two members under all faults, as text: equal for equal seeds.
async fn run_with_faults(seed: u64) -> String {
    let broker = with_messages(3, 40, |settings| {
        settings.batch_messages = 3;
        settings.faults = MemoryFaults {
            seed,
            duplicate: 0.1,
            delay: 0.2,
            delay_max: Duration::from_millis(500),
            rebalance: 0.05,
            lost_assignment: 0.05,
            ..MemoryFaults::default()
        };
    })
    .await;
    let mut history = String::new();
    let mut completed = [0; 3];
    let mut epochs = BTreeMap::new();
    let mut members = [join(&broker).await, join(&broker).await];
    while completed != [40; 3] {
        for (name, member) in members.iter_mut().enumerate() {
            let Ok(polled) = tokio::time::timeout(Duration::from_millis(100), member.poll()).await else { continue };
            let polled = polled.unwrap();
            history += &format!("{name} {:?} {polled:?}\n", broker.shared.settings.clock.now_ms());
            match polled {
                ConsumerEvent::Assigned(assigned) => {
                    epochs.extend(assigned.into_iter().map(|a| (a.partition, a.epoch)))
                }
                ConsumerEvent::Revoked { lost: false, .. } => member.finish_revocation(),
                ConsumerEvent::Messages(batch) => {
                    let index = batch.partition.partition as usize;
                    assert!(batch.messages[0].offset <= completed[index], "no message is skipped: {history}");
                    let next = batch.messages.last().unwrap().offset + 1;
                    let result = member.commit(&[(batch.partition.clone(), committed(next))]).await;
                    if result.is_ok() {
                        assert_eq!(epochs[&batch.partition], batch.epoch, "only the owner commits");
                        completed[index] = next;
                    }
                }
                _ => {}
            }
        }
    }
    history
}

#[tokio::test(start_paused = true)]
async fn faults_lose_nothing_and_replay_from_their_seed() {
    let first = run_with_faults(1).await;
    assert!(first.contains("lost: true") && first.contains("lost: false"), "{first}");
    assert_eq!(first, run_with_faults(1).await);
    assert_ne!(first, run_with_faults(2).await);
}

#[tokio::test(start_paused = true)]
async fn a_failed_produce_may_or_may_not_be_in_the_log() {
    for (refused, unacknowledged, there) in [(1.0, 0.0, 0), (0.0, 1.0, 1)] {
        let broker = with_messages(1, 0, |settings| {
            settings.faults.produce_refused = refused;
            settings.faults.produce_unacknowledged = unacknowledged;
        })
        .await;
        let message = OutgoingMessage { topic: "topic".into(), ..OutgoingMessage::default() };
        let error = broker.producer().await.unwrap().produce(message).await.unwrap_err();
        assert_eq!(error.kind, BrokerErrorKind::Retryable);
        assert_eq!(broker.watermarks(&at(0)).await.unwrap(), (0, there));
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_poll_is_woken_by_a_message() {
    let broker = with_messages(1, 0, |_| {}).await;
    let mut member = join(&broker).await;
    assigned(member.as_mut()).await;
    assert!(matches!(member.poll().await.unwrap(), ConsumerEvent::End(_)));
    let (polled, ()) = tokio::join!(member.poll(), produce(&broker, 0, 1));
    assert!(matches!(polled.unwrap(), ConsumerEvent::Messages(_)));
}
