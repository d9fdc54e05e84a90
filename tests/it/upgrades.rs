//! Stores, topics and a snapshot that version 0.1.0 wrote, in the hands of the present tree.
//!
//! `tests/data/0.1.0` has, for each engine, the records of a store at rest, the log and the commits of its group, and
//! the state digests at rest and after the events that wait in the log. A later version opens the store, reads the
//! waiting events, and must come to the same digests; so must a rebuild from the log.
//!
//! The fixtures are written once, by the version that they are named after, and never again:
//! `UPDATE_FIXTURES=1 cargo test --all-features --test it upgrades::write_the_fixtures -- --ignored`

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::{ObjectStore, ObjectStoreExt, memory::InMemory};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utxo_store::{
    blob::SnapshotPlace,
    broker::{Broker, CommittedOffset, OutgoingMessage, TopicPartition},
    engine::{
        self, OpenOptions, RecordEngine,
        aerospike::{AerospikeEngine, AerospikeSettings, Layout},
    },
    event::CommandAction,
    sequencer::chain_group,
    snapshot::{Shelf, SnapshotError},
    store::digest::survey,
    tx::Outpoint,
};

use crate::{
    aerospike::world_over,
    aerospike_server::{self, AerospikeServer},
    harness::{PARTITIONS, World, WorldSettings, spend},
    reference::{Bins, plain::Plain},
    snapshots::{create_snapshot, empty_beside, produce_history, restore_into, shelf},
};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/0.1.0");
/// Topics of a world, with their numbers of partitions.
const TOPICS: [(&str, i32); 7] = [
    ("block-mined", 1),
    ("reorgs", 1),
    ("chain", 1),
    ("decisions", 1),
    ("txs", PARTITIONS),
    ("outcomes", PARTITIONS),
    ("dead-letters", PARTITIONS),
];
/// Set of the stores on Aerospike. The digests of keys depend on the set.
const SET: &str = "fixture";
/// Ends of the names of the sets of one store.
const SETS: [&str; 4] = ["", "_blocks", "_meta", "_commands"];

/// A message of the log.
#[derive(Serialize, Deserialize)]
struct StoredMessage {
    topic: String,
    partition: i32,
    timestamp_ms: i64,
    key: String,
    payload: String,
    headers: Vec<(String, String)>,
}

/// A committed offset.
#[derive(Serialize, Deserialize)]
struct StoredCommit {
    group: String,
    topic: String,
    partition: i32,
    offset: u64,
    metadata: String,
}

/// The log of a group, its commits, and the digests of its store.
#[derive(Serialize, Deserialize)]
struct StoredLog {
    /// Digest of the store as it is kept.
    at_rest: String,
    /// Digest after the events of the log that are not committed.
    after: String,
    commits: Vec<StoredCommit>,
    messages: Vec<StoredMessage>,
}

fn settings() -> WorldSettings {
    WorldSettings::paged(3)
}

fn file(name: &str) -> PathBuf {
    Path::new(FIXTURES).join(name)
}

fn read_json<T: for<'a> Deserialize<'a>>(name: &str) -> T {
    serde_json::from_slice(&fs::read(file(name)).unwrap()).unwrap()
}

fn write_json(name: &str, value: &impl Serialize) {
    fs::create_dir_all(FIXTURES).unwrap();
    let text = serde_json::to_string_pretty(value).unwrap();
    fs::write(file(name), text + "\n").unwrap();
}

async fn digest(world: &World) -> String {
    survey(&world.store, |_| {}).await.unwrap().digest.to_string()
}

/// Groups with the partitions whose offsets they commit.
fn committed_partitions(world: &World) -> Vec<(String, Vec<TopicPartition>)> {
    let at = |topic: &str, partition| TopicPartition { topic: topic.into(), partition };
    let group = world.settings.pipeline.group.clone();
    let txs = (0..PARTITIONS).map(|partition| at("txs", partition)).collect();
    vec![(chain_group(&group), vec![at("chain", 0)]), (group, txs)]
}

