//! Memory of the server while a long answer is sent, and while streams idle.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use reqwest::Client;
use utxo_store::{
    Config, Event, EventPublisher, Validated,
    event::{PartialOutput, PartialTxEvent},
    open_broker, open_event_bodies,
    tx::{Outpoint, Output, Transaction, TransactionBuilder, Txid},
};

use crate::{
    ingest::fill,
    measure::env_number,
    process::{mib, peak, reset_peak, resident},
    setup::{BenchServers, Deployment},
};

/// Time in which idle streams settle.
const SETTLE: Duration = Duration::from_secs(5);

/// A raw transaction of 200 MB out of the blob store, streamed to one reader.
pub async fn measure_raw(servers: &BenchServers) {
    let size = env_number("API_RAW_BYTES", 200_000_000) as usize;
    let deployment = servers.deploy();
    let instance = deployment.start_instance(&[]);
    let parent = Txid([7; 32]);
    let satoshis = 5_000_000;
    let previous = Output { satoshis, script: &[0x51] };
    // An output that carries data and can never be spent.
    let script = [vec![0x00, 0x6A], vec![0x61; size]].concat();
    let outpoint = Outpoint { txid: parent, vout: 0 };
    let builder = TransactionBuilder::default().input(outpoint, &[0x51], u32::MAX, Some(previous));
    let body = builder.output(0, &script).output(1_000, &[0x51]).extended();
    let txid = Transaction::parse(&body).expect("the builder writes transactions").txid();
    drop(script);
    let publisher = open_publisher(&deployment).await;
    let outputs = vec![PartialOutput { vout: 0, satoshis, script: &[0x51] }];
    let seeded = PartialTxEvent { txid: parent, coinbase: false, height: 1, outputs };
    publisher.publish(&Event::Seeded(seeded)).await.expect("the log takes the event");
    let begun = Instant::now();
    let event = Event::Validated(Validated { tx: &body, height: 800_000, locked: false });
    publisher.publish(&event).await.expect("the log and the objects take the event");
    wait_until_live(&instance.address, txid).await;
    println!(
        "\nA transaction of {:.0} MB by reference is live {:.1} s after its publication; peak memory of the instance: \
         {:.0} MiB",
        body.len() as f64 / 1e6,
        begun.elapsed().as_secs_f64(),
        mib(peak(instance.child.id()))
    );
    drop(instance);
    let server = deployment.start_server(&[]);
    // The first request opens connections and touches the memory of all later ones.
    let client = Client::new();
    let short = client.get(format!("http://{}/v1/transactions/{txid}", server.address)).send().await;
    assert_eq!(short.expect("the server answers").status(), 200);
    let process = server.child.id();
    for format in ["standard", "extended"] {
        reset_peak(process);
        let (before, begun) = (resident(process), Instant::now());
        let url = format!("http://{}/v1/transactions/{txid}/raw?format={format}", server.address);
        let answer = client.get(url).send().await.expect("the server answers");
        assert_eq!(answer.status(), 200);
        let (mut pieces, mut bytes) = (answer.bytes_stream(), 0);
        while let Some(piece) = pieces.next().await {
            bytes += piece.expect("the whole answer").len();
        }
        let seconds = begun.elapsed().as_secs_f64();
        assert!(bytes > size, "{bytes}");
        println!(
            "raw?format={format}: {:.0} MB in {seconds:.2} s ({:.0} MB/s); memory {:.1} MiB, peak {:+.1} MiB",
            bytes as f64 / 1e6,
            bytes as f64 / 1e6 / seconds,
            mib(before),
            mib(peak(process).saturating_sub(before))
        );
    }
}

