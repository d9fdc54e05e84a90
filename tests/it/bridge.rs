//! The bridge: messages of the shape of the reference system become the events of this store, through kills, reorgs and
//! bad input.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use object_store::{ObjectStoreExt, PutPayload, memory::InMemory, path::Path};
use prost::Message as _;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use utxo_store::{
    blob::{
        BlobOptions, EventBodies, EventBodyLimits,
        objects::{AnnouncedObject, Objects},
    },
    bridge::{
        BridgeCounts, BridgeError,
        blocks::BlockBridge,
        messages::{BlocksFinal, TxValidation},
        subtree::{COINBASE_NODE, encode_subtree},
        transactions::TransactionBridge,
    },
    broker::{
        Broker, BrokerDecorator, BrokerError, CommittedOffset, Delivery, NewTopic, OutgoingMessage, Producer,
        TopicIdentity, TopicPartition, memory::MemoryBroker,
    },
    config::{Config, Topics},
    event::{Block, BlockMined, DeadLetter, Event, Reorg, SubtreeTransactions, Topic},
    generate::{Chain, Message, PreviousOutputs, SourceFile},
    group::dead_letters::DeadLetterLimits,
    rng::SplitMix64,
    store::digest::survey,
    telemetry::Metrics,
    tx::{
        Txid,
        block::{HEADER_LEN, MerkleRoot, Scan, ScanItem},
        double_sha256,
    },
};

use crate::{
    demo,
    harness::{Made, PARTITIONS, World, coinbase, spend},
    kafka_server::KafkaServer,
    run::{self, Bench, block_on, until},
};

const TRANSACTIONS: &str = "validatortxs";
const BLOCKS: &str = "blocks-final";

/// A log whose producers take a millisecond before and after each request, so that a kill meets every step.
struct SlowProducers(MemoryBroker);

struct SlowProducer(Arc<dyn Producer>);

impl BrokerDecorator for SlowProducers {
    fn inner(&self) -> &dyn Broker {
        &self.0
    }

    async fn producer(&self) -> Result<Arc<dyn Producer>, BrokerError> {
        Ok(Arc::new(SlowProducer(self.0.producer().await?)))
    }
}

#[async_trait]
impl Producer for SlowProducer {
    async fn produce(&self, message: OutgoingMessage) -> Result<Delivery, BrokerError> {
        self.produce_all(vec![message]).await.map(|deliveries| deliveries[0])
    }

    async fn produce_all(&self, messages: Vec<OutgoingMessage>) -> Result<Vec<Delivery>, BrokerError> {
        sleep(Duration::from_millis(1)).await;
        let delivered = self.0.produce_all(messages).await;
        sleep(Duration::from_millis(1)).await;
        delivered
    }
}

/// A log that shows fewer partitions of the reference's transactions until they are `added`.
struct GrowingTopic {
    broker: MemoryBroker,
    added: AtomicBool,
}

impl BrokerDecorator for GrowingTopic {
    fn inner(&self) -> &dyn Broker {
        &self.broker
    }

    async fn identify(&self, topics: &[String]) -> Result<Vec<Option<TopicIdentity>>, BrokerError> {
        let mut found = self.broker.identify(topics).await?;
        for identity in found.iter_mut().flatten().filter(|_| !self.added.load(Relaxed)) {
            identity.partitions = 1;
        }
        Ok(found)
    }
}

/// The reference's topics and subtrees, beside the topics of a world.
struct Reference {
    world: World,
    objects: Arc<InMemory>,
    bodies: Arc<InMemory>,
    inline_bytes: usize,
    event_limits: EventBodyLimits,
    has_bodies: bool,
    limits: DeadLetterLimits,
    begin_after: Option<[u8; 32]>,
    counts: Arc<BridgeCounts>,
    blocks: u64,
}

impl Reference {
    async fn beside(world: World) -> Self {
        let new = |name: &str, partitions| NewTopic { name: name.into(), partitions, config: vec![] };
        world.broker.create_topics(&[new(TRANSACTIONS, PARTITIONS), new(BLOCKS, 1)]).await.unwrap();
        Reference {
            world,
            objects: Arc::default(),
            bodies: Arc::default(),
            inline_bytes: 1 << 20,
            event_limits: EventBodyLimits { inline_event_bytes: 1 << 20, max_body_bytes: 1 << 30 },
            has_bodies: true,
            limits: DeadLetterLimits { consecutive: 5, ratio: 0.5 },
            begin_after: None,
            counts: Arc::new(BridgeCounts::register(&Metrics::new()).unwrap()),
            blocks: 0,
        }
    }

    fn topics() -> Topics {
        let name = |name: &str| name.parse().unwrap();
        Topics {
            validated_txs: name("txs"),
            block_mined: name("block-mined"),
            reorgs: name("reorgs"),
            dead_letters: name("dead-letters"),
            ..Config::default().kafka.topics
        }
    }

    fn bridges(&self) -> (TransactionBridge, BlockBridge) {
        let broker: Arc<dyn Broker> = Arc::new(SlowProducers(self.world.broker.clone()));
        let (tip, next_height) = watch::channel(None);
        let bodies =
            self.has_bodies.then(|| EventBodies::new(self.bodies.clone(), &BlobOptions::default(), self.event_limits));
        let (group, topics, counts) = ("bridge".to_owned(), Self::topics(), self.counts.clone());
        let transactions = TransactionBridge {
            broker: broker.clone(),
            topic: TRANSACTIONS.to_owned(),
            group: group.clone(),
            topics: topics.clone(),
            bodies: bodies.clone(),
            next_height,
            dead_letter_limits: self.limits,
            counts: counts.clone(),
        };
        let blocks = BlockBridge {
            broker,
            topic: BLOCKS.to_owned(),
            group,
            topics,
            subtrees: Objects::new(self.objects.clone(), &BlobOptions::default()),
            bodies,
            inline_bytes: self.inline_bytes,
            next_height: tip,
            begin_after: self.begin_after,
            dead_letter_limits: self.limits,
            counts,
        };
        (transactions, blocks)
    }

