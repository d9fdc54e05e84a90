//! Transactions whose bodies are objects: the same end as with inline bodies, also after a contest and in a rebuild; an
//! object that is absent, differs, or cannot be read.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
use utxo_store::{
    blob::{
        BlobOptions, EventBodies, EventBodyLimits,
        fault::{BlobFault, FaultStore},
    },
    broker::partitioner::partition_of,
    event::{BodyReference, ContentHash, PartialOutput, PartialTxEvent, PartialTxReference, ValidatedReference},
    record::TxState,
    store::digest::survey,
    tx::Txid,
};

use crate::harness::{Coin, Made, PARTITIONS, Running, World, WorldSettings, dump, spend, spend_claiming};

/// A world with an object store of bodies that can fail.
struct ReferenceWorld {
    world: World,
    faults: FaultStore,
    objects: Arc<InMemory>,
    bodies: EventBodies,
}

impl ReferenceWorld {
    async fn new(settings: WorldSettings) -> Self {
        Self::with_limits(settings, EventBodyLimits::default()).await
    }

    /// Makes a world whose instances have these limits; the producer has the default ones.
    async fn with_limits(settings: WorldSettings, limits: EventBodyLimits) -> Self {
        let mut world = World::with_settings(settings).await;
        let objects = Arc::new(InMemory::new());
        let faults = FaultStore::new(objects.clone(), 1);
        let with = |limits| EventBodies::new(Arc::new(faults.clone()), &BlobOptions::default(), limits);
        let bodies = with(EventBodyLimits::default());
        world.store = world.store.with_event_bodies(Some(with(limits)));
        ReferenceWorld { world, faults, objects, bodies }
    }

    /// Produces an event that refers to this object.
    async fn refer(&self, made: &Made, tx: BodyReference) {
        let event = ValidatedReference { txid: made.txid, tx, height: 200, locked: false };
        self.world.produce("txs", &made.txid.0, event.encode()).await;
    }

    /// Stores the body and produces the event.
    async fn validate(&self, made: &Made) {
        self.refer(made, self.bodies.put(made.extended.clone()).await.unwrap()).await;
    }

    /// Stores the known outputs of a partial transaction and produces the event.
    async fn produce_partial(&self, made: &Made) {
        let outputs = made.outputs.iter().zip(0..);
        let outputs = outputs.map(|((satoshis, script), vout)| PartialOutput { vout, satoshis: *satoshis, script });
        let event = PartialTxEvent { txid: made.txid, coinbase: false, height: 1, outputs: outputs.collect() };
        let outputs = self.bodies.put(event.encode_outputs().into()).await.unwrap();
        let event = PartialTxReference { txid: made.txid, coinbase: false, height: 1, outputs };
        self.world.produce("txs", &made.txid.0, event.encode()).await;
    }

    async fn state(&self, made: &Made) -> Option<TxState> {
        self.world.page(made).await.map(|page| page.state())
    }
}

/// Returns the reference of a body that is not stored.
fn reference_to(body: &[u8]) -> BodyReference {
    BodyReference {
        key: format!("absent/{}", blake3::hash(body)),
        length: body.len() as u64,
        blake3: ContentHash(*blake3::hash(body).as_bytes()),
    }
}

/// Returns the reasons why the instance is not ready.
fn reasons(running: &Running) -> String {
    format!("{:?}", running.health.ready().reasons)
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(600), async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{what} does not happen"));
}

/// Builds a transaction like `spend` whose txid is in this partition.
fn spend_in_partition(partition: i32, coins: &[Coin], count: usize) -> Made {
    let tags = (0..=u8::MAX).map(|tag| spend(coins, count, tag));
    tags.into_iter().find(|made| partition_of(&made.txid.0, PARTITIONS) == Some(partition)).unwrap()
}