impl StoredLog {
    async fn of(world: &World, at_rest: String) -> Self {
        let mut messages = Vec::new();
        for (topic, count) in TOPICS {
            for partition in 0..count {
                let at = TopicPartition { topic: topic.into(), partition };
                let (low, end) = world.broker.watermarks(&at).await.unwrap();
                assert_eq!(low, 0);
                let mut reader = world.broker.read(&at, 0).await.unwrap();
                while reader.position() < end {
                    for message in reader.next(Duration::from_millis(1)).await.unwrap() {
                        let header = |(name, value): &(String, Bytes)| (name.clone(), hex::encode(value));
                        messages.push(StoredMessage {
                            topic: topic.to_owned(),
                            partition,
                            timestamp_ms: message.timestamp_ms,
                            key: hex::encode(&message.key),
                            payload: hex::encode(&message.payload),
                            headers: message.headers.iter().map(header).collect(),
                        });
                    }
                }
            }
        }
        let mut commits = Vec::new();
        for (group, partitions) in committed_partitions(world) {
            let committed = world.broker.committed(&group, &partitions).await.unwrap();
            for (at, committed) in partitions.iter().zip(committed) {
                let CommittedOffset { offset, metadata } = committed.unwrap();
                let (topic, partition) = (at.topic.to_string(), at.partition);
                commits.push(StoredCommit { group: group.clone(), topic, partition, offset, metadata });
            }
        }
        StoredLog { at_rest, after: String::new(), commits, messages }
    }

    /// Produces the messages to the empty topics of a world, and commits the offsets.
    async fn load(&self, world: &World) {
        let bytes = |text: &str| Bytes::from(hex::decode(text).unwrap());
        let outgoing = self.messages.iter().map(|message| OutgoingMessage {
            topic: message.topic.clone(),
            partition: Some(message.partition),
            key: bytes(&message.key),
            payload: bytes(&message.payload),
            headers: message.headers.iter().map(|(name, value)| (name.clone(), bytes(value))).collect(),
            timestamp_ms: Some(message.timestamp_ms),
        });
        world.broker.producer().await.unwrap().produce_all(outgoing.collect()).await.unwrap();
        for commit in &self.commits {
            let at = TopicPartition { topic: commit.topic.as_str().into(), partition: commit.partition };
            let offset = CommittedOffset { offset: commit.offset, metadata: commit.metadata.clone() };
            world.broker.set_committed(&commit.group, &[(at, offset)]).await.unwrap();
        }
    }

    /// Fails unless the store of this world is as the fixture says, reads the waiting events, and equals a rebuild.
    async fn check(&self, world: &World) {
        assert_eq!(digest(world).await, self.at_rest);
        world.verify("at rest", &world.store).await;
        assert!(!world.is_consumed().await, "events wait in the log");
        world.run_until_consumed().await;
        assert_eq!(digest(world).await, self.after);
        world.check_without_model("after the waiting events").await;
    }
}

/// Produces events of every kind. All of them are handled before a store is kept.
async fn produce_handled(world: &World) {
    produce_history(world, 10, 1).await;
    let seed = world.seed(100, 8).await;
    let frozen = Outpoint { txid: seed.txid, vout: 1 };
    world.command(1, CommandAction::Freeze { outpoint: frozen }).await;
    world.validate_locked(&spend(&[seed.coin(2)], 2, 101)).await;
    world.validate(&spend(&[seed.coin(3)], 7, 102)).await;
    world.produce("txs", &[9; 32], b"no event".to_vec()).await;
}

/// Produces events that wait in the log while a store is kept: a payment, a rival of a handled transaction, a spend of
/// a frozen output, a payment from a page beyond the first, and a block.
async fn produce_waiting(world: &World) {
    let seed = World::partial(100, 8);
    let payment = spend(&[seed.coin(4)], 2, 110);
    world.validate(&payment).await;
    world.validate(&spend(&[seed.coin(3)], 1, 111)).await;
    world.validate(&spend(&[seed.coin(1)], 1, 112)).await;
    let paged = spend(&[seed.coin(3)], 7, 102);
    world.validate(&spend(&[paged.coin(6)], 1, 113)).await;
    world.mine(3, &[&payment]).await;
}

/// Runs the handled events, and writes the log of the waiting ones. `keep` keeps the store in between, and returns the
/// world in which the waiting events are read.
async fn write_log(name: &str, world: World, keep: impl AsyncFnOnce(World) -> World) {
    produce_handled(&world).await;
    world.run_until_consumed().await;
    let at_rest = digest(&world).await;
    let world = keep(world).await;
    produce_waiting(&world).await;
    let mut log = StoredLog::of(&world, at_rest).await;
    world.run_until_consumed().await;
    log.after = digest(&world).await;
    world.check_without_model(name).await;
    write_json(&format!("{name}.json"), &log);
}

