//! Readiness and liveness during faults, and faults that end the instance.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use utxo_store::{
    broker::{Broker, BrokerErrorKind, Outage, TopicPartition, partitioner::partition_of},
    engine::{self, EngineError, ErrorKind, RecordEngine, Row, fault::EngineFaults},
    record::{Key, Outcome, Record, TxState},
};

use crate::{
    failing_broker::{FailingBroker, LogCall, start_on},
    harness::{PARTITIONS, Running, World, spend},
};

/// Tells the error that an engine returns for a key.
type FailureRule = Arc<dyn Fn(&Key) -> Option<EngineError> + Send + Sync>;

/// An engine that fails for some keys.
pub struct FailingEngine {
    inner: Arc<dyn RecordEngine>,
    applies: Mutex<FailureRule>,
    reads: Mutex<FailureRule>,
    /// The key whose operations are never answered.
    pub hangs: Mutex<Option<Key>>,
    /// True while no request is answered; the requests are answered afterwards.
    is_frozen: AtomicBool,
}

impl FailingEngine {
    fn over(inner: Arc<dyn RecordEngine>) -> Arc<Self> {
        let none = || -> Mutex<FailureRule> { Mutex::new(Arc::new(|_| None)) };
        let is_frozen = AtomicBool::new(false);
        Arc::new(FailingEngine { inner, applies: none(), reads: none(), hangs: Mutex::default(), is_frozen })
    }

    pub fn fail_applies(&self, of: impl Fn(&Key) -> bool + Send + Sync + 'static) {
        *self.applies.lock().unwrap() = Arc::new(move |key| of(key).then(no_answer));
    }

    /// Answers no request from now on, or answers all again.
    pub fn freeze(&self, is_frozen: bool) {
        self.is_frozen.store(is_frozen, Ordering::Relaxed);
    }

    async fn thaw(&self) {
        while self.is_frozen.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub fn fail_reads(&self, of: impl Fn(&Key) -> bool + Send + Sync + 'static) {
        *self.reads.lock().unwrap() = Arc::new(move |key| of(key).then(no_answer));
    }
}

fn no_answer() -> EngineError {
    EngineError { kind: ErrorKind::Retryable, operation: "test", key: String::new(), message: "no answer".into() }
}

impl engine::EngineDecorator for FailingEngine {
    fn inner(&self) -> &dyn RecordEngine {
        &*self.inner
    }

    fn name(&self) -> &'static str {
        "troubled"
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        self.thaw().await;
        let hangs = *self.hangs.lock().unwrap();
        if rows.iter().any(|row| Some(row.key) == hangs) {
            std::future::pending::<()>().await;
        }
        // Outside the lock: a rule may panic or block, and other tasks of the instance go on.
        let rule = self.applies.lock().unwrap().clone();
        let failed: Vec<_> = rows.iter().map(|row| rule(&row.key)).collect();
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
        self.thaw().await;
        let rule = self.reads.lock().unwrap().clone();
        let failed: Vec<_> = keys.iter().map(|key| rule(key)).collect();
        let read = self.inner.read(keys).await;
        failed.into_iter().zip(read).map(|(failed, read)| failed.map_or(read, Err)).collect()
    }
}

/// Returns a world over an engine that can be made to fail.
pub async fn failing_world() -> (World, Arc<FailingEngine>) {
    let world = World::new().await;
    let engine = FailingEngine::over(world.memory.clone());
    (world.over(engine.clone()), engine)
}

/// Returns the error with which the instance ended.
async fn end_of(running: Running) -> String {
    let ended = tokio::time::timeout(Duration::from_secs(60), running.task).await.expect("the instance ends in time");
    ended.unwrap().expect_err("the instance ended with an error").to_string()
}