/// Whole and partial transactions of one page and of several, rivals, a block that reverses a verdict, and bodies in
/// the blob store: the records and the digest are those of the same log with inline bodies, and a rebuild agrees.
#[tokio::test(start_paused = true)]
async fn events_by_reference_end_as_inline_events_do() {
    for settings in [WorldSettings::calm, || WorldSettings::paged(2), || WorldSettings::with_blobs(2, 0)] {
        let (inline, by_reference) = (World::with_settings(settings()).await, ReferenceWorld::new(settings()).await);
        let (wide, narrow) = (World::partial(1, 7), World::partial(2, 2));
        let paid = spend(&[wide.coin(0), narrow.coin(0)], 2, 1);
        let many = spend(&[paid.coin(1)], 5, 2);
        let child = spend(&[many.coin(4), wide.coin(6)], 1, 3);
        let rival = spend(&[many.coin(4), narrow.coin(1)], 1, 4);
        let other = &by_reference.world;
        let running = [inline.start(), other.start()];
        for made in [&wide, &narrow] {
            inline.produce_partial(made).await;
            by_reference.produce_partial(made).await;
        }
        for made in [&paid, &many, &child, &rival] {
            inline.validate(made).await;
            by_reference.validate(made).await;
            inline.until_consumed().await;
            other.until_consumed().await;
        }
        for world in [&inline, other] {
            world.mine(1, &[&paid, &many, &rival]).await;
            world.until_consumed().await;
        }
        for running in running {
            assert_eq!(running.stop().await.dead_letters, 0);
        }
        assert_eq!(dump(&inline.store).await, dump(&other.store).await);
        let digests = [&inline.store, &other.store].map(|store| async { survey(store, |_| {}).await.unwrap().digest });
        let [inline_digest, other_digest] = digests;
        assert_eq!(inline_digest.await, other_digest.await);
        other.check_without_model("events by reference").await;
    }
}

/// Two events of one transaction claim other previous outputs, and the contest names the event that decides: the
/// sequencer reads the body of that event from its object.
#[tokio::test(start_paused = true)]
async fn a_contest_reads_the_body_of_its_event_from_the_object() {
    let by_reference = ReferenceWorld::new(WorldSettings::calm()).await;
    let world = &by_reference.world;
    let running = world.start();
    let seed = world.seed(1, 2).await;
    let coins = [seed.coin(0)];
    let more: Vec<_> = coins.iter().map(|coin| Coin { satoshis: coin.satoshis + 1, ..coin.clone() }).collect();
    let (lie, honest) = (spend_claiming(&coins, &more, 1, 1), spend(&coins, 1, 1));
    by_reference.validate(&lie).await;
    world.until_consumed().await;
    assert!(matches!(by_reference.state(&lie).await, Some(TxState::Conflicting(_))));
    // The object store is away while the sequencer needs the body.
    let honest_body = by_reference.bodies.put(honest.extended.clone()).await.unwrap();
    by_reference.refer(&honest, honest_body).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    by_reference.faults.fail_all(Some(BlobFault::LostRequest));
    tokio::time::sleep(Duration::from_secs(20)).await;
    by_reference.faults.fail_all(None);
    world.until_consumed().await;
    assert_eq!(by_reference.state(&honest).await, Some(TxState::Live));
    running.stop().await;
    world.check_without_model("a contest by reference").await;
}

/// Protects: an event whose object differs in length, bytes or txid is a dead letter, and the partition goes on.
#[tokio::test(start_paused = true)]
async fn an_object_that_does_not_match_is_a_dead_letter() {
    let by_reference = ReferenceWorld::new(WorldSettings::calm()).await;
    let world = &by_reference.world;
    let seed = world.seed(1, 9).await;
    let made: Vec<_> = (0..6).map(|vout| spend_in_partition(0, &[seed.coin(vout)], 1)).collect();
    let mut references = Vec::new();
    for made in &made {
        references.push(by_reference.bodies.put(made.extended.clone()).await.unwrap());
    }
    let [length, bytes, key, txid, no_tx, good] = &made[..] else { panic!() };
    by_reference.refer(length, BodyReference { length: references[0].length + 1, ..references[0].clone() }).await;
    by_reference.refer(bytes, BodyReference { blake3: ContentHash([7; 32]), ..references[1].clone() }).await;
    // The object of another transaction, and an event under another key.
    by_reference.refer(txid, references[5].clone()).await;
    let wrong_key = ValidatedReference { txid: good.txid, tx: references[5].clone(), height: 1, locked: false };
    world.produce("txs", &key.txid.0, wrong_key.encode()).await;
    by_reference.refer(no_tx, by_reference.bodies.put(Bytes::from_static(b"no transaction")).await.unwrap()).await;
    by_reference.refer(good, references[5].clone()).await;
    let running = world.start();
    world.until_consumed().await;
    assert_eq!(running.stop().await.dead_letters, 5);
    assert_eq!(world.count("dead-letters").await, 5);
    for made in [length, bytes, key, txid, no_tx] {
        assert_eq!(by_reference.state(made).await, None);
    }
    assert_eq!(by_reference.state(good).await, Some(TxState::Live));
    world.check_without_model("objects that do not match").await;
}

