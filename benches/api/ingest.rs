//! Ingest from a real broker: its rate with and without outcomes, and single outputs asked beside it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use reqwest::Client;
use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};
use utxo_store::{
    broker::{
        Broker, OutgoingMessage, Producer,
        kafka::{KafkaBroker, KafkaSettings},
    },
    config::Config,
    embed::wiring,
    tx::Txid,
};

use crate::{
    generator::{Generator, Shape},
    load::{median, percentile_ms, run_open},
    measure::env_number,
    process::cpu,
    program::Instance,
    setup::{BenchServers, Deployment, create},
};

/// Messages per call of the producer.
const CALL: usize = 20_000;
const TICK: Duration = Duration::from_millis(5);
const POLL: Duration = Duration::from_millis(5);

/// Asks for single outputs at a fixed rate: alone, and beside an ingest at half its rate, which is measured first. The
/// same load on the probe of liveness, which asks no store, shows the share of HTTP and of the wait for a core.
pub async fn measure_single_outputs(servers: &BenchServers) {
    let rate = env_number("API_SINGLE_RATE", 2_000) as f64;
    let seconds = env_number("API_SINGLE_SECONDS", 20);
    let time = Duration::from_secs(seconds);
    let (full, ..) = consume_all(servers, true).await;
    let half = full / 2.0;
    println!(
        "\nSingle outputs at {rate:.0} a second for {seconds} s; the ingest takes {full:.0} transactions a second"
    );
    for (has_ingest, has_load) in [(false, true), (true, false), (true, true)] {
        let deployment = servers.deploy();
        let instance = deployment.start_instance(&[]);
        let server = deployment.start_server(&[]);
        // The ingest starts with the load, and lasts a little longer.
        let transactions = if has_ingest { (half * (time.as_secs_f64() + 2.0)) as u64 } else { 0 };
        let known = fill(&deployment, transactions.max(100_000)).await;
        let messages = messages(&deployment, transactions);
        let sending = tokio::spawn(send_paced(producer(&deployment).await, messages, half));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (before, begun) = (completed(&instance), Instant::now());
        let latencies = if has_load {
            let path = |index: usize| format!("/v1/outputs/{}/0", known[index.wrapping_mul(7_919) % known.len()]);
            ask(&server.address, path, rate, time).await
        } else {
            tokio::time::sleep(time).await;
            Vec::new()
        };
        let ingested = (completed(&instance) - before) as f64 / begun.elapsed().as_secs_f64();
        let what = match (has_ingest, has_load) {
            (false, _) => "alone",
            (true, false) => "ingest at half its rate",
            (true, true) => "both",
        };
        print!("{what:<26}");
        if has_load {
            print!(" {}; ", percentiles(&latencies));
        }
        if has_ingest {
            print!(" {ingested:.0} of {half:.0} transactions a second are completed");
        }
        println!();
        sending.abort();
        if !has_ingest {
            let latencies = ask(&server.address, |_| "/health/live".to_owned(), rate, time).await;
            println!("{:<26} {}", "the probe of liveness", percentiles(&latencies));
        }
    }
}

fn percentiles(latencies: &[Duration]) -> String {
    let [p50, p99, longest] = [0.5, 0.99, 1.0].map(|share| percentile_ms(latencies, share));
    format!("p50 {p50:.1} ms, p99 {p99:.1} ms, longest {longest:.1} ms")
}

/// Compares the ingest with and without outcomes of live transactions, round by round.
pub async fn measure_outcomes(servers: &BenchServers, rounds: u64) {
    println!(
        "\nIngest with and without outcomes of live transactions: transactions/s, and µs of CPU of the instance\n"
    );
    let mut measured = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        // The first of a pair has the machine as the last pair has left it: the order alternates.
        for has_outcomes in if round % 2 == 0 { [false, true] } else { [true, false] } {
            let (rate, cpu_us) = consume_all(servers, has_outcomes).await;
            println!("{:<10} {rate:>12.0} {cpu_us:>10.2}", if has_outcomes { "with" } else { "without" });
            measured[usize::from(has_outcomes)].push((rate, cpu_us));
        }
    }
    let ratio = |figure: fn(&(f64, f64)) -> f64| {
        let [without, with] = [0, 1].map(|index: usize| median(measured[index].iter().map(figure).collect()));
        with / without
    };
    println!("\nwith / without: transactions/s {:.3}, CPU {:.3}", ratio(|pair| pair.0), ratio(|pair| pair.1));
}

