//! How long nothing is done after SIGKILL: `utxo-store run` on a store of its own, killed and started again at once.
//!
//! Nothing is left over when it is killed, so whatever completes afterwards was never completed before. The clock runs from the start of
//! the new process; configuration and store are the defaults.

use std::{
    thread,
    time::{Duration, Instant},
};

use utxo_store::broker::{Broker, kafka::KafkaBroker};

use crate::{
    measure::size,
    program::{Bench, Instance, block_on, until},
};

/// Transactions before and behind each kill.
const EVENTS: u64 = 1_000;
const LOOK: Duration = Duration::from_millis(5);
/// Far beyond what any group waits for a member.
const PATIENCE: Duration = Duration::from_secs(120);
/// What the tests' configuration has shorter is as long as by default (`deploy/utxo-store.toml`).
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
    let kills = size("KAFKA_KILLS", 5);
    let mut variables = DEFAULTS.to_vec();
    if is_static {
        variables.push(("UTXO_STORE__KAFKA__INSTANCE_ID", "bench-0"));
    }
    let bench = Bench::on(brokers);
    bench.create_topics();
    let broker = bench.broker();
    let all_committed = |sent| bench.committed_as_told(&broker).is_ok_and(|committed| committed == sent);
    let mut instance = bench.start_with(&variables);
    let mut sent = 0;
    let (mut completed, mut committed) = (Vec::new(), Vec::new());
    for _ in 0..kills {
        send(&bench, &broker, &mut sent);
        until("everything is committed", || all_committed(sent));
        // SIGKILL.
        drop(instance);
        let started = Instant::now();
        instance = bench.start_unready_with(&variables);
        send(&bench, &broker, &mut sent);
        completed.push(passed(started, || is_at_work(&instance)));
        committed.push(passed(started, || all_committed(sent)));
    }
    println!(
        "{name:<20} first completion {}; all {EVENTS} committed {} ({kills} kills)",
        told(completed),
        told(committed)
    );
}

fn passed(started: Instant, mut there: impl FnMut() -> bool) -> f64 {
    while !there() {
        assert!(started.elapsed() < PATIENCE, "the instance does not go on");
        thread::sleep(LOOK);
    }
    started.elapsed().as_secs_f64()
}

fn is_at_work(instance: &Instance) -> bool {
    const COMPLETED: &str = "utxo_transactions_completed_total{result=\"live\"} ";
    let metrics = instance.get("/metrics");
    metrics.lines().any(|line| line.strip_prefix(COMPLETED).is_some_and(|count| count != "0"))
}

fn told(mut seconds: Vec<f64>) -> String {
    seconds.sort_by(f64::total_cmp);
    let [least, median, most] = [0, seconds.len() / 2, seconds.len() - 1].map(|at| seconds[at]);
    format!("after {median:.2} s ({least:.2} to {most:.2})")
}

/// Partial transactions, which need no parents.
fn send(bench: &Bench, broker: &KafkaBroker, sent: &mut u64) {
    block_on(async {
        let producer = broker.producer().await.expect("the broker is ours");
        producer.produce_all(bench.partials(*sent..*sent + EVENTS)).await.expect("acknowledged");
    });
    *sent += EVENTS;
}
