//! Windows: contests that are decided together end as contests that are decided one after the other.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use utxo_store::{
    broker::{Broker, BrokerDecorator, BrokerError, Message, PartitionReader, TopicPartition},
    engine::{EngineDecorator, EngineError, RecordEngine, Row, fault::FaultEngine},
    event::{DecisionBody, DecisionGroup, Event},
    record::{Outcome, Phase, Reason, Rejection, Sequenced, Stamp, TxState},
    sequencer::decisions::{DecisionLog, DecisionTable},
    tx::Txid,
};

use crate::{
    harness::{Made, World, WorldSettings, spend},
    regressions::{
        has_lost, holder,
        holding_engine::{HoldingEngine, is_sequenced},
        state,
    },
};

/// Returns the groups of the decisions topic with their offsets.
async fn groups(world: &World) -> Vec<(u64, DecisionGroup)> {
    let partition = TopicPartition { topic: "decisions".into(), partition: 0 };
    let end = world.end("decisions", 0).await;
    let mut reader = world.broker.read(&partition, 0).await.unwrap();
    let mut groups = Vec::new();
    while reader.position() < end {
        for message in reader.next(Duration::from_millis(1)).await.unwrap() {
            if let Ok(Event::DecisionGroup(group)) = Event::decode(&message.payload) {
                groups.push((message.offset, group));
            }
        }
    }
    groups
}

/// Returns the number of events of the largest group that counts.
async fn largest_group(world: &World) -> usize {
    let counting = groups(world).await.into_iter().filter(|(offset, group)| group.position == *offset);
    counting.map(|(_, group)| group.events.len()).max().unwrap_or(0)
}

/// Coins of different parents, a live spender of each, and a rival that is not validated yet.
struct Rivalry {
    seeds: Vec<Made>,
    winners: Vec<Made>,
    rivals: Vec<Made>,
}

impl Rivalry {
    async fn begin(world: &World, count: u8) -> Self {
        let mut seeds = Vec::new();
        for id in 1..=count {
            seeds.push(world.seed(id, 1).await);
        }
        let winners: Vec<Made> = seeds.iter().zip(1..).map(|(seed, tag)| spend(&[seed.coin(0)], 1, tag)).collect();
        let rivals: Vec<Made> = seeds.iter().zip(101..).map(|(seed, tag)| spend(&[seed.coin(0)], 1, tag)).collect();
        let running = world.start();
        for winner in &winners {
            world.validate(winner).await;
        }
        world.until_consumed().await;
        running.stop().await;
        Rivalry { seeds, winners, rivals }
    }
}

/// Validates these transactions while the verdict on `first` is held, so that the contests of the others wait together.
async fn decide_together(world: &World, first: &Made, others: &[Made]) {
    decide_over(world, first, others, |engine| engine).await;
}

