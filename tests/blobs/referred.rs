//! Transactions and partial transactions whose bodies are objects on S3 or behind a web server: an object that comes
//! late or differs, a place that does not answer for a while, and a large body in bounded memory.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Bytes,
    extract::{Path as UrlPath, State},
    http::StatusCode,
    routing::get,
};
use utxo_store::{
    Broker, Config, Instance, MemoryBroker, Outpoint, Output, PartialOutput, PartialTxEvent, SpendStatus, Store,
    Transaction, TransactionBuilder, Txid,
    blob::{BlobAccess, BlobOptions, BlobUrl, EventBodies, EventBodyLimits, Intent, open_event_bodies},
    broker::{OutgoingMessage, Producer},
    create_topics,
    event::{BodyReference, ContentHash, PartialTxReference, ValidatedReference},
};

use crate::{acquire_serial_guard, block_on, memory::measure_peak};

const MIB: usize = 1 << 20;
/// Bytes of the large body.
const LARGE: usize = 16 * MIB;
const SATOSHIS: u64 = 1_000;
const SCRIPT: [u8; 25] = [0x76; 25];
const TRANSACTIONS: u32 = 6;
/// Longest wait for one thing to happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Name of a way in which a place can be away, and its switch.
type Outage<'a> = (&'a str, Box<dyn Fn(bool) + 'a>);

/// Place of the objects.
struct Place<'a> {
    name: &'a str,
    /// URL from which the instance reads.
    url: String,
    /// URL to which producers write.
    written: BlobUrl,
    access: BlobAccess,
    /// Bytes that the server of the place allocates in this process for one answer, in bodies.
    served_bodies: usize,
    /// Ways in which the place can be away.
    outages: Vec<Outage<'a>>,
}

async fn open_bodies(url: &BlobUrl, access: &BlobAccess) -> EventBodies {
    let (options, limits) = (BlobOptions::default(), EventBodyLimits::default());
    open_event_bodies(url, Intent::Write, access, &options, limits).await.unwrap()
}

/// Returns the configuration of an instance that reads the objects at the place. A request that is not answered within
/// a second fails.
fn config(place: &Place<'_>, folder: &Path) -> Config {
    let variables = [
        ("STORE__URL", "memory://".to_owned()),
        ("STORE__BLOBS__URL", format!("file://{}", folder.join("blobs").display())),
        ("STORE__BLOBS__TIMEOUT_MS", "1000".to_owned()),
        ("STORE__BLOBS__RETRIES", "1".to_owned()),
        ("STORE__BLOBS__ACCESS_KEY_ID", "test".to_owned()),
        ("STORE__BLOBS__SECRET_ACCESS_KEY", "test".to_owned()),
        ("OBJECTS__URL", place.url.clone()),
    ];
    let variables = variables.into_iter().map(|(key, value)| (format!("UTXO_STORE__{key}").into(), value.into()));
    Config::load_from(None, variables).unwrap()
}

/// A log of one partition, and an instance that reads the objects.
struct Stage {
    producer: Arc<dyn Producer>,
    topic: String,
    bodies: EventBodies,
    /// Tells the reference of a body without storing the body at the place.
    elsewhere: EventBodies,
    instance: Instance,
    store: Store,
}

