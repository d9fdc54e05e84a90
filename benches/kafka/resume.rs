//! Time without completions after SIGKILL: `utxo-store run` on a store of its own, killed and restarted at once.
//!
//! At the kill every event is committed, so each later completion is a new one. The clock runs from the start of the
//! new process; configuration and store are the defaults.

use std::{
    thread,
    time::{Duration, Instant},
};

use utxo_store::broker::{Broker, kafka::KafkaBroker};

use crate::{
    measure::env_number,
    program::{Bench, Instance, block_on, until},
};

/// Transactions before and after each kill.
const EVENTS_PER_KILL: u64 = 1_000;
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Limit far above any session timeout.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Values that the configuration of the tests shortens, at their defaults (`deploy/utxo-store.toml`).
const DEFAULTS: [(&str, &str); 6] = [
    ("UTXO_STORE__KAFKA__SESSION_TIMEOUT_MS", "45000"),
    ("UTXO_STORE__KAFKA__HEARTBEAT_INTERVAL_MS", "3000"),
    ("UTXO_STORE__KAFKA__MAX_POLL_INTERVAL_MS", "300000"),
    ("UTXO_STORE__KAFKA__FETCH_WAIT_MAX_MS", "50"),
    ("UTXO_STORE__KAFKA__FETCH_MIN_BYTES", "65536"),
    ("UTXO_STORE__INGEST__COMMIT_INTERVAL_MS", "1000"),
];

/// Measures and prints one line.
pub fn measure(name: &str, is_static: bool, brokers: &str) {
    let kills = env_number("KAFKA_KILLS", 5);
    let mut variables = DEFAULTS.to_vec();
    if is_static {
        variables.push(("UTXO_STORE__KAFKA__INSTANCE_ID", "bench-0"));
    }
    let bench = Bench::on(brokers);
    bench.create_topics();
    let broker = bench.broker();
    let all_committed = |sent| bench.try_committed(&broker).is_ok_and(|committed| committed == sent);
    let mut instance = bench.start_with(&variables);
    let mut sent = 0;
    let (mut completed, mut committed) = (Vec::new(), Vec::new());
    for _ in 0..kills {
        send(&bench, &broker, &mut sent);
        until("every event is committed", || all_committed(sent));
        // Dropping the instance sends SIGKILL.
        drop(instance);
        let started = Instant::now();
        instance = bench.start_unready_with(&variables);
        send(&bench, &broker, &mut sent);
        completed.push(seconds_until(started, || has_completed(&instance)));
        committed.push(seconds_until(started, || all_committed(sent)));
    }
    println!(
        "{name:<20} first completion {}; all {EVENTS_PER_KILL} committed {} ({kills} kills)",
        summarize(completed),
        summarize(committed)
    );
}

fn seconds_until(started: Instant, mut condition: impl FnMut() -> bool) -> f64 {
    while !condition() {
        assert!(started.elapsed() < TIMEOUT, "the instance makes no progress");
        thread::sleep(POLL_INTERVAL);
    }
    started.elapsed().as_secs_f64()
}

fn has_completed(instance: &Instance) -> bool {
    const COMPLETED: &str = "utxo_transactions_completed_total{result=\"live\"} ";
    let metrics = instance.get("/metrics");
    metrics.lines().any(|line| line.strip_prefix(COMPLETED).is_some_and(|count| count != "0"))
}

fn summarize(mut seconds: Vec<f64>) -> String {
    seconds.sort_by(f64::total_cmp);
    let [least, median, most] = [0, seconds.len() / 2, seconds.len() - 1].map(|at| seconds[at]);
    format!("after {median:.2} s ({least:.2} to {most:.2})")
}

/// Sends partial transactions, which need no parents.
fn send(bench: &Bench, broker: &KafkaBroker, sent: &mut u64) {
    block_on(async {
        let producer = broker.producer().await.expect("the broker is ours");
        producer.produce_all(bench.partials(*sent..*sent + EVENTS_PER_KILL)).await.expect("acknowledged");
    });
    *sent += EVENTS_PER_KILL;
}
