use super::*;
use crate::engine::{
    conformance::{self, RULES, fixtures::*},
    memory::MemoryEngine,
};

fn engine(seed: u64) -> FaultEngine {
    FaultEngine::new(Arc::new(MemoryEngine::new(RULES)), seed)
}

async fn is_there(engine: &FaultEngine, n: u8) -> bool {
    engine.inner.read(&[Key::master(txid(n))]).await[0].as_ref().unwrap().is_some()
}

fn kind(answer: &RowResult) -> ErrorKind {
    answer.as_ref().unwrap_err().kind
}

#[tokio::test]
async fn without_faults_every_call_succeeds() {
    let engine = engine(1);
    for n in 0..50 {
        assert!(engine.apply(&[create(page(n, 1))]).await[0].is_ok());
    }
    assert_eq!((engine.calls(), engine.injected()), (50, 0));
}

#[tokio::test]
async fn a_lost_request_is_not_applied_and_a_lost_reply_is() {
    let engine = engine(1);
    engine.fail_at(2, EngineFault::LostRequest);
    engine.fail_at(3, EngineFault::LostReply);
    assert!(engine.apply(&[create(page(1, 1))]).await[0].is_ok());
    assert_eq!(kind(&engine.apply(&[create(page(2, 1))]).await[0]), ErrorKind::Retryable);
    assert_eq!(kind(&engine.apply(&[create(page(3, 1))]).await[0]), ErrorKind::Unknown);
    assert!(!is_there(&engine, 2).await && is_there(&engine, 3).await);
    assert_eq!(engine.injected(), 2);
}

#[tokio::test]
async fn only_rows_with_too_large_a_body_are_refused() {
    let engine = engine(1);
    let longest = [1, 2].map(|outputs| page(1, outputs).body().unwrap().size());
    assert!(longest[0] < longest[1]);
    engine.set(EngineFaults { longest_body: Some(longest[0]), ..EngineFaults::default() });
    let answers = engine.apply(&[create(page(1, 1)), create(page(2, 2)), create(page(3, 1))]).await;
    assert!(answers[0].is_ok() && answers[2].is_ok());
    assert_eq!(kind(&answers[1]), ErrorKind::TooBig);
    assert!(is_there(&engine, 3).await && !is_there(&engine, 2).await);
    assert_eq!(engine.injected_by_kind(), BTreeMap::from([("too big", 1)]));
    engine.set(EngineFaults { longest_body: Some(longest[1]), ..EngineFaults::default() });
    assert!(engine.apply(&[create(page(2, 2))]).await[0].is_ok());
}

#[tokio::test]
async fn a_late_write_is_applied_after_a_number_of_calls() {
    let engine = engine(1);
    engine.fail_at(1, EngineFault::Late(WriteDelay::Calls(2)));
    assert_eq!(kind(&engine.apply(&[create(page(1, 1))]).await[0]), ErrorKind::Unknown);
    assert!(engine.apply(&[create(page(2, 1))]).await[0].is_ok());
    assert!(!is_there(&engine, 1).await, "too early");
    assert!(engine.apply(&[create(page(3, 1))]).await[0].is_ok());
    assert!(is_there(&engine, 1).await, "never");
}

#[tokio::test(start_paused = true)]
async fn a_late_write_is_applied_after_a_time() {
    let engine = engine(1);
    engine.fail_at(1, EngineFault::Late(WriteDelay::Time(Duration::from_secs(5))));
    assert_eq!(kind(&engine.apply(&[create(page(1, 1))]).await[0]), ErrorKind::Unknown);
    let key = [Key::master(txid(1))];
    tokio::time::advance(Duration::from_secs(4)).await;
    assert!(engine.read(&key).await[0].as_ref().unwrap().is_none(), "too early");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(engine.read(&key).await[0].as_ref().unwrap().is_some(), "never");
}

#[tokio::test]
async fn late_writes_can_be_delivered_at_once() {
    let engine = engine(1);
    engine.fail_at(1, EngineFault::Late(WriteDelay::Calls(1_000)));
    drop(engine.apply(&[create(page(1, 1))]).await);
    engine.deliver_late().await;
    assert!(is_there(&engine, 1).await);
}

#[tokio::test]
async fn half_of_a_batch_is_applied_and_all_answers_are_unknown() {
    let engine = engine(1);
    engine.fail_at(1, EngineFault::HalfApplied);
    let rows: Vec<Row> = (0..100).map(|n| create(page(n, 1))).collect();
    assert!(engine.apply(&rows).await.iter().all(|answer| kind(answer) == ErrorKind::Unknown));
    let mut done = 0;
    for n in 0..100 {
        done += u8::from(is_there(&engine, n).await);
    }
    assert!((20..80).contains(&done), "{done}");
}