/// A task that dies silently would leave its waiters waiting for ever.
#[tokio::test(start_paused = true)]
async fn a_panic_ends_the_instance() {
    let (world, engine) = failing_world().await;
    let running = world.start();
    world.seed(1, 1).await;
    world.until_consumed().await;
    *engine.applies.lock().unwrap() = Arc::new(|_| panic!("out of order"));
    world.seed(2, 1).await;
    let why = end_of(running).await;
    assert!(why.contains("writing to the store panicked: out of order"), "{why}");

    let (world, engine) = failing_world().await;
    let running = world.start();
    let seed = world.seed(1, 1).await;
    world.until_consumed().await;
    *engine.reads.lock().unwrap() = Arc::new(|_| panic!("out of order"));
    world.validate(&spend(&[spend(&[seed.coin(0)], 1, 1).coin(0)], 1, 2)).await;
    let why = end_of(running).await;
    assert!(why.contains("reading from the store panicked: out of order"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_chain_ends_the_instance() {
    let (world, engine) = failing_world().await;
    let running = world.start();
    world.seed(1, 1).await;
    world.until_consumed().await;
    // The commits of the instance write the meta record.
    *engine.applies.lock().unwrap() = Arc::new(|key| match key {
        Key::Meta => None,
        _ => panic!("out of order"),
    });
    world.mine(1, &[]).await;
    let why = end_of(running).await;
    assert!(why.contains("the worker of the chain panicked: out of order"), "{why}");
}

/// Returns the unmet conditions after this time.
async fn reasons_after(seconds: u64, running: &Running) -> Vec<&'static str> {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    running.health.ready().reasons.keys().copied().collect()
}

#[tokio::test(start_paused = true)]
async fn a_repeated_read_clears_store_reachable() {
    let (world, engine) = failing_world().await;
    let seed = world.seed(1, 1).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    let running = world.start();
    world.until_consumed().await;
    engine.fail_reads(|_| true);
    // The child waits for its parent, and therefore reads its own record.
    world.validate(&spend(&[parent.coin(0)], 1, 2)).await;
    assert_eq!(reasons_after(2, &running).await, ["store_reachable"]);
    engine.fail_reads(|_| false);
    assert_eq!(reasons_after(2, &running).await, [""; 0]);
    world.validate(&parent).await;
    world.until_consumed().await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_store_is_reachable_once_every_row_has_an_answer() {
    let (mut world, engine) = failing_world().await;
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

/// An idle instance sends no request of its own to the store.
#[tokio::test(start_paused = true)]
async fn an_idle_instance_names_a_store_that_stops_answering_within_5_s() {
    let (world, engine) = failing_world().await;
    let running = world.start();
    let seed = world.seed(1, 1).await;
    world.until_consumed().await;
    assert_eq!(reasons_after(60, &running).await, [""; 0]);
    for _ in 0..3 {
        engine.is_frozen.store(true, Ordering::Relaxed);
        assert_eq!(reasons_after(5, &running).await, ["store_reachable"]);
        let why = running.health.ready().reasons["store_reachable"].clone();
        assert!(why.contains("cannot read the meta record of the store: no answer within 2.5s"), "{why}");
        assert!(running.health.live().ok, "a restart does not help the store");
        assert_eq!(reasons_after(60, &running).await, ["store_reachable"]);
        engine.is_frozen.store(false, Ordering::Relaxed);
        assert_eq!(reasons_after(5, &running).await, [""; 0]);
    }
    // Work that waits for an answer of its own keeps the condition unmet, though the store answers the probe.
    let child = spend(&[seed.coin(0)], 1, 1);
    let waiting = child.txid;
    engine.fail_applies(move |key| *key == Key::master(waiting));
    world.validate(&child).await;
    assert_eq!(reasons_after(30, &running).await, ["store_reachable"]);
    engine.fail_applies(|_| false);
    assert_eq!(reasons_after(10, &running).await, [""; 0]);
    world.until_consumed().await;
    running.stop().await;
}

/// The wall clock is set back by an hour: no wait takes an hour longer.
#[tokio::test(start_paused = true)]
async fn a_wall_clock_set_back_delays_nothing() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    world.validate_locked(&parent).await;
    let running = world.start();
    world.until_consumed().await;
    let child = spend(&[parent.coin(0)], 1, 2);
    world.validate(&child).await;
    // A waiting block has to become unready too.
    world.mine(1, &[&spend(&[seed.coin(0)], 1, 9)]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.clock.step(-3_600_000);
    assert_eq!(reasons_after(30, &running).await, ["chain_running"]);
    let state = world.page(&child).await.map(|page| page.state());
    assert!(matches!(state, Some(TxState::Conflicting(_))), "the grace of the lock has ended: {state:?}");
    running.kill().await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_cannot_commit_is_not_ready() {
    let world = World::new().await;
    let (broker, rules) = FailingBroker::over(&world);
    rules.refuse(|call, _| (call == LogCall::Commit).then_some(BrokerErrorKind::Refused));
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
async fn an_unknown_incarnation_blocks_commits_and_readiness() {
    let world = World::forgetful().await;
    let running = world.start();
    world.seed(1, 1).await;
    world.until_consumed().await;
    world.nodes.set(EngineFaults { failed_read: 1.0, ..EngineFaults::default() });
    let unmet = reasons_after(30, &running).await;
    assert!(unmet.contains(&"chain_committed") && unmet.contains(&"offsets_committed"), "{unmet:?}");
    world.nodes.set(EngineFaults::default());
    assert_eq!(reasons_after(30, &running).await, [""; 0]);
    running.stop().await;
}

/// A waiting block keeps a parent from being proven missing for ever; a restart would not end the wait.
#[tokio::test(start_paused = true)]
async fn a_long_wait_is_named_and_is_no_stall() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    let running = world.start();
    world.until_consumed().await;
    world.mine(1, &[&spend(&[seed.coin(0)], 1, 1)]).await;
    let child = spend(&[spend(&[seed.coin(1)], 1, 2).coin(0)], 1, 3);
    world.validate(&child).await;
    assert_eq!(reasons_after(2, &running).await, [""; 0]);
    assert_eq!(running.health.ready().waits, None, "the wait is not long yet");
    // The wait is longer than a loop may stall.
    assert_eq!(reasons_after(1_500, &running).await, ["chain_running"]);
    let report = running.health.live();
    let named = |waits: &Option<String>| waits.as_ref().is_some_and(|waits| waits.contains(&child.txid.to_string()));
    assert!(report.ok && named(&report.waits) && named(&running.health.ready().waits), "{report:?}");
    assert!(running.metrics.longest_wait_seconds.get() > 1_000);
    running.kill().await;
}

/// One partition is halted. A batch in another partition that never ends is a stall all the same.
#[tokio::test(start_paused = true)]
async fn a_halt_neither_is_a_stall_nor_hides_one() {
    let (mut world, engine) = failing_world().await;
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

/// Each proof of a missing parent reads the halted chain with cached readers.
#[tokio::test(start_paused = true)]
async fn proofs_read_a_blocked_chain_without_reopening_it() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    let (broker, rules) = FailingBroker::over(&world);
    let running = start_on(&world, broker);
    world.mine(1, &[&spend(&[seed.coin(0)], 1, 1)]).await;
    world.validate(&spend(&[spend(&[seed.coin(1)], 1, 2).coin(0)], 1, 3)).await;
    assert_eq!(reasons_after(60, &running).await, ["chain_running"]);
    let opened = rules.opened("chain") + rules.opened("block-mined");
    assert!(opened < 10, "{opened}");
    running.kill().await;
}

/// A slow topic does not end the instance: retryable calls are repeated, and readiness names the wait.
#[tokio::test(start_paused = true)]
async fn a_slow_log_is_waited_for() {
    let world = World::new().await;
    let (broker, rules) = FailingBroker::over(&world);
    let running = start_on(&world, broker);
    world.mine(1, &[]).await;
    world.until_consumed().await;
    for topic in ["decisions", "block-mined"] {
        rules.refuse(move |call, partition| {
            (call != LogCall::Commit && partition.topic.as_ref() == topic).then_some(BrokerErrorKind::Retryable)
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
async fn a_truncated_partition_is_found_once_the_log_answers() {
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
    let (broker, rules) = FailingBroker::over(&world);
    rules.refuse(|call, partition| {
        (call == LogCall::Watermarks && partition.topic.as_ref() == "txs").then_some(BrokerErrorKind::Retryable)
    });
    let running = start_on(&world, broker);
    reasons_after(5, &running).await;
    assert!(!running.task.is_finished());
    rules.refuse(|_, _| None);
    assert_eq!(reasons_after(5, &running).await, ["partitions_running"]);
    running.stop().await;
}

/// A client that lost a broker is no outage while the log answers; where the log does not answer, readiness says so
/// until it does.
#[tokio::test(start_paused = true)]
async fn readiness_names_an_unreachable_log_until_it_answers() {
    let world = World::new().await;
    let (broker, rules) = FailingBroker::over(&world);
    let running = start_on(&world, broker.clone());
    assert_eq!(reasons_after(5, &running).await, [""; 0]);
    let notice = |is_total| broker.outages.send_replace(Outage { is_total, reason: "1/1 brokers are down".into() });
    notice(false);
    assert_eq!(reasons_after(5, &running).await, [""; 0], "another broker answers");
    for whole in [false, true] {
        rules.refuse(|call, _| (call == LogCall::Topic).then_some(BrokerErrorKind::Retryable));
        notice(whole);
        assert_eq!(reasons_after(5, &running).await, ["broker_reachable"]);
        let why = running.health.ready().reasons["broker_reachable"].clone();
        assert!(why.contains("the broker does not answer") && why.contains("Topic of txs"), "{why}");
        assert_eq!(reasons_after(1_500, &running).await, ["broker_reachable"], "the log has not answered yet");
        assert!(running.health.live().ok, "a restart would not help");
        rules.refuse(|_, _| None);
        assert_eq!(reasons_after(5, &running).await, [""; 0]);
    }
    running.stop().await;
}
