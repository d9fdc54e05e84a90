//! Snapshots: created beside a running instance, restored into another store, and read up to the live state.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use utxo_store::{
    blob::{
        BlobOptions, BlobStore, SnapshotPlace,
        fault::{BlobFault, FaultStore},
    },
    broker::{Broker, CommittedOffset, TopicPartition},
    engine::{OpenOptions, Row, StoreUrl, aerospike::AerospikeEngine, memory::MemoryEngine},
    instance::InstanceError,
    record::{Body, Key, MetaRecord, Operation, Record, StoredOutput, TxState},
    sequencer::{chain_group, state::ChainState},
    snapshot::{CreateOptions, CreateReport, Shelf, SnapshotError, create, restore, verify},
    store::{
        StateStore,
        digest::{StateDigest, survey},
        meta::{MetaError, PruningHold, StoreMeta},
    },
    utxo_set::{ImportOptions, UtxoSetError, export, import},
};

use crate::{
    aerospike::world_over,
    aerospike_server::AerospikeServer,
    harness::{Made, PARTITIONS, World, WorldSettings, coinbase, spend},
    node_restarts::until,
    regressions::holding_engine::{HoldingEngine, is_spend},
};

const OPTIONS: CreateOptions = CreateOptions {
    parts: 3,
    chunk_bytes: 300,
    batch: 2,
    records_per_second: None,
    hold: Duration::from_secs(60),
    sign_of_life: Duration::from_secs(2),
};

/// A place for snapshots whose objects a test can change.
pub fn shelf() -> (Arc<InMemory>, Shelf) {
    let objects = Arc::new(InMemory::new());
    (objects.clone(), Shelf::new(SnapshotPlace::new(objects, &BlobOptions::default())))
}

/// A place for snapshots whose requests fail on demand.
fn fault_shelf() -> (FaultStore, Shelf) {
    let objects = FaultStore::new(Arc::new(InMemory::new()), 1);
    (objects.clone(), Shelf::new(SnapshotPlace::new(Arc::new(objects), &BlobOptions::default())))
}

pub async fn create_snapshot(world: &World, shelf: &Shelf) -> Result<CreateReport, SnapshotError> {
    let parts = world.parts(&world.store);
    create(&world.settings, &parts, shelf, OPTIONS, &CancellationToken::new(), &|_| {}).await
}

/// Returns a world with a partial transaction of one output, and its snapshot.
pub async fn seeded_snapshot() -> (World, Made, Shelf, String) {
    let world = World::new().await;
    let seed = world.seed(10, 1).await;
    world.run_until_consumed().await;
    let (_, shelf) = shelf();
    let name = create_snapshot(&world, &shelf).await.unwrap().name;
    (world, seed, shelf, name)
}

pub async fn restore_into(world: &World, shelf: &Shelf, name: &str) -> Result<(), SnapshotError> {
    let parts = world.parts(&world.store);
    restore(&world.settings, &parts, shelf, name, &CancellationToken::new(), &|_| {}).await.map(drop)
}

async fn digest(store: &StateStore) -> StateDigest {
    survey(store, |_| {}).await.unwrap().digest
}

pub fn empty_beside(world: &World) -> World {
    let mut other = world.beside(Arc::new(MemoryEngine::new(world.store.settings.rules)));
    other.store = other.store.with_blobs(world.store.blobs.as_ref().map(|_| BlobStore::memory()));
    other
}

/// Runs a history, creates a snapshot, and runs another history that the snapshot lacks.
pub async fn run_past_a_snapshot(world: &World) -> (Shelf, String) {
    produce_history(world, 10, 1).await;
    world.run_until_consumed().await;
    let (_, shelf) = shelf();
    let name = create_snapshot(world, &shelf).await.unwrap().name;
    produce_history(world, 60, 3).await;
    world.run_until_consumed().await;
    (shelf, name)
}