/// Protects: an absent object is waited for and named in readiness; events of its partition stay in order, other
/// partitions go on, and the wait counts as no stall. A rebuild waits, too.
#[tokio::test(start_paused = true)]
async fn an_absent_object_is_waited_for_and_other_partitions_go_on() {
    let by_reference = ReferenceWorld::new(WorldSettings::calm()).await;
    let world = &by_reference.world;
    let seed = world.seed(1, 9).await;
    let running = world.start();
    world.until_consumed().await;
    let late = spend_in_partition(0, &[seed.coin(0)], 1);
    let behind = spend_in_partition(0, &[seed.coin(1)], 1);
    let elsewhere = spend_in_partition(1, &[seed.coin(2)], 1);
    let child = spend_in_partition(1, &[late.coin(0)], 1);
    let reference = reference_to(&late.extended);
    by_reference.refer(&late, reference.clone()).await;
    world.validate(&behind).await;
    world.validate(&elsewhere).await;
    until("the transaction elsewhere", async || by_reference.state(&elsewhere).await.is_some()).await;
    until("the reason", async || reasons(&running).contains(&reference.key)).await;
    assert!(reasons(&running).contains("objects_readable"), "{}", reasons(&running));
    // Longer than the time after which a loop without progress counts as stalled.
    tokio::time::sleep(Duration::from_secs(620)).await;
    assert!(running.health.live().ok, "{:?}", running.health.live());
    world.validate(&child).await;
    assert_eq!((by_reference.state(&late).await, by_reference.state(&behind).await), (None, None));
    by_reference.objects.put(&Path::from(reference.key.as_str()), late.extended.clone().into()).await.unwrap();
    world.until_consumed().await;
    until("readiness", async || running.health.ready().ok).await;
    for made in [&late, &behind, &child] {
        assert_eq!(by_reference.state(made).await, Some(TxState::Live));
    }
    assert_eq!(running.stop().await.dead_letters, 0);

    by_reference.objects.delete(&Path::from(reference.key.as_str())).await.unwrap();
    let restored = async {
        tokio::time::sleep(Duration::from_secs(100)).await;
        by_reference.objects.put(&Path::from(reference.key.as_str()), late.extended.clone().into()).await.unwrap();
    };
    tokio::join!(restored, world.check_without_model("an object that came late"));
}

/// Protects: an event that waits for its object ends with its assignment: neither a rebalance nor a rewind waits for
/// the object, and no later event of the partition is stuck behind a load of an ended epoch.
#[tokio::test(start_paused = true)]
async fn a_rebalance_and_a_rewind_do_not_wait_for_an_object() {
    let mut by_reference =
        ReferenceWorld::new(WorldSettings { loss_window: Duration::from_secs(1), ..WorldSettings::calm() }).await;
    by_reference.world.settings.pipeline.drain_timeout = Duration::from_secs(60);
    let world = &by_reference.world;
    let seed = world.seed(1, 9).await;
    let running = world.start();
    world.until_consumed().await;
    let late: Vec<_> =
        (0..3).map(|partition| spend_in_partition(partition, &[seed.coin(partition as u32)], 1)).collect();
    for made in &late {
        by_reference.refer(made, reference_to(&made.extended)).await;
    }
    until("the wait", async || reasons(&running).contains("objects_readable")).await;
    world.nodes.restart_nodes(Duration::from_secs(1), |_| true);
    tokio::time::sleep(Duration::from_secs(30)).await;
    let began = tokio::time::Instant::now();
    let second = world.start();
    tokio::time::sleep(Duration::from_secs(20)).await;
    running.stop().await;
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    for made in &late {
        let path = Path::from(reference_to(&made.extended).key);
        by_reference.objects.put(&path, made.extended.clone().into()).await.unwrap();
    }
    world.until_consumed().await;
    for made in &late {
        assert_eq!(by_reference.state(made).await, Some(TxState::Live));
    }
    second.stop().await;
    world.check_without_model("a rebalance during a wait for objects").await;
}

/// Protects: nothing is lost while the object store is away, whatever way.
#[tokio::test(start_paused = true)]
async fn an_object_store_that_is_away_is_waited_for() {
    for fault in
        [BlobFault::LostRequest, BlobFault::Denied, BlobFault::CutShort, BlobFault::Slow(Duration::from_secs(3_600))]
    {
        let by_reference = ReferenceWorld::new(WorldSettings::calm()).await;
        let world = &by_reference.world;
        let seed = world.seed(1, 2).await;
        let made = spend(&[seed.coin(0)], 1, 1);
        by_reference.validate(&made).await;
        by_reference.faults.fail_all(Some(fault));
        let running = world.start();
        until("the reason", async || reasons(&running).contains("objects_readable")).await;
        assert_eq!(by_reference.state(&made).await, None);
        by_reference.faults.fail_all(None);
        world.until_consumed().await;
        assert_eq!(by_reference.state(&made).await, Some(TxState::Live), "{fault:?}");
        assert_eq!(running.stop().await.dead_letters, 0, "{fault:?}");
    }
}