impl Stage {
    async fn new(place: &Place<'_>, folder: &Path) -> Self {
        let config = config(place, folder);
        let topics = config.kafka.topics.clone();
        let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::default());
        create_topics(broker.as_ref(), &topics, 1).await.unwrap();
        let elsewhere = folder.join("elsewhere");
        fs::create_dir_all(&elsewhere).unwrap();
        let producer = broker.producer().await.unwrap();
        let instance = Instance::builder().config(config).broker(broker).start();
        let store = instance.store().await.unwrap();
        Stage {
            producer,
            topic: topics.validated_txs.to_string(),
            bodies: open_bodies(&place.written, &place.access).await,
            elsewhere: open_bodies(&BlobUrl::Directory(elsewhere), &BlobAccess::default()).await,
            instance,
            store,
        }
    }

    async fn produce(&self, txid: Txid, payload: Vec<u8>) {
        let message = OutgoingMessage {
            topic: self.topic.clone(),
            key: txid.0.to_vec().into(),
            payload: payload.into(),
            ..OutgoingMessage::default()
        };
        self.producer.produce(message).await.unwrap();
    }

    async fn refer(&self, txid: Txid, tx: BodyReference) {
        self.produce(txid, ValidatedReference { txid, tx, height: 200, locked: false }.encode()).await;
    }

    async fn is_live(&self, txid: Txid) -> bool {
        self.store.transaction(txid).await.unwrap().is_some()
    }

    /// Returns the reasons why the instance is not ready.
    fn reasons(&self) -> String {
        format!("{:?}", self.instance.readiness().reasons)
    }

    async fn until(&self, what: &str, is_so: impl AsyncFn() -> bool) {
        let started = Instant::now();
        while !is_so().await {
            assert!(started.elapsed() < PATIENCE, "{what} does not happen: {:?}", self.instance.readiness());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until readiness names the object, and checks that the event changes nothing meanwhile.
    async fn until_waiting_for(&self, what: &str, txid: Txid, reference: &BodyReference) {
        self.until(what, async || {
            let reasons = self.reasons();
            reasons.contains("objects_readable") && reasons.contains(&reference.key)
        })
        .await;
        assert!(!self.is_live(txid).await, "{what}: live without a body");
    }
}

/// Builds a transaction of one output that spends this output of the seed with this unlocking script.
fn spend(seed: Txid, vout: u32, unlocking: &[u8]) -> (Txid, Bytes) {
    let previous = Some(Output { satoshis: SATOSHIS, script: &SCRIPT });
    let input = Outpoint { txid: seed, vout };
    let builder = TransactionBuilder::default().input(input, unlocking, 0, previous);
    let extended = builder.output(SATOSHIS, &SCRIPT).extended();
    (Transaction::parse(&extended).unwrap().txid(), extended.into())
}

/// Everything in one partition, so that each event waits for the ones before it.
async fn play(place: Place<'_>, folder: &Path) {
    let stage = Stage::new(&place, folder).await;
    let seed = Txid([7; 32]);
    let output = |vout| PartialOutput { vout, satoshis: SATOSHIS, script: &SCRIPT };
    let seeded =
        PartialTxEvent { txid: seed, coinbase: false, height: 1, outputs: (0..TRANSACTIONS).map(output).collect() };
    let outputs = stage.bodies.put(seeded.encode_outputs().into()).await.unwrap();
    stage.produce(seed, PartialTxReference { txid: seed, coinbase: false, height: 1, outputs }.encode()).await;
    stage.until("the partial transaction", async || stage.is_live(seed).await).await;

    // The object of another transaction under the hash of this one, and an object of another length.
    let (wrong, wrong_body) = spend(seed, 0, &[1]);
    let stored = stage.bodies.put(wrong_body).await.unwrap();
    let (longer, _) = spend(seed, 1, &[2]);
    stage.refer(wrong, BodyReference { blake3: ContentHash([9; 32]), ..stored.clone() }).await;
    stage.refer(longer, BodyReference { length: stored.length + 1, ..stored }).await;

    let (late, late_body) = spend(seed, 2, &[3]);
    let reference = stage.elsewhere.put(late_body.clone()).await.unwrap();
    stage.refer(late, reference.clone()).await;
    stage.until_waiting_for("the wait for an absent object", late, &reference).await;
    assert_eq!(stage.bodies.put(late_body).await.unwrap(), reference);
    stage.until("the late transaction", async || stage.is_live(late).await).await;
    stage.until("readiness", async || stage.instance.readiness().ok).await;

    for ((name, switch), vout) in place.outages.iter().zip(3..) {
        let (txid, body) = spend(seed, vout, &[4]);
        let reference = stage.bodies.put(body).await.unwrap();
        switch(true);
        stage.refer(txid, reference.clone()).await;
        stage.until_waiting_for(name, txid, &reference).await;
        switch(false);
        stage.until(name, async || stage.is_live(txid).await).await;
    }

    let (large, large_body) = spend(seed, 5, &vec![5; LARGE]);
    let length = large_body.len();
    let reference = stage.bodies.put(large_body).await.unwrap();
    let created = async {
        stage.refer(large, reference).await;
        let output = Outpoint { txid: large, vout: 0 };
        let is_unspent = async || stage.store.output(output, None).await.unwrap().status == SpendStatus::Unspent;
        stage.until("the large transaction", is_unspent).await;
    };
    let ((), peak) = measure_peak(created).await;
    eprintln!("{}: a body of {} MiB took {} MiB", place.name, length / MIB, peak / MIB);
    assert!(peak < (1 + place.served_bodies) * length + 8 * MIB, "{}: {peak} bytes for a body of {length}", place.name);

    for txid in [wrong, longer] {
        assert!(!stage.is_live(txid).await);
    }
    let report = stage.instance.shut_down().await.unwrap();
    let transactions = u64::from(2 + place.outages.len() as u32 + 1);
    assert_eq!((report.dead_letters, report.completed), (2, transactions + 2), "{}", place.name);
}

#[cfg(feature = "aws")]
#[test]
fn bodies_on_s3_may_come_late_differ_or_be_away() {
    use crate::s3_server::{Conditions, S3Server};
    let _serial = acquire_serial_guard();
    let Some(server) = S3Server::start(Conditions::Honoured) else { return };
    let folder = tempfile::tempdir().unwrap();
    let url = format!("s3://bucket/objects?region=us-east-1&endpoint={}", server.endpoint());
    let pause = |is_away| if is_away { server.pause() } else { server.resume() };
    let place = Place {
        name: "S3",
        written: url.parse().unwrap(),
        url,
        access: BlobAccess { login: Some(("test".into(), "test".into())), retries: 2 },
        served_bodies: 0,
        outages: vec![("a server that does not answer", Box::new(pause))],
    };
    block_on(play(place, folder.path()));
}

/// Files of a directory. The status 0 lets the server answer, [`SILENT`] keeps it silent, and any other one is the
/// status of all answers.
#[derive(Clone)]
struct WebServer {
    root: std::path::PathBuf,
    status: Arc<AtomicU16>,
}

const SILENT: u16 = 1;

async fn serve_file(State(server): State<WebServer>, UrlPath(path): UrlPath<String>) -> Result<Bytes, StatusCode> {
    match server.status.load(Ordering::SeqCst) {
        0 => fs::read(server.root.join(path)).map(Bytes::from).map_err(|_| StatusCode::NOT_FOUND),
        SILENT => std::future::pending().await,
        status => Err(StatusCode::from_u16(status).unwrap()),
    }
}

#[cfg(feature = "http")]
#[test]
fn bodies_behind_a_web_server_may_come_late_differ_or_be_away() {
    let _serial = acquire_serial_guard();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("objects");
    fs::create_dir_all(&root).unwrap();
    block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/objects", listener.local_addr().unwrap());
        let status = Arc::new(AtomicU16::new(0));
        let state = WebServer { root: root.clone(), status: status.clone() };
        let app = Router::new().route("/objects/{*path}", get(serve_file)).with_state(state);
        let server = tokio::spawn(async move { axum::serve(listener, app).await });
        let answer_with = |code: u16| {
            let status = status.clone();
            Box::new(move |is_away| status.store(if is_away { code } else { 0 }, Ordering::SeqCst))
        };
        let place = Place {
            name: "web",
            url,
            written: BlobUrl::Directory(root),
            access: BlobAccess::default(),
            served_bodies: 1,
            outages: vec![("status 503", answer_with(503)), ("a silent server", answer_with(SILENT))],
        };
        play(place, folder.path()).await;
        server.abort();
    });
}