async fn open(url: &str) -> (World, Arc<dyn RecordEngine>) {
    let world = World::with_settings(settings()).await;
    let engine = engine::open(url, &OpenOptions::new(world.store.settings.rules)).await.unwrap();
    (world.over(engine.clone()), engine)
}

fn tar(args: &[&str], directory: &Path) {
    let status = Command::new("tar").args(args).arg("-C").arg(directory).arg("--sparse").arg(".").status().unwrap();
    assert!(status.success(), "tar {args:?}");
}

/// Keeps a store that is files in a directory. The files are copied while the store is closed.
async fn write_directory(name: &str, url: impl Fn(&Path) -> String) {
    let folder = tempfile::tempdir().unwrap();
    let (world, engine) = open(&url(folder.path())).await;
    write_log(name, world, async |world| {
        engine.close().await.unwrap();
        let archive = file(&format!("{name}.tar.gz"));
        tar(&["-czf", archive.to_str().unwrap()], folder.path());
        let options = OpenOptions::new(world.store.settings.rules);
        world.beside(engine::open(&url(folder.path()), &options).await.unwrap())
    })
    .await;
}

fn fjall(folder: &Path) -> String {
    format!("fjall://{}/store", folder.display())
}

fn sqlite(folder: &Path) -> String {
    format!("sqlite://{}/store", folder.display())
}

fn server() -> Option<AerospikeServer> {
    AerospikeServer::start_own(aerospike_server::Setup { durable: false, namespace: aerospike_server::FIT })
}

fn on_server(server: &AerospikeServer, set: &str, layout: Layout) -> AerospikeSettings {
    AerospikeSettings { set: set.to_owned(), layout: Some(layout), ..server.settings() }
}