/// The list of all unmined transactions as NDJSON, read by one client.
pub async fn measure_list(servers: &BenchServers) {
    // Two transactions of the generator have one parent.
    let transactions = 2 * env_number("API_LISTED", 1_000_000);
    let deployment = servers.deploy();
    drop(deployment.start_instance(&[]));
    let listed = fill(&deployment, transactions).await.len() as u64;
    let server = deployment.start_server(&[]);
    let (process, client) = (server.child.id(), Client::new());
    let url = format!("http://{}/v1/transactions?unmined=true", server.address);
    reset_peak(process);
    let (before, begun) = (resident(process), Instant::now());
    let answer = client.get(url).header("Accept", "application/x-ndjson").send().await.expect("the server answers");
    assert_eq!(answer.status(), 200);
    let (mut pieces, mut lines, mut bytes) = (answer.bytes_stream(), 0, 0);
    while let Some(piece) = pieces.next().await {
        let piece = piece.expect("the whole answer");
        bytes += piece.len();
        lines += piece.iter().filter(|byte| **byte == b'\n').count() as u64;
    }
    assert_eq!(lines, listed);
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "\nA list of {lines} unmined transactions, {:.0} MB, in {seconds:.1} s; memory {:.1} MiB, peak {:+.1} MiB",
        bytes as f64 / 1e6,
        mib(before),
        mib(peak(process).saturating_sub(before))
    );
}

/// Streams of outcomes whose clients read nothing new.
pub async fn measure_streams(servers: &BenchServers) {
    let clients = env_number("API_STREAMS", 1_000) as usize;
    let deployment = servers.deploy();
    drop(deployment.start_instance(&[]));
    let server = deployment.start_server(&[]);
    let (process, client) = (server.child.id(), Client::new());
    let url = format!("http://{}/v1/outcomes?from=now", server.address);
    // The first stream starts the reader of the topic.
    let mut streams = vec![client.get(&url).send().await.expect("the server answers")];
    tokio::time::sleep(SETTLE).await;
    let before = resident(process);
    while streams.len() <= clients {
        let stream = client.get(&url).send().await.expect("the server answers");
        assert_eq!(stream.status(), 200);
        streams.push(stream);
    }
    tokio::time::sleep(SETTLE).await;
    let after = resident(process);
    println!(
        "\n{clients} idle streams of outcomes: memory {:.1} MiB before, {:+.1} MiB with them, {:.1} KiB each",
        mib(before),
        mib(after.saturating_sub(before)),
        after.saturating_sub(before) as f64 / 1024.0 / clients as f64
    );
}

/// Opens a publisher on the log and the objects of a case.
pub async fn open_publisher(deployment: &Deployment) -> EventPublisher {
    let config = publisher_config(deployment);
    let broker = open_broker(&config).await.expect("the broker runs");
    let bodies = open_event_bodies(&config).await.expect("the directory can be written").expect("objects.url is set");
    let publisher = EventPublisher::open(broker.as_ref(), config.kafka.topics.clone()).await;
    publisher.expect("the broker runs").with_bodies(bodies)
}

fn publisher_config(deployment: &Deployment) -> Config {
    let program = &deployment.program;
    // The file is the one of the processes: it has the names of the topics.
    drop(program.command(&[], &[]));
    let mut config = Config::load(Some(&program.path("utxo-store.toml"))).expect("the processes load it, too");
    config.objects.url = Some(deployment.objects_url().parse().expect("a URL of a directory"));
    config
}

/// Waits until the API answers that a transaction is live.
pub async fn wait_until_live(address: &str, txid: Txid) {
    wait_for_field(address, txid, "state", |value| value == "live").await;
}

/// Waits until a field of a transaction has a value.
pub async fn wait_for_field(address: &str, txid: Txid, field: &str, is_there: impl Fn(&serde_json::Value) -> bool) {
    let (client, url) = (Client::new(), format!("http://{address}/v1/transactions/{txid}?fields={field}"));
    let begun = Instant::now();
    loop {
        let answer = client.get(&url).send().await.expect("the server answers");
        if answer.status() == 200 {
            let answer: serde_json::Value = answer.json().await.expect("JSON");
            if is_there(&answer[field]) {
                return;
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(300), "{txid} gets no {field} in five minutes");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
