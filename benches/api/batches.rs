//! Batches of outputs over HTTP in the binary form, beside batched reads of the same records by the raw client.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use reqwest::{Client, header::CONTENT_TYPE};
use utxo_store::tx::Txid;

use crate::{
    generator::{Generator, Shape},
    load::{median, run_closed},
    measure::env_number,
    process::cpu,
    raw::{EngineFeature, RawClient},
    setup::{BenchServers, Deployment, create},
};

/// Keys of a batch.
const BATCH: usize = 1_000;
/// Batches in flight.
const AT_ONCE: usize = 4;

/// Work of one method, per output.
struct Cost {
    outputs_a_second: f64,
    client_us: f64,
    server_us: f64,
    database_us: f64,
}

pub async fn measure(servers: &BenchServers, rounds: u64) {
    let outputs = env_number("API_OUTPUTS", 200_000) as usize;
    let deployment = servers.deploy();
    // The instance writes the meta record; the server of the API needs no instance.
    drop(deployment.start_instance(&[]));
    let engine = deployment.open_engine().await;
    let mut keys: Vec<Txid> = Vec::with_capacity(outputs);
    for messages in Generator::new(Shape::Apart, outputs as u64).chunks(20_000) {
        create(engine.as_ref(), &messages).await;
        keys.extend(messages.iter().map(|message| Txid(message.key[..].try_into().expect("keys are ids"))));
    }
    let server = deployment.start_server(&[]);
    let raw = Arc::new(RawClient::open(&deployment.settings(), EngineFeature::None).await);
    let client = Client::new();
    let url = format!("http://{}/v1/outputs:batch", server.address);
    let bodies: Vec<Bytes> = keys.chunks(BATCH).map(request_body).collect();
    println!("\nBatches of {BATCH} outputs, {AT_ONCE} at once, {outputs} outputs a round; µs of CPU per output\n");
    println!("{:<12} {:>12} {:>10} {:>10} {:>10}", "", "outputs/s", "client", "server", "database");
    let (mut over_http, mut over_raw) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let before = Marks::of(&server, &deployment);
        let time = run_closed(bodies.len(), AT_ONCE, |index| post(client.clone(), url.clone(), bodies[index].clone()));
        let time = time.await;
        over_http.push(before.print("HTTP", outputs, time));
        let before = Marks::of(&server, &deployment);
        let batches: Vec<Vec<Txid>> = keys.chunks(BATCH).map(<[Txid]>::to_vec).collect();
        let time = run_closed(batches.len(), AT_ONCE, |index| {
            let (raw, txids) = (raw.clone(), batches[index].clone());
            async move {
                let (asked, found) = (txids.len(), raw.get(txids).await);
                assert_eq!(found, asked, "each transaction is found");
            }
        });
        let time = time.await;
        over_raw.push(before.print("raw client", outputs, time));
    }
    let rate = |costs: &[Cost]| median(costs.iter().map(|cost| cost.outputs_a_second).collect());
    println!("\nHTTP / raw client: {:.2}", rate(&over_http) / rate(&over_raw));
    let all = |cost: &Cost| cost.client_us + cost.server_us + cost.database_us;
    let all_us = |costs: &[Cost]| median(costs.iter().map(all).collect());
    println!("CPU of all processes, HTTP / raw client: {:.2}", all_us(&over_http) / all_us(&over_raw));
}

/// CPU times at the start of a round.
struct Marks {
    own: Duration,
    server: (u32, Duration),
    database: (u32, Duration),
}

impl Marks {
    fn of(server: &crate::program::Instance, deployment: &Deployment) -> Self {
        let (server, database) = (server.child.id(), deployment.database());
        Marks { own: cpu(std::process::id()), server: (server, cpu(server)), database: (database, cpu(database)) }
    }

    fn print(self, name: &str, outputs: usize, time: Duration) -> Cost {
        let each = |used: Duration| used.as_secs_f64() * 1e6 / outputs as f64;
        let since = |(process, before): (u32, Duration)| each(cpu(process) - before);
        let cost = Cost {
            outputs_a_second: outputs as f64 / time.as_secs_f64(),
            client_us: each(cpu(std::process::id()) - self.own),
            server_us: since(self.server),
            database_us: since(self.database),
        };
        let Cost { outputs_a_second, client_us, server_us, database_us } = cost;
        println!("{name:<12} {outputs_a_second:>12.0} {client_us:>10.2} {server_us:>10.2} {database_us:>10.2}");
        cost
    }
}

/// Formats the first outputs of transactions as the binary request.
pub fn request_body(txids: &[Txid]) -> Bytes {
    txids.iter().flat_map(|txid| [&txid.0[..], &0_u32.to_le_bytes()].concat()).collect::<Vec<u8>>().into()
}

/// Sends a batch, and checks that each key has a record and that each output is free.
async fn post(client: Client, url: String, body: Bytes) {
    let keys = body.len() / 36;
    let request = client.post(url).header(CONTENT_TYPE, "application/octet-stream").body(body);
    let answer = request.send().await.expect("the server answers");
    assert_eq!(answer.status(), 200);
    let answer = answer.bytes().await.expect("the whole answer");
    let (mut rest, mut count) = (&answer[..], 0);
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (record, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        assert_eq!(record.first(), Some(&1), "the output is free");
        (rest, count) = (after, count + 1);
    }
    assert_eq!(count, keys);
}