/// Produces transactions of several generations, a double spend and blocks; `from` keeps their ids apart.
pub async fn produce_history(world: &World, from: u8, sequence: u64) {
    let seed = world.seed(from, 6).await;
    let first: Vec<_> = (0..5).map(|vout| spend(&[seed.coin(vout)], 2, from + 1 + vout as u8)).collect();
    for made in &first {
        world.validate(made).await;
    }
    let rival = spend(&[seed.coin(0)], 1, from + 20);
    world.validate(&rival).await;
    let second = spend(&[first[1].coin(0), first[2].coin(1)], 3, from + 21);
    world.validate(&second).await;
    world.mine(sequence, &[&first[1], &first[2], &first[3]]).await;
    world.mine(sequence + 1, &[&second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_restored_snapshot_catches_up_with_the_live_store() {
    for settings in [WorldSettings::calm(), WorldSettings::paged(2), WorldSettings::with_blobs(2, 0)] {
        let world = World::with_settings(settings).await;
        produce_history(&world, 10, 1).await;
        let running = world.start();
        world.until_consumed().await;
        let (_, shelf) = shelf();
        let report = create_snapshot(&world, &shelf).await.unwrap();
        assert!(report.totals.records > 10 && report.totals.unspent_outputs > 5 && !report.resumed, "{report:?}");
        let verified = verify(&shelf, &report.name, &|_| {}).await.unwrap();
        assert_eq!((verified.totals, verified.chunks), (report.totals, report.chunks));
        assert_eq!(world.store.meta().await.unwrap().unwrap().snapshot_hold, None);
        produce_history(&world, 60, 3).await;
        world.until_consumed().await;
        running.stop().await;

        let live = digest(&world.store).await;
        let other = empty_beside(&world);
        restore_into(&other, &shelf, &report.name).await.unwrap();
        assert_ne!(digest(&other.store).await, live);
        let exported = std::env::temp_dir().join(format!("{}.utxo-set", report.name));
        let refused = export(&other.store, &exported, &CancellationToken::new(), &|_| {}).await.unwrap_err();
        assert!(refused.to_string().contains("reads the log again"), "{refused}");
        // The running instance makes the store an ordinary one, which gives snapshots.
        let running = other.start();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(running.health.ready().reasons.contains_key("caught_up"), "{:?}", running.health.ready());
        until(async || other.store.meta().await.unwrap().unwrap().restored.is_none()).await;
        other.until_consumed().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(running.health.ready().ok, "{:?}", running.health.ready());
        assert_eq!(digest(&other.store).await, live);
        let second = create_snapshot(&other, &shelf).await.unwrap();
        running.stop().await;
        let third = empty_beside(&world);
        restore_into(&third, &shelf, &second.name).await.unwrap();
        third.run_until_consumed().await;
        assert_eq!(digest(&third.store).await, live);
    }
}

/// A first restore sets the committed offset of the chain back, and its store is lost before it has caught up.
/// Protects: the second restore knows which events the group had handled whole, and publishes no second chances for
/// them.
#[tokio::test(start_paused = true)]
async fn a_second_restore_knows_the_events_that_were_handled_before_the_first() {
    let world = World::new().await;
    let seed = world.seed(10, 3).await;
    let payments = [0, 1].map(|vout| spend(&[seed.coin(vout)], 1, 1));
    for payment in &payments {
        world.validate(payment).await;
    }
    world.run_until_consumed().await;
    let (_, shelf) = shelf();
    let created = create_snapshot(&world, &shelf).await.unwrap();
    for vout in [0, 1] {
        world.validate(&spend(&[seed.coin(vout)], 1, 2)).await;
    }
    // A block is handled without a decision.
    world.mine(1, &[&payments[0]]).await;
    world.run_until_consumed().await;
    let end = world.end("chain", 0).await;
    assert!(end >= created.offsets.chain + 3, "two contests and a block");
    let committed_chain = async || {
        let at = TopicPartition { topic: world.settings.topics.chain.as_str().into(), partition: 0 };
        let committed = world.broker.committed(&chain_group(&world.settings.pipeline.group), &[at]).await.unwrap();
        let CommittedOffset { offset, metadata } = committed.into_iter().flatten().next().unwrap();
        (offset, ChainState::from_metadata(&metadata).unwrap().chances_from)
    };
    assert_eq!(committed_chain().await, (end, 0));
    for restore in 0..3 {
        let other = empty_beside(&world);
        restore_into(&other, &shelf, &created.name).await.unwrap();
        let restored = other.store.meta().await.unwrap().unwrap().restored.unwrap();
        assert_eq!(restored.handled.chain, end, "restore {restore}");
        assert_eq!(committed_chain().await, (created.offsets.chain, end), "restore {restore}");
        if restore == 1 {
            other.run_until_consumed().await;
            assert_eq!(committed_chain().await, (end, end), "each commit of the sequencer keeps the offset");
        }
    }
}

/// Records with bodies of 50 kB: four fill a chunk, and a page of the scan has up to a thousand.
/// Protects: the memory of a creation is that of some chunks, and not of a page of the largest bodies.
#[cfg(feature = "sql")]
#[tokio::test(start_paused = true)]
async fn a_chunk_of_large_records_is_not_much_larger_than_its_size() {
    let world = World::new().await;
    world.seed(10, 1).await;
    world.run_until_consumed().await;
    let rows = (0..300).map(|number| {
        let mut page = crate::sql::page(number, 1);
        let output = StoredOutput { satoshis: 1, script: vec![0x51; 50_000].into() };
        page.master.as_mut().unwrap().body = Some(Body::Outputs([Some(output)].into_iter().collect()));
        Row { key: Key::master(page.txid), operation: Operation::Restore(Box::new(Record::Page(page.into()))) }
    });
    for outcome in world.store.engine.apply(&rows.collect::<Vec<_>>()).await {
        outcome.unwrap();
    }
    let (_, shelf) = shelf();
    let options = CreateOptions { parts: 2, chunk_bytes: 200_000, batch: 1_000, ..OPTIONS };
    let parts = world.parts(&world.store);
    let created = create(&world.settings, &parts, &shelf, options, &CancellationToken::new(), &|_| {}).await.unwrap();
    let chunks = shelf.read_manifest(&created.name).await.unwrap().chunks;
    let of_transactions = chunks.iter().filter(|chunk| chunk.part < 2);
    let (first, later): (Vec<_>, Vec<_>) = of_transactions.partition(|chunk| chunk.number == 0);
    assert!(first.iter().all(|chunk| chunk.records <= 16) && later.len() > 30, "{chunks:?}");
    assert!(later.iter().all(|chunk| chunk.bytes < 450_000), "{chunks:?}");
    verify(&shelf, &created.name, &|_| {}).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_half_restored_store_is_used_by_nothing_but_its_restore() {
    let world = World::new().await;
    produce_history(&world, 10, 1).await;
    world.run_until_consumed().await;
    let (objects, shelf) = shelf();
    let name = create_snapshot(&world, &shelf).await.unwrap().name;
    let live = digest(&world.store).await;
    // A chunk in the middle is away, so that the restore stops there.
    let chunks = chunks_of(&shelf, &name).await;
    let missing = Path::from(chunks[chunks.len() / 2].as_str());
    let content = objects.get(&missing).await.unwrap().bytes().await.unwrap();
    objects.delete(&missing).await.unwrap();
    let other = empty_beside(&world);
    assert!(matches!(restore_into(&other, &shelf, &name).await, Err(SnapshotError::Missing { .. })));
    let refused = other.start().ended().await;
    assert!(matches!(refused, Err(InstanceError::Meta(MetaError::UnfinishedRestore))), "{refused:?}");
    // Another snapshot cannot be restored over the half of this one.
    let second = create_snapshot(&world, &shelf).await.unwrap().name;
    let error = restore_into(&other, &shelf, &second).await.unwrap_err();
    assert!(matches!(error, SnapshotError::Meta(MetaError::RestoreNotEmpty)), "{error}");
    objects.put(&missing, content.into()).await.unwrap();
    restore_into(&other, &shelf, &name).await.unwrap();
    // The command was killed before it could say that it has ended: a repeat says so, and writes nothing.
    let restored = digest(&other.store).await;
    restore_into(&other, &shelf, &name).await.unwrap();
    assert_eq!(digest(&other.store).await, restored);
    // The store is no import that could be repeated: no file is read.
    let options = ImportOptions::new("no-such-file".into());
    let error = import(&other.store, &options, [7; 16], &CancellationToken::new(), &|_| {}).await.unwrap_err();
    assert!(matches!(error, UtxoSetError::Meta(MetaError::RestoreNotEmpty)), "{error}");
    other.run_until_consumed().await;
    assert_eq!(digest(&other.store).await, live);
    // The store has caught up, and is an ordinary one from its next start on.
    other.run_until_consumed().await;
    let error = restore_into(&other, &shelf, &name).await.unwrap_err();
    assert!(matches!(error, SnapshotError::Meta(MetaError::RestoreNotEmpty)), "{error}");
}

/// Protects: after a kill at any moment the same command creates a snapshot. The hold of a dead creation is in its way
/// for some seconds at most. A stop ends the creation at once, whatever it waits for.
#[tokio::test(start_paused = true)]
async fn a_creation_that_is_stopped_or_killed_at_any_request_is_repeated_with_success() {
    let world = World::new().await;
    produce_history(&world, 10, 1).await;
    world.run_until_consumed().await;
    let mut last = None;
    for kill_at in 1.. {
        let (objects, shelf) = fault_shelf();
        objects.fail_at(kill_at, BlobFault::Slow(Duration::from_secs(3_600)));
        let (parts, stop) = (world.parts(&world.store), CancellationToken::new());
        let creation = async {
            let created = create(&world.settings, &parts, &shelf, OPTIONS, &stop, &|_| {}).await;
            (!matches!(created, Err(SnapshotError::Stopped))).then_some(created)
        };
        let ended = if kill_at % 2 == 0 {
            timeout(Duration::from_secs(5), creation).await.unwrap_or(None)
        } else {
            let stop_later = async {
                sleep(Duration::from_secs(5)).await;
                stop.cancel();
            };
            let stopped = timeout(Duration::from_secs(6), async { tokio::join!(creation, stop_later).0 });
            stopped.await.expect("a creation that was stopped ends")
        };
        objects.clear_script();
        if let Some(created) = ended {
            if objects.requests() >= kill_at {
                // A listing is not delayed.
                continue;
            }
            assert!(kill_at > 10, "no request {kill_at}: {created:?}");
            last = Some((created.unwrap().name, shelf));
            break;
        }
        let began = Instant::now();
        let report = loop {
            match create_snapshot(&world, &shelf).await {
                Ok(report) => break report,
                Err(SnapshotError::Meta(MetaError::HeldBySnapshot { .. })) => sleep(Duration::from_secs(1)).await,
                Err(error) => panic!("killed at request {kill_at}: {error}"),
            }
            assert!(began.elapsed() < Duration::from_secs(25), "killed at request {kill_at}");
        };
        verify(&shelf, &report.name, &|_| {}).await.unwrap();
        assert_eq!(world.store.meta().await.unwrap().unwrap().snapshot_hold, None);
    }
    // Killed between the manifest and the release of the hold.
    let (name, shelf) = last.unwrap();
    let id = shelf.read_manifest(&name).await.unwrap().plan.id;
    PruningHold::of(&world.store, id).take(0, u64::MAX).await.unwrap();
    create_snapshot(&world, &shelf).await.unwrap();
    assert_eq!(world.store.meta().await.unwrap().unwrap().snapshot_hold, None);
    // The hold of a snapshot that is not complete here stays.
    PruningHold::of(&world.store, [9; 16]).take(0, u64::MAX).await.unwrap();
    let error = create_snapshot(&world, &shelf).await.unwrap_err();
    assert!(matches!(error, SnapshotError::Meta(MetaError::HeldBySnapshot { .. })), "{error}");
}

/// A second `snapshot create` of the same store and place, while the first one runs and after it has paused.
/// Protects: a snapshot that one process has completed is not deleted by another.
#[tokio::test(start_paused = true)]
async fn a_creation_that_lives_is_not_continued_by_another_process() {
    let world = World::new().await;
    produce_history(&world, 10, 1).await;
    world.run_until_consumed().await;
    let (objects, shelf) = fault_shelf();
    // A chunk is slow: the plan is written, and the hold is extended meanwhile.
    objects.fail_at(8, BlobFault::Slow(Duration::from_secs(30)));
    let second = async {
        sleep(Duration::from_secs(5)).await;
        create_snapshot(&world, &shelf).await.unwrap_err()
    };
    let (first, second) = tokio::join!(create_snapshot(&world, &shelf), second);
    assert!(matches!(second, SnapshotError::Meta(MetaError::HoldTakenOver)), "{second}");
    let name = first.unwrap().name;
    verify(&shelf, &name, &|_| {}).await.unwrap();
    // Between the look of the second process and its end the first one has ended.
    objects.fail_at(8, BlobFault::Slow(Duration::from_secs(8)));
    let (first, second) = tokio::join!(create_snapshot(&world, &shelf), async {
        sleep(Duration::from_secs(5)).await;
        create_snapshot(&world, &shelf).await
    });
    let (first, second) = (first.unwrap().name, second.unwrap().name);
    assert_ne!(first, second);
    for name in [name, first, second] {
        verify(&shelf, &name, &|_| {}).await.unwrap();
    }
}

/// A topic drops events while the snapshot is created.
/// Protects: no snapshot is called complete that cannot be restored.
#[tokio::test(start_paused = true)]
async fn a_creation_whose_events_are_dropped_meanwhile_is_discarded() {
    let world = World::new().await;
    produce_history(&world, 10, 1).await;
    world.run_until_consumed().await;
    let (objects, shelf) = fault_shelf();
    objects.fail_at(8, BlobFault::Slow(Duration::from_secs(30)));
    let dropping = async {
        sleep(Duration::from_secs(5)).await;
        produce_history(&world, 60, 3).await;
        for partition in (0..PARTITIONS).map(|partition| TopicPartition { topic: "txs".into(), partition }) {
            let (_, end) = world.broker.watermarks(&partition).await.unwrap();
            world.broker.truncate(&partition, end).unwrap();
        }
    };
    let (created, ()) = tokio::join!(create_snapshot(&world, &shelf), dropping);
    let error = created.unwrap_err();
    assert!(matches!(error, SnapshotError::Discarded(_)) && error.to_string().contains("holds"), "{error}");
    assert_eq!(shelf.list().await.unwrap(), []);
}

/// Three payments of one coin come after the offsets of the snapshot: the first is live, the others have lost. The
/// restored store reads the losers again before the winner, and finds the coin free.
/// Protects: the contest of the second loser gives the first no second chance, by which the winner would lose.
#[tokio::test(start_paused = true)]
async fn a_loser_that_is_read_again_before_the_winner_gets_no_second_chance() {
    let (world, seed, shelf, name) = seeded_snapshot().await;
    let payments: Vec<_> = (1..=3).map(|tag| spend(&[seed.coin(0)], 1, tag)).collect();
    for payment in &payments {
        world.validate(payment).await;
        world.run_until_consumed().await;
    }
    let live = digest(&world.store).await;
    let other = empty_beside(&world);
    restore_into(&other, &shelf, &name).await.unwrap();
    let (coin_of, winner) = (seed.txid, payments[0].txid);
    let holding = HoldingEngine::hold_first(&other, move |row| is_spend(row, coin_of, winner));
    let running = holding.in_front_of(&other).start();
    holding.wait_for_held(1).await;
    sleep(Duration::from_secs(5)).await;
    assert!(other.page(&payments[2]).await.is_some_and(|page| page.utxos.is_some()), "the losers are read again");
    holding.release().await;
    other.until_consumed().await;
    running.stop().await;
    assert_eq!(digest(&other.store).await, live, "{}", other.story(&world.store).await);
}

/// The committed offset of the chain is 0, and the chain has begun a second era: a node restarted before the first
/// commit of the sequencer.
/// Protects: the restored store continues with that era, and not with the first one. A sequencer of the first era would
/// wait for good for a sequencer that is ahead: the records have stamps of the second era (simulator, seed 70078).
#[tokio::test(start_paused = true)]
async fn the_era_of_a_chain_that_has_committed_no_event_is_restored() {
    let mut world = World::forgetful().await;
    world.settings.sequencer.commit_interval = Duration::from_secs(3_600);
    let running = world.start();
    let seed = world.seed(10, 2).await;
    world.mine(1, &[]).await;
    until(async || world.page(&coinbase(1)).await.is_some()).await;
    running.kill().await;
    world.nodes.restart_nodes(Duration::ZERO, |_| false);
    let running = world.start();
    let payments = [0, 1].map(|vout| spend(&[seed.coin(vout)], 1, 1));
    let rivals = [0, 1].map(|vout| spend(&[seed.coin(vout)], 1, 2));
    for made in payments.iter().chain(&rivals[..1]) {
        world.validate(made).await;
        until(async || world.page(made).await.is_some_and(|page| page.utxos.is_some())).await;
    }
    until(async || world.page(&rivals[0]).await.is_some_and(|page| page.conflicting)).await;
    let (_, shelf) = shelf();
    let created = create_snapshot(&world, &shelf).await.unwrap();
    assert_eq!(created.offsets.chain, 0, "the sequencer has committed no event");
    running.stop().await;
    let mut other = empty_beside(&world);
    other.settings.sequencer.commit_interval = Duration::from_millis(100);
    restore_into(&other, &shelf, &created.name).await.unwrap();
    other.validate(&rivals[1]).await;
    other.run_until_consumed().await;
    for (made, is_live) in [(&payments[0], true), (&payments[1], true), (&rivals[0], false), (&rivals[1], false)] {
        let state = other.page(made).await.unwrap().state();
        assert_eq!(state == TxState::Live, is_live, "{} is {state:?}", made.txid);
    }
    other.check("the restored store").await;
}

async fn chunks_of(shelf: &Shelf, name: &str) -> Vec<String> {
    let manifest = shelf.read_manifest(name).await.unwrap();
    let object =
        |chunk: &utxo_store::snapshot::ChunkEntry| format!("{name}/chunks/{:03}-{:06}", chunk.part, chunk.number);
    manifest.chunks.iter().map(object).collect()
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_not_empty_and_a_running_group_are_refused() {
    let world = World::new().await;
    produce_history(&world, 10, 1).await;
    world.run_until_consumed().await;
    let (_, shelf) = shelf();
    let name = create_snapshot(&world, &shelf).await.unwrap().name;
    let error = restore_into(&world, &shelf, &name).await.unwrap_err();
    assert!(matches!(error, SnapshotError::Meta(MetaError::RestoreNotEmpty)), "{error}");
    let running = world.start();
    // The instance joins its groups.
    sleep(Duration::from_secs(1)).await;
    let other = empty_beside(&world);
    let error = restore_into(&other, &shelf, &name).await.unwrap_err();
    assert!(error.to_string().contains("stop them"), "{error}");
    assert_eq!(other.store.meta().await.unwrap(), None, "nothing was written");
    running.stop().await;
}

/// Changes one object of a snapshot, and returns the error of the verification and of the restore.
async fn errors_after(world: &World, change: impl AsyncFn(&InMemory, &str, &[String])) -> [String; 2] {
    let (objects, shelf) = shelf();
    let name = create_snapshot(world, &shelf).await.unwrap().name;
    change(&objects, &name, &chunks_of(&shelf, &name).await).await;
    let other = empty_beside(world);
    let verified = verify(&shelf, &name, &|_| {}).await.unwrap_err().to_string();
    [verified, restore_into(&other, &shelf, &name).await.unwrap_err().to_string()]
}

async fn read(objects: &InMemory, name: &str) -> Vec<u8> {
    objects.get(&Path::from(name)).await.unwrap().bytes().await.unwrap().to_vec()
}

async fn write(objects: &InMemory, name: &str, content: Vec<u8>) {
    objects.put(&Path::from(name), Bytes::from(content).into()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_damaged_snapshot_is_refused_with_the_object() {
    let world = World::new().await;
    produce_history(&world, 10, 1).await;
    world.run_until_consumed().await;
    let gone = errors_after(&world, async |objects, _, chunks| objects.delete(&Path::from(&*chunks[1])).await.unwrap());
    for error in gone.await {
        assert!(error.contains("chunk `") && error.contains("is missing"), "{error}");
    }
    let changed = errors_after(&world, async |objects, _, chunks| {
        let mut content = read(objects, &chunks[0]).await;
        content[40] ^= 1;
        write(objects, &chunks[0], content).await;
    });
    for error in changed.await {
        assert!(error.contains("its checksum is wrong"), "{error}");
    }
    let cut = errors_after(&world, async |objects, _, chunks| {
        let content = read(objects, &chunks[0]).await;
        write(objects, &chunks[0], content[..content.len() / 2].to_vec()).await;
    });
    for error in cut.await {
        assert!(error.contains("its checksum is wrong"), "{error}");
    }
    let swapped = errors_after(&world, async |objects, _, chunks| {
        let content = read(objects, &chunks[1]).await;
        write(objects, &chunks[0], content).await;
    });
    for error in swapped.await {
        assert!(error.contains("it is chunk"), "{error}");
    }
    let foreign = errors_after(&world, async |objects, name, chunks| {
        let (others, other_shelf) = shelf();
        let other = create_snapshot(&world, &other_shelf).await.unwrap().name;
        let content = read(&others, &chunks[0].replace(name, &other)).await;
        write(objects, &chunks[0], content).await;
    });
    for error in foreign.await {
        assert!(error.contains("it belongs to snapshot"), "{error}");
    }
    let later = errors_after(&world, async |objects, name, _| {
        let object = format!("{name}/manifest.json");
        let text = String::from_utf8(read(objects, &object).await).unwrap();
        let json = text.lines().next().unwrap().replacen("\"format\":1", "\"format\":2", 1);
        let checksum = blake3::hash(json.as_bytes()).to_hex();
        write(objects, &object, format!("{json}\n{checksum}\n").into_bytes()).await;
    });
    for error in later.await {
        assert!(error.contains("has format 2, this program reads format 1"), "{error}");
    }
    let edited = errors_after(&world, async |objects, name, _| {
        let object = format!("{name}/manifest.json");
        let text = String::from_utf8(read(objects, &object).await).unwrap();
        write(objects, &object, text.replacen("\"records\":", "\"records\":1", 1).into_bytes()).await;
    });
    for error in edited.await {
        assert!(error.contains("manifest.json` is damaged: its checksum is wrong"), "{error}");
    }
    let unfinished = errors_after(&world, async |objects, name, _| {
        objects.delete(&Path::from(format!("{name}/manifest.json"))).await.unwrap();
    });
    for error in unfinished.await {
        assert!(error.contains("has no manifest"), "{error}");
    }
}

/// A snapshot whose plan cannot be read.
const UNREAD: &str = "20200101T000000000Z-0000000a";

#[tokio::test(start_paused = true)]
async fn old_snapshots_are_deleted_and_half_deleted_ones_are_unfinished() {
    let world = World::new().await;
    produce_history(&world, 10, 1).await;
    world.run_until_consumed().await;
    let (objects, shelf) = shelf();
    let mut names = Vec::new();
    for _ in 0..4 {
        names.push(create_snapshot(&world, &shelf).await.unwrap().name);
        sleep(Duration::from_secs(1)).await;
    }
    assert!(names.is_sorted());
    assert_eq!(shelf.newest().await.unwrap(), names[3]);
    // A damaged manifest, a snapshot of another store, a damaged plan, and objects of others.
    let damaged = create_snapshot(&world, &shelf).await.unwrap().name;
    write(&objects, &format!("{damaged}/manifest.json"), b"{}".to_vec()).await;
    let other = World::new().await;
    other.run_until_consumed().await;
    StoreMeta::of(&other.store).change(|meta| Ok(MetaRecord { store_id: [3; 16], ..meta })).await.unwrap();
    let of_other = create_snapshot(&other, &shelf).await.unwrap().name;
    let others = ["0a/notes", "2025-archive/plan.json", &format!("{UNREAD}/plan.json")];
    for object in others {
        write(&objects, object, b"{}".to_vec()).await;
    }
    objects.delete(&Path::from(format!("{}/manifest.json", names[1]))).await.unwrap();
    let unfinished: Vec<_> = shelf.list().await.unwrap().into_iter().filter(|found| !found.is_complete).collect();
    assert_eq!(unfinished.iter().map(|found| &found.name).collect::<Vec<_>>(), [UNREAD, &names[1]]);
    assert_eq!(shelf.delete_old(2).await.unwrap(), names[..2]);
    let left: BTreeSet<_> = shelf.list().await.unwrap().into_iter().map(|found| found.name).collect();
    assert_eq!(left, [UNREAD.to_owned(), names[2].clone(), names[3].clone(), of_other, damaged].into());
    for object in others {
        assert_eq!(read(&objects, object).await, b"{}");
    }
    verify(&shelf, &names[2], &|_| {}).await.unwrap();
    assert!(matches!(verify(&shelf, "x", &|_| {}).await, Err(SnapshotError::Unknown(_))));
}

/// Restores a snapshot into a store at `url`, catches up, and compares the store with the live one.
async fn check_restored_at(url: &str, world: &World, shelf: &Shelf, name: &str) {
    let options = OpenOptions::new(world.store.settings.rules);
    let engine = utxo_store::engine::open(url, &options).await.unwrap();
    let other = world.beside(engine.clone());
    restore_into(&other, shelf, name).await.unwrap();
    assert_ne!(digest(&other.store).await, digest(&world.store).await, "{url}");
    other.run_until_consumed().await;
    other.run_until_consumed().await;
    assert_eq!(digest(&other.store).await, digest(&world.store).await, "{url}");
    engine.close().await.unwrap();
}

/// Creates a snapshot beside a running instance, and restores the snapshot into each engine that a machine without
/// servers has, and into PostgreSQL.
async fn check_snapshot_of(world: World) {
    produce_history(&world, 10, 1).await;
    let running = world.start();
    world.until_consumed().await;
    let (_, shelf) = shelf();
    let report = create_snapshot(&world, &shelf).await.unwrap();
    produce_history(&world, 60, 3).await;
    world.until_consumed().await;
    running.stop().await;
    let directory = tempfile::tempdir().unwrap();
    check_restored_at(&StoreUrl::fjall(directory.path()).to_string(), &world, &shelf, &report.name).await;
    if cfg!(feature = "sql") {
        let file = directory.path().join("restored.db");
        check_restored_at(&format!("sqlite://{}", file.display()), &world, &shelf, &report.name).await;
    }
    #[cfg(feature = "sql")]
    if let Some(database) = crate::postgres_server::shared_database() {
        check_restored_at(&database.url(), &world, &shelf, &report.name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_restored_into_other_engines() {
    check_snapshot_of(World::with_settings(WorldSettings::paged(3)).await).await;
}

/// The records of Aerospike pass through other engines and come back into another set.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_aerospike_is_restored_into_other_engines_and_into_aerospike() {
    let Some(server) = AerospikeServer::start() else { return };
    check_snapshot_of(world_over(&server.settings(), WorldSettings::paged(3)).await).await;
    let world = World::with_settings(WorldSettings::paged(3)).await;
    let (shelf, name) = run_past_a_snapshot(&world).await;
    let engine = AerospikeEngine::open(&server.settings(), world.store.settings.rules).await.unwrap();
    let mut other = world.beside(Arc::new(engine));
    other.settings.durability_lag = Some(Duration::from_secs(2));
    restore_into(&other, &shelf, &name).await.unwrap();
    other.run_until_consumed().await;
    other.run_until_consumed().await;
    assert_eq!(digest(&other.store).await, digest(&world.store).await);
}
