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

fn kind(answer: &Result<Outcome, EngineError>) -> ErrorKind {
    answer.as_ref().unwrap_err().kind
}

#[tokio::test]
async fn without_faults_nothing_happens() {
    let engine = engine(1);
    for n in 0..50 {
        assert!(engine.apply(&[create(page(n, 1))]).await[0].is_ok());
    }
    assert_eq!((engine.calls(), engine.injected()), (50, 0));
}

#[tokio::test]
async fn a_lost_request_is_not_done_and_a_lost_reply_is() {
    let engine = engine(1);
    engine.fail_at(2, Fault::LostRequest);
    engine.fail_at(3, Fault::LostReply);
    assert!(engine.apply(&[create(page(1, 1))]).await[0].is_ok());
    assert_eq!(kind(&engine.apply(&[create(page(2, 1))]).await[0]), ErrorKind::Retryable);
    assert_eq!(kind(&engine.apply(&[create(page(3, 1))]).await[0]), ErrorKind::Unknown);
    assert!(!is_there(&engine, 2).await && is_there(&engine, 3).await);
    assert_eq!(engine.injected(), 2);
}

#[tokio::test]
async fn what_brings_too_long_a_body_is_refused_and_the_rest_of_its_batch_is_not() {
    let engine = engine(1);
    let longest = [1, 2].map(|outputs| page(1, outputs).body().unwrap().size());
    assert!(longest[0] < longest[1]);
    engine.set(Faults { longest_body: Some(longest[0]), ..Faults::default() });
    let answers = engine.apply(&[create(page(1, 1)), create(page(2, 2)), create(page(3, 1))]).await;
    assert!(answers[0].is_ok() && answers[2].is_ok());
    assert_eq!(kind(&answers[1]), ErrorKind::TooBig);
    assert!(is_there(&engine, 3).await && !is_there(&engine, 2).await);
    assert_eq!(engine.injected_by_kind(), BTreeMap::from([("too big", 1)]));
    engine.set(Faults { longest_body: Some(longest[1]), ..Faults::default() });
    assert!(engine.apply(&[create(page(2, 2))]).await[0].is_ok());
}

#[tokio::test]
async fn a_late_write_is_done_after_so_many_calls() {
    let engine = engine(1);
    engine.fail_at(1, Fault::Late(Late::Calls(2)));
    assert_eq!(kind(&engine.apply(&[create(page(1, 1))]).await[0]), ErrorKind::Unknown);
    assert!(engine.apply(&[create(page(2, 1))]).await[0].is_ok());
    assert!(!is_there(&engine, 1).await, "too early");
    assert!(engine.apply(&[create(page(3, 1))]).await[0].is_ok());
    assert!(is_there(&engine, 1).await, "never");
}

#[tokio::test(start_paused = true)]
async fn a_late_write_is_done_after_so_much_time() {
    let engine = engine(1);
    engine.fail_at(1, Fault::Late(Late::Time(Duration::from_secs(5))));
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
    engine.fail_at(1, Fault::Late(Late::Calls(1_000)));
    drop(engine.apply(&[create(page(1, 1))]).await);
    engine.deliver_late().await;
    assert!(is_there(&engine, 1).await);
}

#[tokio::test]
async fn half_of_a_batch_is_done_and_nobody_is_told_which() {
    let engine = engine(1);
    engine.fail_at(1, Fault::HalfApplied);
    let rows: Vec<Row> = (0..100).map(|n| create(page(n, 1))).collect();
    assert!(engine.apply(&rows).await.iter().all(|answer| kind(answer) == ErrorKind::Unknown));
    let mut done = 0;
    for n in 0..100 {
        done += u8::from(is_there(&engine, n).await);
    }
    assert!((20..80).contains(&done), "{done}");
}

#[tokio::test]
async fn busy_keys_are_refused_and_the_others_are_done() {
    let engine = engine(1);
    engine.fail_at(1, Fault::KeyBusy);
    let rows: Vec<Row> = (0..100).map(|n| create(page(n, 1))).collect();
    let answers = engine.apply(&rows).await;
    for (n, answer) in (0..100).zip(&answers) {
        assert_eq!(answer.is_ok(), is_there(&engine, n).await, "{n}: {answer:?}");
        assert!(answer.is_ok() || kind(answer) == ErrorKind::Retryable);
    }
    assert!(answers.iter().any(Result::is_err) && answers.iter().any(Result::is_ok));
    engine.fail_at(1, Fault::KeyBusy);
    assert_eq!(kind(&engine.apply(&[create(page(200, 1))]).await[0]), ErrorKind::Retryable, "at least one row");
}