    /// Runs both bridges for a while, and kills them: the futures are dropped wherever they are.
    async fn run_killed(&self, after: Duration) {
        let (transactions, blocks) = self.bridges();
        let shutdown = CancellationToken::new();
        let run = async { tokio::try_join!(transactions.run(&shutdown), blocks.run(&shutdown)) };
        if let Ok(ended) = timeout(after, Box::pin(run)).await {
            panic!("the bridges end by themselves: {ended:?}");
        }
    }

    /// Runs both bridges until they have committed the ends of their topics, and stops them in order.
    async fn run_to_the_end(&self) -> Result<(), BridgeError> {
        let (transactions, blocks) = self.bridges();
        let shutdown = CancellationToken::new();
        let run = async { tokio::try_join!(transactions.run(&shutdown), blocks.run(&shutdown)).map(drop) };
        let mut run = Box::pin(run);
        let at_end = async {
            while !self.is_at_end().await {
                sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            ended = &mut run => return ended,
            () = at_end => {}
        }
        shutdown.cancel();
        run.await
    }

    /// Runs the bridge of the blocks until its error.
    async fn until_refused(&self) -> BridgeError {
        let (_, blocks) = self.bridges();
        let never = CancellationToken::new();
        blocks.run(&never).await.unwrap_err()
    }

    async fn is_at_end(&self) -> bool {
        let topics = (0..PARTITIONS).map(|number| (TRANSACTIONS, number)).chain([(BLOCKS, 0)]);
        for (topic, partition) in topics {
            let at = TopicPartition { topic: topic.into(), partition };
            let committed = self.world.broker.committed("bridge", std::slice::from_ref(&at)).await.unwrap();
            let committed = committed[0].as_ref().map_or(0, |committed| committed.offset);
            if committed < self.world.end(topic, partition).await {
                return false;
            }
        }
        true
    }

    async fn produce(&self, topic: &str, partition: i32, payload: Vec<u8>) {
        let message = OutgoingMessage {
            topic: topic.into(),
            partition: Some(partition),
            payload: payload.into(),
            ..Default::default()
        };
        self.world.broker.producer().await.unwrap().produce(message).await.unwrap();
    }

    async fn validate(&self, partition: i32, tx: &[u8], height: u32) {
        let message = TxValidation { tx: Bytes::copy_from_slice(tx), height, options: None };
        self.produce(TRANSACTIONS, partition, message.encode_to_vec()).await;
    }

    /// Puts the subtrees of a block, and returns their hashes.
    async fn put_subtrees(&self, number: u64, subtrees: &[Vec<Txid>]) -> Vec<[u8; 32]> {
        let mut hashes = Vec::new();
        for (index, txids) in subtrees.iter().enumerate() {
            let mut nodes: Vec<[u8; 32]> = txids.iter().map(|txid| txid.0).collect();
            if index == 0 {
                nodes.insert(0, COINBASE_NODE);
            }
            let root = double_sha256([&number.to_le_bytes()[..], &[index as u8]]);
            let object = encode_subtree(root, &nodes, &[]);
            match root[0] % 2 {
                0 => self.put_subtree(root, object).await,
                _ => self.put_file_of_the_reference(root, &object).await,
            }
            hashes.push(root);
        }
        hashes
    }

    async fn put_subtree(&self, root: [u8; 32], object: Vec<u8>) {
        let path = Path::from(format!("{}.subtree", Txid(root)));
        self.objects.put(&path, PutPayload::from(object)).await.unwrap();
    }

    /// Puts a subtree as the reference writes its files by default: with a header, in a folder of two digits.
    async fn put_file_of_the_reference(&self, root: [u8; 32], object: &[u8]) {
        let name = Txid(root).to_string();
        let path = Path::from(format!("{}/{name}.subtree", &name[..2]));
        self.objects.put(&path, PutPayload::from([b"S-1.0   ", object].concat())).await.unwrap();
    }

    /// Produces a final block whose subtrees are there; returns its hash.
    async fn finalize(
        &mut self,
        previous: [u8; 32],
        height: u32,
        coinbase: &Made,
        subtrees: &[Vec<&Made>],
    ) -> [u8; 32] {
        self.blocks += 1;
        let subtrees: Vec<Vec<Txid>> =
            subtrees.iter().map(|made| made.iter().map(|made| made.txid).collect()).collect();
        let hashes = self.put_subtrees(self.blocks, &subtrees).await;
        let mut root = MerkleRoot::default();
        root.push(coinbase.txid);
        subtrees.iter().flatten().for_each(|txid| root.push(*txid));
        let header = header(previous, root.finish().unwrap());
        self.produce(BLOCKS, 0, block_message(&header, &hashes, &coinbase.extended, height)).await;
        double_sha256([&header[..]])
    }

    /// Returns the dead letters, ordered by their sources.
    async fn letters(&self) -> Vec<DeadLetter> {
        let mut letters = Vec::new();
        let topic = Self::topics().name(Topic::DeadLetters).to_owned();
        for partition in 0..PARTITIONS {
            let end = self.world.end(&topic, partition).await;
            let at = TopicPartition { topic: topic.as_str().into(), partition };
            let mut reader = self.world.broker.read(&at, 0).await.unwrap();
            while reader.position() < end {
                let messages = reader.next(Duration::from_millis(10)).await.unwrap();
                letters.extend(messages.iter().map(|message| DeadLetter::from_headers(&message.headers).unwrap()));
            }
        }
        letters.sort_by(|a, b| (&a.topic, a.partition, a.offset).cmp(&(&b.topic, b.partition, b.offset)));
        letters
    }

    /// Returns the heights of the published transactions, by txid.
    async fn heights(&self) -> BTreeMap<Txid, u32> {
        let mut heights = BTreeMap::new();
        for partition in 0..PARTITIONS {
            let end = self.world.end("txs", partition).await;
            let at = TopicPartition { topic: "txs".into(), partition };
            let mut reader = self.world.broker.read(&at, 0).await.unwrap();
            while reader.position() < end {
                for message in reader.next(Duration::from_millis(10)).await.unwrap() {
                    if let Ok(Event::Validated(validated)) = Event::decode(&message.payload) {
                        heights.insert(Txid(message.key.as_ref().try_into().unwrap()), validated.height);
                    }
                }
            }
        }
        heights
    }

    /// Returns sequence, height and mark of the chain of each published block.
    async fn mined(&self) -> Vec<(u64, u32, bool)> {
        let payloads = self.published("block-mined").await;
        let mined = payloads.iter().map(|payload| match Event::decode(payload) {
            Ok(Event::BlockMined(mined)) => (mined.sequence, mined.block.height, mined.block.longest_chain),
            other => panic!("{other:?}"),
        });
        mined.collect()
    }

    /// Returns the events of a topic of one partition.
    async fn published(&self, topic: &str) -> Vec<Bytes> {
        let partition = TopicPartition { topic: topic.into(), partition: 0 };
        let end = self.world.end(topic, 0).await;
        let mut reader = self.world.broker.read(&partition, 0).await.unwrap();
        let mut found = Vec::new();
        while reader.position() < end {
            found.extend(
                reader.next(Duration::from_millis(1)).await.unwrap().into_iter().map(|message| message.payload),
            );
        }
        found
    }
}

fn header(previous: [u8; 32], root: [u8; 32]) -> Vec<u8> {
    [&[1, 0, 0, 0], &previous[..], &root, &[0; 12]].concat()
}

fn block_message(header: &[u8], subtrees: &[[u8; 32]], coinbase: &[u8], height: u32) -> Vec<u8> {
    let subtree_hashes = subtrees.iter().map(|hash| Bytes::copy_from_slice(hash)).collect();
    let coinbase_tx = Bytes::copy_from_slice(coinbase);
    let header = Bytes::copy_from_slice(header);
    BlocksFinal { header, subtree_hashes, coinbase_tx, height, ..BlocksFinal::default() }.encode_to_vec()
}

fn file() -> SourceFile {
    let path = format!("{}/tests/data/mainnet-0-4312.blk", env!("CARGO_MANIFEST_DIR"));
    SourceFile { bytes: fs::read(&path).unwrap(), name: path }
}

/// The messages of the reference for the real blocks 0 to 4,312 give the state that this store's own events give,
/// although the bridges are killed and repeat messages.
#[tokio::test(start_paused = true)]
async fn real_blocks_have_the_same_state_through_the_bridge() {
    let file = file();
    let headers: BTreeMap<[u8; 32], Vec<u8>> = Scan::new(&file.bytes)
        .unwrap()
        .filter_map(|item| match item {
            ScanItem::Block(block) => Some((block.hash(), block.raw()[..HEADER_LEN].to_vec())),
            ScanItem::SkippedBytes(_) => None,
        })
        .collect();
    let chain =
        Chain::new(&[file], None, PreviousOutputs::InTheFiles).map(|chain| chain.messages().collect::<Vec<_>>());
    let events: Vec<Message> = chain.unwrap();
    let direct = World::new().await;
    let reference = Reference::beside(World::new().await).await;
    for (number, message) in (0..).zip(&events) {
        match Event::decode(&message.payload).unwrap() {
            Event::Validated(validated) => {
                reference.validate(number % PARTITIONS, validated.tx, validated.height).await;
                direct.produce("txs", &message.key.unwrap().0, message.payload.clone()).await;
            }
            Event::BlockMined(BlockMined { sequence, block }) => {
                let txids = |subtree: &utxo_store::event::Subtree<'_>| subtree.transactions.inline().unwrap().collect();
                let subtrees: Vec<Vec<Txid>> = block.subtrees.iter().map(txids).collect();
                let hashes = reference.put_subtrees(sequence, &subtrees).await;
                let header = &headers[&block.hash];
                reference.produce(BLOCKS, 0, block_message(header, &hashes, block.coinbase, block.height)).await;
                direct.produce("block-mined", b"", message.payload.clone()).await;
            }
            other => panic!("{other:?}"),
        }
    }
    let mut rng = SplitMix64::new(7);
    let mut ends = BTreeSet::new();
    for _ in 0..12 {
        reference.run_killed(Duration::from_millis(rng.below(1_400))).await;
        ends.insert(reference.world.end("block-mined", 0).await);
    }
    assert!(ends.len() > 8, "kills in the middle of the chain: {ends:?}");
    reference.run_to_the_end().await.unwrap();
    assert_eq!(reference.world.end("block-mined", 0).await, 4_313, "a killed bridge repeats no block");
    for world in [&direct, &reference.world] {
        world.run_until_consumed().await;
    }
    let surveyed = async |world: &World| survey(&world.store, |_| {}).await.unwrap();
    let end = surveyed(&reference.world).await;
    assert_eq!(end.digest, surveyed(&direct).await.digest);
    assert_eq!(end.digest_without_conflicting.to_string(), demo::STANDING, "the digest of the demo");
    reference.world.check_without_model("the bridge").await;
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_forks_becomes_reorgs_and_large_lists_become_objects() {
    let mut reference = Reference::beside(World::new().await).await;
    let seed = reference.world.seed(10, 4).await;
    let payments: Vec<Made> = (0..4).map(|vout| spend(&[seed.coin(vout)], 1, 1)).collect();
    for (payment, partition) in payments.iter().zip([0, 1, 2, 0]) {
        reference.validate(partition, &payment.extended, 101).await;
    }
    let coinbases: Vec<Made> = (1..=5).map(coinbase).collect();
    let one = reference.finalize([9; 32], 101, &coinbases[0], &[vec![&payments[0]]]).await;
    let two = reference.finalize(one, 102, &coinbases[1], &[vec![], vec![&payments[1]]]).await;
    let stale = reference.finalize(one, 102, &coinbases[2], &[vec![&payments[2], &payments[1]]]).await;
    reference.run_to_the_end().await.unwrap();
    // The rest comes after a start. A message of a known block is a repeat.
    reference.finalize(stale, 103, &coinbases[3], &[vec![&payments[3]]]).await;
    reference.finalize(one, 102, &coinbases[1], &[vec![], vec![&payments[1]]]).await;
    let three = reference.finalize(two, 103, &coinbases[4], &[]).await;
    reference.run_to_the_end().await.unwrap();
    let mined = reference.published("block-mined").await;
    let events: Vec<(u64, u32, bool)> = mined
        .iter()
        .map(|payload| match Event::decode(payload) {
            Ok(Event::BlockMined(mined)) => (mined.sequence, mined.block.block_id, mined.block.longest_chain),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(events, [(1, 1, true), (2, 2, true), (3, 3, false), (5, 5, false)]);
    let reorgs = reference.published("reorgs").await;
    let Ok(Event::Reorg(Reorg { sequence: 4, disconnected, connected })) = Event::decode(&reorgs[0]) else {
        panic!("{reorgs:?}")
    };
    let ids = |blocks: &[Block<'_>]| blocks.iter().map(|block| block.block_id).collect::<Vec<_>>();
    assert_eq!((ids(&disconnected), ids(&connected), reorgs.len()), (vec![2], vec![3, 4], 1));
    assert_eq!(disconnected[0].subtrees.iter().map(|subtree| subtree.count).collect::<Vec<_>>(), [0, 1]);
    reference.world.run_until_consumed().await;
    for payment in &payments {
        let page = reference.world.page(payment).await.unwrap();
        assert_eq!(page.unmined_since(), None, "{} is in a block of the chain", payment.txid);
    }

    // A reorg whose blocks have more txids together than fit a message here.
    reference.inline_bytes = 64;
    reference.finalize(three, 104, &coinbase(6), &[]).await;
    reference.run_to_the_end().await.unwrap();
    let reorgs = reference.published("reorgs").await;
    let Ok(Event::Reorg(reorg)) = Event::decode(&reorgs[1]) else { panic!("{reorgs:?}") };
    assert_eq!((ids(&reorg.disconnected), ids(&reorg.connected)), (vec![3, 4], vec![2, 5, 6]));
    let stale = &reorg.disconnected[0].subtrees[0];
    let SubtreeTransactions::Object { key, sha256 } = stale.transactions else { panic!("{stale:?}") };
    let objects = Objects::new(reference.bodies.clone(), &BlobOptions::default());
    let mut txids = objects.txids(AnnouncedObject { key, count: stale.count, sha256 }).await.unwrap();
    assert_eq!(txids.next().await.unwrap(), [payments[2].txid, payments[1].txid]);
    assert_eq!(txids.next().await.unwrap(), []);
}

/// Targets of headers: a block of the second one takes 256 times the work.
const TARGETS: [u32; 2] = [0x207f_ffff, 0x1f7f_ffff];

/// A branch of one block has more work than a branch of two; later the other branch has more. The bridge is killed
/// after each few milliseconds.
/// Protects: each start finds the work of both branches in the messages, and continues with the same events.
#[tokio::test(start_paused = true)]
async fn kills_between_branches_of_different_work_change_no_event() {
    let mut expected = None;
    for life_ms in [None, Some(1), Some(2), Some(3), Some(5), Some(8), Some(13)] {
        let reference = Reference::beside(World::new().await).await;
        let mut coinbases = (1..).map(coinbase);
        let mut finalize = async |previous, height, target: usize| {
            let coinbase = coinbases.next().unwrap();
            let mut root = MerkleRoot::default();
            root.push(coinbase.txid);
            let mut header = header(previous, root.finish().unwrap());
            header[72..76].copy_from_slice(&TARGETS[target].to_le_bytes());
            reference.produce(BLOCKS, 0, block_message(&header, &[], &coinbase.extended, height)).await;
            double_sha256([&header[..]])
        };
        let base = finalize([9; 32], 101, 0).await;
        let easy = finalize(base, 102, 0).await;
        let easy = finalize(easy, 103, 0).await;
        let heavy = finalize(base, 102, 1).await;
        finalize(easy, 104, 0).await;
        finalize(heavy, 103, 0).await;
        let easy = finalize(easy, 104, 1).await;
        finalize(easy, 105, 1).await;
        if let Some(life_ms) = life_ms {
            // A life that is too short for a start gets longer, so that the bridge gets on.
            for life in 0..60 {
                reference.run_killed(Duration::from_millis(life_ms + life / 6)).await;
            }
        }
        reference.run_to_the_end().await.unwrap();
        let mut events = Vec::new();
        for topic in ["block-mined", "reorgs"] {
            let mut published = reference.published(topic).await;
            // A kill before the commit repeats an event.
            let mut seen = BTreeSet::new();
            published.retain(|event| seen.insert(event.clone()));
            events.push(published);
        }
        assert_eq!(events[1].len(), 2, "to the heavy branch, and back");
        assert_eq!(*expected.get_or_insert(events.clone()), events, "lives of {life_ms:?} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_no_transaction_becomes_a_dead_letter() {
    let reference = Reference::beside(World::new().await).await;
    let seed = reference.world.seed(10, 1).await;
    let payment = spend(&[seed.coin(0)], 1, 1);
    reference.produce(TRANSACTIONS, 1, vec![0xFF; 7]).await;
    reference.produce(BLOCKS, 0, vec![0xFF; 7]).await;
    reference.validate(1, &payment.extended[..20], 5).await;
    reference.validate(1, &payment.extended, 5).await;
    reference.run_to_the_end().await.unwrap();
    assert_eq!(
        reference.counts.describe(),
        "1 transactions, 0 block events, 0 repeated blocks, 0 waiting blocks, 3 dead letters"
    );
    let letters: Vec<_> = reference
        .letters()
        .await
        .into_iter()
        .map(|letter| (letter.topic, letter.partition, letter.offset, letter.stage))
        .collect();
    let of = |topic: &str, partition, offset| (topic.to_owned(), partition, offset, "bridge".to_owned());
    assert_eq!(letters, [of(BLOCKS, 0, 0), of(TRANSACTIONS, 1, 0), of(TRANSACTIONS, 1, 1)]);
    reference.world.run_until_consumed().await;
    assert!(reference.world.page(&payment).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_block_that_cannot_become_an_event_ends_the_bridge() {
    let mut reference = Reference::beside(World::new().await).await;
    let first = coinbase(1);
    let tip = reference.finalize([9; 32], 101, &first, &[]).await;
    reference.run_to_the_end().await.unwrap();
    // The subtree lists another transaction than the header commits to.
    let second = coinbase(2);
    reference.finalize(tip, 102, &second, &[vec![&first]]).await;
    let root = double_sha256([&reference.blocks.to_le_bytes()[..], &[0]]);
    let name = Txid(root).to_string();
    let in_folder = Path::from(format!("{}/{name}.subtree", &name[..2]));
    drop(reference.objects.delete(&in_folder).await);
    let good = encode_subtree(root, &[COINBASE_NODE, first.txid.0], &[]);
    for (damaged, problem) in [
        (encode_subtree(root, &[COINBASE_NODE, [5; 32]], &[]), "have the merkle root"),
        ([&good[..], &[0]].concat(), "it has bytes after its last field"),
        (encode_subtree([6; 32], &[], &[]), "its root hash is"),
    ] {
        reference.put_subtree(root, damaged).await;
        let error = reference.until_refused().await.to_string();
        assert!(error.starts_with("blocks-final/0 offset 1: ") && error.contains(problem), "{error}");
    }
    // A subtree that is written in part, or missing, is waited for.
    reference.put_subtree(root, good[..100].to_vec()).await;
    reference.run_killed(Duration::from_secs(50)).await;
    assert_eq!(reference.counts.missing_subtree(), None, "the wait is short");
    reference.run_killed(Duration::from_secs(600)).await;
    let reported = reference.counts.missing_subtree().expect("the block has waited long");
    assert!(reported.contains(&name) && reported.contains("it ends after 100 bytes"), "{reported}");
    reference.objects.delete(&Path::from(format!("{name}.subtree"))).await.unwrap();
    reference.run_killed(Duration::from_secs(600)).await;
    let reported = reference.counts.missing_subtree().expect("the block has waited long");
    assert!(reported.contains(&format!("{name}.subtree")) && reported.contains("does not exist"), "{reported}");
    assert_eq!(reference.published("block-mined").await.len(), 1);
    reference.put_file_of_the_reference(root, &good).await;
    reference.run_to_the_end().await.unwrap();
    assert_eq!(reference.counts.missing_subtree(), None);
    assert_eq!(reference.published("block-mined").await.len(), 2);
}

/// The height of a transaction is that of the next block once all blocks are read that exist at the start.
#[tokio::test(start_paused = true)]
async fn transactions_without_a_height_wait_until_the_blocks_are_read() {
    let mut reference = Reference::beside(World::new().await).await;
    let seed = reference.world.seed(10, 4).await;
    let payments: Vec<Made> = (0..4).map(|vout| spend(&[seed.coin(vout)], 1, 1)).collect();
    reference.validate(0, &payments[0].extended, 7).await;
    reference.validate(0, &payments[1].extended, 0).await;
    reference.run_killed(Duration::from_secs(5)).await;
    assert_eq!(reference.heights().await, BTreeMap::from([(payments[0].txid, 7)]), "no block is known");
    let mut tip = [9; 32];
    for height in 101..=150 {
        tip = reference.finalize(tip, height, &coinbase(height), &[]).await;
    }
    reference.run_to_the_end().await.unwrap();
    assert_eq!(reference.heights().await[&payments[1].txid], 151);
    // Of the new blocks one comes before its previous block, which comes while the bridge runs.
    let (late, early) = (coinbase(151), coinbase(152));
    let mut root = MerkleRoot::default();
    root.push(late.txid);
    let missing = header(tip, root.finish().unwrap());
    reference.finalize(double_sha256([&missing[..]]), 152, &early, &[]).await;
    reference.validate(1, &payments[2].extended, 0).await;
    let (transactions, blocks) = reference.bridges();
    let shutdown = CancellationToken::new();
    let mut run = Box::pin(async { tokio::try_join!(transactions.run(&shutdown), blocks.run(&shutdown)).map(drop) });
    timeout(Duration::from_secs(5), &mut run).await.unwrap_err();
    assert!(!reference.heights().await.contains_key(&payments[2].txid), "a block above the tip waits");
    reference.produce(BLOCKS, 0, block_message(&missing, &[], &late.extended, 151)).await;
    timeout(Duration::from_secs(5), &mut run).await.unwrap_err();
    assert_eq!(reference.heights().await[&payments[2].txid], 153);
    reference.validate(2, &payments[3].extended, 0).await;
    timeout(Duration::from_secs(5), &mut run).await.unwrap_err();
    assert_eq!(reference.heights().await[&payments[3].txid], 153);
    shutdown.cancel();
    run.await.unwrap();
}

/// A block that comes before its previous block waits, also through kills, and the blocks after the gap follow in the
/// order of the topic.
#[tokio::test(start_paused = true)]
async fn blocks_wait_for_their_previous_blocks_through_kills() {
    let mut reference = Reference::beside(World::new().await).await;
    let one = reference.finalize([9; 32], 101, &coinbase(1), &[]).await;
    // Block 102 is missing; a block with a wrong height takes its place at first.
    let second = coinbase(2);
    let mut root = MerkleRoot::default();
    root.push(second.txid);
    let missing = header(one, root.finish().unwrap());
    let mut tip = double_sha256([&missing[..]]);
    reference.produce(BLOCKS, 0, block_message(&missing, &[], &second.extended, 105)).await;
    for height in 103..=110 {
        tip = reference.finalize(tip, height, &coinbase(height), &[]).await;
    }
    let at = TopicPartition { topic: BLOCKS.into(), partition: 0 };
    for _ in 0..3 {
        reference.run_killed(Duration::from_secs(5)).await;
        assert_eq!(reference.mined().await, [(1, 101, true)]);
        let committed = reference.world.broker.committed("bridge", std::slice::from_ref(&at)).await.unwrap();
        assert_eq!(committed[0].as_ref().unwrap().offset, 2, "the first block that waits is read again");
    }
    assert_eq!(reference.letters().await.len(), 1, "one dead letter of the wrong height, and none at each start");
    let letter = &reference.letters().await[0];
    assert!(letter.offset == 1 && letter.message.contains("its height is 105"), "{letter:?}");
    reference.produce(BLOCKS, 0, block_message(&missing, &[], &second.extended, 102)).await;
    for _ in 0..40 {
        reference.run_killed(Duration::from_millis(5)).await;
    }
    reference.run_to_the_end().await.unwrap();
    let expected: Vec<(u64, u32, bool)> = (1..=10).map(|number| (number, 100 + number as u32, true)).collect();
    assert_eq!(reference.mined().await, expected);
    assert_eq!(reference.letters().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn two_blocks_of_one_height_at_the_beginning_are_two_branches() {
    let mut reference = Reference::beside(World::new().await).await;
    reference.finalize([9; 32], 101, &coinbase(1), &[]).await;
    let other = reference.finalize([9; 32], 101, &coinbase(2), &[]).await;
    reference.finalize(other, 102, &coinbase(3), &[]).await;
    reference.run_to_the_end().await.unwrap();
    assert_eq!(reference.mined().await, [(1, 101, true), (2, 101, false)]);
    assert_eq!(reference.published("reorgs").await.len(), 1);
}

/// The store was imported as of a block, and the topic begins before the block.
#[tokio::test(start_paused = true)]
async fn the_bridge_begins_after_a_given_block() {
    let mut reference = Reference::beside(World::new().await).await;
    let mut tips = vec![[9; 32]];
    for height in 101..=106 {
        tips.push(reference.finalize(tips[tips.len() - 1], height, &coinbase(height), &[]).await);
    }
    reference.begin_after = Some([8; 32]);
    let error = timeout(Duration::from_secs(60), reference.until_refused()).await.expect("the hash is wrong");
    assert!(error.to_string().contains(&format!("no message is of block {} (--after)", Txid([8; 32]))), "{error}");
    // The block after the last one is still to come.
    reference.begin_after = Some(tips[6]);
    reference.run_killed(Duration::from_secs(5)).await;
    assert_eq!(reference.mined().await, []);
    reference.begin_after = Some(tips[3]);
    reference.run_to_the_end().await.unwrap();
    assert_eq!(reference.mined().await, [(1, 104, true), (2, 105, true), (3, 106, true)]);
    assert!(reference.counts.describe().contains(" 0 waiting blocks"), "{}", reference.counts.describe());
    // Later the option has no effect.
    reference.begin_after = Some(tips[1]);
    reference.finalize(tips[6], 107, &coinbase(107), &[]).await;
    reference.run_to_the_end().await.unwrap();
    assert_eq!(reference.mined().await.len(), 4);
}

/// Protects: a bridge whose events are all deleted does not count from 1 again, under numbers that the chain has used.
#[tokio::test(start_paused = true)]
async fn a_bridge_whose_events_are_all_deleted_ends() {
    let mut reference = Reference::beside(World::new().await).await;
    let tip = reference.finalize([9; 32], 101, &coinbase(1), &[]).await;
    reference.run_to_the_end().await.unwrap();
    let own = TopicPartition { topic: "block-mined".into(), partition: 0 };
    reference.world.broker.truncate(&own, 1).unwrap();
    reference.finalize(tip, 102, &coinbase(2), &[]).await;
    let error = reference.until_refused().await.to_string();
    assert!(
        error.contains("up to sequence 1, and the topics of blocks and reorgs hold events up to sequence 0"),
        "{error}"
    );
    assert_eq!(reference.world.end("block-mined", 0).await, 1, "nothing was published");
}

/// Protects: a topic that begins far below the given block does not end the bridge.
#[tokio::test(start_paused = true)]
async fn the_bridge_begins_after_a_block_that_is_far_behind_in_the_topic() {
    let mut reference = Reference::beside(World::new().await).await;
    let mut tip = [9; 32];
    for height in 1..=8_100 {
        tip = reference.finalize(tip, height, &coinbase(height), &[]).await;
    }
    reference.begin_after = Some(tip);
    reference.finalize(tip, 8_101, &coinbase(8_101), &[]).await;
    reference.run_to_the_end().await.unwrap();
    assert_eq!(reference.mined().await, [(1, 8_101, true)]);
    assert_eq!(reference.letters().await.len(), 0, "the blocks before are in the store");
}

/// Protects: a block whose previous block never comes does not vanish, and an operator sees the gap.
#[tokio::test(start_paused = true)]
async fn a_block_that_waits_in_vain_is_reported_and_becomes_a_dead_letter() {
    let mut reference = Reference::beside(World::new().await).await;
    let mut tip = reference.finalize([9; 32], 101, &coinbase(1), &[]).await;
    reference.finalize([7; 32], 103, &coinbase(3), &[]).await;
    reference.run_killed(Duration::from_secs(290)).await;
    assert_eq!(reference.counts.missing_block(), None);
    reference.run_killed(Duration::from_secs(310)).await;
    let missing = reference.counts.missing_block().expect("the bridge has waited long");
    let named = format!("1 blocks wait for block {} of height 102", Txid([7; 32]));
    assert!(missing.starts_with(&named), "{missing}");
    for height in 102..=103 + 2_016 {
        tip = reference.finalize(tip, height, &coinbase(10_000 + height), &[]).await;
    }
    reference.run_killed(Duration::from_secs(60)).await;
    assert_eq!(reference.counts.missing_block(), None, "the chain has passed the block");
    assert_eq!(reference.letters().await.len(), 0);
    // The bridge was started again since the block was read first.
    reference.finalize(tip, 104 + 2_016, &coinbase(2), &[]).await;
    for _ in 0..2 {
        reference.run_to_the_end().await.unwrap();
        let letters = reference.letters().await;
        assert!(letters.len() == 1 && letters[0].offset == 1, "{letters:?}");
        assert!(letters[0].message.contains("has no message"), "{letters:?}");
    }
    assert!(reference.counts.describe().contains(" 0 waiting blocks, 1 dead letters"));
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_fits_no_message_or_body_becomes_a_dead_letter_once() {
    let world = World::new().await;
    let limit = ("max.message.bytes".to_owned(), "1000".to_owned());
    let small = NewTopic { name: "txs".into(), partitions: PARTITIONS, config: vec![limit] };
    world.broker.recreate_topic(&small).unwrap();
    let mut reference = Reference::beside(world).await;
    let seed = World::partial(1, 400);
    let spend_many = |vouts: std::ops::Range<u32>| {
        let coins: Vec<_> = vouts.map(|vout| seed.coin(vout)).collect();
        spend(&coins, 1, 1)
    };
    let made = [spend_many(0..1), spend_many(1..60), spend_many(60..61), spend_many(61..62)];
    for made in &made {
        reference.validate(0, &made.extended, 9).await;
    }
    reference.has_bodies = false;
    for _ in 0..2 {
        reference.run_to_the_end().await.unwrap();
        let letters = reference.letters().await;
        assert_eq!(letters.iter().map(|letter| letter.offset).collect::<Vec<_>>(), [1]);
        assert!(letters[0].message.contains("larger than the topic takes"), "{letters:?}");
    }
    let forwarded: BTreeSet<Txid> = reference.heights().await.into_keys().collect();
    assert_eq!(forwarded, [0, 2, 3].map(|number: usize| made[number].txid).into());
    // With an object store a body is limited, too.
    reference.has_bodies = true;
    reference.event_limits = EventBodyLimits { inline_event_bytes: 900, max_body_bytes: 4_000 };
    reference.validate(0, &spend_many(100..250).extended, 9).await;
    reference.validate(0, &spend_many(300..310).extended, 9).await;
    reference.run_to_the_end().await.unwrap();
    let letters = reference.letters().await;
    assert_eq!(letters.iter().map(|letter| letter.offset).collect::<Vec<_>>(), [1, 4]);
    assert!(letters[1].message.contains("objects.max_body_bytes"), "{letters:?}");
}

/// A bridge that reads another topic by mistake ends, and the messages that became dead letters get no second one.
#[tokio::test(start_paused = true)]
async fn a_topic_of_other_messages_ends_the_bridge() {
    let reference = Reference::beside(World::new().await).await;
    for _ in 0..20 {
        reference.produce(TRANSACTIONS, 1, vec![0xFF; 7]).await;
    }
    for (first, letters) in [(4, 4), (8, 8)] {
        let error = reference.run_to_the_end().await.unwrap_err().to_string();
        let expected = format!("{TRANSACTIONS}/1 offset {first}: 5 dead letters in a row");
        assert!(error.starts_with(&expected), "{error}");
        assert_eq!(reference.letters().await.len(), letters);
    }
    for _ in 0..20 {
        reference.produce(BLOCKS, 0, vec![0xFF; 7]).await;
    }
    for first in [4, 8] {
        let error = reference.until_refused().await.to_string();
        assert!(error.starts_with(&format!("{BLOCKS}/0 offset {first}: 5 dead letters in a row")), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn partitions_that_the_topic_gets_are_read_while_the_bridge_runs() {
    let reference = Reference::beside(World::new().await).await;
    let seed = reference.world.seed(10, 2).await;
    let payments: Vec<Made> = (0..2).map(|vout| spend(&[seed.coin(vout)], 1, 1)).collect();
    reference.validate(0, &payments[0].extended, 9).await;
    reference.validate(2, &payments[1].extended, 9).await;
    let broker = Arc::new(GrowingTopic { broker: reference.world.broker.clone(), added: AtomicBool::new(false) });
    let (mut transactions, _) = reference.bridges();
    transactions.broker = broker.clone();
    let shutdown = CancellationToken::new();
    let mut run = Box::pin(transactions.run(&shutdown));
    timeout(Duration::from_secs(30), &mut run).await.unwrap_err();
    assert_eq!(reference.heights().await, BTreeMap::from([(payments[0].txid, 9)]));
    broker.added.store(true, Relaxed);
    timeout(Duration::from_secs(15), &mut run).await.unwrap_err();
    assert_eq!(reference.heights().await.len(), 2);
    shutdown.cancel();
    timeout(Duration::from_secs(1), run).await.expect("the bridge ends in order").unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_was_created_again_is_refused() {
    let reference = Reference::beside(World::new().await).await;
    let seed = reference.world.seed(10, 4).await;
    let payments: Vec<Made> = (0..4).map(|vout| spend(&[seed.coin(vout)], 1, 1)).collect();
    reference.validate(0, &payments[0].extended, 9).await;
    let (transactions, _) = reference.bridges();
    let shutdown = CancellationToken::new();
    let mut run = Box::pin(transactions.run(&shutdown));
    timeout(Duration::from_secs(3), &mut run).await.unwrap_err();
    // The new topic is longer than the old one.
    let new = NewTopic { name: TRANSACTIONS.into(), partitions: PARTITIONS, config: vec![] };
    let at = TopicPartition { topic: TRANSACTIONS.into(), partition: 0 };
    let committed = reference.world.broker.committed("bridge", std::slice::from_ref(&at)).await.unwrap();
    reference.world.broker.recreate_topic(&new).unwrap();
    reference.validate(0, &payments[1].extended, 9).await;
    reference.validate(0, &payments[2].extended, 9).await;
    let error = timeout(Duration::from_secs(15), run).await.expect("the bridge ends").unwrap_err();
    assert!(matches!(error, BridgeError::Recreated { .. }), "{error}");
    // A broker that keeps the offsets of a deleted topic.
    let committed = committed[0].clone().unwrap();
    reference.world.broker.set_committed("bridge", &[(at.clone(), committed)]).await.unwrap();
    let (transactions, _) = reference.bridges();
    let error = transactions.run(&CancellationToken::new()).await.unwrap_err().to_string();
    assert!(error.contains("start with another --group"), "{error}");
    let mut other = transactions;
    other.group = "other".to_owned();
    timeout(Duration::from_secs(3), other.run(&CancellationToken::new())).await.unwrap_err();
    let heights = reference.heights().await;
    assert!(heights.contains_key(&payments[1].txid) && heights.contains_key(&payments[2].txid));
}

#[tokio::test(start_paused = true)]
async fn unfit_topics_are_refused() {
    let reference = Reference::beside(World::new().await).await;
    let refusal = async |change: &dyn Fn(&mut BlockBridge)| {
        let (_, mut blocks) = reference.bridges();
        change(&mut blocks);
        blocks.run(&CancellationToken::new()).await.unwrap_err().to_string()
    };
    assert!(refusal(&|blocks| blocks.topic = "none".into()).await.contains("topic `none` does not exist"));
    assert!(refusal(&|blocks| blocks.topic = TRANSACTIONS.into()).await.contains("has 3 partitions"));
    reference.world.produce("reorgs", b"", vec![1, 2, 3]).await;
    assert!(refusal(&|_| {}).await.contains("only the bridge may write to this topic"));
}

/// Kafka drops the offsets of a group without members after some days.
#[tokio::test(start_paused = true)]
async fn a_bridge_without_its_commits_repeats_no_block() {
    let mut reference = Reference::beside(World::new().await).await;
    let mut tip = [9; 32];
    for height in 1..=5 {
        tip = reference.finalize(tip, 100 + height, &coinbase(height), &[]).await;
    }
    reference.run_to_the_end().await.unwrap();
    let at = TopicPartition { topic: BLOCKS.into(), partition: 0 };
    let none = CommittedOffset { offset: 0, metadata: String::new() };
    reference.world.broker.set_committed("bridge", &[(at, none)]).await.unwrap();
    reference.finalize(tip, 106, &coinbase(6), &[]).await;
    reference.run_to_the_end().await.unwrap();
    assert_eq!(reference.published("block-mined").await.len(), 6);
}

/// The bridge as a process on Apache Kafka, killed and started again.
#[test]
fn a_killed_bridge_continues_on_kafka() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let [transactions, blocks, group] = ["reference-txs", "reference-blocks", "bridge"].map(|name| bench.topic(name));
    let new = |name: &str, partitions| NewTopic { name: name.to_owned(), partitions, config: vec![] };
    block_on(async { bench.broker().create_topics(&[new(&transactions, 2), new(&blocks, 1)]).await.unwrap() });
    let subtrees = bench.path("subtrees");
    fs::create_dir(&subtrees).unwrap();
    let place = format!("file://{}", subtrees.display());
    let address = bench.path("bridge-address");
    let mut arguments = vec!["bridge", "--transactions", &transactions, "--blocks", &blocks];
    arguments.extend(["--subtrees", &place, "--group", &group, "--http-address-file", address.to_str().unwrap()]);
    let start =
        |log: &str| bench.command(&arguments, &[]).stderr(fs::File::create(bench.path(log)).unwrap()).spawn().unwrap();
    let parent = World::partial(1, 200);
    let made: Vec<Made> = (0..200).map(|vout| spend(&[parent.coin(vout)], 1, 1)).collect();
    let produce = |messages: Vec<(&str, Vec<u8>)>| {
        let outgoing = messages.into_iter().zip(0..).map(|((topic, payload), number)| OutgoingMessage {
            topic: topic.to_owned(),
            partition: Some(if topic == blocks { 0 } else { number % 2 }),
            payload: payload.into(),
            ..OutgoingMessage::default()
        });
        let outgoing = outgoing.collect();
        block_on(async { bench.broker().producer().await.unwrap().produce_all(outgoing).await.unwrap() });
    };
    let validation = |made: &Made| {
        (transactions.as_str(), TxValidation { tx: made.extended.clone(), height: 9, options: None }.encode_to_vec())
    };
    let keys = || -> BTreeSet<Bytes> {
        (0..run::PARTITIONS)
            .flat_map(|number| bench.messages("validated-txs", number))
            .map(|message| message.key)
            .collect()
    };
    produce(made[..100].iter().map(validation).collect());
    let mut first = start("first.log");
    until("some transactions are forwarded", || !keys().is_empty());
    first.kill().unwrap();
    first.wait().unwrap();
    fs::remove_file(&address).unwrap();
    let coinbase = coinbase(1);
    let mut root = MerkleRoot::default();
    [coinbase.txid, made[0].txid].into_iter().for_each(|txid| root.push(txid));
    let subtree = encode_subtree([3; 32], &[COINBASE_NODE, made[0].txid.0], &[]);
    fs::create_dir(subtrees.join("03")).unwrap();
    let file = subtrees.join(format!("03/{}.subtree", Txid([3; 32])));
    fs::write(file, [b"S-1.0   ", &subtree[..]].concat()).unwrap();
    let block = block_message(&header([9; 32], root.finish().unwrap()), &[[3; 32]], &coinbase.extended, 1);
    produce(made[100..].iter().map(validation).chain([(blocks.as_str(), block)]).collect());
    let mut second = start("second.log");
    let ready = || {
        let address = fs::read_to_string(&address).unwrap_or_default();
        !address.is_empty() && run::get(address.trim(), "/health/ready").starts_with("HTTP/1.1 200")
    };
    until("the bridge is ready", ready);
    until("every transaction is forwarded", || keys().len() == made.len());
    until("the block is forwarded", || bench.messages("block-mined", 0).len() == 1);
    let metrics = run::get(fs::read_to_string(&address).unwrap().trim(), "/metrics");
    assert!(metrics.contains("\nutxo_bridge_block_events_total 1\n"), "{metrics}");
    let signalled = Command::new("kill").arg(second.id().to_string()).status().unwrap();
    assert!(signalled.success() && second.wait().unwrap().success(), "SIGTERM ends the bridge in order");
    let at = |topic: &String, partition| TopicPartition { topic: topic.as_str().into(), partition };
    let partitions = [at(&transactions, 0), at(&transactions, 1), at(&blocks, 0)];
    let committed = block_on(async { bench.broker().committed(&group, &partitions).await.unwrap() });
    let committed: Vec<u64> = committed.into_iter().flatten().map(|committed| committed.offset).collect();
    assert_eq!(committed, [100, 100, 1]);
}