#[tokio::test]
async fn busy_keys_are_refused_and_the_others_are_applied() {
    let engine = engine(1);
    engine.fail_at(1, EngineFault::KeyBusy);
    let rows: Vec<Row> = (0..100).map(|n| create(page(n, 1))).collect();
    let answers = engine.apply(&rows).await;
    for (n, answer) in (0..100).zip(&answers) {
        assert_eq!(answer.is_ok(), is_there(&engine, n).await, "{n}: {answer:?}");
        assert!(answer.is_ok() || kind(answer) == ErrorKind::Retryable);
    }
    assert!(answers.iter().any(Result::is_err) && answers.iter().any(Result::is_ok));
    engine.fail_at(1, EngineFault::KeyBusy);
    assert_eq!(kind(&engine.apply(&[create(page(200, 1))]).await[0]), ErrorKind::Retryable, "at least one row");
}

const MANY: EngineFaults = EngineFaults {
    lost_request: 0.1,
    lost_reply: 0.1,
    late: 0.0,
    late_within_calls: 0,
    half_applied: 0.1,
    key_busy: 0.1,
    repeated: 0.05,
    node_restart: 0.0,
    max_node_restarts: 0,
    failed_read: 0.1,
    delayed: 0.1,
    delay_within: Duration::from_millis(3),
    longest_body: None,
};

/// Runs many calls and returns the error kind of each answer.
async fn run_calls(seed: u64) -> Vec<Option<ErrorKind>> {
    let engine = engine(seed).with(EngineFaults { late: 0.2, late_within_calls: 4, ..MANY });
    let mut kinds = Vec::new();
    for n in 0..100 {
        let rows = [create(page(n, 2)), spend(txid(n / 2), n, &[0])];
        kinds.extend(engine.apply(&rows).await.into_iter().map(|answer| answer.err().map(|error| error.kind)));
        let read = engine.read(&[Key::master(txid(n))]).await.remove(0);
        kinds.push(read.err().map(|error| error.kind));
    }
    kinds
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_faults() {
    let first = run_calls(7).await;
    assert_eq!(first, run_calls(7).await);
    assert_ne!(first, run_calls(8).await);
    assert!(first.contains(&None) && first.contains(&Some(ErrorKind::Retryable)));
    assert!(first.contains(&Some(ErrorKind::Unknown)));
}

#[tokio::test(start_paused = true)]
async fn a_faulty_engine_conforms_with_retries() {
    for seed in 0..3 {
        let engine = Arc::new(engine(seed).with(MANY));
        conformance::run(engine.clone()).await;
        assert!(engine.injected() > 100, "{} faults", engine.injected());
    }
}

#[tokio::test]
async fn an_engine_without_faults_again_does_not_fail() {
    let engine = engine(1).with(EngineFaults { lost_request: 1.0, ..EngineFaults::default() });
    assert!(engine.apply(&[create(page(1, 1))]).await[0].is_err());
    engine.set(EngineFaults::default());
    assert!(engine.apply(&[create(page(1, 1))]).await[0].is_ok());
}

fn engine_with_restarts(seed: u64) -> FaultEngine {
    let clock = Clock::simulated(0);
    let memory = MemoryEngine::with_loss_window(RULES, clock.clone(), Duration::from_secs(1));
    FaultEngine::with_restarts(Arc::new(memory), clock, seed)
}

#[tokio::test(start_paused = true)]
async fn a_restarted_node_loses_its_last_writes_and_late_writes_to_it() {
    let engine = engine_with_restarts(1);
    let before = engine.incarnation().await.unwrap();
    engine.apply(&[create(page(1, 1))]).await;
    tokio::time::advance(Duration::from_secs(2)).await;
    engine.apply(&[create(page(2, 1)), create(page(3, 1))]).await;
    engine.fail_at(1, EngineFault::Late(WriteDelay::Calls(1)));
    engine.apply(&[create(page(4, 1)), create(page(5, 1))]).await;
    assert_eq!(engine.incarnation().await.unwrap(), before);
    let of_the_node = |key: &Key| [2, 4].map(|n| Key::master(txid(n))).contains(key);
    assert_eq!(engine.restart_nodes(Duration::from_secs(1), of_the_node), Some(1));
    assert_ne!(engine.incarnation().await.unwrap(), before);
    engine.deliver_late().await;
    for (n, there) in [(1, true), (2, false), (3, true), (4, false), (5, true)] {
        assert_eq!(is_there(&engine, n).await, there, "{n}");
    }
}

#[tokio::test(start_paused = true)]
async fn random_restarts_stop_at_their_maximum() {
    let engine = engine_with_restarts(3).with(EngineFaults {
        node_restart: 1.0,
        max_node_restarts: 4,
        ..EngineFaults::default()
    });
    let mut lost = 0;
    for n in 0..40 {
        assert!(engine.apply(&[create(page(n, 1))]).await[0].is_ok());
        lost += usize::from(!is_there(&engine, n).await);
    }
    assert_eq!(engine.injected(), 4);
    assert!(lost > 0, "no acknowledged write was lost");
    assert_eq!(self::engine(1).restart_nodes(Duration::from_secs(1), |_| true), None);
}