const MANY: Faults = Faults {
    lost_request: 0.1,
    lost_reply: 0.1,
    late: 0.0,
    late_within_calls: 0,
    half_applied: 0.1,
    key_busy: 0.1,
    repeated: 0.05,
    forgets: 0.0,
    forgets_at_most: 0,
    failed_read: 0.1,
    delayed: 0.1,
    delay_within: Duration::from_millis(3),
    longest_body: None,
};

/// The kinds of a run's answers.
async fn story(seed: u64) -> Vec<Option<ErrorKind>> {
    let engine = engine(seed).with(Faults { late: 0.2, late_within_calls: 4, ..MANY });
    let mut story = Vec::new();
    for n in 0..100 {
        let rows = [create(page(n, 2)), spend(txid(n / 2), n, &[0])];
        story.extend(engine.apply(&rows).await.into_iter().map(|answer| answer.err().map(|error| error.kind)));
        let read = engine.read(&[Key::master(txid(n))]).await.remove(0);
        story.push(read.err().map(|error| error.kind));
    }
    story
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_tells_the_same_story() {
    let first = story(7).await;
    assert_eq!(first, story(7).await);
    assert_ne!(first, story(8).await);
    assert!(first.contains(&None) && first.contains(&Some(ErrorKind::Retryable)));
    assert!(first.contains(&Some(ErrorKind::Unknown)));
}

#[tokio::test(start_paused = true)]
async fn with_repeats_a_faulty_engine_conforms() {
    for seed in 0..3 {
        let engine = Arc::new(engine(seed).with(MANY));
        conformance::run(engine.clone()).await;
        assert!(engine.injected() > 100, "{} faults", engine.injected());
    }
}

#[tokio::test]
async fn a_healed_engine_does_not_fail() {
    let engine = engine(1).with(Faults { lost_request: 1.0, ..Faults::default() });
    assert!(engine.apply(&[create(page(1, 1))]).await[0].is_err());
    engine.set(Faults::default());
    assert!(engine.apply(&[create(page(1, 1))]).await[0].is_ok());
}

fn forgetful(seed: u64) -> FaultEngine {
    let clock = Clock::simulated(0);
    let memory = MemoryEngine::forgetful(RULES, clock.clone(), Duration::from_secs(1));
    FaultEngine::forgetful(Arc::new(memory), clock, seed)
}

#[tokio::test(start_paused = true)]
async fn a_node_that_restarts_forgets_its_last_writes_and_what_was_on_its_way_to_it() {
    let engine = forgetful(1);
    let before = engine.incarnation().await.unwrap();
    engine.apply(&[create(page(1, 1))]).await;
    tokio::time::advance(Duration::from_secs(2)).await;
    engine.apply(&[create(page(2, 1)), create(page(3, 1))]).await;
    engine.fail_at(1, Fault::Late(Late::Calls(1)));
    engine.apply(&[create(page(4, 1)), create(page(5, 1))]).await;
    assert_eq!(engine.incarnation().await.unwrap(), before);
    let of_the_node = |key: &Key| [2, 4].map(|n| Key::master(txid(n))).contains(key);
    assert_eq!(engine.forget(Duration::from_secs(1), of_the_node), Some(1));
    assert_ne!(engine.incarnation().await.unwrap(), before);
    engine.deliver_late().await;
    for (n, there) in [(1, true), (2, false), (3, true), (4, false), (5, true)] {
        assert_eq!(is_there(&engine, n).await, there, "{n}");
    }
}

#[tokio::test(start_paused = true)]
async fn by_chance_it_forgets_so_often_and_no_more() {
    let engine = forgetful(3).with(Faults { forgets: 1.0, forgets_at_most: 4, ..Faults::default() });
    let mut lost = 0;
    for n in 0..40 {
        assert!(engine.apply(&[create(page(n, 1))]).await[0].is_ok());
        lost += usize::from(!is_there(&engine, n).await);
    }
    assert_eq!(engine.injected(), 4);
    assert!(lost > 0, "a write that was answered is gone");
    assert_eq!(self::engine(1).forget(Duration::from_secs(1), |_| true), None);
}