/// Lets an instance consume a filled topic. Returns transactions per second, and µs of CPU of the instance per
/// transaction, without the first and the last quarter.
async fn consume_all(servers: &BenchServers, has_outcomes: bool) -> (f64, f64) {
    let transactions = env_number("API_TRANSACTIONS", 400_000);
    let deployment = servers.deploy();
    let outcomes = [("UTXO_STORE__OUTCOMES__LIVE", if has_outcomes { "true" } else { "false" })];
    drop(deployment.start_instance(&outcomes));
    fill_log(&deployment, transactions).await;
    let instance = deployment.start_instance(&outcomes);
    let process = instance.child.id();
    wait_until_completed(&instance, transactions / 4).await;
    let (begun, cpu_before, first) = (Instant::now(), cpu(process), completed(&instance));
    wait_until_completed(&instance, transactions - transactions / 4).await;
    let (time, cpu_used, last) = (begun.elapsed(), cpu(process) - cpu_before, completed(&instance));
    let counted = (last - first) as f64;
    (counted / time.as_secs_f64(), cpu_used.as_secs_f64() * 1e6 / counted)
}

/// Creates the parents of the transactions in the store, and writes the events of the transactions to the log.
pub async fn fill_log(deployment: &Deployment, transactions: u64) {
    fill(deployment, transactions).await;
    let producer = producer(deployment).await;
    let mut messages = messages(deployment, transactions);
    while !messages.is_empty() {
        let rest = messages.split_off(messages.len().saturating_sub(CALL));
        producer.produce_all(rest).await.expect("the log takes the events");
    }
}

/// Sends a request for each path; returns the sorted latencies.
async fn ask(address: &str, path: impl Fn(usize) -> String, rate: f64, time: Duration) -> Vec<Duration> {
    let client = Client::new();
    let refused = Arc::new(Mutex::new(BTreeMap::<u16, u64>::new()));
    let latencies = run_open(rate, time, |index| {
        let (client, url) = (client.clone(), format!("http://{address}{}", path(index)));
        let refused = refused.clone();
        async move {
            let answer = client.get(url).send().await.expect("the server answers");
            if answer.status() != 200 {
                let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
                *refused.entry(answer.status().as_u16()).or_default() += 1;
            }
            answer.bytes().await.expect("the whole answer");
        }
    });
    let latencies = latencies.await;
    let refused = refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if !refused.is_empty() {
        print!("refused, by status: {refused:?}; ");
    }
    latencies
}

/// Creates the parents of the transactions in the store; returns their txids.
pub async fn fill(deployment: &Deployment, transactions: u64) -> Arc<Vec<Txid>> {
    let engine = deployment.open_engine().await;
    let mut known = Vec::new();
    for messages in Generator::new(Shape::Apart, transactions).parents_from_before() {
        create(engine.as_ref(), &messages).await;
        known.extend(messages.iter().map(|message| Txid(message.key[..].try_into().expect("keys are ids"))));
    }
    Arc::new(known)
}

/// Returns the events of the transactions, the last one first.
fn messages(deployment: &Deployment, transactions: u64) -> Vec<OutgoingMessage> {
    let topic = deployment.program.topic("validated-txs");
    let generated = Generator::new(Shape::Apart, transactions).chunks(CALL).flatten();
    let mut messages: Vec<OutgoingMessage> = generated
        .map(|message| OutgoingMessage {
            topic: topic.clone(),
            key: message.key,
            payload: message.payload,
            ..OutgoingMessage::default()
        })
        .collect();
    messages.reverse();
    messages
}

async fn producer(deployment: &Deployment) -> Arc<dyn Producer> {
    let settings = KafkaSettings {
        brokers: deployment.program.brokers().to_owned(),
        ..wiring::kafka_settings(&Config::default())
    };
    let broker = KafkaBroker::new(settings).expect("the defaults are settings");
    broker.producer().await.expect("the broker runs")
}

/// Sends the events at a rate per second.
async fn send_paced(producer: Arc<dyn Producer>, mut messages: Vec<OutgoingMessage>, rate: f64) {
    let (begun, total) = (Instant::now(), messages.len());
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut running: Vec<JoinHandle<()>> = Vec::new();
    while !messages.is_empty() {
        ticks.tick().await;
        let due = ((begun.elapsed().as_secs_f64() * rate) as usize).min(total);
        let mut batch = messages.split_off(total - due);
        batch.reverse();
        if batch.is_empty() {
            continue;
        }
        let producer = producer.clone();
        running.retain(|sent| !sent.is_finished());
        running.push(tokio::spawn(async move {
            producer.produce_all(batch).await.expect("the log takes the events");
        }));
    }
    for sent in running {
        sent.await.expect("the log takes the events");
    }
}

/// Returns the number of completed transactions of an instance.
pub fn completed(instance: &Instance) -> u64 {
    let metrics = tokio::task::block_in_place(|| instance.get("/metrics"));
    let name = "utxo_transactions_completed_total{result=\"live\"} ";
    let value = metrics.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

pub async fn wait_until_completed(instance: &Instance, transactions: u64) {
    while completed(instance) < transactions {
        tokio::time::sleep(POLL).await;
    }
}
