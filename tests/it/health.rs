//! What readiness and liveness say while something is wrong, and that what cannot go on ends the instance.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use utxo_store::{
    broker::{Broker, BrokerErrorKind, Outage, TopicPartition, partitioner::partition_of},
    engine::{Cursor, EngineError, ErrorKind, Index, RecordEngine, Row, ScanPage, Set, fault::Faults},
    record::{Key, Outcome, Record, TxState},
};

use crate::{
    troubled_broker::{Asked, TroubledBroker, start_on},
    world::{PARTITIONS, Running, World, spend},
};

/// What an engine does about a key.
type Trouble = Box<dyn Fn(&Key) -> Option<EngineError> + Send>;

/// An engine that has trouble with some keys.
pub struct Troubled {
    inner: Arc<dyn RecordEngine>,
    applies: Mutex<Trouble>,
    reads: Mutex<Trouble>,
    /// Is never answered about.
    pub hangs: Mutex<Option<Key>>,
}

impl Troubled {
    fn over(inner: Arc<dyn RecordEngine>) -> Arc<Self> {
        let none = || -> Mutex<Trouble> { Mutex::new(Box::new(|_| None)) };
        Arc::new(Troubled { inner, applies: none(), reads: none(), hangs: Mutex::default() })
    }

    pub fn fail_applies(&self, of: impl Fn(&Key) -> bool + Send + 'static) {
        *self.applies.lock().unwrap() = Box::new(move |key| of(key).then(no_answer));
    }

    fn fail_reads(&self, of: impl Fn(&Key) -> bool + Send + 'static) {
        *self.reads.lock().unwrap() = Box::new(move |key| of(key).then(no_answer));
    }
}

fn no_answer() -> EngineError {
    EngineError { kind: ErrorKind::Retryable, operation: "test", key: String::new(), message: "no answer".into() }
}

#[async_trait::async_trait]
impl RecordEngine for Troubled {
    fn name(&self) -> &'static str {
        "troubled"
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        let hangs = *self.hangs.lock().unwrap();
        if rows.iter().any(|row| Some(row.key) == hangs) {
            std::future::pending::<()>().await;
        }
        let failed: Vec<_> = rows.iter().map(|row| self.applies.lock().unwrap()(&row.key)).collect();
        let mut results = Vec::new();
        for (row, failed) in rows.iter().zip(failed) {
            results.push(match failed {
                Some(error) => Err(error),
                None => self.inner.apply(std::slice::from_ref(row)).await.remove(0),
            });
        }
        results
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        let failed: Vec<_> = keys.iter().map(|key| self.reads.lock().unwrap()(key)).collect();
        let read = self.inner.read(keys).await;
        failed.into_iter().zip(read).map(|(failed, read)| failed.map_or(read, Err)).collect()
    }

    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        self.inner.query(index, from, to, limit).await
    }

    async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        self.inner.scan(set, cursor, limit).await
    }

    async fn close(&self) -> Result<(), EngineError> {
        self.inner.close().await
    }
}

/// A world over an engine that can be made to have trouble.
pub async fn troubled() -> (World, Arc<Troubled>) {
    let world = World::new().await;
    let engine = Troubled::over(world.memory.clone());
    (world.over(engine.clone()), engine)
}

/// Why the instance ended.
async fn end_of(running: Running) -> String {
    let ended = tokio::time::timeout(Duration::from_secs(60), running.task).await.expect("it goes on");
    ended.unwrap().expect_err("it was asked to stop").to_string()
}