/// Returns clients for the four sets of a store, with the ends of their names.
async fn plain_sets(settings: &AerospikeSettings) -> Vec<(&'static str, Plain)> {
    let mut all = Vec::new();
    for end in SETS {
        let of_set = AerospikeSettings { set: format!("{}{end}", settings.set), ..settings.clone() };
        all.push((end, Plain::connect(&of_set).await));
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "writes the fixtures of this version"]
async fn write_the_fixtures() {
    assert!(std::env::var_os("UPDATE_FIXTURES").is_some(), "set UPDATE_FIXTURES=1");
    fs::create_dir_all(FIXTURES).unwrap();
    write_directory("fjall", fjall).await;
    write_directory("sqlite", sqlite).await;
    for (name, layout) in [("compact", Layout::Compact), ("teranode", Layout::Teranode)] {
        let server = server().expect("asd is in PATH");
        let cluster = on_server(&server, SET, layout);
        let world = world_over(&cluster, settings()).await;
        write_log(name, world, async |world| {
            let mut records: BTreeMap<&str, BTreeMap<String, Bins>> = BTreeMap::new();
            for (end, plain) in plain_sets(&cluster).await {
                records.insert(end, plain.dump().await);
            }
            write_json(&format!("{name}.records.json"), &records);
            world
        })
        .await;
    }
    let world = World::with_settings(settings()).await;
    write_log("snapshot", world, async |world| {
        let (objects, shelf) = shelf();
        create_snapshot(&world, &shelf).await.unwrap();
        let mut stored = BTreeMap::new();
        let mut listed = objects.list(None);
        while let Some(found) = listed.next().await {
            let path = found.unwrap().location;
            let bytes = objects.get(&path).await.unwrap().bytes().await.unwrap();
            stored.insert(path.to_string(), hex::encode(bytes));
        }
        write_json("snapshot.objects.json", &stored);
        world
    })
    .await;
}

async fn check_directory(name: &str, url: impl Fn(&Path) -> String) {
    let folder = tempfile::tempdir().unwrap();
    tar(&["-xzf", file(&format!("{name}.tar.gz")).to_str().unwrap()], folder.path());
    let (world, _) = open(&url(folder.path())).await;
    let log: StoredLog = read_json(&format!("{name}.json"));
    log.load(&world).await;
    log.check(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fjall_store_of_0_1_0_continues() {
    check_directory("fjall", fjall).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_sqlite_store_of_0_1_0_continues() {
    check_directory("sqlite", sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn aerospike_stores_of_0_1_0_continue_in_their_layouts() {
    for (name, layout) in [("compact", Layout::Compact), ("teranode", Layout::Teranode)] {
        let Some(server) = server() else { return };
        let cluster = on_server(&server, SET, layout);
        let records: BTreeMap<String, BTreeMap<String, Bins>> = read_json(&format!("{name}.records.json"));
        for (end, plain) in plain_sets(&cluster).await {
            plain.load(&records[end]).await;
        }
        // The URL names no layout: the store says which one it has.
        let world = world_over(&AerospikeSettings { layout: None, ..cluster }, settings()).await;
        assert_eq!(world.store.engine.layout_name(), Some(name));
        let log: StoredLog = read_json(&format!("{name}.json"));
        log.load(&world).await;
        log.check(&world).await;
    }
}

/// Protects: a program refuses the store of a later version, and writes nothing into it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_of_a_later_version_is_refused_with_both_versions() {
    for (name, layout, later) in [("compact", Layout::Compact, 3), ("teranode", Layout::Teranode, 2)] {
        let Some(server) = server() else { return };
        let cluster = on_server(&server, SET, layout);
        let mut records: BTreeMap<String, BTreeMap<String, Bins>> = read_json(&format!("{name}.records.json"));
        let meta = records.get_mut("_meta").unwrap().values_mut().find(|bins| bins.contains_key("layoutVersion"));
        meta.unwrap().insert("layoutVersion".to_owned(), json!({ "int": later }));
        for (end, plain) in plain_sets(&cluster).await {
            plain.load(&records[end]).await;
        }
        let world = match world_of(&cluster).await {
            Ok(world) => world,
            Err(refusal) => {
                assert!(refusal.contains("version"), "{refusal}");
                continue;
            }
        };
        let log: StoredLog = read_json(&format!("{name}.json"));
        log.load(&world).await;
        let refusal = world.start().task.await.unwrap().unwrap_err().to_string();
        let words = "the store has record layout 2, this program has 1: use the program that wrote it";
        assert!(refusal.contains(words), "{name}: {refusal}");
        let mut left = plain_sets(&cluster).await.into_iter();
        assert_eq!(left.next().unwrap().1.dump().await, records[""], "{name}: nothing was written");
    }
}

/// Opens the store, or returns the refusal.
async fn world_of(cluster: &AerospikeSettings) -> Result<World, String> {
    let world = World::with_settings(settings()).await;
    let opened = AerospikeEngine::open(cluster, world.store.settings.rules).await;
    opened.map(|engine| world.over(Arc::new(engine))).map_err(|error| error.to_string())
}

/// Protects: a snapshot of a later version is refused before a record is written.
#[tokio::test(start_paused = true)]
async fn a_snapshot_of_a_later_version_is_refused_with_both_versions() {
    let world = World::with_settings(settings()).await;
    let log: StoredLog = read_json("snapshot.json");
    log.load(&world).await;
    let (shelf, name) = stored_snapshot(&|path, bytes| {
        if path.ends_with(".json") {
            let text = String::from_utf8(bytes.clone()).unwrap().replace("\"format\":1", "\"format\":2");
            let json = text.lines().next().unwrap();
            *bytes = format!("{json}\n{}\n", blake3::hash(json.as_bytes()).to_hex()).into_bytes();
        }
    })
    .await;
    let refusal = restore_into(&empty_beside(&world), &shelf, &name.unwrap()).await.unwrap_err().to_string();
    assert!(refusal.contains("has format 2, this program reads format 1; use the program that wrote it"), "{refusal}");
}

/// Returns the place with the stored snapshot, each object changed, and the name of the snapshot.
async fn stored_snapshot(change: &dyn Fn(&str, &mut Vec<u8>)) -> (Shelf, Result<String, SnapshotError>) {
    let objects = Arc::new(InMemory::new());
    let stored: BTreeMap<String, String> = read_json("snapshot.objects.json");
    for (path, bytes) in &stored {
        let mut bytes = hex::decode(bytes).unwrap();
        change(path, &mut bytes);
        objects.put(&path.as_str().into(), Bytes::from(bytes).into()).await.unwrap();
    }
    let shelf = Shelf::new(SnapshotPlace::new(objects, &Default::default()));
    let name = shelf.newest().await;
    (shelf, name)
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_of_0_1_0_is_restored_and_catches_up() {
    let world = World::with_settings(settings()).await;
    let log: StoredLog = read_json("snapshot.json");
    log.load(&world).await;
    let (shelf, name) = stored_snapshot(&|_, _| {}).await;
    let world = empty_beside(&world);
    restore_into(&world, &shelf, &name.unwrap()).await.unwrap();
    log.check(&world).await;
}