/// Protects: what an operator has to change halts the partition by name, loses nothing, and stops no other partition.
#[tokio::test(start_paused = true)]
async fn a_missing_object_store_and_a_body_above_the_limit_halt_the_partition() {
    let limits = EventBodyLimits { max_body_bytes: 10, ..EventBodyLimits::default() };
    let mut by_reference = ReferenceWorld::with_limits(WorldSettings::calm(), limits).await;
    let seed = by_reference.world.seed(1, 9).await;
    let large = spend_in_partition(0, &[seed.coin(0)], 1);
    let elsewhere = spend_in_partition(1, &[seed.coin(1)], 1);
    by_reference.validate(&large).await;
    by_reference.world.validate(&elsewhere).await;
    let narrow = by_reference.world.store.event_bodies.clone();
    for (bodies, remedy) in [(None, "set objects.url"), (narrow, "raise objects.max_body_bytes")] {
        by_reference.world.store.event_bodies = bodies;
        let running = by_reference.world.start();
        until("the halt", async || reasons(&running).contains(remedy)).await;
        until("the transaction elsewhere", async || by_reference.state(&elsewhere).await.is_some()).await;
        assert!(reasons(&running).contains("partition 0") && reasons(&running).contains(&large.txid.to_string()));
        assert_eq!(running.stop().await.dead_letters, 0);
        assert_eq!(by_reference.state(&large).await, None);
    }
    let bodies = EventBodies::new(by_reference.objects.clone(), &BlobOptions::default(), EventBodyLimits::default());
    by_reference.world.store.event_bodies = Some(bodies);
    let running = by_reference.world.start();
    by_reference.world.until_consumed().await;
    assert_eq!(by_reference.state(&large).await, Some(TxState::Live));
    running.stop().await;
    by_reference.world.check_without_model("a halt before a setting was changed").await;
}

/// Bodies are far larger than the memory for them, and children come before their parents.
/// Protects: the oldest event of each partition is loaded at last, so that every partition advances.
#[tokio::test(start_paused = true)]
async fn bodies_beyond_the_memory_bound_are_loaded_one_after_the_other() {
    let mut by_reference = ReferenceWorld::new(WorldSettings::calm()).await;
    by_reference.world.settings.pipeline.bytes_in_all = 1;
    by_reference.world.settings.pipeline.bounds.bytes = 100_000;
    let world = &by_reference.world;
    let seed = world.seed(1, 2).await;
    let mut chain = vec![spend(&[seed.coin(0)], 20, 1)];
    for tag in 2..40 {
        let parent = &chain[chain.len() - 1];
        chain.push(spend(&[parent.coin(u32::from(tag) % 20)], 20, tag));
    }
    for made in &chain {
        by_reference.validate(made).await;
    }
    let running = world.start();
    world.until_consumed().await;
    for made in &chain {
        assert_eq!(by_reference.state(made).await, Some(TxState::Live));
    }
    running.stop().await;
    world.check_without_model("bodies beyond the memory bound").await;
}

/// Protects: a reference with a hostile length halts its partition or is a dead letter, and takes no memory.
#[tokio::test(start_paused = true)]
async fn a_hostile_length_takes_no_memory() {
    let by_reference = ReferenceWorld::new(WorldSettings::calm()).await;
    let world = &by_reference.world;
    let seed = world.seed(1, 2).await;
    let made = spend_in_partition(0, &[seed.coin(0)], 1);
    by_reference.refer(&made, BodyReference { length: u64::MAX, ..reference_to(b"x") }).await;
    let running = world.start();
    until("the halt", async || reasons(&running).contains("raise objects.max_body_bytes")).await;
    running.stop().await;
    let zero = ReferenceWorld::new(WorldSettings::calm()).await;
    zero.refer(&made, zero.bodies.put(Bytes::new()).await.unwrap()).await;
    let running = zero.world.start();
    zero.world.until_consumed().await;
    assert_eq!(running.stop().await.dead_letters, 1);
    assert_eq!(zero.world.store.master(Txid(made.txid.0)).await.unwrap(), None);
}