/// As [`decide_together`], through the engine that `wrap` makes of the one that holds the verdict.
async fn decide_over(
    world: &World,
    first: &Made,
    others: &[Made],
    wrap: impl FnOnce(Arc<dyn RecordEngine>) -> Arc<dyn RecordEngine>,
) {
    let txid = first.txid;
    let is_mark = move |op: &Sequenced| matches!(op, Sequenced::MarkConflicting { .. });
    let holding = HoldingEngine::hold_first(world, move |row| is_sequenced(row, txid, is_mark));
    let nodes = Arc::new(FaultEngine::new(wrap(holding.clone()), 0));
    let running = World { nodes, ..world.clone() }.start();
    world.validate(first).await;
    holding.wait_for_held(1).await;
    for other in others {
        world.validate(other).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    holding.release().await;
    world.until_consumed().await;
    // Protects: every event of a window counts as handled. Events that count as waiting would fill the bound of the
    // events that are read ahead, and the chain would stop for good.
    let unfinished = || {
        let page = serde_json::to_value(running.health.status_registry().page(&running.health)).unwrap();
        page["chain"]["partition"]["unfinished_events"].as_u64()
    };
    for _ in 0..100 {
        if unfinished() == Some(0) {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(unfinished(), Some(0), "events of a window count as waiting");
    running.stop().await;
}

/// Engine that refuses the first settle on one of the parents, as after a later stamp.
struct RefusingEngine {
    inner: Arc<dyn RecordEngine>,
    parents: Vec<Txid>,
    has_refused: AtomicBool,
}

impl EngineDecorator for RefusingEngine {
    fn inner(&self) -> &dyn RecordEngine {
        &*self.inner
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        let is_settle = |op: &Sequenced| matches!(op, Sequenced::Settle(_));
        let mut outcomes = Vec::with_capacity(rows.len());
        for row in rows {
            let is_wanted = self.parents.iter().any(|parent| is_sequenced(row, *parent, is_settle));
            if is_wanted && !self.has_refused.swap(true, Ordering::SeqCst) {
                let later = Stamp::in_era(0, 1_000_000, Phase::Apply);
                outcomes.push(Ok(Outcome::Rejected(Rejection::StaleStamp(later))));
            } else {
                outcomes.extend(self.inner.apply(std::slice::from_ref(row)).await);
            }
        }
        outcomes
    }
}

/// The store refuses an operation of the first event of a window, while the next window is evaluated. Protects: the
/// events from there on are applied from the log, and the next window is not decided before them.
#[tokio::test(start_paused = true)]
async fn a_refusal_in_a_window_is_applied_from_the_log() {
    let world = World::with_settings(WorldSettings { window_events: 2, ..WorldSettings::calm() }).await;
    let Rivalry { seeds, rivals, .. } = Rivalry::begin(&world, 5).await;
    let parents = seeds[1..].iter().map(|seed| seed.txid).collect();
    let wrap = |inner| -> Arc<dyn RecordEngine> {
        Arc::new(RefusingEngine { inner, parents, has_refused: AtomicBool::new(false) })
    };
    decide_over(&world, &rivals[0], &rivals[1..], wrap).await;
    for (seed, rival) in seeds.iter().zip(&rivals) {
        let page = world.page(seed).await.unwrap();
        assert!(page.contested.contains(&0), "the slot of each parent is settled");
        assert!(page.master.as_ref().unwrap().conflicting_children.contains(&rival.txid));
        assert!(has_lost(&world, rival).await);
    }
    world.check("a refusal in a window").await;
}

/// Each rival of a live transaction spends an output of its own parent. Protects: the contests become one group, every
/// rival loses, and a rebuild agrees.
#[tokio::test(start_paused = true)]
async fn contests_that_wait_together_become_one_group() {
    let world = World::new().await;
    let Rivalry { winners, rivals, .. } = Rivalry::begin(&world, 4).await;
    decide_together(&world, &rivals[0], &rivals[1..]).await;
    assert_eq!(largest_group(&world).await, 3);
    for (winner, rival) in winners.iter().zip(&rivals) {
        assert_eq!((state(&world, winner).await, has_lost(&world, rival).await), (TxState::Live, true));
    }
    world.check("contests in one group").await;
}

/// Sixty rivals want one coin of a live transaction. Protects: the operations of a window on one record are applied in
/// the order of the chain, and the parent lists every rival.
#[tokio::test(start_paused = true)]
async fn rivals_of_one_coin_share_a_window() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let winner = spend(&[seed.coin(0)], 1, 1);
    let rivals: Vec<Made> = (2..62).map(|tag| spend(&[seed.coin(0)], 1, tag)).collect();
    let running = world.start();
    world.validate(&winner).await;
    world.until_consumed().await;
    running.stop().await;
    decide_together(&world, &rivals[0], &rivals[1..]).await;
    assert!(largest_group(&world).await > 20, "{}", largest_group(&world).await);
    assert_eq!(holder(&world, &seed.coin(0)).await, Some(winner.txid));
    let page = world.page(&seed).await.unwrap();
    assert_eq!(page.master.as_ref().unwrap().conflicting_children.len(), rivals.len());
    world.check("rivals of one coin").await;
}

/// The sequencer dies between the group and the operations of its events. Protects: the next sequencer applies the
/// decisions of the group.
#[tokio::test(start_paused = true)]
async fn a_group_without_effect_is_applied_by_the_next_sequencer() {
    let world = World::new().await;
    let seed = world.seed(1, 3).await;
    let winners: Vec<Made> = (0..3).map(|vout| spend(&[seed.coin(vout)], 1, 1 + vout as u8)).collect();
    let rivals: Vec<Made> = (0..3).map(|vout| spend(&[seed.coin(vout)], 1, 11 + vout as u8)).collect();
    let running = world.start();
    for winner in &winners {
        world.validate(winner).await;
    }
    world.until_consumed().await;
    running.stop().await;
    let holding = HoldingEngine::hold_all(&world, |row| {
        matches!(&row.operation, utxo_store::record::Operation::Sequenced(_, Sequenced::MarkConflicting { .. }))
    });
    let dying = holding.in_front_of(&world).start();
    for rival in &rivals {
        world.validate(rival).await;
    }
    holding.wait_for_held(1).await;
    dying.kill().await;
    let running = world.start();
    world.until_consumed().await;
    running.stop().await;
    holding.release().await;
    for rival in &rivals {
        assert!(has_lost(&world, rival).await);
    }
    world.check("a group without effect").await;
}

fn passed_over(tag: u8) -> DecisionBody {
    DecisionBody::PassedOver { txid: Txid([tag; 32]) }
}

/// Another sequencer writes a decision after the first one has read the topic. Protects: the group counts for none of
/// its events, for every reader, and the events are decided anew.
#[tokio::test(start_paused = true)]
async fn a_group_behind_an_unread_record_is_void() {
    let world = World::new().await;
    let broker: Arc<dyn Broker> = Arc::new(world.broker.clone());
    let producer = broker.producer().await.unwrap();
    let open = || DecisionLog::open(broker.clone(), producer.clone(), "decisions", 0, 0);
    let (mut first, mut second) = (open().await.unwrap(), open().await.unwrap());
    for (offset, body) in
        [(0, passed_over(1)), (0, DecisionBody::Closed), (1, passed_over(2)), (1, DecisionBody::Closed)]
    {
        first.stage(offset, body);
    }
    let reason = Reason::MissingParent { parent: Txid([9; 32]) };
    let other = DecisionBody::Conflicting { txid: Txid([1; 32]), reason, height: 7, live: false };
    second.publish(0, other.clone()).await.unwrap();
    assert!(!first.publish_staged(&[0, 1]).await.unwrap());
    let third = open().await.unwrap();
    for log in [&first, &third] {
        assert_eq!(log.table().get(0, 0), Some(&other));
        assert_eq!((log.table().next_step(0), log.table().next_step(1)), (1, 0));
    }
    // The next group of the same sequencer counts: the sequencer has read the other record.
    first.stage(2, passed_over(3));
    first.stage(2, DecisionBody::Closed);
    assert!(first.publish_staged(&[2]).await.unwrap());
    second.catch_up().await.unwrap();
    assert_eq!(second.table().next_step(2), 2);
}

/// A log whose readers bring nothing while they are `late`.
struct LateBroker {
    inner: Arc<dyn Broker>,
    late: Arc<AtomicBool>,
}

impl BrokerDecorator for LateBroker {
    fn inner(&self) -> &dyn Broker {
        self.inner.as_ref()
    }

    async fn read(&self, partition: &TopicPartition, offset: u64) -> Result<Box<dyn PartitionReader>, BrokerError> {
        let inner = self.inner.read(partition, offset).await?;
        Ok(Box::new(LateReader { inner, late: self.late.clone() }))
    }
}

struct LateReader {
    inner: Box<dyn PartitionReader>,
    late: Arc<AtomicBool>,
}

#[async_trait]
impl PartitionReader for LateReader {
    async fn next(&mut self, wait: Duration) -> Result<Vec<Message>, BrokerError> {
        if self.late.load(Ordering::Relaxed) {
            tokio::time::sleep(wait).await;
            return Ok(Vec::new());
        }
        self.inner.next(wait).await
    }

    fn position(&self) -> u64 {
        self.inner.position()
    }

    async fn seek(&mut self, offset: u64) -> Result<(), BrokerError> {
        self.inner.seek(offset).await
    }
}

/// The reader brings nothing. Protects: an acknowledgement at the end of what was read counts as a reading; behind a
/// record of another sequencer it does not.
#[tokio::test(start_paused = true)]
async fn a_decision_at_the_end_of_what_was_read_needs_no_reader() {
    let world = World::new().await;
    let late = Arc::new(AtomicBool::new(false));
    let broker: Arc<dyn Broker> = Arc::new(LateBroker { inner: Arc::new(world.broker.clone()), late: late.clone() });
    let producer = broker.producer().await.unwrap();
    let open = || DecisionLog::open(broker.clone(), producer.clone(), "decisions", 0, 0);
    let (mut first, mut second) = (open().await.unwrap(), open().await.unwrap());
    first.publish(0, passed_over(1)).await.unwrap();
    second.catch_up().await.unwrap();
    late.store(true, Ordering::Relaxed);
    first.publish(0, DecisionBody::Closed).await.unwrap();
    first.stage(1, passed_over(2));
    first.stage(1, DecisionBody::Closed);
    assert!(first.publish_staged(&[1]).await.unwrap());
    assert_eq!([0, 1].map(|offset| first.table().next_step(offset)), [2, 2]);

    // The second one has read neither: its own record on the same step does not count.
    let publishing = second.publish(0, passed_over(3));
    assert!(tokio::time::timeout(Duration::from_secs(60), publishing).await.is_err(), "the reader is needed");
    late.store(false, Ordering::Relaxed);
    for log in [&mut first, &mut second] {
        log.catch_up().await.unwrap();
        assert_eq!(log.table().get(0, 1), Some(&DecisionBody::Closed));
        assert_eq!([0, 1].map(|offset| log.table().next_step(offset)), [2, 2]);
    }
}

/// A topic from before the groups, and groups behind it. Protects: the events below the reported chain offset are
/// decided to their ends.
#[tokio::test(start_paused = true)]
async fn decided_events_are_counted_over_single_decisions_and_groups() {
    let world = World::new().await;
    let broker: Arc<dyn Broker> = Arc::new(world.broker.clone());
    let producer = broker.producer().await.unwrap();
    let mut log = DecisionLog::open(broker.clone(), producer, "decisions", 0, 0).await.unwrap();
    log.publish(0, passed_over(1)).await.unwrap();
    assert_eq!(log.table().handled_below(), 0, "the event is open");
    log.publish(0, DecisionBody::Closed).await.unwrap();
    for offset in [3, 5] {
        log.stage(offset, passed_over(2));
        log.stage(offset, DecisionBody::Closed);
    }
    assert!(log.publish_staged(&[3, 5]).await.unwrap());
    assert_eq!(log.table().handled_below(), 6);
    let mut table = DecisionTable::from_offset(4);
    let partition = TopicPartition { topic: "decisions".into(), partition: 0 };
    let mut reader = broker.read(&partition, 0).await.unwrap();
    while reader.position() < world.end("decisions", 0).await {
        for message in reader.next(Duration::from_millis(1)).await.unwrap() {
            table.absorb(&message).unwrap();
        }
    }
    let known = [0, 3, 5].map(|offset| table.next_step(offset));
    assert_eq!(known, [0, 0, 2], "handled ones are left out");
}