/// A task that dies without a word leaves whoever waits for it waiting for ever.
#[tokio::test(start_paused = true)]
async fn a_panic_ends_the_instance() {
    let (world, engine) = troubled().await;
    let running = world.start();
    world.seed(1, 1).await;
    world.until_consumed().await;
    *engine.applies.lock().unwrap() = Box::new(|_| panic!("out of order"));
    world.seed(2, 1).await;
    let why = end_of(running).await;
    assert!(why.contains("writing to the store panicked: out of order"), "{why}");

    let (world, engine) = troubled().await;
    let running = world.start();
    let seed = world.seed(1, 1).await;
    world.until_consumed().await;
    *engine.reads.lock().unwrap() = Box::new(|_| panic!("out of order"));
    world.validate(&spend(&[spend(&[seed.coin(0)], 1, 1).coin(0)], 1, 2)).await;
    let why = end_of(running).await;
    assert!(why.contains("reading from the store panicked: out of order"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_chain_ends_the_instance() {
    let (world, engine) = troubled().await;
    let running = world.start();
    world.seed(1, 1).await;
    world.until_consumed().await;
    *engine.applies.lock().unwrap() = Box::new(|_| panic!("out of order"));
    world.mine(1, &[]).await;
    let why = end_of(running).await;
    assert!(why.contains("the worker of the chain panicked: out of order"), "{why}");
}

/// What is unmet, after a while.
async fn reasons_after(seconds: u64, running: &Running) -> Vec<&'static str> {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    running.health.ready().reasons.keys().copied().collect()
}

#[tokio::test(start_paused = true)]
async fn a_read_that_failed_and_came_is_over() {
    let (world, engine) = troubled().await;
    let seed = world.seed(1, 1).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    let running = world.start();
    world.until_consumed().await;
    engine.fail_reads(|_| true);
    // It waits for its parent, and so looks at its own record.
    world.validate(&spend(&[parent.coin(0)], 1, 2)).await;
    assert_eq!(reasons_after(2, &running).await, ["store_reachable"]);
    engine.fail_reads(|_| false);
    assert_eq!(reasons_after(2, &running).await, [""; 0]);
    world.validate(&parent).await;
    world.until_consumed().await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_store_is_reachable_when_the_last_has_an_answer() {
    let (mut world, engine) = troubled().await;
    world.settings.pipeline.dispatch.batch_size = 1;
    let running = world.start();
    engine.fail_applies(|key| matches!(key, Key::Page(..)));
    for tag in 1..=3 {
        world.seed(tag, 1).await;
    }
    assert_eq!(reasons_after(5, &running).await, ["store_reachable"]);
    let third = World::partial(3, 1).txid;
    engine.fail_applies(move |key| *key == Key::master(third));
    assert_eq!(reasons_after(5, &running).await, ["store_reachable"]);
    assert!(running.health.live().ok);
    engine.fail_applies(|_| false);
    assert_eq!(reasons_after(5, &running).await, [""; 0]);
    world.until_consumed().await;
    running.stop().await;
}

/// Its wall clock is put back by an hour: nothing takes an hour longer.
#[tokio::test(start_paused = true)]
async fn a_wall_clock_that_is_put_back_holds_up_nothing() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    world.validate_locked(&parent).await;
    let running = world.start();
    world.until_consumed().await;
    let child = spend(&[parent.coin(0)], 1, 2);
    world.validate(&child).await;
    // A block that waits has to say so, too.
    world.mine(1, &[&spend(&[seed.coin(0)], 1, 9)]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.clock.step(-3_600_000);
    assert_eq!(reasons_after(30, &running).await, ["chain_running"]);
    let state = world.page(&child).await.map(|page| page.state());
    assert!(matches!(state, Some(TxState::Conflicting(_))), "its grace is over: {state:?}");
    running.kill().await;
}

#[tokio::test(start_paused = true)]
async fn who_cannot_commit_is_not_ready() {
    let world = World::new().await;
    let (broker, rules) = TroubledBroker::over(&world);
    rules.refuse(|asked, _| (asked == Asked::Commit).then_some(BrokerErrorKind::Refused));
    let running = start_on(&world, broker);
    world.seed(1, 1).await;
    world.mine(1, &[]).await;
    assert_eq!(reasons_after(10, &running).await, ["chain_committed", "offsets_committed"]);
    let why = running.health.ready().reasons["offsets_committed"].clone();
    assert!(why.contains("Commit of txs/") && why.contains("is refused"), "{why}");
    rules.refuse(|_, _| None);
    assert_eq!(reasons_after(5, &running).await, [""; 0]);
    world.until_consumed().await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_does_not_know_what_the_store_has_forgotten_commits_nothing_and_is_not_ready() {
    let world = World::forgetful().await;
    let running = world.start();
    world.seed(1, 1).await;
    world.until_consumed().await;
    world.nodes.set(Faults { failed_read: 1.0, ..Faults::default() });
    let unmet = reasons_after(30, &running).await;
    assert!(unmet.contains(&"chain_committed") && unmet.contains(&"offsets_committed"), "{unmet:?}");
    world.nodes.set(Faults::default());
    assert_eq!(reasons_after(30, &running).await, [""; 0]);
    running.stop().await;
}

/// A block that waits keeps a parent from being proven missing, for ever: a restart would not end that.
#[tokio::test(start_paused = true)]
async fn a_long_wait_is_named_and_no_stall() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    let running = world.start();
    world.until_consumed().await;
    world.mine(1, &[&spend(&[seed.coin(0)], 1, 1)]).await;
    let child = spend(&[spend(&[seed.coin(1)], 1, 2).coin(0)], 1, 3);
    world.validate(&child).await;
    assert_eq!(reasons_after(2, &running).await, [""; 0]);
    assert_eq!(running.health.ready().waits, None, "not longer than usual");
    // Longer than anything may stall.
    assert_eq!(reasons_after(1_500, &running).await, ["chain_running"]);
    let report = running.health.live();
    let named = |waits: &Option<String>| waits.as_ref().is_some_and(|waits| waits.contains(&child.txid.to_string()));
    assert!(report.ok && named(&report.waits) && named(&running.health.ready().waits), "{report:?}");
    assert!(running.metrics.longest_wait_seconds.get() > 1_000);
    running.kill().await;
}

/// One partition is halted. What moves in another, and never ends, is a stall all the same.
#[tokio::test(start_paused = true)]
async fn a_halt_neither_is_a_stall_nor_hides_one() {
    let (mut world, engine) = troubled().await;
    world.settings.pipeline.dead_letter_limits.consecutive = 3;
    let running = world.start();
    for _ in 0..20 {
        world.produce("txs", b"poison", vec![9]).await;
    }
    assert_eq!(reasons_after(1_500, &running).await, ["partitions_running"]);
    assert!(running.health.live().ok);
    let poisoned = partition_of(b"poison", PARTITIONS);
    let tag = (1..).find(|tag| partition_of(&[*tag; 32], PARTITIONS) != poisoned).unwrap();
    *engine.hangs.lock().unwrap() = Some(Key::master(World::partial(tag, 1).txid));
    world.seed(tag, 1).await;
    assert_eq!(reasons_after(1_500, &running).await, ["partitions_running"]);
    assert!(!running.health.live().ok);
    running.kill().await;
}

/// A chain that stands is looked at for every proof: with readers that are kept.
#[tokio::test(start_paused = true)]
async fn a_chain_that_stands_is_looked_at_without_opening_it_again() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    let (broker, rules) = TroubledBroker::over(&world);
    let running = start_on(&world, broker);
    world.mine(1, &[&spend(&[seed.coin(0)], 1, 1)]).await;
    world.validate(&spend(&[spend(&[seed.coin(1)], 1, 2).coin(0)], 1, 3)).await;
    assert_eq!(reasons_after(60, &running).await, ["chain_running"]);
    let opened = rules.opened("chain") + rules.opened("block-mined");
    assert!(opened < 10, "{opened}");
    running.kill().await;
}

/// Neither ends the instance: what may be retried is, and readiness says what is waited for.
#[tokio::test(start_paused = true)]
async fn a_log_that_is_slow_to_answer_is_waited_for() {
    let world = World::new().await;
    let (broker, rules) = TroubledBroker::over(&world);
    let running = start_on(&world, broker);
    world.mine(1, &[]).await;
    world.until_consumed().await;
    for topic in ["decisions", "block-mined"] {
        rules.refuse(move |asked, partition| {
            (asked != Asked::Commit && partition.topic.as_ref() == topic).then_some(BrokerErrorKind::Retryable)
        });
        let listed = world.seed(topic.len() as u8, 1).await;
        let sequence = world.count("block-mined").await + 1;
        world.mine(sequence, &[&listed]).await;
        let unmet = reasons_after(60, &running).await;
        let expected = if topic == "decisions" { "chain_running" } else { "chain_fed" };
        assert!(!running.task.is_finished() && unmet == [expected], "{unmet:?}");
        rules.refuse(|_, _| None);
        world.until_consumed().await;
        assert_eq!(reasons_after(5, &running).await, [""; 0]);
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_is_found_once_the_log_answers() {
    let world = World::new().await;
    for tag in 1..=40 {
        world.seed(tag, 1).await;
    }
    world.run_until_consumed().await;
    for tag in 41..=80 {
        world.seed(tag, 1).await;
    }
    let partition = TopicPartition { topic: "txs".into(), partition: 1 };
    let (_, end) = world.broker.watermarks(&partition).await.unwrap();
    world.broker.truncate(&partition, end - 1).unwrap();
    let (broker, rules) = TroubledBroker::over(&world);
    rules.refuse(|asked, partition| {
        (asked == Asked::Watermarks && partition.topic.as_ref() == "txs").then_some(BrokerErrorKind::Retryable)
    });
    let running = start_on(&world, broker);
    reasons_after(5, &running).await;
    assert!(!running.task.is_finished());
    rules.refuse(|_, _| None);
    assert_eq!(reasons_after(5, &running).await, ["partitions_running"]);
    running.stop().await;
}

/// That a client lost a broker is no outage while the log answers; where it does not, that is said until it does.
#[tokio::test(start_paused = true)]
async fn a_log_that_is_away_is_said_until_it_answers() {
    let world = World::new().await;
    let (broker, rules) = TroubledBroker::over(&world);
    let running = start_on(&world, broker.clone());
    assert_eq!(reasons_after(5, &running).await, [""; 0]);
    let notice = |whole| broker.outages.send_replace(Outage { whole, why: "1/1 brokers are down".into() });
    notice(false);
    assert_eq!(reasons_after(5, &running).await, [""; 0], "another broker answers");
    for whole in [false, true] {
        rules.refuse(|asked, _| (asked == Asked::Topic).then_some(BrokerErrorKind::Retryable));
        notice(whole);
        assert_eq!(reasons_after(5, &running).await, ["broker_reachable"]);
        let why = running.health.ready().reasons["broker_reachable"].clone();
        assert!(why.contains("the broker does not answer") && why.contains("Topic of txs"), "{why}");
        assert_eq!(reasons_after(1_500, &running).await, ["broker_reachable"], "nobody has noticed that it is there");
        assert!(running.health.live().ok, "a restart would not mend it");
        rules.refuse(|_, _| None);
        assert_eq!(reasons_after(5, &running).await, [""; 0]);
    }
    running.stop().await;
}
